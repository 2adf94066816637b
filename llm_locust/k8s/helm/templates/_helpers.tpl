{{- define "llm-locust.fullname" -}}
{{- $own := .Values.nameOverride | default "llm-locust" -}}
{{- $name := .Release.Name -}}
{{- if not (contains $own $name) }}{{ $name = printf "%s-%s" $name $own }}{{ end -}}
{{- .Values.fullnameOverride | default $name | trunc 36 | trimSuffix "-" -}}
{{- end }}

{{- /* Jobs are immutable: each revision of a release is a run of its own. */ -}}
{{- define "llm-locust.run" -}}
{{- if has .Values.mode (list "nightly" "soak") -}}
{{- include "llm-locust.fullname" . -}}
{{- else -}}
{{- printf "%s-%s" (include "llm-locust.fullname" .) (.Values.run | default (toString .Release.Revision)) -}}
{{- end -}}
{{- end }}

{{- define "llm-locust.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
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

{{- /* A ConfigMap, and a release's values, can be read by many: no key may stand there. */ -}}
{{- define "llm-locust.refuseKeys" -}}
{{- $key := include "llm-locust.keyName" . -}}
{{- $load := .Values.scenario | fromYaml -}}
{{- $given := list ($load.header | default list) (get .Values.options "LLM_LOCUST_HEADER" | default "") -}}
{{- $names := list -}}
{{- range $given }}{{ range (kindIs "slice" . | ternary . (list .)) -}}
{{- $start := toString . | hasPrefix "[" | ternary `[\[,] *["']?` `^ *` -}}
{{- range regexFindAll (printf "%s[A-Za-z0-9-]+ *=" $start) (toString .) -1 -}}
{{- $names = append $names (trimAll `[,"'= ` .) -}}
{{- end -}}
{{- end }}{{ end -}}
{{- range (list $load.classes $load.arms) }}{{ range . }}{{ if kindIs "map" . }}{{ range $name, $_ := .headers -}}
{{- $names = append $names $name -}}
{{- end }}{{ end }}{{ end }}{{ end -}}
{{- range $names }}{{ if regexMatch $key . -}}
{{- fail (printf "the header %s would be in a ConfigMap, which others can read: name the Secret with the key by apiKey.existingSecret" .) -}}
{{- end }}{{ end -}}
{{- range .Values.extraEnv }}{{ if and .value (or (regexMatch $key .name) (hasSuffix "_HEADERS" .name)) -}}
{{- fail (printf "extraEnv: %s would be in the manifests, which others can read: put it into a Secret and name that by extraEnvFrom" .name) -}}
{{- end }}{{ end -}}
{{- end }}

{{- define "llm-locust.load" -}}
{{- include "llm-locust.refuseKeys" . -}}
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
