{{/* What the runners of the pipeline's jobs have in common. */}}

{{- define "onewriter.spark.name" -}}
{{ include "onewriter.fullname" . }}-pipeline
{{- end -}}

{{- define "onewriter.spark.image" -}}
{{- $image := .Values.spark.image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "onewriter.spark.url" -}}
{{- $host := printf "%s-broker.%s.svc.%s" (include "onewriter.fullname" .) .Release.Namespace .Values.clusterDomain -}}
{{- if .Values.brokers.tls.enabled -}}https://{{ $host }}:8443{{- else -}}http://{{ $host }}:8080{{- end -}}
{{- end -}}

{{/* A value as a text: numbers of YAML as they were written. */}}
{{- define "onewriter.spark.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) -}}{{ int64 . }}{{- else -}}{{ . }}{{- end -}}
{{- end -}}

{{/* What must be said before anything is rendered. */}}
{{- define "onewriter.spark.check" -}}
{{- $spark := .Values.spark -}}
{{- if not $spark.table.uri -}}
{{- fail "spark.table.uri is missing: where the tables are, a URL (s3://bucket/onewriter) or a folder below /data" -}}
{{- end -}}
{{- if and (not (contains "://" $spark.table.uri)) (not $spark.table.volumeClaim) -}}
{{- fail "spark.table.volumeClaim is missing: spark.table.uri is a folder, and what a pod writes goes with it" -}}
{{- end -}}
{{- if not (or $spark.topics $spark.topicsPattern) -}}
{{- fail "spark.topics and spark.topicsPattern are both empty" -}}
{{- end -}}
{{- $snapshot := $spark.jobs.snapshot -}}
{{- if and $snapshot.enabled (not (and $snapshot.topic $snapshot.to)) -}}
{{- fail "spark.jobs.snapshot needs topic and to" -}}
{{- end -}}
{{- if and (eq $spark.runner "spark-submit") (eq (int $spark.executors.instances) 0) -}}
{{- fail "spark.executors.instances is 0: choose the runner cronjob, which does all in one pod" -}}
{{- end -}}
{{- end -}}

{{/* Whether a kind is there: (dict "root" . "api" GROUP/VERSION "kind" KIND "project" NAME). */}}
{{- define "onewriter.spark.needs" -}}
{{- $found := or (.root.Capabilities.APIVersions.Has (printf "%s/%s" .api .kind)) (.root.Capabilities.APIVersions.Has .api) -}}
{{- if and .root.Values.spark.checkKinds (not $found) -}}
{{- fail (printf "spark.runner is %s, and this cluster has no %s of %s: install %s first, or choose spark.runner cronjob, which needs nothing (where Helm does not see the cluster: --api-versions %s/%s, or spark.checkKinds=false)" .root.Values.spark.runner .kind .api .project .api .kind) -}}
{{- end -}}
{{- end -}}

{{/* The jobs that are wanted, by name, as JSON. */}}
{{- define "onewriter.spark.jobs" -}}
{{- $found := dict -}}
{{- range $name, $job := .Values.spark.jobs -}}
{{- if $job.enabled -}}{{- $_ := set $found $name $job -}}{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{/* Arguments of onewriter-pipeline up to what only jobs on Spark have, as a JSON list:
(dict "root" . "verb" VERB "args" LIST). */}}
{{- define "onewriter.spark.verb" -}}
{{- $spark := .root.Values.spark -}}
{{- $found := list .verb (printf "--admin-url=%s" (include "onewriter.spark.url" .root)) "--token-file=/run/onewriter/token/token" -}}
{{- if .root.Values.brokers.tls.enabled -}}
{{- $found = append $found "--ca-file=/run/onewriter/broker-ca/ca.crt" -}}
{{- end -}}
{{- $found = append $found (printf "--table=%s" $spark.table.uri) -}}
{{- if eq .verb "snapshot" -}}
{{- $snapshot := $spark.jobs.snapshot -}}
{{- $found = concat $found (list (printf "--topic=%s" $snapshot.topic) (printf "--to=%s" $snapshot.to)) -}}
{{- else if $spark.topics -}}
{{- range $spark.topics -}}
{{- $found = append $found (printf "--topic=%s" .) -}}
{{- end -}}
{{- else -}}
{{- $found = append $found (printf "--topics-pattern=%s" $spark.topicsPattern) -}}
{{- end -}}
{{- toJson (concat $found .args) -}}
{{- end -}}

{{/* The same for a job on Spark, with the settings that it is to have: (dict "root" . "verb" VERB
"args" LIST "conf" DICT). Given to the verb, they count whoever starts it. */}}
{{- define "onewriter.spark.arguments" -}}
{{- $spark := .root.Values.spark -}}
{{- $conf := deepCopy .conf -}}
{{- with $spark.checkpoint.uri -}}
{{- $_ := set $conf "spark.sql.streaming.checkpointLocation" . -}}
{{- end -}}
{{- if .root.Values.monitoring.podMonitor.enabled -}}
{{- $_ := set $conf "spark.ui.enabled" "true" -}}
{{- $_ := set $conf "spark.ui.port" "4040" -}}
{{- $_ := set $conf "spark.metrics.conf.*.sink.prometheusServlet.class" "org.apache.spark.metrics.sink.PrometheusServlet" -}}
{{- $_ := set $conf "spark.metrics.conf.*.sink.prometheusServlet.path" "/metrics/prometheus" -}}
{{- end -}}
{{- $conf = mergeOverwrite $conf (deepCopy $spark.conf) -}}
{{- $found := list -}}
{{- range $key, $value := $conf -}}
{{- $found = append $found (printf "--conf=%s=%s" $key (include "onewriter.spark.text" $value)) -}}
{{- end -}}
{{- $given := dict "root" .root "verb" .verb "args" (concat $found .args) -}}
{{- include "onewriter.spark.verb" $given -}}
{{- end -}}

{{/* Settings of pods that Spark makes: (dict "root" . "job" JOB). As JSON. */}}
{{- define "onewriter.spark.clusterConf" -}}
{{- $spark := .root.Values.spark -}}
{{- $name := include "onewriter.spark.name" .root -}}
{{- $found := dict "spark.kubernetes.namespace" .root.Release.Namespace
    "spark.kubernetes.container.image" (include "onewriter.spark.image" .root)
    "spark.kubernetes.container.image.pullPolicy" .root.Values.image.pullPolicy
    "spark.kubernetes.authenticate.driver.serviceAccountName" $name
    "spark.kubernetes.authenticate.executor.serviceAccountName" $name
    "spark.driver.memory" .job.driverMemory
    "spark.executor.cores" (toString $spark.executors.cores)
    "spark.executor.memory" $spark.executors.memory
    "spark.executor.memoryOverhead" $spark.executors.memoryOverhead -}}
{{- with .root.Values.image.pullSecrets -}}
{{- $_ := set $found "spark.kubernetes.container.image.pullSecrets" (join "," .) -}}
{{- end -}}
{{- if gt (int $spark.executors.instances) 0 -}}
{{- $_ := set $found "spark.executor.instances" (toString $spark.executors.instances) -}}
{{- else -}}
{{- $_ := set $found "spark.kubernetes.driver.master" (printf "local[%d]" (int .job.cores)) -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{- define "onewriter.spark.security" -}}
runAsNonRoot: true
runAsUser: 185
runAsGroup: 185
fsGroup: 185
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* Variables of a container. */}}
{{- define "onewriter.spark.environment" -}}
env:
  - {name: HOME, value: /tmp}
  - {name: ONEWRITER_POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
  - {name: ONEWRITER_POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
  {{- if and .Values.monitoring.podMonitor.enabled (eq .Values.spark.runner "cronjob") }}
  # Spark in one pod listens on loopback alone otherwise.
  - {name: SPARK_LOCAL_IP, value: $(ONEWRITER_POD_IP)}
  {{- end }}
  {{- range $key, $value := .Values.spark.objectStore.options }}
  - {name: {{ $key }}, value: {{ include "onewriter.spark.text" $value | quote }}}
  {{- end }}
{{- with .Values.spark.objectStore.secretName }}
envFrom:
  - secretRef: {name: {{ . }}}
{{- end }}
{{- end -}}

{{/* Spark uses what is called spark-local-dir- for shuffles. */}}
{{- define "onewriter.spark.mounts" -}}
- {name: token, mountPath: /run/onewriter/token, readOnly: true}
- {name: spark-local-dir-1, mountPath: /tmp}
{{- if .Values.brokers.tls.enabled }}
- {name: broker-ca, mountPath: /run/onewriter/broker-ca, readOnly: true}
{{- end }}
{{- if .Values.spark.table.volumeClaim }}
- {name: data, mountPath: /data}
{{- end }}
{{- end -}}

{{- define "onewriter.spark.volumes" -}}
- name: spark-local-dir-1
  emptyDir: {sizeLimit: {{ .Values.spark.scratchSize }}}
- name: token
  projected:
    defaultMode: 0440
    sources:
      {{- if .Values.spark.token.secretName }}
      - secret:
          name: {{ .Values.spark.token.secretName }}
          items:
            - {key: {{ .Values.spark.token.key }}, path: token}
      {{- else }}
      - serviceAccountToken: {path: token, audience: onewriter, expirationSeconds: 3600}
      {{- end }}
{{- if .Values.brokers.tls.enabled }}
- name: broker-ca
  secret:
    secretName: {{ include "onewriter.brokerSecret" . }}
    defaultMode: 0440
    items:
      - {key: ca.crt, path: ca.crt}
{{- end }}
{{- with .Values.spark.table.volumeClaim }}
- name: data
  persistentVolumeClaim: {claimName: {{ . }}}
{{- end }}
{{- end -}}

{{/* Labels and annotations of pods: (dict "root" . "name" NAME OF THE JOB). */}}
{{- define "onewriter.spark.podMetadata" -}}
labels:
  {{- with .root.Values.spark.labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- include "onewriter.selector" (dict "root" .root "component" "pipeline") | nindent 2 }}
  app.kubernetes.io/part-of: onewriter
  onewriter.dev/job: {{ .name }}
{{- with .root.Values.spark.annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* A pod that Spark completes: (dict "root" . "name" NAME OF THE JOB "container" NAME "account" BOOL
"timeoutSeconds" NUMBER). Only drivers get the account's token for the API, and a time limit: executors end
with them. */}}
{{- define "onewriter.spark.podTemplate" -}}
metadata:
  {{- include "onewriter.spark.podMetadata" . | nindent 2 }}
spec:
  {{- with .timeoutSeconds }}
  activeDeadlineSeconds: {{ int . }}
  {{- end }}
  automountServiceAccountToken: {{ .account }}
  enableServiceLinks: false
  {{- include "onewriter.scheduling" (dict "values" .root.Values.spark) | nindent 2 }}
  securityContext:
    {{- include "onewriter.spark.security" . | nindent 4 }}
  containers:
    - name: {{ .container }}
      {{- include "onewriter.spark.environment" .root | nindent 6 }}
      {{- if and .account .root.Values.monitoring.podMonitor.enabled }}
      ports:
        - {name: http, containerPort: 4040}
      {{- end }}
      securityContext:
        {{- include "onewriter.containerSecurity" . | nindent 8 }}
      volumeMounts:
        {{- include "onewriter.spark.mounts" .root | nindent 8 }}
  volumes:
    {{- include "onewriter.spark.volumes" .root | nindent 4 }}
{{- end -}}

{{/* A CronJob whose pod is the driver: (dict "root" . "name" NAME "job" JOB "account" NAME "command" LIST
"args" LIST "volumes" YAML "mounts" YAML "usesApi" BOOL "readsTables" BOOL: the volume of the tables is read only). */}}
{{- define "onewriter.spark.cronJob" -}}
{{- $spark := .root.Values.spark -}}
apiVersion: batch/v1
kind: CronJob
metadata:
  name: {{ include "onewriter.fullname" .root }}-{{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "onewriter.labels" (dict "root" .root "component" "pipeline") | nindent 4 }}
spec:
  schedule: {{ .job.schedule | quote }}
  timeZone: Etc/UTC
  suspend: {{ .job.suspend | default false }}
  concurrencyPolicy: {{ .job.concurrencyPolicy | default "Forbid" }}
  startingDeadlineSeconds: 600
  successfulJobsHistoryLimit: {{ $spark.history }}
  failedJobsHistoryLimit: {{ $spark.history }}
  jobTemplate:
    metadata:
      labels:
        {{- include "onewriter.labels" (dict "root" .root "component" "pipeline") | nindent 8 }}
    spec:
      activeDeadlineSeconds: {{ .job.timeoutSeconds | default 21600 | int }}
      backoffLimit: 2
      # Never two at once: the next pod begins when the former one is gone.
      podReplacementPolicy: Failed
      podFailurePolicy:
        rules:
          # A violation was found; to look again does not help.
          - action: FailJob
            onExitCodes: {containerName: pipeline, operator: In, values: [2]}
          - action: Ignore
            onPodConditions:
              - {type: DisruptionTarget, status: "True"}
      template:
        metadata:
          {{- include "onewriter.spark.podMetadata" (dict "root" .root "name" .name) | nindent 10 }}
        spec:
          serviceAccountName: {{ .account }}
          automountServiceAccountToken: {{ .usesApi | default false }}
          restartPolicy: Never
          enableServiceLinks: false
          {{- include "onewriter.pullSecrets" .root | nindent 10 }}
          {{- include "onewriter.scheduling" (dict "values" $spark) | nindent 10 }}
          securityContext:
            {{- include "onewriter.spark.security" . | nindent 12 }}
          containers:
            - name: pipeline
              image: {{ include "onewriter.spark.image" .root }}
              imagePullPolicy: {{ .root.Values.image.pullPolicy }}
              command:
                {{- toYaml .command | nindent 16 }}
              args:
                {{- toYaml .args | nindent 16 }}
              {{- include "onewriter.spark.environment" .root | nindent 14 }}
              {{- if and .job.driverMemory .root.Values.monitoring.podMonitor.enabled }}
              ports:
                - {name: http, containerPort: 4040}
              {{- end }}
              terminationMessagePolicy: FallbackToLogsOnError
              resources:
                {{- toYaml .job.resources | nindent 16 }}
              securityContext:
                {{- include "onewriter.containerSecurity" . | nindent 16 }}
              volumeMounts:
                {{- if .readsTables }}
                {{- include "onewriter.spark.mounts" .root | replace "mountPath: /data}" "mountPath: /data, readOnly: true}" | nindent 16 }}
                {{- else }}
                {{- include "onewriter.spark.mounts" .root | nindent 16 }}
                {{- end }}
                {{- with .mounts }}
                {{- . | nindent 16 }}
                {{- end }}
          volumes:
            {{- include "onewriter.spark.volumes" .root | nindent 12 }}
            {{- with .volumes }}
            {{- . | nindent 12 }}
            {{- end }}
{{- end -}}
