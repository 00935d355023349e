"""The Service of our own store: one name, one server."""

from __future__ import annotations

from typing import Any

from onewriter_operator.configuration import PORT_STORE, Configuration
from onewriter_operator.installation import names


def service(configuration: Configuration) -> dict[str, Any] | None:
    """The Service; None when the store comes from elsewhere.

    Its address stays when the server's pod is replaced, whatever has been remembered of its name.
    It leads to the server before that is ready as well: brokers wait for it by themselves.
    """
    if configuration.external_store.is_used:
        return None
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
