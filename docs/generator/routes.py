"""The HTTP routes that each server registers."""

from __future__ import annotations

from collections.abc import Iterable

from aiohttp import web
from tests.attacks.fuzzing import routes as tested

from onewriter_testing.in_process import InProcessBroker


def names(broker: InProcessBroker) -> dict[str, list[str]]:
    """Method and path of every route, by server; HEAD goes with GET."""
    servers = {
        "broker": of_broker(broker),
        "sidecar": [each for each in tested.sidecar() if each not in tested.UNKNOWN],
        "operator's webhook": [("POST", "/inject")],
    }
    return {
        server: [f"{method} {path}" for method, path in found if method != "HEAD"]
        for server, found in servers.items()
    }


def of_broker(broker: InProcessBroker) -> list[tuple[str, str]]:
    """Method and path of every route of a broker, ``*`` for a route with every method."""
    return listed(broker._broker.http.routes)


def listed(routes: Iterable[tuple[web.AbstractRoute, object]]) -> list[tuple[str, str]]:
    """Method and path of these routes."""
    resources = ((route.method, route.resource) for route, _ in routes)
    return sorted(
        {(method, each.canonical) for method, each in resources if each is not None},
        key=lambda route: (route[1], route[0]),
    )
