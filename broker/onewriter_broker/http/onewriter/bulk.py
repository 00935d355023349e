"""Endpoints for pipelines that read whole logs: segments, witnesses, audit, trim."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any, Final

import msgspec
import structlog
from aiohttp import web

from onewriter_broker.connection.lookups import wait_for_bucket
from onewriter_broker.http.onewriter import history, positions
from onewriter_broker.http.onewriter.ownerships import shows_owned
from onewriter_broker.http.pulsar.topics import served
from onewriter_broker.http.routes import Filtered, Routes, on_topic
from onewriter_broker.http.site import IDENTITY, Refusal, Site, flag, listing, number, object_body
from onewriter_broker.log.store.api import LogStore, Unit
from onewriter_broker.log.store.blocks import MalformedBlock
from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_broker.topic.registry.loaded_topic import LoadedTopic
from onewriter_broker.topic.retention.retention import BlockRun
from onewriter_broker.topic.retention.segments import Segment, SegmentPage
from onewriter_broker.topic.retention.trimming import trim
from onewriter_broker.topic.retention.witnesses import (
    UnreadableWitness,
    UnwitnessedTable,
    add_to_witness,
    parse_witness,
    remove_witness,
    witness_limit,
    witnesses_in,
)
from onewriter_core.authorization import Action
from onewriter_core.errors import Unavailable
from onewriter_core.ids import EARLIEST, NUMBER_MAX, Position, TopicName
from onewriter_core.log_format.field_names import TRIMMED, VERSION_PREFIX
from onewriter_core.witnesses import ContradictsWitness, InvalidWitness, WitnessPost, table_of

TOPIC_PATH: Final = "/onewriter/v1/topics/{tenant}/{namespace}/{topic:[^/]+}"

_AUDIT: Final = Filtered(
    Action.OBSERVE, "the caller sees the records of the topics and resources that it may observe"
)

log = structlog.get_logger(__name__)

RECORDS_PER_PAGE: Final = 1_000
RECORDS_PER_PAGE_MAX: Final = 5_000
"""Audit records in one response."""


def add_routes(router: Routes, site: Site) -> None:
    """See docs/http.md, "Reading whole logs"."""
    _add_segments(router, site)
    _add_witnesses(router, site)
    _add_trim(router, site)
    _add_audit(router, site)


async def one_log(site: Site, request: web.Request) -> tuple[TopicLog, int, int]:
    """The log of the path, its bucket and its partition; loaded as for a consumer.

    Raises Refusal, also for a partitioned topic, because its partitions are separate logs.
    """
    name, topic = await served(site, request)
    if name.partition is None and topic.entry.partitions > 0:
        raise Refusal(
            400,
            f"{name} has {topic.entry.partitions} partitions: name one, {name.with_partition(0)}",
        )
    partition = topic.partition_of(name)
    return topic.runner.logs[partition], topic.bucket, partition


# ------------------------------------------------------------ segments


def _add_segments(router: Routes, site: Site) -> None:
    async def segments(request: web.Request) -> web.Response:
        after = positions.requested(request, "after") or EARLIEST
        with_state, with_witnesses = flag(request, "state"), flag(request, "witnesses")
        topic_log, bucket, _ = await one_log(site, request)
        epoch = _epoch(topic_log)  # not newer than what the segments show
        try:
            page = await site.segments.page(topic_log, bucket, after)
        except MalformedBlock as error:
            raise Refusal(500, f"the log is damaged: {error}") from error
        document, listed = _page(topic_log, epoch, page), _segments(page)
        if with_state:
            document["state"] = await _stored_state(site.store, topic_log.name, bucket)
        if with_witnesses:
            state = await site.store.read_state(topic_log.name)
            with _witness_refusals():
                known = witnesses_in(str(topic_log.name), state)
            document["witnesses"] = [each.document() for each in known]
        return await listing(document, "segments", listed)

    router.add_get(TOPIC_PATH + "/segments", segments, on_topic(Action.CONSUME))


async def _stored_state(store: LogStore, name: TopicName, bucket: int) -> dict[str, Any]:
    """What the store keeps beside a log, read after its blocks. Raises Undecided."""
    state = await store.read_state(name)
    unit = (await store.observe([bucket])).units.get(bucket, Unit())
    trimmed = state.get(TRIMMED)
    return {
        "epoch": _number(state, "epoch"),
        "ledger": _number(state, "ledger"),
        "bucketLedger": unit.last_ledger,
        "trimmed": positions.shown(Position.parse(trimmed)) if trimmed else None,
        "published": {
            field.removeprefix(VERSION_PREFIX): _number(state, field)
            for field in sorted(state)
            if field.startswith(VERSION_PREFIX)
        },
    }


def _number(state: Mapping[str, str], field: str) -> int:
    text = state.get(field, "")
    return int(text) if text.isdecimal() else 0


def _page(topic_log: TopicLog, epoch: int, page: SegmentPage) -> dict[str, Any]:
    return {
        "topic": str(topic_log.name),
        "epoch": epoch,
        "ledger": page.last.ledger,
        "first": positions.shown(page.first),
        "last": positions.shown(page.last),
        "segments": [],
        "complete": page.is_complete,
        "storedBlocks": True,
        "next": positions.shown(page.next),
    }


def _segments(page: SegmentPage) -> Iterable[dict[str, Any]]:
    """The segments of a page, converted when they are used. The last one may still grow, so it is converted
    now.
    """
    last = [_segment(each, page.last) for each in page.segments[-1:]]
    return chain((_segment(each, page.last) for each in page.segments[:-1]), last)


def _segment(segment: Segment, end: Position) -> dict[str, Any]:
    """A segment of a log, as far as it is committed."""
    marker = segment.marker or {}
    epoch = marker.get("epoch", "")
    return {
        "ledger": segment.ledger,
        "epoch": int(epoch) if epoch.isdecimal() else None,
        "producer": marker.get("producer"),
        "subject": marker.get("subject"),
        "cause": marker.get("cause"),
        "mode": marker.get("mode"),
        "open": segment.ledger == end.ledger,
        "whole": segment.is_whole,
        "first": None if segment.first is None else positions.shown(segment.first),
        "last": None if segment.last is None else positions.shown(segment.last),
        "entries": segment.entries,
        "messages": segment.messages,
        "bytes": segment.bytes,
        "blocks": segment.blocks,
        "oldestMs": segment.oldest_ms or None,
        "newestMs": segment.newest_ms or None,
        "chain": segment.chain.hex() or None,
        "stretches": list(map(_block_run, segment.block_runs)),
        "publishers": list(map(_publisher, segment.publishers)),
        "morePublishers": segment.has_more_publishers,
    }


def _publisher(by: str) -> dict[str, Any]:
    """The publisher that a block names. The content of this field is not trusted."""
    try:
        document = msgspec.json.decode(by, type=dict[str, str])
    except msgspec.DecodeError:
        document = {}
    return {"subject": document.get("subject"), "podUID": document.get("podUID")}


def _block_run(block_run: BlockRun) -> dict[str, Any]:
    return {
        "first": positions.shown(block_run.start),
        "entries": block_run.entries,
        "messages": block_run.messages,
        "bytes": block_run.bytes,
        "newestMs": block_run.newest_ms,
    }


# ------------------------------------------------------------ witnesses


@contextmanager
def _witness_refusals() -> Iterator[None]:
    """Convert the errors of witnesses to responses."""
    try:
        yield
    except InvalidWitness as error:
        raise Refusal(400, str(error)) from error
    except (ContradictsWitness, UnwitnessedTable) as error:
        raise Refusal(409, str(error)) from error
    except UnreadableWitness as error:
        raise Refusal(500, str(error)) from error


def _add_witnesses(router: Routes, site: Site) -> None:
    async def add(request: web.Request) -> web.Response:
        with _witness_refusals():
            post = WitnessPost.of(await object_body(request))
        topic_log, _, _ = await one_log(site, request)
        topic = _loaded(site, topic_log)
        async with topic.growing:
            with _witness_refusals():
                witness = await add_to_witness(topic_log, post)
        return web.json_response({"topic": str(topic_log.name), "witness": witness.document()})

    async def remove(request: web.Request) -> web.Response:
        topic_log, _, _ = await one_log(site, request)
        topic = _loaded(site, topic_log)
        async with topic.growing:
            with _witness_refusals():
                text = await remove_witness(topic_log, request.match_info["table"])
        log.warning("log.witness_removed", topic=str(topic_log.name), witness=text)
        removed: dict[str, Any] | None = None
        with suppress(InvalidWitness):
            removed = parse_witness(text).document()
        return web.json_response({"topic": str(topic_log.name), "witness": removed})

    router.add_post(TOPIC_PATH + "/witnesses", add, on_topic(Action.TRIM))
    router.add_delete(
        TOPIC_PATH + "/witnesses/{table:[0-9A-Za-z-]+}", remove, on_topic(Action.ADMINISTER_TOPIC)
    )


def _loaded(site: Site, topic_log: TopicLog) -> LoadedTopic:
    """The loaded topic of a log. Raises Unavailable if it is moving."""
    topic = site.topics.loaded.get(str(topic_log.name.base))
    if topic is None or topic_log not in topic.runner.logs.values():
        raise Unavailable(f"{topic_log.name} is moving to another broker; retry")
    return topic


# ------------------------------------------------------------ trimming


def _add_trim(router: Routes, site: Site) -> None:
    async def trim_log(request: web.Request) -> web.Response:
        body = await object_body(request)
        before = positions.read(body.get("before"), "before")
        epoch, ledger = _whole(body, "epoch"), _whole(body, "ledger")
        with _witness_refusals():
            table = None if body.get("table") is None else table_of(body)
        if epoch is None:
            raise Refusal(400, "epoch is the log's newest epoch, which its segments tell")
        topic_log, _, partition = await one_log(site, request)
        current = _epoch(topic_log)
        if epoch != current:
            raise Refusal(409, f"the epoch of {topic_log.name} is {current}, not {epoch}")
        if ledger is not None and ledger != topic_log.ledger:
            text = f"the ledger of {topic_log.name} is {topic_log.ledger}, not {ledger}"
            raise Refusal(409, text)
        topic = _loaded(site, topic_log)
        witnessed = None
        if table is not None or not _is_administrator(site, request):
            with _witness_refusals():
                witnessed = await witness_limit(topic_log, table)
        topic_log.keep_uncompacted(is_wanted=topic.compaction_threshold > 0)
        subscriptions = topic.subscriptions[partition]
        done = await trim(topic_log, subscriptions, before, site.retention_limits, witnessed)
        limit = done.cut.limited_by
        return web.json_response(
            {
                "topic": str(topic_log.name),
                "asked": positions.shown(before),
                "trimmedBefore": positions.shown(done.cut.before),
                "first": positions.shown(done.first),
                "limitedBy": None
                if limit is None
                else {"what": limit.by, "name": limit.name or None},
            }
        )

    router.add_post(TOPIC_PATH + "/trim", trim_log, on_topic(Action.TRIM))


def _is_administrator(site: Site, request: web.Request) -> bool:
    """Whether the caller may trim what no witness says was copied. The role pipeline may not."""
    return site.clients.authorization.principal(request[IDENTITY]).is_administrator


def _epoch(topic_log: TopicLog) -> int:
    """The newest epoch that was granted for the log."""
    return int(topic_log.state.get("epoch", "0"))


def _whole(body: dict[str, object], name: str) -> int | None:
    value = body.get(name)
    if value is not None and (type(value) is not int or not 0 <= value <= NUMBER_MAX):
        raise Refusal(400, f"{name} is a whole number")
    return value


# ------------------------------------------------------------ audit


def _add_audit(router: Routes, site: Site) -> None:
    async def records(request: web.Request) -> web.Response:
        text = request.match_info["bucket"]
        buckets = site.clients.settings.buckets
        if not (text.isascii() and text.isdecimal()) or len(text) > 6 or int(text) >= buckets:
            raise Refusal(404, f"there is no bucket {text[:20]}: they are 0 to {buckets - 1}")
        bucket = int(text)
        limit = number(request, "limit", RECORDS_PER_PAGE, RECORDS_PER_PAGE_MAX)
        after = request.query.get("after", "")
        if after and not history.RECORD_ID.fullmatch(after):
            raise Refusal(400, "after must be the id of an audit record")
        await _require_bucket(site, request, bucket)
        found = await site.store.read_audit(bucket, after=after, count=limit)
        document = {
            "bucket": bucket,
            "records": [],
            "next": found[-1][0] if found else after or None,
            "complete": len(found) < limit,
        }
        is_all = site.sees_all(request)
        return await listing(
            document,
            "records",
            (
                _record(record_id, fields)
                for record_id, fields in found
                if is_all or _is_shown(site, request, fields)
            ),
        )

    router.add_get("/onewriter/v1/audit/{bucket}", records, _AUDIT)


async def _require_bucket(site: Site, request: web.Request, bucket: int) -> None:
    """Return if this broker serves the bucket; otherwise redirect the client to the broker that does."""
    owner = await wait_for_bucket(site.topics, bucket)
    if site.topics.ownership.holding(bucket) is not None:
        return
    if owner is None or owner == site.addresses:
        reason = site.topics.ownership.waiting_reason(bucket)
        raise Unavailable(f"bucket {bucket} has no owner now" + (reason and f": {reason}"))
    raise web.HTTPTemporaryRedirect(site.url_of(request, owner) + str(request.rel_url))


def _is_shown(site: Site, request: web.Request, fields: Mapping[str, str]) -> bool:
    """Whether the caller may see an audit record. Records of a whole bucket are shown to roles only."""
    topic = fields.get("topic")
    if topic is not None:
        return site.shows(request, topic)
    resource = fields.get("resource")
    return resource is not None and shows_owned(
        site, request, fields.get("group", ""), resource, fields.get("subject")
    )


def _record(record_id: str, fields: dict[str, str]) -> dict[str, Any]:
    """A record in the format of the topic's history, with its time also as a number."""
    text = fields.get("t", fields.get("time", ""))
    record = history.shown(record_id, fields)
    record["timeMs"] = int(text) if text.isascii() and text.isdecimal() else None
    return record
