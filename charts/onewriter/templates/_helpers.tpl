{{- define "onewriter.fullname" -}}
{{- .Values.fullnameOverride | default .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "onewriter.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* The labels that a component's pods are selected by: (dict "root" . "component" NAME). */}}
{{- define "onewriter.selector" -}}
app.kubernetes.io/name: onewriter
app.kubernetes.io/instance: {{ include "onewriter.fullname" .root }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* All labels of a component's object. */}}
{{- define "onewriter.labels" -}}
{{ include "onewriter.selector" . }}
app.kubernetes.io/part-of: onewriter
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "onewriter.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "onewriter.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "onewriter.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "onewriter.webhookSecret" -}}
{{- .Values.webhook.secretName | default (printf "%s-webhook-tls" (include "onewriter.fullname" .)) -}}
{{- end -}}

{{- define "onewriter.brokerSecret" -}}
{{- .Values.brokers.tls.secretName | default (printf "%s-broker-tls" (include "onewriter.fullname" .)) -}}
{{- end -}}

{{/* The names that certificates are made out to, as a JSON list. */}}
{{- define "onewriter.webhookNames" -}}
{{- $name := printf "%s-webhook.%s" (include "onewriter.fullname" .) .Release.Namespace -}}
{{- list (printf "%s.svc" $name) (printf "%s.svc.%s" $name .Values.clusterDomain) | toJson -}}
{{- end -}}

{{- define "onewriter.brokerNames" -}}
{{- $client := printf "%s-broker" (include "onewriter.fullname" .) -}}
{{- $namespace := .Release.Namespace -}}
{{- $pods := printf "*.%s-broker-pods.%s.svc" (include "onewriter.fullname" .) $namespace -}}
{{- list $client (printf "%s.%s" $client $namespace) (printf "%s.%s.svc" $client $namespace) (printf "%s.%s.svc.%s" $client $namespace .Values.clusterDomain) $pods (printf "%s.%s" $pods .Values.clusterDomain) | toJson -}}
{{- end -}}

{{/* Whether clients may use the brokers' plain ports: "true" or empty. */}}
{{- define "onewriter.offersPlain" -}}
{{- if or .Values.brokers.tls.plain (not .Values.brokers.tls.enabled) }}true{{ end -}}
{{- end -}}

{{/* The brokers' ports as a policy lists them: (dict "root" . "http" BOOL "pulsar" BOOL). */}}
{{- define "onewriter.brokerPorts" -}}
{{- $plain := include "onewriter.offersPlain" .root -}}
{{- $tls := .root.Values.brokers.tls.enabled -}}
{{- if and .http $plain }}
- {protocol: TCP, port: 8080}
{{- end }}
{{- if and .http $tls }}
- {protocol: TCP, port: 8443}
{{- end }}
{{- if and .pulsar $plain }}
- {protocol: TCP, port: 6650}
{{- end }}
{{- if and .pulsar $tls }}
- {protocol: TCP, port: 6651}
{{- end }}
{{- end -}}

{{/* Whether the installed store is a cluster: "true" or empty. */}}
{{- define "onewriter.hasCluster" -}}
{{- $external := .Values.externalStore -}}
{{- if and (gt (int .Values.store.shards) 1) (not (or $external.url $external.sentinels)) }}true{{ end -}}
{{- end -}}

{{/* The StatefulSets of the installed store, as a JSON list. */}}
{{- define "onewriter.storeSets" -}}
{{- $name := printf "%s-valkey" (include "onewriter.fullname" .) -}}
{{- $found := list $name -}}
{{- if include "onewriter.hasCluster" . -}}
{{- $found = list -}}
{{- range until (int .Values.store.shards) -}}
{{- $found = append $found (printf "%s-%d" $name .) -}}
{{- end -}}
{{- end -}}
{{- $found | toJson -}}
{{- end -}}

{{/* The Secret with the certificate of the installed store; empty: no TLS. */}}
{{- define "onewriter.storeSecret" -}}
{{- $secret := (default (dict) .Values.store.tls).secretName -}}
{{- if and $secret (or .Values.externalStore.url .Values.externalStore.sentinels) -}}
{{- fail "store.tls is for the installed store: use externalStore.tls" -}}
{{- end -}}
{{- if and $secret (not .Values.valkey.image) -}}
{{- fail "store.tls needs valkey.image: the server in the image of all components is built without TLS. Name an image with a valkey-server that has it, for example valkey/valkey" -}}
{{- end -}}
{{- $secret -}}
{{- end -}}

{{/* The operator's configuration file. */}}
{{- define "onewriter.configuration" -}}
{{- $brokers := deepCopy .Values.brokers -}}
{{- $_ := set $brokers.tls "secretName" (include "onewriter.brokerSecret" .) -}}
{{- if .Values.spark.enabled -}}
{{- $account := printf "system:serviceaccount:%s:%s" .Release.Namespace (include "onewriter.spark.name" .) -}}
{{- $access := default (dict) $brokers.access -}}
{{- $pipelines := append (default (list) $access.pipelines) $account -}}
{{- if .Values.spark.retention.trim.enabled -}}
{{- $pipelines = append $pipelines (printf "%s-trim" $account) -}}
{{- end -}}
{{- if .Values.spark.verification.enabled -}}
{{- $pipelines = append $pipelines (printf "%s-verify" $account) -}}
{{- end -}}
{{- $_ := set $brokers "access" (set $access "pipelines" $pipelines) -}}
{{- end -}}
{{- $operator := pick .Values.operator "namespaces" "resyncSeconds" "concurrency" "lease" "leaderServices" "podDeletion" -}}
{{- if .Values.brokers.tls.enabled -}}
{{- $_ := set $operator "brokerCaFile" "/etc/onewriter/broker-ca/ca.crt" -}}
{{- end -}}
{{- if include "onewriter.storeSecret" . -}}
{{- $_ := set $operator "storeCaFile" "/etc/onewriter/store-ca/ca.crt" -}}
{{- end -}}
{{- $image := dict "reference" (include "onewriter.image" .) "pullPolicy" .Values.image.pullPolicy "pullSecrets" .Values.image.pullSecrets -}}
{{- $store := dict -}}
{{- if or (gt (int .Values.store.shards) 1) (include "onewriter.storeSecret" .) -}}
{{- $store = dict "store" .Values.store -}}
{{- end -}}
{{- dict "release" (include "onewriter.fullname" .) "namespace" .Release.Namespace "version" .Chart.AppVersion "clusterDomain" .Values.clusterDomain "image" $image "brokers" $brokers "valkey" .Values.valkey "externalStore" .Values.externalStore "quotas" .Values.quotas "networkPolicies" .Values.networkPolicies "tenancy" .Values.tenancy "operator" $operator "sidecar" .Values.sidecar | merge $store | toYaml -}}
{{- end -}}

{{/* Scheduling of a pod, by a section of the values: (dict "values" SECTION). With "selector" (a
dict) its pods are kept apart where there is a choice; see installation/pods.py for why so. */}}
{{- define "onewriter.scheduling" -}}
{{- $affinity := deepCopy .values.affinity }}
{{- if .selector }}
{{- $terms := list }}
{{- range $key, $spreading := dict "topology.kubernetes.io/zone" .values.spread.zones "kubernetes.io/hostname" .values.spread.nodes }}
{{- if eq $spreading "ScheduleAnyway" }}
{{- $terms = append $terms (dict "weight" 100 "podAffinityTerm" (dict "topologyKey" $key "labelSelector" (dict "matchLabels" $.selector))) }}
{{- end }}
{{- end }}
{{- if and $terms (not (hasKey $affinity "podAntiAffinity")) }}
{{- $affinity = set $affinity "podAntiAffinity" (dict "preferredDuringSchedulingIgnoredDuringExecution" $terms) }}
{{- end }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{/* Rights of the operator that are opted into, by their value in the section "operator". */}}
{{- define "onewriter.optInRules.leaderServices" -}}
- apiGroups: [""]
  resources: [services]
  verbs: [create, patch, delete]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [create, patch, delete]
{{- end -}}
{{- define "onewriter.optInRules.podDeletion" -}}
- apiGroups: [""]
  resources: [pods]
  verbs: [delete]
{{- end -}}

{{/* Rules of the operator for what it looks after, wherever that is. */}}
{{- define "onewriter.topicRules" -}}
- apiGroups: [onewriter.dev]
  resources: [exclusivetopics, producerclaims]
  verbs: [get, list, watch, patch]
- apiGroups: [onewriter.dev]
  resources: [exclusivetopics/status, producerclaims/status]
  verbs: [patch]
- apiGroups: [onewriter.dev]
  resources: [exclusivetopics/finalizers, producerclaims/finalizers]
  verbs: [update]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch]
- apiGroups: [""]
  resources: [pods/eviction]
  verbs: [create]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [get, list, watch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end -}}
