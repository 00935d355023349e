"""The Service of the installed store: one name, one server."""

from __future__ import annotations

from typing import Any

from onewriter_operator.configuration import PORT_STORE, Configuration
from onewriter_operator.installation import names


def service(configuration: Configuration) -> dict[str, Any] | None:
    """The Service; None with an external store.

    Its address stays the same when the server's pod is replaced, so cached DNS answers stay valid. It
    also leads to a server that is not ready: brokers wait for the server themselves.
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
