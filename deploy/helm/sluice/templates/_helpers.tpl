{{- define "sluice.name" -}}
{{- $name := .Release.Name }}
{{- if not (contains "sluice" $name) }}{{ $name = printf "%s-sluice" $name }}{{ end }}
{{- .Values.fullnameOverride | default $name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "sluice.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "sluice.selector" -}}
app.kubernetes.io/name: sluice
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* metadata of the object NAME: include "sluice.metadata" (list . NAME) */}}
{{- define "sluice.metadata" -}}
{{- $ := index . 0 -}}
name: {{ index . 1 }}
namespace: {{ $.Release.Namespace }}
labels:
  {{- include "sluice.selector" $ | nindent 2 }}
  app.kubernetes.io/version: {{ $.Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ $.Release.Service }}
  helm.sh/chart: {{ printf "%s-%s" $.Chart.Name $.Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "sluice.secret" -}}
{{ .Values.secret.existing | default (printf "%s-secret" (include "sluice.name" .)) }}
{{- end }}
{{- define "sluice.rules" -}}
{{ .Values.existingRules | default (printf "%s-rules" (include "sluice.name" .)) }}
{{- end }}
{{- define "sluice.callers" -}}
{{ .Values.existingCallers | default (printf "%s-callers" (include "sluice.name" .)) }}
{{- end }}
{{- define "sluice.apisTLS" -}}
{{ .Values.tls.existingAPIsSecret | default (printf "%s-apis-tls" (include "sluice.name" .)) }}
{{- end }}
{{- define "sluice.nodesTLS" -}}
{{ .Values.tls.existingNodesSecret | default (printf "%s-nodes-tls" (include "sluice.name" .)) }}
{{- end }}

{{- /* the ports between nodes, of a network policy */}}
{{- define "sluice.nodePorts" -}}
- {port: 7462, protocol: TCP}
- {port: 7463, protocol: TCP}
- {port: 7463, protocol: UDP}
{{- end }}
