{{- define "llm-locust.fullname" -}}
{{- $name := .Release.Name -}}
{{- if not (contains "llm-locust" $name) }}{{ $name = printf "%s-llm-locust" $name }}{{ end -}}
{{- .Values.fullnameOverride | default $name | trunc 36 | trimSuffix "-" -}}
{{- end }}

{{- /* Jobs are immutable: each revision of a release is a run of its own. */ -}}
{{- define "llm-locust.run" -}}
{{- if eq .Values.mode "soak" -}}
{{- include "llm-locust.fullname" . -}}
{{- else -}}
{{- printf "%s-%s" (include "llm-locust.fullname" .) (.Values.run | default (toString .Release.Revision)) -}}
{{- end -}}
{{- end }}

{{- define "llm-locust.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "llm-locust.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "llm-locust.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end }}

{{- define "llm-locust.image" -}}
{{- with .Values.image.digest -}}
{{- printf "%s@%s" $.Values.image.repository . -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end }}

{{- define "llm-locust.options" -}}
{{- $given := dict -}}
{{- range $name, $value := .Values.options -}}
{{- $_ := set $given $name (kindIs "float64" $value | ternary (printf "%d" (int64 $value)) (toString $value)) -}}
{{- end -}}
{{- $set := dict "LOCUST_EXPECT_WORKERS" (printf "%d" (int .Values.workers)) -}}
{{- with .Values.target }}{{ $_ := set $set "LOCUST_HOST" . }}{{ end -}}
{{- if .Values.apiKey.existingSecret }}{{ $_ := set $set "LLM_LOCUST_API_KEY_ENV" "API_KEY" }}{{ end -}}
{{- with .Values.upload.to }}{{ $_ := set $set "LLM_LOCUST_UPLOAD" . }}{{ end -}}
{{- if and (eq .Values.mode "soak") .Values.run }}{{ $_ := set $set "LLM_LOCUST_OUT" (printf "/runs/%s" .Values.run) }}{{ end -}}
{{- $own := include (printf "llm-locust.options.%s" .Values.mode) . | fromYaml -}}
{{- toYaml (merge $given $set $own) -}}
{{- end }}

{{- define "llm-locust.load" -}}
{{- $own := .Files.Get (printf "files/%s/locustfile.py" .Values.mode) -}}
{{- $load := dict "scenario.yaml" .Values.scenario "locustfile.py" (.Values.locustfile | default $own) -}}
{{- range $path, $text := .Values.files }}{{ $_ := set $load (replace "/" "__" $path) $text }}{{ end -}}
{{- toYaml $load -}}
{{- end }}

{{- define "llm-locust.items" -}}
{{- with .Values.files -}}
items:
- {key: scenario.yaml, path: scenario.yaml}
- {key: locustfile.py, path: locustfile.py}
{{- range $path, $_ := . }}
- {key: {{ replace "/" "__" $path | quote }}, path: {{ $path | quote }}}
{{- end }}
{{- end -}}
{{- end }}
