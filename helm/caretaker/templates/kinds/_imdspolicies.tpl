{{/* What IMDSPolicies need: see _rules.tpl. */}}

{{- define "caretaker.imdspolicies.cluster" }}
{{- if not .Values.kinds.daemonTask.enabled }}
- {apiGroups: [""], resources: [nodes], verbs: [list, watch]}
{{- end }}
- {apiGroups: [caretaker.dev], resources: [imdspolicies], verbs: [get, list, watch]}
- {apiGroups: [caretaker.dev], resources: [imdspolicies/status], verbs: [patch]}
# With Karpenter: what launches the next nodes.
- {apiGroups: [karpenter.k8s.aws], resources: [ec2nodeclasses], verbs: [list]}
{{- end }}

{{- define "caretaker.imdspolicies.watched" }}{{ end }}

{{- define "caretaker.imdspolicies.own" }}
{{- $here := or (not .Values.watchNamespace) (eq .Values.watchNamespace .Release.Namespace) }}
{{- if and .Values.kinds.daemonTask.enabled $here }}
# IMDSPolicy's probe, which runs where DaemonTasks of this namespace do.
- {apiGroups: [caretaker.dev], resources: [daemontasks], verbs: [create]}
- {apiGroups: [caretaker.dev], resources: [daemontasks], resourceNames: [caretaker-imds-probe], verbs: [patch, delete]}
{{- end }}
{{- end }}

{{- define "caretaker.imdspolicies.people" }}
# Not aggregated: policies change nodes of the whole cluster.
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: "{{ include "caretaker.clusterName" . }}-imds-admin"
  labels: {{- include "caretaker.labels" . | nindent 4 }}
rules:
  - {apiGroups: [caretaker.dev], resources: [imdspolicies], verbs: [get, list, watch, create, update, patch, delete]}
  # caretaker plan
  - {apiGroups: [""], resources: [nodes], verbs: [get, list, watch]}
  - {apiGroups: [karpenter.k8s.aws], resources: [ec2nodeclasses], verbs: [list]}
---
{{- end }}
