"""When ledgers are rolled, and how much of the logs' tails stays in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.broker.verify.histories import BUCKETS, a_long_history

from onewriter_broker.log.store.api import Block
from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_broker.settings import Settings
from onewriter_broker.topic.retention.maintenance import ROLL_BYTES_MIN, Maintenance
from onewriter_core.api import ExclusiveTopic
from onewriter_core.ids import Position, TopicName
from onewriter_testing.fake_store.server import FakeServer
from onewriter_testing.fake_store.store import FakeLogStore

MEBIBYTE = 1024 * 1024


def declared(**retention: int) -> ExclusiveTopic:
    return ExclusiveTopic.from_document(
        {
            "apiVersion": "onewriter.dev/v1alpha1",
            "kind": "ExclusiveTopic",
            "metadata": {"name": "orders"},
            "spec": {"retention": retention},
        }
    )


def maintenance(*topics: Any, written: Iterable[TopicLog] = (), **settings: Any) -> Maintenance:
    loaded = {str(number): topic for number, topic in enumerate(topics)}
    loaded |= {str(log.name): topic for topic in topics for log in topic.runner.logs.values()}
    registry: Any = SimpleNamespace(loaded=loaded)
    appender: Any = SimpleNamespace(written=dict.fromkeys(written))
    return Maintenance(registry, Settings(**settings), lambda: 0, appender)


@pytest.mark.parametrize(
    ("topic", "bounds"),
    [
        (None, (64 * MEBIBYTE, 600)),
        (declared(), (64 * MEBIBYTE, 600)),
        (declared(maxBytes=40 * MEBIBYTE), (10 * MEBIBYTE, 600)),
        (declared(maxBytes=100), (ROLL_BYTES_MIN, 600)),
        (declared(maxBytes=10**12), (64 * MEBIBYTE, 600)),
        (declared(maxAgeSeconds=60), (64 * MEBIBYTE, 15)),
        (declared(maxAgeSeconds=1), (64 * MEBIBYTE, 1)),
    ],
)
def test_a_bounded_log_is_rolled_so_that_its_old_part_can_be_cut(
    topic: ExclusiveTopic | None, bounds: tuple[int, float]
) -> None:
    loaded: Any = SimpleNamespace(declared=topic)
    assert maintenance().roll_bounds(loaded) == bounds


def log_with_tail(name: str, blocks: int) -> TopicLog:
    server = FakeServer()
    server.add_primary("one")
    log = TopicLog(TopicName.parse(name), FakeLogStore(server.resolve))
    for number in range(1, blocks + 1):
        block = Block(Position(1, number), [1000], bytes(1000), None, 0, b"")
        log._tail.append(block)
        log._tail_bytes += 1208
    return log


def test_all_tails_together_stay_within_their_bound_and_each_keeps_its_newest() -> None:
    busy, quiet = log_with_tail("busy", 50), log_with_tail("quiet", 2)
    topics = [SimpleNamespace(runner=SimpleNamespace(logs={-1: log})) for log in (busy, quiet)]
    maintenance(*topics, tail_bytes_max=20_000).shrink_tails()
    assert busy.tail_bytes <= 10_000
    assert busy.tail[-1].position == Position(1, 50)
    assert len(quiet.tail) == 2, "a log within its share is left alone"


class Rolled:
    """A topic of one log that records the bounds of each roll request."""

    declared = None

    def __init__(self, name: str, entries: int) -> None:
        self.log = log_with_tail(name, 1)
        self.log._ledger_entries = entries
        self.requests: list[tuple[int, float]] = []
        self.runner = self

    @property
    def logs(self) -> dict[int, TopicLog]:
        return {-1: self.log}

    def roll_if_full(self, bytes_max: int, age_seconds_max: float) -> None:
        self.requests.append((bytes_max, age_seconds_max))


def test_only_topics_written_since_their_last_roll_are_examined() -> None:
    idle, busy, rolled, closed = (Rolled(name, 5) for name in ("idle", "busy", "new", "old"))
    written = [busy.log, rolled.log, closed.log]
    tested = maintenance(idle, busy, rolled, closed, written=written)
    rolled.log._ledger_entries = 0
    closed.log._is_closed = True
    tested.roll()
    assert [len(topic.requests) for topic in (idle, busy, rolled, closed)] == [0, 1, 0, 0]
    assert busy.requests == [(64 * MEBIBYTE, 600)]
    assert list(tested._appender.written) == [busy.log]


def test_nothing_is_forgotten_while_there_is_space() -> None:
    log = log_with_tail("busy", 50)
    topic = SimpleNamespace(runner=SimpleNamespace(logs={-1: log}))
    maintenance(topic, tail_bytes_max=10**6).shrink_tails()
    assert len(log.tail) == 50


@pytest.mark.looptime
async def test_a_store_that_does_not_answer_the_sweep_holds_up_no_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sweeping, looked = asyncio.Event(), asyncio.Event()

    async def sweep() -> None:
        assert not sweeping.is_set(), "one sweep at a time"
        sweeping.set()
        await asyncio.Event().wait()

    def follow_policies() -> None:
        if sweeping.is_set():
            looked.set()

    tested = maintenance()
    registry: Any = tested._topics
    registry.follow_policies = follow_policies
    appender: Any = tested._appender
    appender.statistics = SimpleNamespace(blocks=0, fences=0)
    monkeypatch.setattr(tested, "sweep", sweep)
    running = asyncio.gather(tested.run(), tested.sweep_for_ever())
    async with asyncio.timeout(60):
        await looked.wait()
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def test_of_a_topic_that_left_no_measurements_are_kept() -> None:
    """Otherwise a broker that serves changing topics would keep all measurements in memory."""
    history = await a_long_history(FakeLogStore(FakeServer().resolve, buckets=BUCKETS))
    subscriptions = SimpleNamespace(lowest_retained_position=lambda: None)
    topic = SimpleNamespace(
        runner=SimpleNamespace(logs={-1: history.log}),
        subscriptions={-1: subscriptions},
        declared=declared(maxEntries=1_000),
        compaction_threshold=0,
    )
    tested = maintenance(topic)
    await tested.sweep()
    assert tested._retention.has_measured
    tested._topics.loaded.clear()
    history.log.close()
    await tested.sweep()
    assert not tested._retention.has_measured
