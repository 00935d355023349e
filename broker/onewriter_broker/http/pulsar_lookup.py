"""Pulsar's look-up over HTTP: which broker serves a topic."""

from __future__ import annotations

from aiohttp import web

from onewriter_broker.connection.lookups import (
    NO_OWNER,
    check_listener,
    wait_for_owner,
    why_not_served,
)
from onewriter_broker.http.routes import Routes, on_topic
from onewriter_broker.http.site import Site, topic_of
from onewriter_broker.namespaces import Missing
from onewriter_core.authorization import Action
from onewriter_core.errors import Refused, ServerError, Unavailable
from onewriter_core.ids import TopicName

WHOLE_RANGE = "0x00000000_0xffffffff"
"""What is answered for a topic's bundle: Pulsar's bundles do not exist here, buckets do."""


def add_routes(router: Routes, site: Site) -> None:
    """See docs/http.md, "Look-up"."""

    def checked(request: web.Request) -> TopicName:
        name = topic_of(request)
        try:
            site.check_topic(request, name)
        except Refused as refused:
            if refused.code is ServerError.TOPIC_NOT_FOUND:
                raise Missing("Namespace not found") from None
            raise
        return name

    async def lookup(request: web.Request) -> web.Response:
        name = checked(request)
        asked_for = request.query.get("listenerName", "")
        check_listener(asked_for or request.headers.get("X-Pulsar-ListenerName", ""))
        owner = await wait_for_owner(site.topics, name)
        if owner is None:
            raise Unavailable(f"{NO_OWNER}: {why_not_served(site.topics, name)}")
        tls = site.clients.over_tls(owner)
        return web.json_response(
            {
                "brokerUrl": owner.broker_url,
                "httpUrl": owner.http_url,
                "nativeUrl": owner.broker_url,
                "brokerUrlTls": tls.broker_url,
                "httpUrlTls": tls.http_url,
                "brokerUrlSsl": tls.broker_url,
            }
        )

    async def bundle(request: web.Request) -> web.Response:
        checked(request)
        return web.json_response(text=WHOLE_RANGE)

    path = "/lookup/v2/topic/{domain:persistent|non-persistent}/{tenant}/{namespace}/{topic:[^/]+}"
    router.add_get(path, lookup, on_topic(Action.LOOK_UP))
    router.add_get(path + "/bundle", bundle, on_topic(Action.LOOK_UP))
