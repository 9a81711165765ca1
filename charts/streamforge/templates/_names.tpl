{{/* Names and labels. Objects have fixed names: one release per namespace. */}}

{{- define "streamforge.labels" -}}
{{ include "streamforge.selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "streamforge.selector" -}}
app.kubernetes.io/name: streamforge
app.kubernetes.io/component: operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "streamforge.account" -}}
{{ .Values.serviceAccount.name | default "streamforge-operator" }}
{{- end }}

{{/* What belongs to the whole cluster names its release's namespace: there may be several. */}}
{{- define "streamforge.clusterName" -}}
{{ .Release.Namespace }}:streamforge-operator
{{- end }}

{{- define "streamforge.priorityClass" -}}
{{ .Values.priorityClass.name | default (.Values.priorityClass.create | ternary (printf "%s-streamforge-operator" .Release.Namespace) "") }}
{{- end }}

{{- define "streamforge.tag" -}}
{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "streamforge.webhook" -}}
{{ .Release.Namespace }}.streamforge-operator
{{- end }}
