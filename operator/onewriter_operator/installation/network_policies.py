"""NetworkPolicies: the allowed connections to and from brokers and store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from onewriter_operator.configuration import (
    PORT_HTTP,
    PORT_HTTPS,
    PORT_PROBES,
    PORT_STORE,
    PORT_STORE_BUS,
    Configuration,
)
from onewriter_operator.installation import broker_services, names

Json = dict[str, Any]

DNS: Json = {"ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]}
"""DNS at any address: in some clusters it runs on the nodes."""


def policies(configuration: Configuration) -> list[Json]:
    """The policies of the brokers and of the installed store."""
    if not configuration.network_policies.enabled:
        return []
    found = [_brokers(configuration)]
    if not configuration.external_store.is_used:
        found.append(_valkey(configuration))
    return found


def _brokers(configuration: Configuration) -> Json:
    wanted = configuration.network_policies
    offered = [port for _, port in broker_services.ports(configuration)]
    operator, brokers = _peer(configuration, names.OPERATOR), _peer(configuration, names.BROKER)
    within = [PORT_HTTPS] if configuration.brokers.tls.enabled else [PORT_HTTP]
    # If the clients are restricted, the chart's test and jobs are still allowed.
    ours = [_peer(configuration, part) for part in (names.TEST, names.PIPELINE)]
    clients = [*wanted.clients, *ours] if wanted.clients else []
    ingress = [
        _rule("from", clients, offered),
        _rule("from", wanted.monitoring, [PORT_PROBES]),
        # A broker forwards a request that only another broker can execute.
        _rule("from", [operator, brokers], within),
    ]
    external = configuration.external_store
    store = (
        _rule("to", (), external.ports)
        if external.is_used
        else _rule("to", [_peer(configuration, names.VALKEY)], [PORT_STORE])
    )
    egress = [
        DNS,
        store,
        _rule("to", (), wanted.api_server_ports),
        _rule("to", [brokers], within),
    ]
    return _policy(configuration, names.BROKER, ingress, egress)


def _valkey(configuration: Configuration) -> Json:
    """Only brokers may connect to the store; it may open no connection.

    In a cluster the operator connects to it too, and its processes connect to each other.
    """
    ingress = [_rule("from", [_peer(configuration, names.BROKER)], [PORT_STORE])]
    if not configuration.has_cluster:
        return _policy(configuration, names.VALKEY, ingress, [])
    each_other, ports = [_peer(configuration, names.VALKEY)], [PORT_STORE, PORT_STORE_BUS]
    ingress += [
        _rule("from", [_peer(configuration, names.OPERATOR)], [PORT_STORE]),
        _rule("from", each_other, ports),
    ]
    return _policy(configuration, names.VALKEY, ingress, [_rule("to", each_other, ports)])


def _peer(configuration: Configuration, part: str) -> Json:
    return {"podSelector": {"matchLabels": names.selector(configuration, part)}}


def _rule(direction: str, peers: Sequence[Json], ports: Iterable[int]) -> Json:
    """A rule of a policy; without peers it allows all."""
    found: Json = {"ports": [{"protocol": "TCP", "port": port} for port in ports]}
    if peers:
        found[direction] = list(peers)
    return found


def _policy(
    configuration: Configuration, part: str, ingress: list[Json], egress: list[Json]
) -> Json:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": names.metadata(configuration, names.component(configuration, part), part),
        "spec": {
            "podSelector": {"matchLabels": names.selector(configuration, part)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": ingress,
            "egress": egress,
        },
    }
