{{- define "underclock.labels" -}}
app.kubernetes.io/name: underclock
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "underclock.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}
