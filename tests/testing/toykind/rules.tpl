{{/* What PoolStamps need: see _rules.tpl. */}}

{{- define "caretaker.poolstamps.cluster" }}
{{- if not (or .Values.kinds.daemonTask.enabled .Values.kinds.imdsPolicy.enabled) }}
- {apiGroups: [""], resources: [nodes], verbs: [list, watch]}
{{- end }}
{{- end }}

{{- define "caretaker.poolstamps.watched" }}
- {apiGroups: [caretaker.dev], resources: [poolstamps], verbs: [get, list, watch]}
- {apiGroups: [caretaker.dev], resources: [poolstamps/status], verbs: [patch]}
- {apiGroups: [""], resources: [configmaps], verbs: [list, create, delete]}
{{- end }}

{{- define "caretaker.poolstamps.own" }}{{ end }}

{{- define "caretaker.poolstamps.people" }}{{ end }}
