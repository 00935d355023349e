"""Work that grows with stored data is done in steps, with the same result."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

import pytest
from aiohttp import web
from tests.contents import stored_in
from tests.unit.broker.ticks import Others

from onewriter_broker.http.onewriter import bulk, history
from onewriter_broker.http.site import ITEMS_PER_TICK, listing
from onewriter_broker.log.store.api import Block, LogStore
from onewriter_broker.log.store.redis.primary import RedisSettings
from onewriter_broker.log.store.redis.store import AUDIT_RECORDS_PER_TICK, RedisLogStore
from onewriter_broker.log.store.staged_parts import StagedPart
from onewriter_broker.topic.history import audit as audit_module
from onewriter_broker.topic.history import transitions
from onewriter_broker.topic.history.audit import AuditTail
from onewriter_broker.topic.publish.staging import NOTED_PER_TICK, Staging
from onewriter_broker.topic.retention.segments import Segment, SegmentPage
from onewriter_core.ids import EARLIEST, Position, TopicName
from onewriter_testing.fake_store.server import FakeServer
from onewriter_testing.fake_store.store import FakeLogStore

TOPIC = TopicName.parse("orders")
TICKS = 5
"""As often others have their turn at the least."""


# --- lists over HTTP


@pytest.mark.parametrize("count", [0, 1, ITEMS_PER_TICK, 3 * ITEMS_PER_TICK + 1])
async def test_a_listing_in_steps_equals_a_json_response(count: int) -> None:
    items = [{"id": number, "text": 'ü"\\'} for number in range(count)]
    reported: dict[str, object] = {"topic": "ü", "next": None}
    made, plain = (
        await listing(reported, "items", items),
        web.json_response(reported | {"items": items}),
    )
    assert (made.content_type, made.charset, made.status) == (plain.content_type, "utf-8", 200)
    assert isinstance(made.body, bytes)
    assert json.loads(made.body) == reported | {"items": items}


async def test_a_long_listing_lets_other_tasks_run() -> None:
    with Others() as others:
        await listing({}, "items", range(ITEMS_PER_TICK * TICKS))
    assert others.ticks >= TICKS


def test_a_segment_that_grows_during_the_answer_is_cut_at_its_first_end() -> None:
    segments = [Segment(ledger) for ledger in range(3)]
    for each in segments:
        each.add(Block(Position(each.ledger, 1), [1], b"x", None, 1, b""))
    listed = bulk._segments(SegmentPage(EARLIEST, Position(2, 1), segments, True, EARLIEST))
    segments[-1].add(Block(Position(2, 2), [1], b"x", None, 1, b""))
    reported = list(listed)
    assert [each["last"] for each in reported] == ["0:1", "1:1", "2:1"]
    assert [each["open"] for each in reported] == [False, False, True]
    assert [len(each["stretches"]) for each in reported] == [1, 1, 1]


# --- the audit


class Audit:
    """An audit stream, newest record first."""

    def __init__(self, count: int) -> None:
        self._records = [
            {"kind": "grant", "topic": str(TOPIC), "epoch": str(number), "ledger": str(number)}
            | {"t": str(number), "broker": "b"}
            for number in range(count)
        ]

    async def read_audit(
        self, bucket: int, *, after: str = "", count: int = 0, reverse: bool = False
    ) -> list[tuple[str, Mapping[str, str]]]:
        found: list[tuple[str, Mapping[str, str]]] = [
            (f"{number}-0", fields) for number, fields in enumerate(self._records)
        ]
        return found[::-1][:count] if reverse else found[:count]


async def test_reading_the_audit_of_earlier_brokers_lets_other_tasks_run() -> None:
    audit = cast("LogStore", Audit(TICKS * audit_module.RECORDS_PER_TICK))
    with Others() as others:
        reported = await AuditTail(audit, lambda: 0.0).before(0, TOPIC, "me", 0)
    assert len(reported) == transitions.HISTORY_MAX
    assert others.ticks >= TICKS


@pytest.mark.parametrize("after", [None, "0-0"])
async def test_reading_a_history_lets_other_tasks_run(after: str | None) -> None:
    audit, count = cast("LogStore", Audit(500)), 500
    with Others() as others:
        if after is None:
            page = await history.newest(audit, 0, str(TOPIC), count)
        else:
            page = await history.following(audit, 0, str(TOPIC), after, count)
    assert len(page.records) == count
    assert others.ticks >= count // history.RECORDS_PER_TICK


class Reads:
    """A connection that has one reply."""

    def __init__(self, reply: object) -> None:
        self._reply = reply

    async def send(self, _commands: object) -> tuple[None, list[object]]:
        return None, [self._reply]


async def test_records_of_the_audit_are_taken_apart_in_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count = TICKS * AUDIT_RECORDS_PER_TICK
    store = RedisLogStore(RedisSettings())
    reply = [[b"%d-0" % number, [b"kind", b"grant"]] for number in range(count)]
    monkeypatch.setattr(store, "_reads", Reads(reply))
    with Others() as others:
        found = await store.read_audit(0, count=count)
    assert found == [(f"{number}-0", {"kind": "grant"}) for number in range(count)]
    assert others.ticks >= TICKS


# --- staged parts


async def test_listing_staged_parts_lets_other_tasks_run() -> None:
    server = FakeServer()
    store = FakeLogStore(server.resolve)
    staging = Staging(store, lambda _: 0, lambda: [0], lambda: 0)
    part = StagedPart(1, 1, "", 1).encode()
    noted = {f"{TOPIC}|app/1/{number}/1": part for number in range(TICKS * NOTED_PER_TICK)}
    stored_in(server.primary).staged_parts[0] = noted
    with Others() as others:
        assert await staging.drop(TOPIC, "other/") == 0
    assert others.ticks >= TICKS
