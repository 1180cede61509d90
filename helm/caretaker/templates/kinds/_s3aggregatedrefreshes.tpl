{{/* What S3AggregatedRefreshes need: see _rules.tpl. */}}

{{- define "caretaker.s3aggregatedrefreshes.cluster" }}{{ end }}

{{- define "caretaker.s3aggregatedrefreshes.watched" }}
# patch: the finalizer of onDelete: Flush.
- {apiGroups: [caretaker.dev], resources: [s3aggregatedrefreshes], verbs: [get, list, watch, patch]}
- {apiGroups: [caretaker.dev], resources: [s3aggregatedrefreshes/status], verbs: [patch]}
{{- end }}

{{- define "caretaker.s3aggregatedrefreshes.own" }}{{ end }}

{{- define "caretaker.s3aggregatedrefreshes.people" }}{{ end }}
