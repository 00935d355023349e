"""Routes with access rules: a server with a route that has no rule does not start.

The type of a ``Rule`` depends on the server: the input of its guard, or the reason why no guard is needed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from aiohttp import web
from aiohttp.web_urldispatcher import SystemRoute

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Rule = TypeVar("Rule")


class Callers(StrEnum):
    """The callers of a route, for a server that authenticates no identities."""

    PUBLIC = "all clients that reach the port"
    SCRAPER = "clients with the token of metrics_token_file; all clients if there is no such file"
    POD = "the containers of the same pod"
    API_SERVER = "the Kubernetes API server, and clients that reach the same port"


@dataclass(frozen=True, slots=True)
class For:
    """The callers of the route, and why no further check is needed."""

    callers: Callers
    why: str


class Routes(Generic[Rule]):
    """Registers routes with their rules at a router."""

    def __init__(self, router: web.UrlDispatcher) -> None:
        self._router = router
        self._rules: dict[int, Rule] = {}

    def add_get(self, path: str, handler: Handler, rule: Rule, *, allow_head: bool = True) -> None:
        """A route for GET and HEAD."""
        resource = self._router.add_resource(path)
        if allow_head:
            self._note(resource.add_route("HEAD", handler), rule)
        self._note(resource.add_route("GET", handler), rule)

    def add_post(self, path: str, handler: Handler, rule: Rule) -> None:
        self.add_route("POST", path, handler, rule)

    def add_put(self, path: str, handler: Handler, rule: Rule) -> None:
        self.add_route("PUT", path, handler, rule)

    def add_delete(self, path: str, handler: Handler, rule: Rule) -> None:
        self.add_route("DELETE", path, handler, rule)

    def add_route(self, method: str, path: str, handler: Handler, rule: Rule) -> None:
        """A route for one method, or for all with ``*``."""
        self._note(self._router.add_route(method, path, handler), rule)

    def _note(self, route: web.AbstractRoute, rule: Rule) -> None:
        self._rules[id(route)] = rule

    def rule_of(self, request: web.Request) -> Rule | None:
        """The rule of the matching route; None: no route matches, and the answer is 404 or 405.

        Raises RuntimeError for a route that was registered without a rule.
        """
        route = request.match_info.route
        rule = self._rules.get(id(route))
        if rule is None and not isinstance(route, SystemRoute):
            raise RuntimeError(f"no right is declared for {route.method} {route.resource}")
        return rule

    def __iter__(self) -> Iterator[tuple[web.AbstractRoute, Rule]]:
        """Every route with its rule. Raises RuntimeError for a route without one."""
        for route in self._router.routes():
            rule = self._rules.get(id(route))
            if rule is None:
                raise RuntimeError(f"no right is declared for {route.method} {route.resource}")
            yield route, rule

    def require_complete(self, application: web.Application) -> None:
        """Raise RuntimeError unless this is the application's router and each route has its rule."""
        if application.router is not self._router:
            raise RuntimeError("the routes were declared for another application")
        for _ in self:
            pass
