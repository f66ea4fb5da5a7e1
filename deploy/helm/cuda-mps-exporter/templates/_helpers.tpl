{{- define "labels" -}}
app.kubernetes.io/name: {{ .Chart.Name | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}
{{- /* Whether the exporter uses the API server. */}}
{{- define "usesApiServer" -}}
{{- or .Values.restartPods.namespaces .Values.podMetricLabels | empty | not }}
{{- end }}
{{- /* The capabilities of the process. */}}
{{- define "capabilities" -}}
{{- $all := list "SYS_PTRACE" }}
{{- if eq .Values.gpuAccess "privileged" }}{{ $all = append $all "SYSLOG" }}{{ end }}
{{- if .Values.attribution.enabled }}{{ $all = concat $all .Values.attribution.capabilities }}{{ end }}
{{- toJson $all }}
{{- end }}
