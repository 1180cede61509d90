{{/* What the operator needs, in three parts. Nothing in a rule serves a kind that is switched off. */}}

{{/* Of the API without namespaces. */}}
{{- define "caretaker.rules.cluster" -}}
{{- if .Values.metrics.authentication }}
# For the authentication and authorization of requests for metrics.
- {apiGroups: [authentication.k8s.io], resources: [tokenreviews], verbs: [create]}
- {apiGroups: [authorization.k8s.io], resources: [subjectaccessreviews], verbs: [create]}
{{- end }}
{{- if .Values.kinds.daemonTask.enabled }}
# get: to be sure before a second run, where a node seems to have been replaced, rebooted or deleted.
- {apiGroups: [""], resources: [nodes], verbs: [get, list, watch]}
{{- else if .Values.kinds.imdsPolicy.enabled }}
- {apiGroups: [""], resources: [nodes], verbs: [list, watch]}
{{- end }}
{{- if .Values.kinds.imdsPolicy.enabled }}
- {apiGroups: [caretaker.dev], resources: [imdspolicies], verbs: [get, list, watch]}
- {apiGroups: [caretaker.dev], resources: [imdspolicies/status], verbs: [patch]}
# With Karpenter: what launches the next nodes.
- {apiGroups: [karpenter.k8s.aws], resources: [ec2nodeclasses], verbs: [list]}
{{- end }}
{{- end }}

{{/* In all namespaces, or in the one that is watched. */}}
{{- define "caretaker.rules.watched" -}}
{{- if .Values.kinds.daemonTask.enabled }}
- {apiGroups: [caretaker.dev], resources: [daemontasks], verbs: [get, list, watch]}
- {apiGroups: [caretaker.dev], resources: [daemontasks/status], verbs: [patch]}
- {apiGroups: [""], resources: [pods], verbs: [get, list, watch, create, delete]}
# The ledgers: which node has run.
- {apiGroups: [""], resources: [configmaps], verbs: [get, list, create, patch]}
{{- end }}
{{- if .Values.kinds.s3AggregatedRefresh.enabled }}
# patch: the finalizer of onDelete: Flush.
- {apiGroups: [caretaker.dev], resources: [s3aggregatedrefreshes], verbs: [get, list, watch, patch]}
- {apiGroups: [caretaker.dev], resources: [s3aggregatedrefreshes/status], verbs: [patch]}
{{- end }}
{{- if or .Values.kinds.daemonTask.enabled .Values.kinds.s3AggregatedRefresh.enabled }}
- {apiGroups: [""], resources: [events], verbs: [create]}
{{- end }}
{{- end }}

{{/* In the operator's own namespace. */}}
{{- define "caretaker.rules.own" -}}
# Nothing that is created can be bound by its name.
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [create]}
- {apiGroups: [coordination.k8s.io], resources: [leases], resourceNames: [{{ include "caretaker.name" . | quote }}], verbs: [get, patch]}
{{- $here := or (not .Values.watchNamespace) (eq .Values.watchNamespace .Release.Namespace) }}
{{- if and .Values.kinds.imdsPolicy.enabled .Values.kinds.daemonTask.enabled $here }}
# IMDSPolicy's probe, which runs where DaemonTasks of this namespace do.
- {apiGroups: [caretaker.dev], resources: [daemontasks], verbs: [create]}
- {apiGroups: [caretaker.dev], resources: [daemontasks], resourceNames: [caretaker-imds-probe], verbs: [patch, delete]}
{{- end }}
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
