"""The StatefulSets of the installed store: one server with one volume, or one StatefulSet for each shard of a cluster.

The pods of one shard never share a node, so the loss of a node takes one process of a shard. Pods of a cluster start and
stop in any order: after a restart of all of them, the process with the data may be any one.
"""

from __future__ import annotations

from typing import Any, Final

from onewriter_operator.configuration import PORT_STORE, PORT_STORE_BUS, Configuration
from onewriter_operator.installation import names, passwords, pods, valkey_configuration
from onewriter_operator.installation.valkey_configuration import TLS_DIRECTORY

Json = dict[str, Any]

LOAD_SECONDS_MAX: Final = 3600
"""A server that has not loaded its data after this time is restarted."""

LOAD_POLL_SECONDS: Final = 2

DRAIN_SECONDS: Final = 10
"""The server serves for this time before the stop signal: brokers that stop at the same time still write, and in a cluster
a replica takes over."""

STOP_SECONDS: Final = 60
"""Time for the last sync."""


def stateful_sets(configuration: Configuration) -> list[Json]:
    """The StatefulSets; none with an external store."""
    if configuration.external_store.is_used:
        return []
    if configuration.has_cluster:
        found = [_shard(configuration, shard) for shard in range(configuration.store.shards)]
    else:
        found = [_single(configuration)]
    if configuration.store.tls.secret_name:
        for each in found:
            _serve_tls(configuration, each)
    return found


def _shard(configuration: Configuration, shard: int) -> Json:
    found = _single(configuration)
    label = {names.SHARD_LABEL: str(shard)}
    found["metadata"] |= {"name": names.store_shard(configuration, shard)}
    found["metadata"]["labels"] |= label
    found["metadata"]["annotations"] |= {names.SHARDS: str(configuration.store.shards)}
    spec = found["spec"]
    spec |= {
        "replicas": 1 + configuration.store.replicas,
        "serviceName": names.store_pods(configuration),
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": {**spec["selector"]["matchLabels"], **label}},
    }
    for claim in spec.get("volumeClaimTemplates", ()):
        claim["metadata"]["labels"] = {**claim["metadata"]["labels"], **label}
    template = spec["template"]
    template["metadata"]["labels"] |= label
    pods.keep_apart(template["spec"], spec["selector"]["matchLabels"])
    _join_cluster(configuration, template["spec"])
    return found


def _join_cluster(configuration: Configuration, pod: Json) -> None:
    """Add to a pod what a process of a cluster needs in addition: its name and address, and the replicas' password."""
    host = names.host(configuration, names.store_pods(configuration))
    pod["volumes"].append(passwords.cluster_volume(configuration))
    (container,) = pod["containers"]
    container["env"] = [
        {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {
            "name": "ONEWRITER_VALKEY_ADDRESS",
            "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}},
        },
        {"name": "ONEWRITER_VALKEY_HOST", "value": f"$(POD_NAME).{host}"},
    ]
    container["ports"].append({"name": "bus", "containerPort": PORT_STORE_BUS})
    container["volumeMounts"].append(
        {"name": "cluster-password", "mountPath": passwords.CLUSTER_DIRECTORY, "readOnly": True}
    )
    container["readinessProbe"] = {
        **container["readinessProbe"],
        "exec": {"command": _command("ready")},
    }
    container["lifecycle"] = {
        "preStop": {"exec": {"command": _command("leave", str(DRAIN_SECONDS))}}
    }


def _serve_tls(configuration: Configuration, stateful_set: Json) -> None:
    """Mount the certificate and name it to the script."""
    stateful_set["metadata"]["annotations"] |= {names.STORE_TLS: "true"}
    pod = stateful_set["spec"]["template"]["spec"]
    secret = {
        "secretName": configuration.store.tls.secret_name,
        "defaultMode": pods.READ_BY_GROUP,
        "items": [{"key": key, "path": key} for key in ("tls.crt", "tls.key", "ca.crt")],
    }
    pod["volumes"].append({"name": "tls", "secret": secret})
    (container,) = pod["containers"]
    container["volumeMounts"].append({"name": "tls", "mountPath": TLS_DIRECTORY, "readOnly": True})
    container.setdefault("env", []).append({"name": "ONEWRITER_VALKEY_TLS", "value": TLS_DIRECTORY})


def _command(*words: str) -> list[str]:
    return ["sh", f"{valkey_configuration.DIRECTORY}/{valkey_configuration.SCRIPT}", *words]


def _single(configuration: Configuration) -> Json:
    options = configuration.valkey
    name = names.component(configuration, names.VALKEY)
    noted = {names.CONFIGURATION: names.digest(configuration)}
    hashed = {names.CONFIGURATION: valkey_configuration.digest(configuration)}
    template = pods.template(
        configuration, names.VALKEY, options, _pod(configuration, name), hashed
    )
    spec: Json = {
        "replicas": 1,
        "serviceName": name,
        "selector": {"matchLabels": names.selector(configuration, names.VALKEY)},
        "updateStrategy": {"type": "RollingUpdate"},
        "revisionHistoryLimit": 5,
        "template": template,
    }
    pods.data_volume(spec, options.storage, names.selector(configuration, names.VALKEY))
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": names.metadata(configuration, name, names.VALKEY, annotations=noted),
        "spec": spec,
    }


def _pod(configuration: Configuration, name: str) -> Json:
    return {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": DRAIN_SECONDS + STOP_SECONDS,
        "containers": [_container(configuration)],
        "volumes": [
            {"name": "configuration", "configMap": {"name": name}},
            {"name": "run", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
            {"name": "tmp", "emptyDir": {}},
            *filter(None, [passwords.password_volume(configuration)]),
        ],
    }


def _container(configuration: Configuration) -> Json:
    options = configuration.valkey
    answers = {"exec": {"command": _command("check")}, "timeoutSeconds": 5}
    return {
        "name": "valkey",
        "image": options.image or configuration.image.reference,
        "imagePullPolicy": configuration.image.pull_policy.value,
        "command": _command("run"),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "ports": [{"name": "valkey", "containerPort": PORT_STORE}],
        "resources": pods.resources(options.resources),
        "securityContext": pods.CONTAINER_SECURITY,
        "volumeMounts": [
            {"name": "data", "mountPath": valkey_configuration.DATA_DIRECTORY},
            {
                "name": "configuration",
                "mountPath": valkey_configuration.DIRECTORY,
                "readOnly": True,
            },
            {"name": "run", "mountPath": valkey_configuration.RUN_DIRECTORY},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - a volume of the pod's own
            {"name": "store-password", "mountPath": passwords.DIRECTORY, "readOnly": True},
        ],
        "lifecycle": {"preStop": {"sleep": {"seconds": DRAIN_SECONDS}}},
        "startupProbe": {
            **answers,
            "periodSeconds": LOAD_POLL_SECONDS,
            "failureThreshold": LOAD_SECONDS_MAX // LOAD_POLL_SECONDS,
        },
        "readinessProbe": {**answers, "periodSeconds": 10, "failureThreshold": 3},
        # The probe only checks that the port is open: a slow disk must not cause a restart.
        "livenessProbe": {
            "tcpSocket": {"port": "valkey"},
            "periodSeconds": 20,
            "failureThreshold": 6,
            "timeoutSeconds": 5,
        },
    }
