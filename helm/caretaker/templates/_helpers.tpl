{{/* The name of all objects: the release's; another chart's release gets ours appended. */}}
{{- define "caretaker.name" -}}
{{- if contains "caretaker" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}{{ printf "%s-caretaker" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{/* The name of objects without a namespace. Operators of one namespace each may stand side by side. */}}
{{- define "caretaker.clusterName" -}}
{{- if .Values.watchNamespace }}{{ include "caretaker.name" . }}-{{ .Release.Namespace }}
{{- else }}{{ include "caretaker.name" . }}{{ end }}
{{- end }}

{{- define "caretaker.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ .Values.serviceAccount.name | default (include "caretaker.name" .) }}
{{- else }}{{ required "serviceAccount.name: needed where serviceAccount.create is false" .Values.serviceAccount.name }}{{ end }}
{{- end }}

{{- define "caretaker.selector" -}}
app.kubernetes.io/name: caretaker
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "caretaker.labels" -}}
{{ include "caretaker.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* An image with the chart's version unless the values say otherwise. Argument: (list values-of-the-image .) */}}
{{- define "caretaker.image" -}}
{{- $image := index . 0 }}{{- $chart := (index . 1).Chart -}}
{{ $image.repository }}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $image.tag | default $chart.AppVersion }}{{ end }}
{{- end }}

{{/* The enabled kinds, as JSON for fromJson: .kinds, as in files/kinds.yaml. */}}
{{- define "caretaker.enabledKinds" -}}
{{- $kinds := list }}
{{- range (.Files.Get "files/kinds.yaml" | fromYaml).kinds }}
{{- if (index $.Values.kinds .switch).enabled }}{{ $kinds = append $kinds . }}{{ end }}
{{- end }}
{{- if not $kinds }}{{ fail "kinds: at least one must be enabled" }}{{ end }}
{{- dict "kinds" $kinds | toJson }}
{{- end }}

{{/* The plurals of the enabled kinds, by comma. */}}
{{- define "caretaker.kinds" -}}
{{- $plurals := list }}
{{- range (include "caretaker.enabledKinds" . | fromJson).kinds }}{{ $plurals = append $plurals .plural }}{{ end }}
{{- join "," $plurals }}
{{- end }}

{{- define "caretaker.priorityClass" -}}
{{- if .Values.priorityClass.create }}{{ .Values.priorityClass.name | default (include "caretaker.clusterName" .) }}
{{- else }}{{ .Values.priorityClass.name | default "" }}{{ end }}
{{- end }}

{{/* An empty list is a setting as well: it grants nothing to anybody. */}}
{{- define "caretaker.hasIdentities" -}}
{{- if not (kindIs "invalid" .Values.aws.identities) }}true{{ end }}
{{- end }}

{{/* In CEL, whether DaemonTasks run pods in the namespace of a request. Values come through patterns of the schema, so they
cannot end a string. */}}
{{- define "caretaker.inTaskNamespace" -}}
{{- with .Values.watchNamespace }}request.namespace == '{{ . }}'
{{- else }}
{{- $asked := .Values.taskNamespaces }}
{{- $names := concat (list .Release.Namespace) ($asked.names | default list) | uniq }}
{{- $others := list "!(request.namespace in ['kube-system', 'kube-public', 'kube-node-lease'])" }}
{{- range $key, $value := $asked.labels }}
{{- $others = append $others (printf "namespaceObject.metadata.?labels[?'%s'] == optional.of('%s')" $key $value) }}
{{- end -}}
(request.namespace in ['{{ join "', '" $names }}']
{{- if or $asked.labels (not $asked.names) }} || ({{ join " && " $others }}){{ end }})
{{- end }}
{{- end }}

{{- define "caretaker.notInTaskNamespace" -}}
DaemonTasks run no pods in this namespace: taskNamespaces of caretaker's chart has to name it, or a label of it
{{- end }}
