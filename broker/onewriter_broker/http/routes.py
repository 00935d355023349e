"""Each route of the broker with the rights that its caller needs. A route cannot be registered without them.

The server checks the rule of the matched route before the handler runs. It refuses requests whose route has
no rule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from onewriter_broker.auth.authorization import Authorization
from onewriter_broker.http.site import namespace_of, topic_of
from onewriter_broker.namespaces import NamespaceMissing
from onewriter_core.authorization import INSTALLATION, Action, Resource
from onewriter_core.errors import Refused, ServerError
from onewriter_core.ids import Identity
from onewriter_http import routes as http_routes
from onewriter_http.routes import Handler

__all__ = [
    "LISTED",
    "AnyIdentity",
    "ByHandler",
    "Filtered",
    "Handler",
    "Needs",
    "Open",
    "Routes",
    "Rule",
    "check",
    "on_installation",
    "on_namespace",
    "on_tenant",
    "on_topic",
]

Finder = Callable[[web.Request, Authorization], Resource]


@dataclass(frozen=True, slots=True)
class Needs:
    """The caller needs these rights on the resource that the request names."""

    actions: tuple[Action, ...]
    resource: Finder


@dataclass(frozen=True, slots=True)
class Filtered:
    """Every proven identity may ask. The answer contains only what it may see with this right."""

    action: Action
    why: str


@dataclass(frozen=True, slots=True)
class ByHandler:
    """The handler checks this right itself, because the decision depends on more than the path."""

    action: Action
    why: str


@dataclass(frozen=True, slots=True)
class AnyIdentity:
    """Every proven identity may ask. The answer contains nothing about topics or their users."""

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


Routes = http_routes.Routes[Rule]
"""Registers the routes of a broker, each with its rule."""


def check(
    rule: Rule, request: web.Request, identity: Identity, authorization: Authorization
) -> None:
    """Raise Refused unless the identity has the rights that the route needs; raises InvalidTopicName too."""
    if isinstance(rule, Needs):
        resource = rule.resource(request, authorization)
        for action in rule.actions:
            try:
                authorization.require(identity, action, resource)
            except Refused as refused:
                if refused.code is ServerError.TOPIC_NOT_FOUND:
                    raise NamespaceMissing(f"Namespace not found ({refused.message})") from None
                raise
