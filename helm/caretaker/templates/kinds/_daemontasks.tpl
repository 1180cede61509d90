{{/* What DaemonTasks need: see _rules.tpl. */}}

{{- define "caretaker.daemontasks.cluster" }}
# get: to be sure before a second run, where a node seems to have been replaced, rebooted or deleted.
- {apiGroups: [""], resources: [nodes], verbs: [get, list, watch]}
{{- if or .Values.nodeGate.enabled .Values.drain.enabled }}
# For spec.nodeGate and spec.drain. The admission policy allows no more than to remove its taints, and its own cordons.
- {apiGroups: [""], resources: [nodes], verbs: [patch]}
{{- end }}
{{- if .Values.drain.enabled }}
# For spec.drain: the pods of a node, in all namespaces.
- {apiGroups: [""], resources: [pods], verbs: [list]}
- {apiGroups: [""], resources: [pods/eviction], verbs: [create]}
# To cordon no node without the two rights above.
- {apiGroups: [authorization.k8s.io], resources: [selfsubjectaccessreviews], verbs: [create]}
{{- end }}
{{- end }}

{{- define "caretaker.daemontasks.watched" }}
- {apiGroups: [caretaker.dev], resources: [daemontasks], verbs: [get, list, watch]}
- {apiGroups: [caretaker.dev], resources: [daemontasks/status], verbs: [patch]}
- {apiGroups: [""], resources: [pods], verbs: [get, list, watch, create, delete]}
# The ledgers: which node has run.
- {apiGroups: [""], resources: [configmaps], verbs: [get, list, create, patch]}
{{- end }}

{{- define "caretaker.daemontasks.own" }}{{ end }}

{{- define "caretaker.daemontasks.people" }}{{ end }}
