"""Brokers over one anchor and one store in memory, without topics: what ownership is tested in."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.stamps import fence_once

from onewriter_broker.anchor.api import Addresses, Record
from onewriter_broker.log.store.api import Fence, FencedLog, Outcome
from onewriter_broker.ownership.acquisition import (
    Forced,
    Holding,
    adopt_force,
)
from onewriter_broker.ownership.bucket_events import LostReason, Refenced
from onewriter_broker.ownership.buckets import BucketOwnership
from onewriter_broker.ownership.placement import LiveView
from onewriter_core.ids import TopicName, bucket_of
from onewriter_testing.fake_store.server import FakeServer
from onewriter_testing.fake_store.store import FakeLogStore
from onewriter_testing.memory_anchor import MemoryAnchor

BUCKETS = 8
TOPIC = next(
    name for n in range(1000) if bucket_of(name := TopicName.parse(f"topic-{n}"), BUCKETS) == 0
)


class Events:
    """What an application was told, in order; its topics come to rest at once unless held up."""

    def __init__(self) -> None:
        self.history: list[tuple[str, int]] = []
        self.holdings: dict[int, Holding] = {}
        self.reasons: list[LostReason] = []
        self.drain_seconds = 0.0

    def bucket_acquired(self, bucket: int, holding: Holding) -> None:
        self.history.append(("acquired", bucket))
        self.holdings[bucket] = holding

    def bucket_lost(self, bucket: int, reason: LostReason) -> None:
        self.history.append(("lost", bucket))
        self.reasons.append(reason)
        del self.holdings[bucket]

    def dataset_changed(self, bucket: int, holding: Holding) -> None:
        self.history.append(("changed", bucket))
        self.holdings[bucket] = holding

    async def drain(self, bucket: int) -> None:
        await asyncio.sleep(self.drain_seconds)
        self.history.append(("drained", bucket))


@dataclass
class World:
    """One anchor, one store, any number of brokers."""

    anchor: MemoryAnchor = field(default_factory=MemoryAnchor)
    server: FakeServer = field(default_factory=FakeServer)
    view: LiveView | None = field(default_factory=lambda: LiveView(complete=True))
    stores: dict[str, FakeLogStore] = field(default_factory=dict)
    events: dict[str, Events] = field(default_factory=dict)

    def broker(
        self,
        me: str = "broker-0~a",
        *,
        single_node: bool = True,
        live_view: Callable[[], LiveView | None] | None = None,
        wake: asyncio.Event | None = None,
        last_seen_ms: Callable[[str], int | None] = lambda _: None,
        is_late: Callable[[str], bool] = lambda _: False,
    ) -> BucketOwnership:
        self.stores[me] = FakeLogStore(self.server.resolve, buckets=BUCKETS)
        self.events[me] = Events()
        return BucketOwnership(
            me=me,
            addresses=addresses(me),
            buckets=BUCKETS,
            anchor=self.anchor,
            store=self.stores[me],
            events=self.events[me],
            single_node=single_node,
            live_view=live_view or (lambda: self.view),
            wake=wake,
            last_seen_ms=last_seen_ms,
            is_late=is_late,
            randomness=random.Random(1),
        )

    async def record(self, bucket: int = 0) -> Record:
        return (await self.anchor.read(bucket)).record

    async def change(self, change: Callable[[Record], Record], bucket: int = 0) -> None:
        """Somebody else changes the record."""
        current = await self.anchor.read(bucket)
        assert await self.anchor.compare_and_set(bucket, current.version, change(current.record))

    async def grant(self, broker: BucketOwnership, me: str = "broker-0~a") -> int:
        """Fence a topic of bucket 0 and record use and grant, as who serves it does."""
        ledger = await self.fence(broker, me)
        await broker.record_use(0, ledger)
        await broker.record_grant(0, ledger)
        return ledger

    async def fence(self, broker: BucketOwnership, me: str = "broker-0~a") -> int:
        """Fence a topic of bucket 0, and return the ledger."""
        holding = broker.holding(0)
        assert holding is not None
        ledger = await broker.reserve_ledger(0)
        logs = (FencedLog(TOPIC, create=True, marker={"n": "x"}, state={}),)
        outcome = await fence_once(
            self.stores[me], Fence(holding.binding, ledger, logs, {"kind": "g"})
        )
        assert outcome is Outcome.DONE
        return ledger


def addresses(me: str) -> Addresses:
    return Addresses(f"pulsar://{me}", f"http://{me}")


@asynccontextmanager
async def running(*work: Coroutine[Any, Any, None]) -> AsyncIterator[list[asyncio.Task[None]]]:
    async with asyncio.TaskGroup() as tasks:
        started = [tasks.create_task(one) for one in work]
        try:
            yield started
        finally:
            for task in started:
                task.cancel()


async def acquired(world: World, *, single_node: bool = True) -> BucketOwnership:
    broker = world.broker(single_node=single_node)
    assert await broker.acquire(0) is not None
    return broker


async def force(world: World, *, single_node: bool = False) -> Forced:
    return await adopt_force(
        0,
        anchor=world.anchor,
        store=FakeLogStore(world.server.resolve, buckets=BUCKETS),
        operator="operator",
        reason="the disk is gone",
        time_ms=1_700_000_000_000,
        single_node=single_node,
    )


async def settled(broker: BucketOwnership) -> None:
    assert await broker.refence(0, binding(broker), Outcome.REFENCE) is Refenced.REBOUND


def binding(broker: BucketOwnership) -> Any:
    holding = broker.holding(0)
    assert holding is not None
    return holding.binding
