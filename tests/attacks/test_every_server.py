"""No server of the project has a route without a rule about its callers, including routes that are added
later.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
from aiohttp import web
from tests.attacks.guarded import GuardedBrokers

from onewriter.sidecar.http import HttpServer
from onewriter.sidecar.map_http import MapRoutes
from onewriter.sidecar.ownerships import OwnershipRoutes
from onewriter.sidecar.settings import Settings
from onewriter_http.limits import Limits
from onewriter_http.routes import Callers, For, Routes
from onewriter_http.server import Server
from onewriter_operator.metrics import Metrics
from onewriter_operator.web import Web
from onewriter_operator.webhook import Webhook

ROOT = Path(__file__).parents[2]
PROBES = {"/healthz", "/readyz", "/metrics"}


def paths(routes: Routes[For], callers: Callers) -> set[str]:
    """The paths that are for those; every rule says why."""
    found = set()
    for route, rule in routes:
        assert rule.why
        assert route.resource is not None
        if rule.callers is callers:
            found.add(route.resource.canonical)
    return found


def sidecar() -> HttpServer:
    candidate: Any = MagicMock()
    candidate.settings = Settings(topic="t")
    owning = OwnershipRoutes(MagicMock(), MagicMock(), MagicMock(), MagicMock())
    sharing = MapRoutes(candidate.settings, MagicMock(), MagicMock(), MagicMock())
    return HttpServer(candidate, MagicMock(), MagicMock(), [owning.add_routes, sharing.add_routes])


def test_the_sidecars_routes_are_for_its_pod_but_for_probes() -> None:
    _, routes = sidecar()._api()
    assert paths(routes, Callers.PUBLIC) == PROBES
    assert paths(routes, Callers.POD) == {
        "/publish",
        "/leadership",
        "/resume-info",
        "/release",
        "/rejoin",
        "/own",
        "/map/{topic}",
        "/map/{topic}/{key}",
    }
    assert paths(routes, Callers.API_SERVER) == set()
    _, probes = sidecar()._probes()
    assert paths(probes, Callers.PUBLIC) == {each.resource.canonical for each, _ in probes}  # type: ignore[union-attr]


def test_the_operators_routes_are_probes_and_the_webhook_is_for_the_api_server() -> None:
    operator = Web(Metrics(), list)
    assert paths(operator.routes, Callers.PUBLIC) == PROBES - {"/metrics"}
    assert paths(operator.routes, Callers.SCRAPER) == {"/metrics"}
    webhook = Webhook(Path("none.crt"), Path("none.key"), cast("Any", None))
    assert paths(webhook.routes, Callers.API_SERVER) == {"/inject"}
    assert len(list(webhook.routes)) == 1


def test_both_ports_of_a_broker_declare_a_rule_for_each_route(guarded: GuardedBrokers) -> None:
    http = guarded()._broker.http
    assert len(list(http.routes)) > 200
    probes = {each.resource.canonical for each, _ in http.probe_routes if each.resource is not None}
    assert probes == PROBES


async def _answer(_request: web.Request) -> web.Response:
    return web.Response()


def test_a_route_without_a_rule_keeps_its_server_from_starting() -> None:
    application = web.Application()
    routes: Routes[For] = Routes(application.router)
    routes.add_get("/a", _answer, For(Callers.POD, "a test"))
    Server(application, Limits(), routes, name="complete")
    application.router.add_get("/b", _answer)
    with pytest.raises(RuntimeError, match=r"no right is declared for \w+ .*/b"):
        Server(application, Limits(), routes, name="incomplete")
    with pytest.raises(RuntimeError, match="another application"):
        Server(web.Application(), Limits(), routes, name="other")


def test_only_the_server_with_rules_serves_http() -> None:
    own = {"AppRunner", "TCPSite", "UnixSite", "ServerRunner", "run_app", "HTTPServer"}
    found = set()
    for folder in ("broker", "client", "core", "operator", "pipeline"):
        for file in (ROOT / folder).rglob("*.py"):
            names = {
                each.attr if isinstance(each, ast.Attribute) else each.id
                for each in ast.walk(ast.parse(file.read_bytes()))
                if isinstance(each, ast.Attribute | ast.Name)
            }
            if own & names:
                found.add(str(file.relative_to(ROOT)))
    assert found == {"core/onewriter_http/server.py"}
