"""How full the store is, what it can promise, and the effects on producers."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import pytest

from onewriter_broker.log.store.api import Observation, ShardState
from onewriter_broker.log.store.redis.store import with_health
from onewriter_broker.store_watch import StoreWatch, nearly_full, with_replicas
from onewriter_core.api.topic import Durability
from onewriter_testing.fake_store.server import FakeServer
from onewriter_testing.fake_store.store import FakeLogStore

SEEN = Observation("r", "", True, 0, {}, memory_bytes_used=50, memory_bytes_max=100)
LOCAL = frozenset({Durability.NONE, Durability.LOCAL})


def watch_of(store: FakeLogStore, **more: Any) -> StoreWatch:
    """A watch whose observations have no effects except those in ``more``."""
    effects: dict[str, Any] = {
        "filled": lambda _: None,
        "promised": lambda _: None,
        "dataset": lambda _replid, _buckets: None,
        "returned": lambda _: None,
        "now": lambda: 0.0,
    }
    return StoreWatch(store, LOCAL, replicas=0, **effects | more)


@pytest.mark.parametrize(
    ("used", "limit", "was_full", "expected"),
    [
        (90, 100, False, False),
        (91, 100, False, True),
        (86, 100, True, True),
        (85, 100, True, False),
        (10**12, 0, False, False),
        (10**12, 0, True, False),
    ],
    ids=[
        "at the mark",
        "above it",
        "not yet below it",
        "below it",
        "no limit",
        "the limit was lifted",
    ],
)
def test_a_store_counts_as_almost_full_until_it_has_space(
    used: int, limit: int, *, was_full: bool, expected: bool
) -> None:
    seen = dataclasses.replace(SEEN, memory_bytes_used=used, memory_bytes_max=limit)
    assert nearly_full(seen, was_full=was_full) is expected


def test_a_replica_that_joins_lets_more_be_promised_and_one_that_goes_takes_nothing_back() -> None:
    more = with_replicas(LOCAL, 1, 2)
    assert more == LOCAL | {Durability.REPLICATED}
    assert with_replicas(more, 2, 2) == more | {Durability.ALL_REPLICAS}
    assert with_replicas(more, 0, 2) == more
    assert with_replicas(LOCAL, 5, 0) == more, "AllReplicas is offered only where it is configured"


def test_replicas_alone_promise_nothing_where_nothing_is_written_to_a_file() -> None:
    nothing = frozenset({Durability.NONE})
    assert with_replicas(nothing, 2, 2) == nothing


async def test_the_watch_reports_how_long_the_store_was_unavailable() -> None:
    server = FakeServer()
    store = FakeLogStore(server.resolve, buckets=1, commit_timeout_seconds=0)
    now = 100.0
    away: list[float] = []
    watch = watch_of(store, returned=away.append, now=lambda: now, interval_seconds=0.0)

    async def on_observation() -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(watch.run())
        await on_observation()
        store.faults.is_cut_off = True
        now = 101.0
        await on_observation()
        now = 107.0
        await on_observation()
        assert away == []
        assert watch.problem
        store.faults.is_cut_off = False
        now = 108.0
        await on_observation()
        assert away == [8.0], "since it last answered"
        assert watch.problem == ""
        running.cancel()


@pytest.mark.parametrize(
    ("used", "limit", "free_bytes", "needed_free_bytes"),
    [(50, 100, 40, 47), (92, 100, 0, 5), (99, 100, 0, 0), (99, 0, math.inf, math.inf)],
    ids=["some space", "nearly full", "full", "no limit"],
)
def test_the_memory_of_a_compaction_depends_on_its_need(
    used: int, limit: int, free_bytes: float, needed_free_bytes: float
) -> None:
    watch = watch_of(FakeLogStore(FakeServer().resolve))
    assert watch.free_bytes(is_needed=False) == math.inf  # before the first observation
    seen = dataclasses.replace(SEEN, memory_bytes_used=used, memory_bytes_max=limit)
    watch.observe_shards([ShardState("", None, seen)])
    assert watch.free_bytes(is_needed=False) == pytest.approx(free_bytes)
    assert watch.free_bytes(is_needed=True) == pytest.approx(needed_free_bytes)


async def test_brokers_share_the_reserve_and_look_at_it_before_they_use_it() -> None:
    used = 50

    class Store(FakeLogStore):
        async def observe(self, buckets: Iterable[int]) -> Observation:
            return dataclasses.replace(SEEN, memory_bytes_used=used, memory_bytes_max=100)

    watch = watch_of(Store(FakeServer().resolve), brokers=lambda: 3)
    assert await watch.observed_free_bytes(is_needed=True) == pytest.approx(47 / 3)
    assert await watch.observed_free_bytes(is_needed=False) == pytest.approx(40)
    used = 94
    assert watch.free_bytes(is_needed=True) == pytest.approx(47 / 3), "by the last observation"
    assert await watch.observed_free_bytes(is_needed=True) == pytest.approx(1)
    assert watch.is_full


def test_faults_are_logged_once_for_each_primary(capsys: pytest.CaptureFixture[str]) -> None:
    watch = watch_of(FakeLogStore(FakeServer().resolve))
    failed = dataclasses.replace(SEEN, faults=("the append-only file could not be written",))
    for seen in (SEEN, failed, failed, SEEN):
        watch.observe_shards([ShardState("a:1", None, seen)])
    shown = capsys.readouterr().out
    assert shown.count("store.fault ") == 1
    assert shown.count("store.fault_ended ") == 1


@pytest.mark.parametrize(
    ("persistence", "expected"),
    [
        ("aof_last_write_status:ok\r\naof_last_bgrewrite_status:ok\r\n", ()),
        ("aof_last_write_status:err\r\n", ("the append-only file could not be written",)),
        (
            "aof_last_bgrewrite_status:err\r\n",
            ("the append-only file could not be rewritten",),
        ),
        ("", ()),
    ],
)
def test_the_server_reports_faults_of_its_files(
    persistence: str, expected: tuple[str, ...]
) -> None:
    debug = b"eventloop_duration_aof_sum:1500000\r\n"
    seen = with_health(SEEN, [persistence.encode(), debug])
    assert seen.faults == expected
    assert seen.sync_seconds == 1.5
    assert with_health(SEEN, [b"", b""]).sync_seconds == 0.0, "a server without this section"
