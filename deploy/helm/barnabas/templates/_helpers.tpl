{{- define "barnabas.name" -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- define "barnabas.labels" -}}
app.kubernetes.io/name: barnabas
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}
{{- define "barnabas.selector" -}}
app.kubernetes.io/name: barnabas
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "barnabas.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}
{{- define "barnabas.zookeeper" -}}
{{ .Values.zookeeper.connect | default (printf "%s-zookeeper:2181" (include "barnabas.name" .)) }}
{{- end }}
{{/* A setting's name as a variable, as the image maps it: log.dirs is KAFKA_LOG_DIRS. */}}
{{- define "barnabas.variable" -}}
KAFKA_{{ . | replace "_" "__" | replace "-" "___" | replace "." "_" | upper }}
{{- end }}
{{- define "barnabas.container-security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
{{- end }}
{{- define "barnabas.pod-security" -}}
runAsUser: 1000
runAsGroup: 1000
fsGroup: 1000
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}
