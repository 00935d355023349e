"""The acquisition of a bucket on real servers, when the first replica connects in the middle of it.

A primary that restarted gets another identity then, and forgets the former one.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.conformance.log_store_worlds import ServerWorld
from tests.servers import SERVER_KINDS, StoreServer, running_server

from onewriter_broker.anchor.api import Addresses, Record
from onewriter_broker.log.store.api import LogStore
from onewriter_broker.ownership.acquisition import Acquirer, Acquisition
from onewriter_testing.memory_anchor import MemoryAnchor

LAST_LEDGER = 7
"""A ledger that the anchor knows, so that the bucket was in use."""


class ConnectingAnchor(MemoryAnchor):
    """An anchor that lets a replica connect right after its next registration of a dataset."""

    def __init__(self) -> None:
        super().__init__()
        self.connecting: tuple[StoreServer, StoreServer] | None = None

    async def compare_and_set(self, bucket: int, version: int, record: Record) -> int | None:
        after = await super().compare_and_set(bucket, version, record)
        if self.connecting is not None:
            (replica, primary), self.connecting = self.connecting, None
            await asyncio.to_thread(replica.follow, primary)
        return after


@pytest.fixture(params=SERVER_KINDS)
def servers(request: pytest.FixtureRequest) -> Iterator[tuple[StoreServer, StoreServer]]:
    """A primary without a replica, and a server that may become its first one."""
    with (
        running_server(request.param, listens_on_tcp=True) as primary,
        running_server(request.param, listens_on_tcp=True) as replica,
    ):
        yield primary, replica


async def acquire(store: LogStore, anchor: MemoryAnchor, me: str) -> Acquisition:
    acquirer = Acquirer(
        me, Addresses(), anchor, store, single_node=False, randomness=random.Random(1)
    )
    acquired = await acquirer.acquire(0, lambda _record: True)
    assert acquired is not None
    return acquired


@pytest.mark.parametrize("was_used", [False, True], ids=["a new bucket", "a bucket in use"])
async def test_a_bucket_is_acquired_although_the_first_replica_connects_before_the_stamp(
    servers: tuple[StoreServer, StoreServer], tmp_path: Path, was_used: bool
) -> None:
    primary, replica = servers
    anchor, world = ConnectingAnchor(), ServerWorld(tmp_path, primary, None)
    store = world.open()
    if was_used:
        first = await acquire(store, anchor, "broker-a")
        record = (await anchor.read(0)).record
        assert record.generation == 1
        used = replace(record, last_ledger=LAST_LEDGER)
        assert await anchor.compare_and_set(0, first.current.version, used)
        await store.close()
        primary.restart()
        store = world.open()
    before = (await store.observe([0])).replid
    anchor.connecting = (replica, primary)
    acquired = await acquire(store, anchor, "broker-b")
    seen = await store.observe([0])
    assert acquired.holding.binding.replid == seen.replid != before
    assert acquired.current.record.past_replids[-1] == before
    assert acquired.holding.binding.generation == (3 if was_used else 2)
    assert seen.units[0].generation == acquired.holding.binding.generation
    await store.close()
