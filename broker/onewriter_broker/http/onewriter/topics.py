"""Topics in onewriter's own API: writers, queues, history, fences and handovers."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, Final

import structlog
from aiohttp import web

from onewriter_broker.connection.lookups import wait_for_owner
from onewriter_broker.http.onewriter import history, status, views
from onewriter_broker.http.routes import LISTED, Routes, on_installation, on_topic
from onewriter_broker.http.site import (
    IDENTITY,
    Refusal,
    Site,
    listing,
    number,
    object_body,
    topic_of,
)
from onewriter_broker.topic.registry.catalog import CatalogEntry
from onewriter_broker.topic.registry.loaded_topic import LoadedTopic
from onewriter_broker.topic.registry.stored_states import check_state
from onewriter_core.api.common import DNS_LABEL
from onewriter_core.authorization import Action
from onewriter_core.errors import OnewriterError, Unavailable, Undecided
from onewriter_core.ids import NUMBER_MAX, TopicName
from onewriter_core.topic.effects import Answer
from onewriter_core.topic.events import FenceRequested, HandoverRequested

TOPICS_PER_PAGE: Final = 500
TOPICS_PER_PAGE_MAX: Final = 5_000

RECORDS_PER_PAGE: Final = 50
RECORDS_PER_PAGE_MAX: Final = 1_000

STATES_AT_ONCE: Final = 16
"""States of logs that are read concurrently from the store, for topics that are not loaded."""

DECISION_SECONDS: Final = 5.0
"""Time that a request waits for a fence, or for the handover of an undeclared topic."""

NAME_LENGTH_MAX: Final = 512

_ROOT = "/onewriter/v1"
_TOPIC = _ROOT + "/topics/{tenant}/{namespace}/{topic:[^/]+}"

REASON_LENGTH_MAX: Final = 500

_NAMESPACE = re.compile(DNS_LABEL)

log = structlog.get_logger(__name__)


def add_routes(router: Routes, site: Site) -> None:
    """See docs/http.md, "onewriter's own API"."""
    _add_topics(router, site)
    _add_history(router, site)
    _add_orders(router, site)


# ------------------------------------------------------------ reading


def _add_topics(router: Routes, site: Site) -> None:
    async def every(request: web.Request) -> web.Response:
        return web.json_response(await _list(site, request))

    async def one(request: web.Request) -> web.Response:
        name = topic_of(request).base
        entry = await site.topics.entry_of(name)
        if entry is None:
            raise Refusal(404, f"topic {name} does not exist")
        owner = await wait_for_owner(site.topics, name, 0.5)
        if not site.topics.is_owned(name) and owner is not None and owner != site.addresses:
            raise web.HTTPTemporaryRedirect(site.url_of(request, owner) + str(request.rel_url))
        found = await _status(site, name, entry, is_secure=request.secure)
        authorization = site.clients.authorization
        if authorization.may_see_refusals(request[IDENTITY], name):
            found["refusals"] = [views.refusal(each) for each in authorization.at_topics.of(name)]
            full = site.topics.shares.full_namespaces
            problems = site.clients.quota_problems
            problem = problems.of(str(name), name.namespace_name, full)
            found["quotaExceeded"] = None if problem is None else views.quota_problem(problem)
        return web.json_response(found)

    async def several(request: web.Request) -> web.Response:
        return web.json_response(await _look_up(site, await _names(site, request)))

    router.add_get(_ROOT + "/topics", every, LISTED)
    router.add_post(_ROOT + "/topics", several, LISTED)
    router.add_get(_TOPIC, one, on_topic(Action.OBSERVE))


async def _list(site: Site, request: web.Request) -> dict[str, Any]:
    """A page of topics, ordered by name, with details of those that this broker serves."""
    wanted = request.query.get("namespace")
    after = request.query.get("after", "")
    limit = number(request, "limit", TOPICS_PER_PAGE, TOPICS_PER_PAGE_MAX)
    entries = await site.topics.list(wanted)
    names = sorted([name for name in await site.shown(request, entries) if name > after])
    page = names[:limit]
    gate = asyncio.Semaphore(STATES_AT_ONCE)

    async def row(text: str) -> dict[str, Any]:
        name, entry = TopicName.parse(text), entries[text]
        declared = site.topics.desired.topic(name) is not None
        found = views.summary(
            text,
            entry,
            is_declared=declared,
            owner=status.owner(site, name, is_secure=request.secure),
        )
        loaded = site.topics.loaded.get(text)
        if loaded is not None:
            return found | views.loaded_summary(loaded)
        if site.topics.is_owned(name):
            async with gate:
                states = await _states(site, name, entry)
            return found | views.stored_summary(list(states.values()))
        return found  # the owner knows more

    return {
        "topics": await asyncio.gather(*(row(text) for text in page)),
        "next": page[-1] if len(names) > limit else None,
    }


async def _names(site: Site, request: web.Request) -> list[TopicName]:
    """The topics of a body that the caller may see. Raises Refusal, InvalidTopicName."""
    names = (await object_body(request)).get("topics")
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        raise Refusal(400, "topics: must be a list of topic names")
    if len(names) > TOPICS_PER_PAGE:
        raise Refusal(400, f"topics: must have at most {TOPICS_PER_PAGE} names")
    found = [TopicName.parse(each).base for each in dict.fromkeys(names)]
    return [name for name in found if site.shows(request, name)]


async def _look_up(site: Site, names: Iterable[TopicName]) -> dict[str, Any]:
    """The status of several topics. For topics of another broker, only what every broker knows."""
    topics = site.topics
    gate = asyncio.Semaphore(STATES_AT_ONCE)
    found: dict[str, Any] = {}
    elsewhere: list[str] = []

    async def look_up(name: TopicName) -> None:
        async with gate:
            entry = await topics.entry_of(name)
            if entry is None:
                return
            owner = topics.ownership.owner_of(topics.bucket_of(name))
            if not topics.is_owned(name) and owner is not None and owner != site.addresses:
                elsewhere.append(str(name))
                return
            loaded = topics.loaded.get(str(name))
            if loaded is not None:
                epoch = loaded.runner.topic.epoch
            else:
                states = await _states(site, name, entry)
                epoch = views.stored_summary(list(states.values()))["epoch"]
            is_declared = topics.desired.topic(name) is not None
            found[str(name)] = {
                "declared": is_declared,
                "epoch": epoch,
                "undivided": entry.is_undivided,
                "declaredBy": entry.declared_by or None,
            }

    await asyncio.gather(*(look_up(each) for each in names))
    return {"topics": found, "elsewhere": elsewhere}


async def _status(
    site: Site, name: TopicName, entry: CatalogEntry, *, is_secure: bool
) -> dict[str, Any]:
    topics = site.topics
    declared = topics.desired.topic(name)
    loaded = topics.loaded.get(str(name))
    if loaded is not None:
        await loaded.runner.history.recall()
        found = status.served_status(site, loaded, None, is_secure=is_secure)
    else:
        found = status.place(site, name, entry, is_secure=is_secure)
        found |= views.stored_status(await _states(site, name, entry))
        found["durability"] = None if declared is None else declared.spec.durability.value
        found |= status.losses(site, name)
    try:
        found["store"] = views.store(await site.store.observe([topics.bucket_of(name)]))
    except (Undecided, Unavailable) as error:
        found["store"] = {"problem": str(error)}
    found["shard"] = status.shard(site, topics.bucket_of(name))
    return found


async def _states(site: Site, name: TopicName, entry: CatalogEntry) -> dict[int, dict[str, str]]:
    """The stored states of a topic's logs; empty if the store does not answer, or if the state is unreadable."""
    found: dict[int, dict[str, str]] = {}
    for partition, log_name in zip(entry.log_numbers, entry.log_names(name), strict=True):
        if len(found) >= views.PARTITIONS_SHOWN_MAX:
            break
        try:
            state = await site.store.read_state(log_name)
            check_state(log_name, state, site.clients.settings.buckets)
            found[partition] = state
        except OnewriterError:
            found[partition] = {}
    return found


def _add_history(router: Routes, site: Site) -> None:
    async def records(request: web.Request) -> web.Response:
        name = topic_of(request).base
        limit = number(request, "limit", RECORDS_PER_PAGE, RECORDS_PER_PAGE_MAX)
        after = request.query.get("after")
        if after is not None and not history.RECORD_ID.fullmatch(after):
            raise Refusal(400, "after must be the id of an audit record")
        await site.require_owned(request, name)
        bucket = site.topics.bucket_of(name)
        if after is None:
            page = await history.newest(site.store, bucket, str(name), limit)
        else:
            page = await history.following(site.store, bucket, str(name), after, limit)
        if not page.records and not await site.topics.exists(name):
            raise Refusal(404, f"topic {name} does not exist")
        document: dict[str, object] = {
            "topic": str(name),
            "records": [],
            "next": page.next,
            "earlierOmitted": page.is_cut,
        }
        return await listing(document, "records", page.records)

    router.add_get(_TOPIC + "/history", records, on_topic(Action.OBSERVE))


# ------------------------------------------------------------ orders


def _add_orders(router: Routes, site: Site) -> None:
    async def fence(request: web.Request) -> web.Response:
        body = await object_body(request)
        if_epoch = _if_epoch(body)
        topic = await _served(site, request)
        before = topic.runner.topic.epoch
        identifier = uuid.uuid4().hex
        event = FenceRequested(identifier, if_epoch, site.clients.now())
        answer = await _decided(topic, event, identifier, DECISION_SECONDS)
        if answer.refusal:
            raise _refusal(answer, if_epoch)
        log.info("topic.fenced_by_order", topic=str(topic.name), epoch=answer.epoch)
        return web.json_response(
            {"topic": str(topic.name), "oldEpoch": before, "epoch": answer.epoch}
        )

    async def handover(request: web.Request) -> web.Response:
        body = await object_body(request)
        to = body.get("to") or ""
        if not isinstance(to, str) or len(to) > NAME_LENGTH_MAX:
            raise Refusal(400, "to must be the name of a waiting producer or of its claim")
        if_epoch = _if_epoch(body)
        topic = await _served(site, request)
        declared = topic.declared
        seconds = declared.spec.handover.timeout_seconds if declared else DECISION_SECONDS
        before = topic.runner.topic.epoch
        identifier = uuid.uuid4().hex
        event = HandoverRequested(identifier, to, site.clients.now(), if_epoch)
        answer = await _decided(topic, event, identifier, seconds)
        if answer.refusal:
            raise _refusal(answer, if_epoch)
        holders = topic.runner.topic.holders
        return web.json_response(
            {
                "topic": str(topic.name),
                "oldEpoch": before,
                "epoch": answer.epoch,
                "holder": views.holder(topic.runner, holders[0]) if holders else None,
            }
        )

    async def reassign(request: web.Request) -> web.Response:
        body = await object_body(request)
        to, reason = body.get("to"), body.get("reason") or ""
        if not isinstance(to, str) or len(to) > 63 or not _NAMESPACE.fullmatch(to):
            raise Refusal(400, "to must be a Kubernetes namespace")
        if not isinstance(reason, str) or len(reason) > REASON_LENGTH_MAX:
            raise Refusal(400, f"reason must have at most {REASON_LENGTH_MAX} characters")
        name = topic_of(request).base
        if not await site.topics.exists(name):
            raise Refusal(404, f"topic {name} does not exist")
        await site.require_owned(request, name)
        former = await site.topics.reassign(name, to, by=request[IDENTITY].subject, reason=reason)
        return web.json_response({"topic": str(name), "from": former or None, "to": to})

    router.add_post(_TOPIC + "/fence", fence, on_topic(Action.ADMINISTER_TOPIC))
    router.add_post(_TOPIC + "/handover", handover, on_topic(Action.ADMINISTER_TOPIC))
    router.add_post(_TOPIC + "/reassign", reassign, on_installation(Action.ADMINISTER_INSTALLATION))


def _if_epoch(body: Mapping[str, Any]) -> int | None:
    """The epoch that an order applies to; None for any epoch. Raises Refusal."""
    if_epoch = body.get("ifEpoch")
    if if_epoch is not None and (type(if_epoch) is not int or not 0 <= if_epoch <= NUMBER_MAX):
        raise Refusal(400, "ifEpoch must be a topic epoch")
    return if_epoch


def _refusal(answer: Answer, if_epoch: int | None) -> Refusal:
    is_stale = if_epoch is not None and if_epoch != answer.epoch
    return Refusal(412 if is_stale else 409, answer.refusal)


async def _served(site: Site, request: web.Request) -> LoadedTopic:
    """The topic, loaded here; otherwise redirects the client to its owner."""
    name = topic_of(request)
    if name.partition is not None:
        raise Refusal(400, f"the partitions of {name.base} change hands together: name the topic")
    if not await site.topics.exists(name):
        raise Refusal(404, f"topic {name} does not exist")
    await site.require_owned(request, name)
    return await site.topics.serve_existing(name)


async def _decided(
    topic: LoadedTopic,
    event: FenceRequested | HandoverRequested,
    identifier: str,
    seconds: float,
) -> Answer:
    """The decision of the topic machine; raises Refusal 504 if there is none in time."""
    try:
        async with asyncio.timeout(seconds):
            answer = await topic.runner.administer(event, identifier)
    except TimeoutError:
        raise Refusal(
            504, f"not decided within {seconds:g} s: ask for the topic's status"
        ) from None
    except Unavailable as unavailable:
        raise Refusal(
            504, f"not decided ({unavailable}): ask for the topic's status"
        ) from unavailable
    if answer.refusal and topic.runner.topic.is_closed:
        raise Refusal(504, f"not decided, the topic is moving ({answer.refusal})")
    return answer
