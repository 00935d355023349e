"""Pulsar's admin API for subscriptions: create, list, move, skip, delete."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

from onewriter_broker.dispatch.api import SeekToId, SeekToTime
from onewriter_broker.dispatch.subscriptions import Subscriptions
from onewriter_broker.http.pulsar.topics import PATH, checked, partition_numbers, served
from onewriter_broker.http.routes import Routes, on_topic
from onewriter_broker.http.site import Refusal, Site, creator_of, done, flag, json_body
from onewriter_broker.namespaces import Conflict
from onewriter_core.authorization import Action
from onewriter_core.wire.values import EARLIEST_ID, LATEST_ID, MessageId

SKIPPED_MAX: Final = 1_000_000
"""Entries that one call may skip; skip_all has no limit."""

_INT64_MAX = 2**63 - 1
SUBSCRIPTION_PATH: Final = PATH + "/subscription/{subscription:[^/]+}"


def add_routes(router: Routes, site: Site) -> None:
    """See docs/http.md, "Subscriptions"."""
    _add_lists(router, site)
    _add_moves(router, site)


def _add_lists(router: Routes, site: Site) -> None:
    async def every(request: web.Request) -> web.Response:
        name, topic = await served(site, request)
        found = {
            each
            for partition in partition_numbers(name, topic)
            for each in topic.subscriptions[partition].names()
        }
        return web.json_response(sorted(found))

    async def create(request: web.Request) -> web.Response:
        at = _message_id(await json_body(request))
        name = checked(site, request)
        await site.require_owned(request, name)
        if not await site.topics.exists(name):
            await site.topics.serve(name, creator_of(request))  # as Pulsar does
        name, topic = await served(site, request)
        subscription = request.match_info["subscription"]
        logs = [topic.subscriptions[partition] for partition in partition_numbers(name, topic)]
        if all(log.get(subscription) is not None for log in logs):
            raise Conflict("Subscription already exists for topic")
        for log in logs:
            if log.get(subscription) is None:
                await log.create(subscription, at=at)
        return done()

    router.add_get(PATH + "/subscriptions", every, on_topic(Action.OBSERVE))
    router.add_put(SUBSCRIPTION_PATH, create, on_topic(Action.CHANGE_SUBSCRIPTION))


async def _on_each(
    site: Site, request: web.Request, work: Callable[[Subscriptions, str], Awaitable[None]]
) -> web.Response:
    """Do something with the subscription on every log of the path."""
    name, topic = await served(site, request)
    subscription = request.match_info["subscription"]
    logs = [topic.subscriptions[partition] for partition in partition_numbers(name, topic)]
    present = [log for log in logs if log.get(subscription) is not None]
    if not present:
        raise Refusal(404, f"Subscription {subscription} not found for topic {name}")
    await asyncio.gather(*(work(log, subscription) for log in present))
    return done()


def _add_moves(router: Routes, site: Site) -> None:
    async def delete(request: web.Request) -> web.Response:
        force = flag(request, "force")
        return await _on_each(site, request, lambda log, name: log.delete(name, force=force))

    async def skip_all(request: web.Request) -> web.Response:
        return await _on_each(site, request, lambda log, name: log.skip_all(name))

    async def skip(request: web.Request) -> web.Response:
        await _require_single(site, request, "Skip messages on a partitioned topic is not allowed")
        entries = _whole(request.match_info["entries"], SKIPPED_MAX)
        return await _on_each(site, request, lambda log, name: log.skip(name, entries))

    async def reset_to_time(request: web.Request) -> web.Response:
        target = SeekToTime(_whole(request.match_info["time"], 2**53))
        return await _on_each(site, request, lambda log, name: log.reset(name, target))

    async def reset_to_id(request: web.Request) -> web.Response:
        await _require_single(
            site, request, "Reset-cursor at position is not allowed for partitioned-topic"
        )
        body = await json_body(request)
        at = _message_id(body)
        # Java's client sends "excluded", the documentation says "isExcluded".
        behind = isinstance(body, dict) and True in (
            body.get("excluded"),
            body.get("isExcluded"),
        )
        if behind and at.entry < _INT64_MAX:
            at = MessageId(at.ledger, at.entry + 1)
        return await _on_each(site, request, lambda log, name: log.reset(name, SeekToId(at)))

    async def later(request: web.Request) -> web.Response:
        del request
        raise Refusal(405, "messages are not expired here; use skip, or declare a retention")

    router.add_delete(SUBSCRIPTION_PATH, delete, on_topic(Action.CHANGE_SUBSCRIPTION))
    router.add_post(SUBSCRIPTION_PATH + "/skip_all", skip_all, on_topic(Action.CHANGE_SUBSCRIPTION))
    router.add_post(
        SUBSCRIPTION_PATH + "/skip/{entries}", skip, on_topic(Action.CHANGE_SUBSCRIPTION)
    )
    router.add_post(
        SUBSCRIPTION_PATH + "/resetcursor/{time}",
        reset_to_time,
        on_topic(Action.CHANGE_SUBSCRIPTION),
    )
    router.add_post(
        SUBSCRIPTION_PATH + "/resetcursor", reset_to_id, on_topic(Action.CHANGE_SUBSCRIPTION)
    )
    router.add_post(
        SUBSCRIPTION_PATH + "/expireMessages/{seconds}", later, on_topic(Action.CHANGE_SUBSCRIPTION)
    )


async def _require_single(site: Site, request: web.Request, reason: str) -> None:
    name, topic = await served(site, request)
    if len(partition_numbers(name, topic)) > 1:
        raise Refusal(405, reason)


def _whole(text: str, most: int) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 16 or int(text) > most:
        raise Refusal(400, f"a whole number up to {most} is expected")
    return int(text)


def _message_id(body: object) -> MessageId:
    """Pulsar's MessageIdImpl; absent: the latest."""
    if body is None:
        return LATEST_ID
    if not isinstance(body, dict):
        raise Refusal(400, "a message id is a JSON object with ledgerId and entryId")
    ledger, entry = body.get("ledgerId"), body.get("entryId")
    if type(ledger) is not int or type(entry) is not int:
        raise Refusal(400, "a message id has whole numbers ledgerId and entryId")
    if ledger < 0 or entry < 0:
        return EARLIEST_ID if ledger < 0 else MessageId(ledger, 0)
    if max(ledger, entry) > _INT64_MAX:
        raise Refusal(400, "a message id has 64-bit numbers")
    return MessageId(ledger, entry)
