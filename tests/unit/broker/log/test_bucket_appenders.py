"""The append path of a cluster: one appender for each bucket."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from onewriter_broker.log.bucket_appenders import BucketAppenders
from onewriter_broker.log.store.api import Binding, LogStore, Outcome, OwnWrite
from onewriter_core.api.topic import Durability
from onewriter_core.errors import Undecided


class Store:
    """Answers the writes of a bucket when the test lets it."""

    def __init__(self) -> None:
        self.away: set[int] = set()
        self.under_way: dict[int, int] = {}
        self.calls: list[int] = []
        self.commits: list[str] = []

    async def own(self, write: OwnWrite) -> Outcome:
        bucket = write.binding.bucket
        self.under_way[bucket] = self.under_way.get(bucket, 0) + 1
        assert self.under_way[bucket] == 1, "one call of a bucket at a time"
        await asyncio.sleep(0)
        self.under_way[bucket] -= 1
        if bucket in self.away:
            raise Undecided("away")
        self.calls.append(bucket)
        return Outcome.DONE

    async def commit(self, durability: Durability, *, replid: str = "") -> bool:
        self.commits.append(replid)
        return True


def write(bucket: int) -> OwnWrite:
    return OwnWrite(Binding(bucket, f"dataset-{bucket % 3}", 1, "me", 1))


async def test_an_undecided_bucket_delays_no_other() -> None:
    store = Store()
    path = BucketAppenders(
        cast("LogStore", store),
        now=lambda: 0.0,
        wall_ms=lambda: 0,
        deposed=lambda _bucket, _outcome: None,
        broken=lambda _name, _error: None,
    )
    store.away = {1}
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(path.run())
        waiting = tasks.create_task(path.own(write(1), Durability.LOCAL))
        for bucket in (0, 2, 3, 0):
            assert await path.own(write(bucket), Durability.LOCAL) is Outcome.DONE
        assert store.calls == [0, 2, 3, 0]
        assert not waiting.done()
        await path.prove(Durability.LOCAL, "dataset-0")
        store.away = set()
        assert await waiting is Outcome.DONE
        running.cancel()
    assert path.statistics.fences == 5
    assert path.statistics.undecided_calls >= 1


@pytest.mark.parametrize("calls", [1, 20])
async def test_the_calls_of_a_bucket_are_sent_one_after_the_other(calls: int) -> None:
    store = Store()
    path = BucketAppenders(
        cast("LogStore", store),
        now=lambda: 0.0,
        wall_ms=lambda: 0,
        deposed=lambda _bucket, _outcome: None,
        broken=lambda _name, _error: None,
    )
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(path.run())
        writes = (path.own(write(bucket), Durability.NONE) for bucket in [4, 5] * calls)
        assert await asyncio.gather(*writes) == [Outcome.DONE] * 2 * calls
        running.cancel()
    assert sorted(store.calls) == [4] * calls + [5] * calls
