"""The routes of each server as the server itself registers them: method, and path with ``{variables}``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast
from unittest.mock import MagicMock

from aiohttp import web

from onewriter.sidecar.http import HttpServer
from onewriter.sidecar.map_http import MapRoutes
from onewriter.sidecar.ownerships import OwnershipRoutes
from onewriter.sidecar.settings import Settings
from onewriter_operator.webhook import Webhook
from onewriter_testing.in_process import in_process_broker

Route = tuple[str, str]

ANY_METHOD = "PATCH"
"""Represents a route that accepts every method."""

UNKNOWN: tuple[Route, ...] = (("GET", "/{name}"), ("POST", "/onewriter/v1/{name}"))
"""Paths that no server has."""

STAGED = "/staged/"
"""In the path of every route that stages or publishes rows."""


def broker() -> tuple[Route, ...]:
    """Every route of a broker."""
    with in_process_broker() as served:
        return (*listed(served._broker.http.routes), *UNKNOWN)


def staging() -> tuple[Route, ...]:
    """Those of them that stage and publish rows."""
    return tuple(route for route in broker() if STAGED in route[1])


def sidecar() -> tuple[Route, ...]:
    """Every route of a sidecar."""
    candidate: Any = MagicMock()
    candidate.settings = Settings(topic="t")
    owning = OwnershipRoutes(MagicMock(), MagicMock(), MagicMock(), MagicMock())
    sharing = MapRoutes(candidate.settings, MagicMock(), MagicMock(), MagicMock())
    server = HttpServer(
        candidate, MagicMock(), MagicMock(), [owning.add_routes, sharing.add_routes]
    )
    return (*listed(server._api()[1]), *UNKNOWN)


def webhook() -> tuple[Route, ...]:
    """Every route of the admission webhook."""
    server = Webhook(Path("none.crt"), Path("none.key"), cast("Any", None))
    return (*listed(server.routes), ("GET", "/inject"), *UNKNOWN)


def listed(routes: Iterable[tuple[web.AbstractRoute, object]]) -> list[Route]:
    """The routes of a server that is there already."""
    found = set()
    for route, _ in routes:
        assert route.resource is not None
        method = ANY_METHOD if route.method == "*" else route.method
        found.add((method, route.resource.canonical))
    return sorted(found)


NAMED = {"broker": broker, "staging": staging, "sidecar": sidecar, "webhook": webhook}
