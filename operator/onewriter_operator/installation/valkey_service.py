"""The Service of the installed store: one name, one server; in a cluster, a name for each pod."""

from __future__ import annotations

from typing import Any

from onewriter_operator.configuration import PORT_STORE, PORT_STORE_BUS, Configuration
from onewriter_operator.installation import names


def service(configuration: Configuration) -> dict[str, Any] | None:
    """The Service; None with an external store.

    Its address stays the same when the server's pod is replaced, so cached DNS answers stay valid. It
    also leads to a server that is not ready: brokers wait for the server themselves. In a cluster, the Service
    has no address, and each pod has a name, also while it is not ready.
    """
    if configuration.external_store.is_used:
        return None
    if configuration.has_cluster:
        return _pods(configuration)
    name = names.component(configuration, names.VALKEY)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": names.metadata(configuration, name, names.VALKEY),
        "spec": {
            "type": "ClusterIP",
            "publishNotReadyAddresses": True,
            "selector": names.selector(configuration, names.VALKEY),
            "ports": [{"name": "valkey", "port": PORT_STORE, "targetPort": "valkey"}],
        },
    }


def _pods(configuration: Configuration) -> dict[str, Any]:
    name = names.store_pods(configuration)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": names.metadata(configuration, name, names.VALKEY),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": names.selector(configuration, names.VALKEY),
            "ports": [
                {"name": "valkey", "port": PORT_STORE, "targetPort": "valkey"},
                {"name": "bus", "port": PORT_STORE_BUS, "targetPort": "bus"},
            ],
        },
    }
