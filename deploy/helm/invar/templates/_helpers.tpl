{{- define "invar.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "invar.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "invar.labels" -}}
{{ include "invar.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* serve.yaml. Names inside the cluster are allowed without a key too. */}}
{{- define "invar.config" -}}
{{- $name := include "invar.name" . }}
{{- $fixed := dict "model" (printf "/models/%s" .Values.model.path) "host" "0.0.0.0" "port" 8000 }}
{{- $hosts := dict "allowed-hosts" (list $name (printf "%s.%s" $name .Release.Namespace) (printf "%s.%s.svc" $name .Release.Namespace) (printf "%s.%s.svc.cluster.local" $name .Release.Namespace) .Values.ingress.host) }}
{{- $keys := dict }}
{{- if .Values.existingSecret }}{{ $_ := set $keys "api-key-file" "/etc/invar/secret/keys" }}{{ end }}
{{- if and .Values.existingSecret .Values.adminKeys }}{{ $_ := set $keys "admin-api-key-file" "/etc/invar/secret/admin-keys" }}{{ end }}
{{- toYaml (mergeOverwrite $hosts (deepCopy .Values.config) $fixed $keys) }}
{{- end }}
