{{/* What the operator needs, in three parts: what serves every kind, and each enabled kind's own, which is in
kinds/_<plural>.tpl. It defines caretaker.<plural>.cluster, .watched and .own, and .people: ClusterRoles for people beyond view and
edit. */}}

{{/* Argument: (list part .). */}}
{{- define "caretaker.ofKinds" -}}
{{- $part := index . 0 }}{{- $root := index . 1 }}
{{- range (include "caretaker.enabledKinds" $root | fromJson).kinds }}
{{- include (printf "caretaker.%s.%s" .plural $part) $root }}
{{- end }}
{{- end }}

{{/* Of the API without namespaces. */}}
{{- define "caretaker.rules.cluster" -}}
{{- if .Values.metrics.authentication }}
# For the authentication and authorization of requests for metrics.
- {apiGroups: [authentication.k8s.io], resources: [tokenreviews], verbs: [create]}
- {apiGroups: [authorization.k8s.io], resources: [subjectaccessreviews], verbs: [create]}
{{- end }}
{{- include "caretaker.ofKinds" (list "cluster" .) }}
{{- end }}

{{/* In all namespaces, or in the one that is watched. */}}
{{- define "caretaker.rules.watched" -}}
{{- with include "caretaker.ofKinds" (list "watched" .) }}
{{- . }}
- {apiGroups: [""], resources: [events], verbs: [create]}
{{- end }}
{{- end }}

{{/* In the operator's own namespace. */}}
{{- define "caretaker.rules.own" -}}
# Nothing that is created can be bound by its name.
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [create]}
- {apiGroups: [coordination.k8s.io], resources: [leases], resourceNames: [{{ include "caretaker.name" . | quote }}], verbs: [get, patch]}
{{- include "caretaker.ofKinds" (list "own" .) }}
{{- end }}

{{/* A role and its binding. Argument: (list kind name namespace rules .); namespace "" for a ClusterRole. */}}
{{- define "caretaker.bound" -}}
{{- $kind := index . 0 }}{{- $name := index . 1 }}{{- $namespace := index . 2 }}{{- $rules := index . 3 }}
{{- $root := index . 4 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}
metadata:
  name: {{ $name | quote }}
  {{- with $namespace }}
  namespace: {{ . | quote }}
  {{- end }}
  labels: {{- include "caretaker.labels" $root | nindent 4 }}
rules:
  {{- $rules | trim | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}Binding
metadata:
  name: {{ $name | quote }}
  {{- with $namespace }}
  namespace: {{ . | quote }}
  {{- end }}
  labels: {{- include "caretaker.labels" $root | nindent 4 }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: {{ $kind }}, name: {{ $name | quote }}}
subjects:
  - {kind: ServiceAccount, name: {{ include "caretaker.serviceAccount" $root | quote }}, namespace: {{ $root.Release.Namespace | quote }}}
{{ end }}
