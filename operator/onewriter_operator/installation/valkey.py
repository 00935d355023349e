"""The StatefulSet of the installed store: one server, one volume."""

from __future__ import annotations

from typing import Any, Final

from onewriter_operator.configuration import PORT_STORE, Configuration
from onewriter_operator.installation import names, passwords, pods, valkey_configuration

Json = dict[str, Any]

LOAD_SECONDS_MAX: Final = 3600
"""A server that has not loaded its data after this time is restarted."""

LOAD_POLL_SECONDS: Final = 2

DRAIN_SECONDS: Final = 10
"""The server serves for this time after the stop signal: brokers that stop at the same time still write."""

STOP_SECONDS: Final = 60
"""Time for the last sync."""


def stateful_set(configuration: Configuration) -> Json | None:
    """The StatefulSet; None with an external store."""
    if configuration.external_store.is_used:
        return None
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
            *filter(None, [passwords.mounted(configuration)]),
        ],
    }


def _container(configuration: Configuration) -> Json:
    options = configuration.valkey
    script = f"{valkey_configuration.DIRECTORY}/{valkey_configuration.SCRIPT}"
    answers = {"exec": {"command": ["sh", script, "check"]}, "timeoutSeconds": 5}
    return {
        "name": "valkey",
        "image": options.image or configuration.image.reference,
        "imagePullPolicy": configuration.image.pull_policy.value,
        "command": ["sh", script, "run"],
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
