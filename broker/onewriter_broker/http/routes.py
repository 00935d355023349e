"""Every route with what its caller needs: a route cannot be registered without saying so.

The server's guard asks the rule of the matched route before its handler runs, and refuses a request
whose route has none: what nobody declared is answered by nobody.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Final

from aiohttp import web
from aiohttp.web_urldispatcher import SystemRoute

from onewriter_broker.authorization import Authorization
from onewriter_broker.http.site import namespace_of, topic_of
from onewriter_broker.namespaces import Missing
from onewriter_core.authorization import INSTALLATION, Action, Resource
from onewriter_core.errors import Refused, ServerError
from onewriter_core.ids import Identity

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Finder = Callable[[web.Request, Authorization], Resource]


@dataclass(frozen=True, slots=True)
class Needs:
    """The caller needs these rights on the resource that the request names."""

    actions: tuple[Action, ...]
    resource: Finder


@dataclass(frozen=True, slots=True)
class Filtered:
    """Every proven identity may ask; the answer holds only what it may see with this right."""

    action: Action
    why: str


@dataclass(frozen=True, slots=True)
class ByHandler:
    """The handler asks for this right: the decision depends on more than the path."""

    action: Action
    why: str


@dataclass(frozen=True, slots=True)
class AnyIdentity:
    """Every proven identity may ask: the answer tells nothing about topics or their users."""

    why: str


@dataclass(frozen=True, slots=True)
class Open:
    """Answered without a proof of identity."""

    why: str


Rule = Needs | Filtered | ByHandler | AnyIdentity | Open


def on_topic(*actions: Action) -> Needs:
    """Rights on the topic of the path."""
    return Needs(actions, lambda request, rights: rights.topic(topic_of(request)))


def on_namespace(*actions: Action) -> Needs:
    """Rights on the namespace of the path."""
    return Needs(actions, lambda request, rights: rights.namespace(namespace_of(request)))


def on_tenant(*actions: Action) -> Needs:
    """Rights on the tenant of the path."""
    return Needs(actions, lambda request, rights: rights.namespace(request.match_info["tenant"]))


def on_installation(*actions: Action) -> Needs:
    """Rights on the installation."""
    return Needs(actions, lambda _request, _rights: INSTALLATION)


LISTED: Final = Filtered(Action.OBSERVE, "the caller sees the topics that it may observe")


class Routes:
    """Registers routes at a router, each with its rule."""

    def __init__(self, router: web.UrlDispatcher) -> None:
        self._router = router
        self._rules: dict[int, Rule] = {}

    def add_get(self, path: str, handler: Handler, rule: Rule, *, allow_head: bool = True) -> None:
        """GET, and HEAD with it."""
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
        """One method, or ``*`` for all of them."""
        self._note(self._router.add_route(method, path, handler), rule)

    def _note(self, route: web.AbstractRoute, rule: Rule) -> None:
        self._rules[id(route)] = rule

    def rule_of(self, request: web.Request) -> Rule | None:
        """The rule of the route that matches; None: none does, and the answer is 404 or 405.

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

    def require_complete(self) -> None:
        """Raise RuntimeError if the router has a route without a rule."""
        for _ in self:
            pass


def check(
    rule: Rule, request: web.Request, identity: Identity, authorization: Authorization
) -> None:
    """Raise Refused unless the identity has what the route needs; also InvalidTopicName."""
    if isinstance(rule, Needs):
        resource = rule.resource(request, authorization)
        for action in rule.actions:
            try:
                authorization.require(identity, action, resource)
            except Refused as refused:
                if refused.code is ServerError.TOPIC_NOT_FOUND:
                    raise Missing(f"Namespace not found ({refused.message})") from None
                raise
