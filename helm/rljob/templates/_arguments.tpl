{{/* The operator's command line. Each is quoted as a whole: a value with a comma or a colon is still one. */}}
{{- define "rljob.arguments" -}}
- {{ printf "--runtime-image=%s" (include "rljob.image" (dict "root" $ "image" .Values.image.runtime)) | quote }}
- {{ printf "--ascend-image=%s" (include "rljob.image" (dict "root" $ "image" .Values.image.ascend)) | quote }}
- {{ printf "--ray-version=%s" .Values.jobs.rayVersion | quote }}
- {{ printf "--operator-namespace=%s" .Release.Namespace | quote }}
{{- range .Values.watchNamespaces }}
- {{ printf "--namespace=%s" . | quote }}
{{- end }}
{{- range .Values.jobs.imagePullSecrets }}
- {{ printf "--image-pull-secret=%s" . | quote }}
{{- end }}
- --stop-seconds={{ int64 .Values.jobs.stopSeconds }}
- --unreachable-seconds={{ int64 .Values.jobs.unreachableSeconds }}
- --{{ .Values.jobs.networkPolicy.enabled | ternary "" "no-" }}network-policy
{{- range .Values.jobs.networkPolicy.egressCIDRs }}
- {{ printf "--egress-cidr=%s" . | quote }}
{{- end }}
{{- with .Values.metrics.namespace }}
- {{ printf "--metrics-namespace=%s" . | quote }}
{{- end }}
{{- if .Values.kueue.enabled }}
- --kueue
{{- end }}
{{- if .Values.volcano.enabled }}
- --volcano
{{- end }}
{{- if .Values.faults.enabled }}
- {{ printf "--faults-namespace=%s" .Values.faults.namespace | quote }}
{{- end }}
- --shared-memory={{ .Values.sharedMemory.hostPath | ternary "host-path" "none" }}
{{- if .Values.emulatedDevicePlugin.enabled }}
- --emulated-device-plugin
{{- end }}
- --workers={{ int64 .Values.workers }}
- --log-level={{ .Values.logLevel }}
{{- end }}
