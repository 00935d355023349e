"""Positions of readers of whole logs: a durable subscription that follows the reader and never moves back.

Identities that may consume the topic may use it, not only administrators. The log keeps the entries that the
subscription has not passed, as for a consumer.
"""

from __future__ import annotations

from typing import Final

from aiohttp import web

from onewriter_broker.http.onewriter import positions
from onewriter_broker.http.onewriter.bulk import TOPIC_PATH, one_log
from onewriter_broker.http.routes import Routes, on_topic
from onewriter_broker.http.site import Site, object_body, topic_of
from onewriter_core.authorization import Action
from onewriter_core.errors import Unavailable

_PATH: Final = TOPIC_PATH + "/acknowledged/{subscription:[^/]+}"


def add_routes(router: Routes, site: Site) -> None:
    """See docs/http.md, "Following a reader"."""

    async def acknowledge(request: web.Request) -> web.Response:
        before = positions.read((await object_body(request)).get("before"), "before")
        name, topics = topic_of(request), site.topics
        site.check_topic(request, name)
        topic_log, _, partition = await one_log(site, request)
        subscription = request.match_info["subscription"]
        await site.clients.ownerships.check_follower(topic_log.name, subscription)
        # There is no await from here until the subscription has moved, so no other owner can intervene.
        topic = topics.loaded.get(str(name.base))
        if topic is None or topic.runner.logs.get(partition) is not topic_log:
            raise Unavailable(f"{name} is moving to another broker; retry")
        reached = await topic.subscriptions[partition].advance(subscription, before)
        return web.json_response(
            {
                "topic": str(topic_log.name),
                "subscription": subscription,
                "before": positions.shown(reached),
            }
        )

    router.add_put(_PATH, acknowledge, on_topic(Action.CHANGE_SUBSCRIPTION))
