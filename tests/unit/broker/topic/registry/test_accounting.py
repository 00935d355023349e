"""Entries that were acknowledged in a lost bucket: found again, or counted as lost."""

from __future__ import annotations

import pytest
from tests.stamps import fence_once, stamp_anew

from onewriter_broker.anchor.api import Record
from onewriter_broker.log.store.api import Append, Binding, Block, Fence, FencedLog, Outcome
from onewriter_broker.log.topic_log.losses import Loss
from onewriter_broker.topic.registry.accounting import Accounting
from onewriter_core.errors import Undecided
from onewriter_core.ids import Position, TopicName
from onewriter_core.log_format.chain import CHAIN_START
from onewriter_core.log_format.field_names import TRIMMED
from onewriter_testing.fake_store.server import FakeServer
from onewriter_testing.fake_store.store import FakeLogStore
from onewriter_testing.memory_anchor import MemoryAnchor

TOPIC = TopicName.parse("orders")
ENDS = [Position(5, 9), Position(6, 4)]


class World:
    def __init__(self) -> None:
        self.server = FakeServer()
        self.store = FakeLogStore(self.server.resolve)
        self.anchor = MemoryAnchor()
        self.lost: list[Loss] = []
        self.accounting = Accounting(self.anchor, self.store, self.lost.append)
        self.mine = Binding(0, self.server.primary.replid, 1, "broker-a", 1)

    async def registered(self, generation: int, owner: str, replid: str = "") -> None:
        current = await self.anchor.read(0)
        replid = replid or self.server.primary.replid
        record = Record(generation=generation, replid=replid, owner=owner)
        assert await self.anchor.compare_and_set(0, current.version, record) is not None

    async def holds(self, binding: Binding, ledger: int, entries: int) -> None:
        """The store has the log up to that entry."""
        assert await stamp_anew(self.store, binding) is Outcome.DONE
        log = FencedLog(TOPIC, True, {"epoch": "5"}, {})
        await fence_once(self.store, Fence(binding, ledger, (log,), {}))
        position = Position(ledger, 1)
        block = Block(position, [1] * entries, b"x" * entries, None, 1, CHAIN_START)
        append = Append(binding, TOPIC, binding.token(ledger), block)
        assert await self.store.append([append]) == [Outcome.DONE]


async def test_nothing_is_reported_before_the_bucket_is_registered_again() -> None:
    world = World()
    await world.registered(1, "broker-a")
    world.accounting.left(TOPIC, world.mine, ENDS)
    await world.accounting.check(0)
    await world.registered(1, "")
    await world.accounting.check(0)
    assert world.lost == []


async def test_a_bucket_that_another_broker_serves_on_the_same_dataset_is_well() -> None:
    world = World()
    world.accounting.left(TOPIC, world.mine, ENDS)
    await world.registered(1, "broker-b")
    await world.accounting.check(0)
    await world.registered(2, "broker-b")
    await world.accounting.check(0)
    assert world.lost == [], "what happens to it then is the other's to tell"


async def test_entries_that_the_new_dataset_lacks_are_reported_once() -> None:
    world = World()
    await world.holds(world.mine, 5, 7)
    world.accounting.left(TOPIC, world.mine, ENDS)
    await world.registered(2, "broker-b")
    await world.accounting.check(0)
    await world.accounting.check(0)
    assert world.lost == [
        Loss(TOPIC, Position(5, 7), Position(5, 9)),
        Loss(TOPIC, Position(6, 0), Position(6, 4)),
    ]


async def test_trimmed_entries_are_not_reported_as_lost() -> None:
    world = World()
    await world.holds(world.mine, 8, 1)
    token = world.mine.token(8)
    await world.store.set_state(world.mine, TOPIC, token, {TRIMMED: "6-1"})
    world.accounting.left(TOPIC, world.mine, ENDS)
    await world.registered(2, "broker-b")
    await world.accounting.check(0)
    assert world.lost == [Loss(TOPIC, Position(6, 0), Position(6, 4))]


async def test_a_store_with_another_dataset_proves_nothing() -> None:
    """This broker may still be connected to the old primary, which has all entries but no longer counts."""
    world = World()
    await world.holds(world.mine, 5, 9)
    world.accounting.left(TOPIC, world.mine, ENDS)
    await world.registered(2, "broker-b", replid="f" * 40)
    with pytest.raises(Undecided, match="dataset"):
        await world.accounting.check(0)
    assert world.lost == []
