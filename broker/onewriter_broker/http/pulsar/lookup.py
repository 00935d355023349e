"""Pulsar's look-up over HTTP: which broker serves a topic."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from onewriter_broker.anchor.api import Addresses
from onewriter_broker.connection.lookups import (
    NO_OWNER,
    check_listener,
    wait_for_owner,
    why_not_served,
)
from onewriter_broker.http.routes import Routes, on_topic
from onewriter_broker.http.site import Site, topic_of
from onewriter_broker.namespaces import NamespaceMissing
from onewriter_core.authorization import Action
from onewriter_core.errors import Refused, ServerError, Unavailable
from onewriter_core.ids import TopicName

WHOLE_RANGE = "0x00000000_0xffffffff"
"""The bundle in responses. Topics here belong to buckets, not to Pulsar's bundles."""


BROKERS_NAMED_MAX: Final = 16
"""Brokers in a response: a client needs one that answers."""


def add_routes(router: Routes, site: Site) -> None:
    """See docs/http.md, "Look-up"."""

    def checked(request: web.Request) -> TopicName:
        name = topic_of(request)
        try:
            site.check_topic(request, name)
        except Refused as refused:
            if refused.code is ServerError.TOPIC_NOT_FOUND:
                raise NamespaceMissing("Namespace not found") from None
            raise
        return name

    async def lookup(request: web.Request) -> web.Response:
        name = checked(request)
        asked_for = request.query.get("listenerName", "")
        check_listener(asked_for or request.headers.get("X-Pulsar-ListenerName", ""))
        owner = await wait_for_owner(site.topics, name)
        if owner is None:
            raise Unavailable(f"{NO_OWNER}: {why_not_served(site.topics, name)}")
        plain, tls = site.clients.over_plain(owner), site.clients.over_tls(owner)
        brokers = _with_others(site, owner)
        return web.json_response(
            {
                "brokerUrl": plain.broker_url,
                "httpUrl": plain.http_url,
                "nativeUrl": plain.broker_url,
                "brokerUrlTls": tls.broker_url,
                "httpUrlTls": tls.http_url,
                "brokerUrlSsl": tls.broker_url,
                "serviceUrl": _service_url(
                    [site.clients.over_plain(each).broker_url for each in brokers]
                ),
                "serviceUrlTls": _service_url(
                    [site.clients.over_tls(each).broker_url for each in brokers]
                ),
            }
        )

    async def bundle(request: web.Request) -> web.Response:
        checked(request)
        return web.json_response(text=WHOLE_RANGE)

    path = "/lookup/v2/topic/{domain:persistent|non-persistent}/{tenant}/{namespace}/{topic:[^/]+}"
    router.add_get(path, lookup, on_topic(Action.LOOK_UP))
    router.add_get(path + "/bundle", bundle, on_topic(Action.LOOK_UP))


def _with_others(site: Site, owner: Addresses) -> list[Addresses]:
    """The owner of a topic, then other brokers that are alive: a client may begin with any of them."""
    members = site.membership.observer.members().values()
    others = {address for address, is_alive in members if is_alive} | {site.addresses}
    ordered = sorted(others - {owner}, key=lambda each: each.broker_url)
    return [owner, *ordered][:BROKERS_NAMED_MAX]


def _service_url(urls: list[str]) -> str:
    """One service URL from those of several brokers, ``pulsar://a:6650,b:6650``; empty if there are none."""
    schemes = {url.partition("://")[0] for url in urls if url}
    if len(schemes) != 1:
        return next((url for url in urls if url), "")
    hosts = [url.partition("://")[2].rstrip("/") for url in urls if url]
    return f"{schemes.pop()}://{','.join(hosts)}"
