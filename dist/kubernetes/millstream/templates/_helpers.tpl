{{- define "millstream.labels" -}}
app.kubernetes.io/name: millstream
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "millstream.selector" -}}
app.kubernetes.io/name: millstream
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "millstream.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}{{- else -}}{{ .repository }}:{{ .tag }}{{- end -}}
{{- end -}}
{{- end }}

{{/* An agent has no capability: it writes to folders of root, and to the daemon's socket. */}}
{{- define "millstream.agent" -}}
image: {{ include "millstream.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
env:
  - name: NODE_NAME
    valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
securityContext:
  runAsUser: 0
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
  seccompProfile: {type: RuntimeDefault}
volumeMounts:
  - {name: run, mountPath: /run/millstream}
  - {name: state, mountPath: /var/lib/millstream}
{{- if .Values.registry.credentialsSecret }}
  - {name: registry, mountPath: /etc/millstream-registry, readOnly: true}
{{- end }}
{{- end }}

{{- define "millstream.agentArgs" -}}
- cluster
- agent
- --report={{ .Values.agent.report }}
{{- range .Values.bundles }}
- --bundle={{ required "a bundle has a program" .program }}={{ required "a bundle has a reference" .reference }}
{{- end }}
{{- if .Values.registry.plainHttp }}
- --plain-http
{{- end }}
{{- if .Values.registry.credentialsSecret }}
- --credentials=/etc/millstream-registry/credentials
{{- end }}
{{- end }}
