"""Configurations for the tests of the installed objects."""

from __future__ import annotations

from typing import Any

from onewriter_operator.configuration import Configuration

Json = dict[str, Any]

OWNER: Json = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "onewriter-config", "uid": "u-1", "resourceVersion": "7"},
}
PEER = {"namespaceSelector": {"matchLabels": {"team": "shop"}}}
MONITORING = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}

EVERYTHING: Json = {
    "version": "1.2.3",
    "image": {
        "reference": "localhost/onewriter:dev",
        "pullPolicy": "Never",
        "pullSecrets": ["mirror"],
    },
    "brokers": {
        "replicas": 5,
        "storage": {"size": "1Gi", "className": "fast", "accessMode": "ReadWriteOncePod"},
        "labels": {"team": "platform", "app.kubernetes.io/name": "other"},
        "annotations": {"note": "yes"},
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "dedicated", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "high",
        "spread": {"zones": "DoNotSchedule", "nodes": "None"},
        "tls": {"enabled": True, "secretName": "given-tls", "plain": True},
        "authentication": {"adminSubjects": ["alice"]},
        "service": {"annotations": {"a": "b"}},
        "podDisruptionBudget": {"maxUnavailable": 2},
        "settings": {"silentAfterSeconds": 1.5, "stopSeconds": 20, "requireDeclared": False},
    },
    "valkey": {
        "image": "valkey/valkey:9",
        "storage": {"size": "20Gi", "className": "-"},
        "passwordSecret": {"name": "given", "key": "secret"},
        "settings": {"hz": 50, "io-threads": 2, "lazyfree-lazy-expire": True},
    },
    "networkPolicies": {"clients": [PEER], "monitoring": [MONITORING], "apiServerPorts": [6443]},
}
"""Every setting differs from its default."""

EXTERNAL: Json = {
    "externalStore": {
        "url": "rediss://store.example:7000",
        "username": "broker",
        "passwordSecret": {"name": "store"},
        "tls": {
            "caSecretName": "store-authority",
            "clientSecretName": "broker-at-store",
            "serverName": "primary.store.example",
        },
        "replicas": 2,
    }
}
SENTINEL: Json = {"externalStore": {"sentinels": ["one:26379", "two:26379"]}}
EXTERNAL_CLUSTER: Json = {
    "externalStore": {
        "url": "rediss+cluster://node-0.store.example:7000,node-1.store.example:7001",
        "username": "broker",
        "passwordSecret": {"name": "store"},
        "tls": EXTERNAL["externalStore"]["tls"],
        "replicas": 1,
    }
}
CLUSTER: Json = {
    "store": {"shards": 3, "replicas": 2},
    "valkey": {
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
    },
    "brokers": {"settings": {"minimumDurability": "Replicated"}},
}
"""A cluster as the store."""
TLS: Json = {
    "store": {"tls": {"secretName": "store-certificate"}},
    "valkey": {"image": "valkey/valkey:9"},
    "operator": {"storeCaFile": "/etc/onewriter/store-ca/ca.crt"},
}
"""TLS to the installed store."""
TLS_CLUSTER: Json = TLS | {"store": {"shards": 3, **TLS["store"]}}
WITHOUT: Json = {
    "brokers": {
        "tls": {"enabled": False},
        "podDisruptionBudget": {"enabled": False},
        "settings": {"minimumDurability": "None"},
    },
    "valkey": {"storage": {"size": ""}, "podDisruptionBudget": {"enabled": False}},
    "networkPolicies": {"enabled": False},
}

ALL = {
    "defaults": {},
    "everything": EVERYTHING,
    "external": EXTERNAL,
    "sentinel": SENTINEL,
    "external cluster": EXTERNAL_CLUSTER,
    "cluster": CLUSTER,
    "tls": TLS,
    "cluster with tls": TLS_CLUSTER,
    "without": WITHOUT,
}


def configured(more: Json | None = None, *, namespace: str = "system") -> Configuration:
    base: Json = {
        "release": "onewriter",
        "namespace": namespace,
        "image": {"reference": "localhost/onewriter:dev"},
    }
    return Configuration.from_document({**base, **(more or {})})


def only(documents: list[Json], kind: str, name: str) -> Json:
    (found,) = [
        each for each in documents if (each["kind"], each["metadata"]["name"]) == (kind, name)
    ]
    return found


def container(stateful_set: Json | None) -> Json:
    assert stateful_set is not None
    (found,) = stateful_set["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def environment(stateful_set: Json) -> dict[str, str]:
    return {
        each["name"]: each.get("value", "<from the pod>") for each in container(stateful_set)["env"]
    }
