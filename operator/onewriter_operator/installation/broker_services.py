"""The Services of the brokers: one for clients, and a headless one that names each pod."""

from __future__ import annotations

from typing import Any

from onewriter_operator.configuration import (
    PORT_HTTP,
    PORT_HTTPS,
    PORT_PULSAR,
    PORT_PULSAR_TLS,
    Configuration,
)
from onewriter_operator.installation import names

Json = dict[str, Any]


def ports(configuration: Configuration) -> list[tuple[str, int]]:
    """Name and number of every port that clients may use."""
    tls = configuration.brokers.tls
    found = [("pulsar", PORT_PULSAR), ("http", PORT_HTTP)] if tls.offers_plain else []
    if tls.enabled:
        found += [("pulsar-tls", PORT_PULSAR_TLS), ("https", PORT_HTTPS)]
    return found


def clients(configuration: Configuration) -> Json:
    """The Service that clients are configured with: any broker answers their look-ups."""
    name = names.component(configuration, names.BROKER)
    found = _service(configuration, name, {"type": "ClusterIP"})
    if configuration.brokers.service.annotations:
        found["metadata"]["annotations"] = dict(configuration.brokers.service.annotations)
    return found


def pods(configuration: Configuration) -> Json:
    """The headless Service with a name for each broker, which look-ups return.

    The name also resolves while a broker is not ready or is stopping: it serves its topics until it has
    handed them over.
    """
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True}
    return _service(configuration, names.broker_pods(configuration), spec)


def _service(configuration: Configuration, name: str, spec: Json) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": names.metadata(configuration, name, names.BROKER),
        "spec": {
            **spec,
            "selector": names.selector(configuration, names.BROKER),
            "ports": [
                {"name": name, "port": port, "targetPort": name}
                for name, port in ports(configuration)
            ],
        },
    }
