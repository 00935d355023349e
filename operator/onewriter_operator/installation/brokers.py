"""The StatefulSet of the brokers, which replaces them without a failed send.

A stopping broker hands over its buckets while its name still resolves. Its successor has time to take
its share of the buckets before the next broker stops: see ``_update``.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final

from onewriter_core.api.tenancy import written_exceptions
from onewriter_operator.configuration import (
    PORT_HTTP,
    PORT_HTTPS,
    PORT_PROBES,
    PORT_PULSAR,
    PORT_PULSAR_TLS,
    PORT_STORE,
    Configuration,
    Setting,
)
from onewriter_operator.installation import broker_services, names, passwords, pods

Json = dict[str, Any]

DATA_DIRECTORY: Final = "/var/lib/onewriter"
TLS_DIRECTORY: Final = "/run/onewriter/tls"
STORE_CA_DIRECTORY: Final = "/run/onewriter/store-ca"
STORE_CERTIFICATE_DIRECTORY: Final = "/run/onewriter/store-tls"
METRICS_DIRECTORY: Final = "/run/onewriter/metrics"

DRAIN_SECONDS: Final = 3
"""Delay between leaving the Service and the stop signal, until the proxy of every node knows."""

SLACK_SECONDS: Final = 15
"""Time of a stop in addition to the handover: the supervisor, the container runtime."""

SETTLE_SECONDS: Final = 10
"""Time for a new broker to take its buckets before the next one is replaced."""

ANCHOR_NAME: Final = "shard-0"
AUDIENCE: Final = "onewriter"


def stateful_set(configuration: Configuration) -> Json:
    """The StatefulSet."""
    options = configuration.brokers
    name = names.component(configuration, names.BROKER)
    noted = {names.CONFIGURATION: names.digest(configuration)}
    spec: Json = {
        "replicas": options.replicas,
        "serviceName": names.broker_pods(configuration),
        "selector": {"matchLabels": names.selector(configuration, names.BROKER)},
        **_update(),
        "template": pods.template(configuration, names.BROKER, options, _pod(configuration)),
    }
    labels = names.selector(configuration, names.BROKER)
    pods.data_volume(spec, options.storage, labels)
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": names.metadata(configuration, name, names.BROKER, annotations=noted),
        "spec": spec,
    }


def _update() -> Json:
    return {
        # No broker depends on another one: all start at once.
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "RollingUpdate"},
        "minReadySeconds": SETTLE_SECONDS,
        "revisionHistoryLimit": 5,
    }


def _pod(configuration: Configuration) -> Json:
    grace = DRAIN_SECONDS + math.ceil(configuration.brokers.stop_seconds) + SLACK_SECONDS
    volumes: list[Json] = [{"name": "tmp", "emptyDir": {}}]
    password = passwords.password_volume(configuration)
    if password is not None:
        volumes.append(password)
    volumes.append(
        {
            "name": "metrics-token",
            "secret": {
                "secretName": names.metrics_secret(configuration),
                "defaultMode": pods.READ_BY_GROUP,
                # Optional: without the token only administrators read metrics.
                "optional": True,
            },
        }
    )
    if configuration.brokers.tls.enabled:
        secret = names.broker_tls_secret(configuration)
        volumes.append(
            {"name": "tls", "secret": {"secretName": secret, "defaultMode": pods.READ_BY_GROUP}}
        )
    volumes += (volume for volume, _ in _store_tls(configuration))
    return {
        "serviceAccountName": names.component(configuration, names.BROKER),
        "terminationGracePeriodSeconds": grace,
        "containers": [_container(configuration)],
        "volumes": volumes,
    }


def _store_tls(configuration: Configuration) -> list[tuple[Json, Json]]:
    """The volumes, and their mounts, with the files for TLS to the store. A key that a Secret also has, for
    example the private key of the authority, is not mounted.
    """
    wanted = configuration.external_store.tls
    authority = wanted.ca_secret_name or configuration.store.tls.secret_name
    mounted = (
        ("store-ca", authority, STORE_CA_DIRECTORY, ("ca.crt",)),
        (
            "store-tls",
            wanted.client_secret_name,
            STORE_CERTIFICATE_DIRECTORY,
            ("tls.crt", "tls.key"),
        ),
    )
    return [
        (
            {
                "name": name,
                "secret": {
                    "secretName": secret,
                    "defaultMode": pods.READ_BY_GROUP,
                    "items": [{"key": key, "path": key} for key in keys],
                },
            },
            {"name": name, "mountPath": directory, "readOnly": True},
        )
        for name, secret, directory, keys in mounted
        if secret
    ]


def _container(configuration: Configuration) -> Json:
    mounts: list[Json] = [
        {"name": "data", "mountPath": DATA_DIRECTORY},
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - a volume of the pod's own
    ]
    if passwords.password_volume(configuration) is not None:
        mounts.append(
            {"name": "store-password", "mountPath": passwords.DIRECTORY, "readOnly": True}
        )
    mounts.append({"name": "metrics-token", "mountPath": METRICS_DIRECTORY, "readOnly": True})
    ports = [*broker_services.ports(configuration), ("probes", PORT_PROBES)]
    if configuration.brokers.tls.enabled:
        mounts.append({"name": "tls", "mountPath": TLS_DIRECTORY, "readOnly": True})
    mounts += (mount for _, mount in _store_tls(configuration))
    return {
        "name": "broker",
        "image": configuration.image.reference,
        "imagePullPolicy": configuration.image.pull_policy.value,
        "command": ["onewriter", "broker"],
        "env": _environment(configuration),
        "ports": [{"name": name, "containerPort": port} for name, port in ports],
        "resources": pods.resources(configuration.brokers.resources),
        "securityContext": pods.CONTAINER_SECURITY,
        "volumeMounts": mounts,
        "lifecycle": {"preStop": {"sleep": {"seconds": DRAIN_SECONDS}}},
        **_probes(),
    }


def _probes() -> Json:
    """A frozen broker is killed by its supervisor; the kubelet only sees a supervisor that hangs."""
    return {
        "startupProbe": _probe("/healthz", period=1, failures=120, timeout=2),
        "livenessProbe": _probe("/healthz", period=10, failures=6, timeout=5),
        "readinessProbe": _probe("/readyz", period=2, failures=3, timeout=2),
    }


def _probe(path: str, *, period: int, failures: int, timeout: int) -> Json:
    return {
        "httpGet": {"path": path, "port": "probes"},
        "periodSeconds": period,
        "failureThreshold": failures,
        "timeoutSeconds": timeout,
    }


def _environment(configuration: Configuration) -> list[Json]:
    host = names.host(configuration, names.broker_pods(configuration))
    options = configuration.brokers
    admins = [configuration.operator_subject, *options.authentication.admin_subjects]
    values: dict[str, Setting] = {
        "advertisedHost": f"$(ONEWRITER_NAME).{host}",
        "host": "0.0.0.0",
        "port": PORT_PULSAR,
        "httpPort": PORT_HTTP,
        "probePort": PORT_PROBES,
        "metricsTokenFile": f"{METRICS_DIRECTORY}/{names.METRICS_TOKEN_KEY}",
        "dataDir": DATA_DIRECTORY,
        "anchor": "kubernetes",
        "anchorName": ANCHOR_NAME,
        "kubernetesNamespace": configuration.namespace,
        "tokenReview": True,
        "tokenAudience": AUDIENCE,
        "authenticationRequired": options.authentication.required,
        "adminSubjects": ",".join(admins),
        "observerSubjects": ",".join(options.access.observers),
        "pipelineSubjects": ",".join(options.access.pipelines),
        "consumersDefault": options.access.consumers_default,
        "requireDeclared": True,
        "tenancyEnforced": configuration.tenancy.enforced,
        "tenancyAllow": written_exceptions(configuration.tenancy.rule.exceptions),
        **_store(configuration),
        **configuration.quotas.settings,
        **options.settings,
    }
    if options.tls.enabled:
        values |= {
            "tlsPort": PORT_PULSAR_TLS,
            "httpsPort": PORT_HTTPS,
            "tlsCertFile": f"{TLS_DIRECTORY}/tls.crt",
            "tlsKeyFile": f"{TLS_DIRECTORY}/tls.key",
            "tlsCaFile": f"{TLS_DIRECTORY}/ca.crt",
            "tlsOnly": not options.tls.offers_plain,
        }
    # The pod's name is first: a variable may only refer to earlier ones.
    own = {"name": "ONEWRITER_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    return [own, *({"name": _variable(name), "value": _text(values[name])} for name in values)]


def _store(configuration: Configuration) -> dict[str, Setting]:
    external = configuration.external_store
    scheme = "rediss" if configuration.store.tls.secret_name else "redis"
    found: dict[str, Setting] = {}
    if configuration.has_cluster:
        host = names.host(configuration, names.store_pods(configuration))
        nodes = [f"{pod}.{host}:{PORT_STORE}" for pod, _ in names.store_members(configuration)]
        found = {
            "redisUrl": f"{scheme}+cluster://{','.join(nodes)}",
            "redisUsername": names.STORE_USER,
            "redisReplicas": configuration.store.replicas,
        }
    elif not external.is_used:
        host = names.host(configuration, names.component(configuration, names.VALKEY))
        found = {"redisUrl": f"{scheme}://{host}:{PORT_STORE}", "redisUsername": names.STORE_USER}
    elif external.url:
        found = {"redisUrl": external.url}
    else:
        found = {
            "redisSentinels": ",".join(external.sentinels),
            "redisSentinelMaster": external.sentinel_master,
        }
    if external.tls.ca_secret_name or configuration.store.tls.secret_name:
        found["redisCaFile"] = f"{STORE_CA_DIRECTORY}/ca.crt"
    if external.tls.client_secret_name:
        found["redisCertFile"] = f"{STORE_CERTIFICATE_DIRECTORY}/tls.crt"
        found["redisKeyFile"] = f"{STORE_CERTIFICATE_DIRECTORY}/tls.key"
    if external.tls.server_name:
        found["redisServerName"] = external.tls.server_name
    if external.is_used and external.username:
        found["redisUsername"] = external.username
    if external.is_used and external.replicas:
        found["redisReplicas"] = external.replicas
    if passwords.password_volume(configuration) is not None:
        found["redisPasswordFile"] = f"{passwords.DIRECTORY}/{names.PASSWORD_KEY}"
    return found


def _variable(setting: str) -> str:
    """Where a setting is read from: silentAfterSeconds from ONEWRITER_SILENT_AFTER_SECONDS."""
    return "ONEWRITER_" + re.sub("(?=[A-Z])", "_", setting).upper()


def _text(value: Setting) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
