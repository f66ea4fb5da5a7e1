{{- define "cuda-mps-exporter.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "cuda-mps-exporter.fullname" -}}
{{- $name := include "cuda-mps-exporter.name" . }}
{{- $full := contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) }}
{{- .Values.fullnameOverride | default $full | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "cuda-mps-exporter.namespace" -}}
{{- .Values.namespaceOverride | default .Release.Namespace }}
{{- end }}

{{- /* The name of objects outside the namespace. Another namespace can have a release of the same name. */}}
{{- define "cuda-mps-exporter.outside" -}}
{{- printf "%s-%s" (include "cuda-mps-exporter.namespace" .) (include "cuda-mps-exporter.fullname" .) }}
{{- end }}

{{- define "cuda-mps-exporter.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "cuda-mps-exporter.fullname" .) }}
{{- end }}

{{- define "cuda-mps-exporter.subjects" -}}
- kind: ServiceAccount
  name: {{ include "cuda-mps-exporter.serviceAccount" . | quote }}
  namespace: {{ include "cuda-mps-exporter.namespace" . | quote }}
{{- end }}

{{- /* The name of the pod of helm test: another one, because the selector labels are those of the exporter's pods. */}}
{{- define "cuda-mps-exporter.testName" -}}
{{- printf "%s-test" (include "cuda-mps-exporter.name" . | trunc 58 | trimSuffix "-") }}
{{- end }}

{{- /* They never change, because a cluster refuses another selector of a DaemonSet. */}}
{{- define "cuda-mps-exporter.selectorLabels" -}}
app.kubernetes.io/name: {{ include "cuda-mps-exporter.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- /* Whether the exporter uses the API server. */}}
{{- define "cuda-mps-exporter.usesApiServer" -}}
{{- or .Values.restartPods.namespaces .Values.podMetricLabels | empty | not }}
{{- end }}

{{- /* The values as strings, because a cluster refuses labels, annotations and variables that are numbers. */}}
{{- define "cuda-mps-exporter.strings" -}}
{{- $all := dict }}
{{- range $key, $value := . }}
{{- $_ := set $all $key (kindIs "string" $value | ternary $value (toJson $value)) }}
{{- end }}
{{- toYaml $all }}
{{- end }}

{{- /* The labels of an object: (list $ others). Neither others nor commonLabels can replace the standard labels. */}}
{{- define "cuda-mps-exporter.labels" -}}
{{- $root := index . 0 }}
{{- $all := include "cuda-mps-exporter.selectorLabels" $root | fromYaml }}
{{- $_ := set $all "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" | trunc 63) }}
{{- $_ := set $all "app.kubernetes.io/version" $root.Chart.AppVersion }}
{{- $_ := set $all "app.kubernetes.io/managed-by" $root.Release.Service }}
{{- range rest . }}
{{- $all = merge $all (. | default dict) }}
{{- end }}
{{- include "cuda-mps-exporter.strings" (merge $all ($root.Values.commonLabels | default dict)) }}
{{- end }}

{{- define "cuda-mps-exporter.image" -}}
{{- with .Values.image }}
{{- if not .repository }}
{{- $tag := .tag | default $.Chart.AppVersion }}
{{- fail (printf `

image.repository is not set, and no image is published. In a clone of the project, build one and push it:

  podman build -f deploy/Containerfile -t your.registry/cuda-mps-exporter:%s .
  podman push your.registry/cuda-mps-exporter:%s

Then give helm its name:

  --set image.repository=your.registry/cuda-mps-exporter
` $tag $tag) }}
{{- end }}
{{- with $.Values.global.imageRegistry }}{{ . }}/{{ end }}{{ .repository }}{{ with .digest }}@{{ . }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{- /* Other charts allow names of Secrets under global. */}}
{{- define "cuda-mps-exporter.imagePullSecrets" -}}
{{- $all := list }}
{{- range concat (.Values.global.imagePullSecrets | default list) (.Values.imagePullSecrets | default list) }}
{{- $all = append $all (kindIs "string" . | ternary (dict "name" .) .) }}
{{- end }}
{{- toYaml $all }}
{{- end }}

{{- define "cuda-mps-exporter.scheme" -}}
{{- .Values.web.tls | ternary "https" "http" }}
{{- end }}

{{- /* (list $ page values): how the kubelet checks a page. It has no certificate and no password: then, the port. */}}
{{- define "cuda-mps-exporter.probe" -}}
{{- $root := index . 0 }}
{{- $get := dict "httpGet" (dict "path" (index . 1) "port" "metrics" "scheme" (include "cuda-mps-exporter.scheme" $root | upper)) }}
{{- $check := $root.Values.web.authenticated | ternary (dict "tcpSocket" (dict "port" "metrics")) $get }}
{{- toYaml (mergeOverwrite $check (index . 2)) }}
{{- end }}

{{- /* The endpoint of a PodMonitor or a ServiceMonitor: (list $ values). The alerts use this job name instead of the
name of the object. They name the node, because the address of a pod can change. The exporter's own pod is no label:
otherwise each rollout would end all series and open alerts. The label client_pod has the pod of a client. */}}
{{- define "cuda-mps-exporter.endpoint" -}}
{{- $root := index . 0 }}
{{- $monitor := index . 1 }}
{{- $all := dict "port" "metrics" "scheme" (include "cuda-mps-exporter.scheme" $root) }}
{{- range $key := list "tlsConfig" "basicAuth" }}
{{- with get $root.Values.web $key }}{{ $_ := set $all $key (deepCopy .) }}{{ end }}
{{- end }}
{{- range $key := list "interval" "scrapeTimeout" "metricRelabelings" }}
{{- with get $monitor $key }}{{ $_ := set $all $key . }}{{ end }}
{{- end }}
{{- $node := "__meta_kubernetes_pod_node_name" }}
{{- $_ := set $all "relabelings" (concat (list
  (dict "targetLabel" "job" "replacement" "cuda-mps-exporter")
  (dict "targetLabel" "node" "sourceLabels" (list $node))
  (dict "targetLabel" "instance" "sourceLabels" (list $node "__meta_kubernetes_pod_container_port_number") "separator" ":")
  (dict "action" "labeldrop" "regex" "pod|container|endpoint|service")
) $monitor.relabelings) }}
{{- toYaml (mergeOverwrite $all $monitor.endpoint) }}
{{- end }}

{{- /* The capabilities of the process. */}}
{{- define "cuda-mps-exporter.capabilities" -}}
{{- $all := list "SYS_PTRACE" }}
{{- if eq .Values.gpuAccess "privileged" }}{{ $all = append $all "SYSLOG" }}{{ end }}
{{- if .Values.attribution.enabled }}{{ $all = concat $all .Values.attribution.capabilities }}{{ end }}
{{- toJson $all }}
{{- end }}
