"""Names, labels and addresses of the installed objects."""

from __future__ import annotations

import hashlib
from typing import Any, Final

from onewriter_core.kubernetes.kinds import FIELD_MANAGER, MANAGED_BY
from onewriter_operator.configuration import Configuration

BROKER: Final = "broker"
VALKEY: Final = "valkey"
OPERATOR: Final = "operator"
TEST: Final = "test"
PIPELINE: Final = "pipeline"

INSTANCE_LABEL: Final = "app.kubernetes.io/instance"

CONFIGURATION: Final = "onewriter.dev/configuration"
"""Annotation: digest of the configuration for which an object was applied or a pod started."""

STORE_USER: Final = "onewriter"
"""The brokers' user in the installed store."""

STORE_OPERATOR: Final = "operator"
"""The operator's user in a cluster."""

STORE_REPLICA: Final = "replica"
"""The user as which replicas copy their primaries in a cluster."""

SHARD_LABEL: Final = "onewriter.dev/shard"
"""The shard to which a pod of a cluster belongs."""

SHARDS: Final = "onewriter.dev/shards"
"""Annotation: the number of shards of the cluster to which a StatefulSet of the store belongs."""

STORE_TLS: Final = "onewriter.dev/store-tls"
"""Annotation: "true" at a StatefulSet of the store whose processes use TLS."""

METRICS_TOKEN_KEY: Final = "token"  # noqa: S105 - the name of a key

PASSWORD_KEY: Final = "password"  # noqa: S105 - the name of a key
PREVIOUS_PASSWORD_KEY: Final = "previous-password"  # noqa: S105 - the name of a key
"""Keys of the Secret with the store's passwords; both are valid, so that a change locks no broker out."""


def component(configuration: Configuration, name: str) -> str:
    """The name of a component's objects."""
    return f"{configuration.release}-{name}"


def broker_pods(configuration: Configuration) -> str:
    """The headless Service that gives each broker a name of its own."""
    return f"{component(configuration, BROKER)}-pods"


def store_secret(configuration: Configuration) -> str:
    """The Secret with the password of the installed store."""
    return f"{component(configuration, VALKEY)}-password"


def store_shard(configuration: Configuration, shard: int) -> str:
    """The StatefulSet of one shard of a cluster."""
    return f"{component(configuration, VALKEY)}-{shard}"


def store_sets(configuration: Configuration) -> list[str]:
    """The StatefulSets of the installed store."""
    if configuration.has_cluster:
        return [store_shard(configuration, shard) for shard in range(configuration.store.shards)]
    return [component(configuration, VALKEY)]


def store_pods(configuration: Configuration) -> str:
    """The headless Service that gives each pod of a cluster a name of its own."""
    return f"{component(configuration, VALKEY)}-pods"


def store_members(configuration: Configuration) -> list[tuple[str, int]]:
    """The pods of a cluster, and their shards."""
    layout = configuration.store
    return [
        (f"{store_shard(configuration, shard)}-{number}", shard)
        for shard in range(layout.shards)
        for number in range(1 + layout.replicas)
    ]


def store_cluster_secret(configuration: Configuration) -> str:
    """The Secret with the password of the operator and of the replicas in a cluster."""
    return f"{component(configuration, VALKEY)}-cluster"


def metrics_secret(configuration: Configuration) -> str:
    """The Secret with the token that authorizes reads of the brokers' metrics."""
    return component(configuration, "metrics")


def broker_tls_secret(configuration: Configuration) -> str:
    """The Secret with the brokers' certificate."""
    given = configuration.brokers.tls.secret_name
    return given or f"{component(configuration, BROKER)}-tls"


def broker_authority(configuration: Configuration) -> str:
    """The ConfigMap with the CA of the brokers' certificate."""
    return f"{component(configuration, BROKER)}-ca"


def digest(configuration: Configuration) -> str:
    """A hash of the whole configuration; an object's annotation shows for which one it was applied."""
    return hashlib.sha256(configuration.model_dump_json().encode()).hexdigest()[:16]


def host(configuration: Configuration, service: str) -> str:
    """A Service's name in DNS."""
    return f"{service}.{configuration.namespace}.svc.{configuration.cluster_domain}"


def selector(configuration: Configuration, name: str) -> dict[str, str]:
    """The labels that select a component's pods; they never change."""
    return {
        "app.kubernetes.io/name": "onewriter",
        INSTANCE_LABEL: configuration.release,
        "app.kubernetes.io/component": name,
    }


def labels(configuration: Configuration, name: str) -> dict[str, str]:
    """All labels of a component's object."""
    found = {
        **selector(configuration, name),
        "app.kubernetes.io/part-of": "onewriter",
        MANAGED_BY: FIELD_MANAGER,
    }
    if configuration.version:
        found["app.kubernetes.io/version"] = configuration.version
    return found


def metadata(configuration: Configuration, name: str, part: str, **more: Any) -> dict[str, Any]:
    """The metadata of an object of component ``part``."""
    return {
        "name": name,
        "namespace": configuration.namespace,
        "labels": labels(configuration, part),
        **more,
    }
