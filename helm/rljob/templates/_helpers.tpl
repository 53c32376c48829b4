{{/* Stem of all names: the release's, with "rljob" in it. Leaves room for the longest suffix. */}}
{{- define "rljob.fullname" -}}
{{- $stem := .Release.Name -}}
{{- if not (contains "rljob" $stem) }}{{ $stem = printf "%s-rljob" $stem }}{{ end -}}
{{- .Values.fullnameOverride | default $stem | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "rljob.operator" -}}
{{ include "rljob.fullname" . }}-operator
{{- end }}

{{- define "rljob.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (.Values.serviceAccount.create | ternary (include "rljob.operator" .) "default") -}}
{{- end }}

{{/* Labels of an object. Call with (dict "root" $ "component" "operator"). */}}
{{- define "rljob.labels" -}}
{{ include "rljob.selector" . }}
app.kubernetes.io/part-of: rljob
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Labels that never change. Network policies of jobs know the operator by name and component. */}}
{{- define "rljob.selector" -}}
app.kubernetes.io/name: rljob
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* Name of an image. Call with (dict "root" $ "image" .Values.image.operator). */}}
{{- define "rljob.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* What Pod Security's profile "restricted" asks of a pod, and of its containers. */}}
{{- define "rljob.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "rljob.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}
