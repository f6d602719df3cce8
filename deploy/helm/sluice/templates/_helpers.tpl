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

{{- /* the list of regions, as the flag has it */}}
{{- define "sluice.regions" -}}
{{- $list := list }}
{{- range $region, $addresses := .Values.regions }}{{ $list = append $list (printf "%s=%s" $region (join "," $addresses)) }}{{ end }}
{{- join "," $list }}
{{- end }}

{{- /* the weights of regions, as the flag has them */}}
{{- define "sluice.regionWeights" -}}
{{- $list := list }}
{{- range $region, $weight := .Values.regionWeights }}{{ $list = append $list (printf "%s=%d" $region (int $weight)) }}{{ end }}
{{- join "," $list }}
{{- end }}

{{- define "sluice.checkRegions" -}}
{{- $region := .Values.region }}
{{- $others := omit .Values.regions $region }}
{{- if and .Values.regions (not $region) }}
{{- fail "region is missing beside regions: which of them this cluster is" }}
{{- end }}
{{- if and $region (not $others) }}
{{- fail (printf "regions names no region but this one, %s: give the addresses of the others, or leave region empty" $region) }}
{{- end }}
{{- range $weighed, $_ := .Values.regionWeights }}
{{- if and (ne $weighed $region) (not (hasKey $others $weighed)) }}
{{- fail (printf "regionWeights: regions has no %s" $weighed) }}
{{- end }}
{{- end }}
{{- $seen := dict }}
{{- range $other, $addresses := $others }}
{{- range $addresses }}
{{- $host := splitList ":" . | first }}
{{- if has $host (list "localhost" "127.0.0.1" (printf "%s-peers" (include "sluice.name" $)) (printf "%s-regions" (include "sluice.name" $))) }}
{{- fail (printf "regions.%s: %s is this cluster itself; give the address by which it reaches the Service %s-regions there" $other . (include "sluice.name" $)) }}
{{- end }}
{{- if and (hasKey $seen .) (ne (get $seen .) $other) }}
{{- fail (printf "regions: %s is given for %s and again for %s" . (get $seen .) $other) }}
{{- end }}
{{- $_ := set $seen . $other }}
{{- if has . (get $.Values.regions $region | default list) }}
{{- fail (printf "regions.%s: %s is also an address of this region, %s" $other . $region) }}
{{- end }}
{{- end }}
{{- end }}
{{- $without := regexMatch "(^|,)region-tls(,|$)" (get .Values.settings "insecure" | default "") }}
{{- if and $region (not $without) (or (not .Values.tls.enabled) (ne (get .Values.settings "peer-tls" | default "require") "require")) }}
{{- fail "region needs tls.enabled, and no settings.peer-tls but require: connections to other regions cross networks (settings.insecure: region-tls does without)" }}
{{- end }}
{{- end }}
