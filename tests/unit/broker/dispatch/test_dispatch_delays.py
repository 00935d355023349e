"""Messages with a time of delivery wait for it in Shared subscriptions, without delaying others."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.broker.dispatch.world import NOON_MS, NoSender, Socket, World, ack, world

from onewriter_broker.dispatch.api import SubscriptionType
from onewriter_broker.dispatch.delays import may_be_delayed
from onewriter_broker.dispatch.limits import Limits
from onewriter_broker.log.store.api import Block
from onewriter_broker.log.topic_log.entries import EntryRun
from onewriter_core.ids import Position
from onewriter_core.wire.messages import build_entry
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import Send

pytestmark = pytest.mark.looptime

SHARED = SubscriptionType.SHARED


def entry(deliver_at_ms: int = 0, *, content: bytes = b"x", checksum: bool = True) -> bytes:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=NOON_MS)
    if deliver_at_ms:
        metadata.deliver_at_time = deliver_at_ms
    return build_entry(metadata, content, checksum=checksum)


async def later(setup: World, seconds: float) -> None:
    """Advance both clocks."""
    setup.wall_ms += round(seconds * 1000)
    await asyncio.sleep(seconds)
    await setup.settle()


async def test_a_delayed_entry_comes_at_its_time_and_later_entries_before_it() -> None:
    async with world() as setup:
        socket = Socket()
        await setup.subscribe(socket, kind=SHARED)
        (slow,) = await setup.publish(payload=entry(NOON_MS + 2_000))
        (quick,) = await setup.publish()
        await setup.settle()
        assert socket.take() == [quick]
        await later(setup, 1.9)
        assert socket.take() == []
        await later(setup, 0.2)
        assert [(d.position, d.redelivery_count) for d in socket.delivered] == [(slow, 0)]


async def test_delayed_entries_are_delivered_in_the_order_of_their_times() -> None:
    async with world() as setup:
        socket = Socket()
        await setup.subscribe(socket, kind=SHARED)
        positions = [
            (await setup.publish(payload=entry(NOON_MS + delay)))[0]
            for delay in (3_000, 1_000, 2_000)
        ]
        seen: list[Position] = []
        for _ in range(3):
            await later(setup, 1.05)
            seen += socket.take()
        assert seen == [positions[1], positions[2], positions[0]]


async def test_a_time_that_has_passed_delays_nothing() -> None:
    async with world() as setup:
        socket = Socket()
        await setup.subscribe(socket, kind=SHARED)
        positions = await setup.publish(payload=entry(NOON_MS - 1))
        await setup.settle()
        assert socket.take() == positions


@pytest.mark.parametrize("kind", [SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER])
async def test_where_the_order_is_kept_nothing_waits(kind: SubscriptionType) -> None:
    async with world() as setup:
        socket = Socket()
        await setup.subscribe(socket, kind=kind)
        positions = await setup.publish(payload=entry(NOON_MS + 60_000))
        await setup.settle()
        assert socket.take() == positions


async def test_a_due_entry_that_is_given_back_is_redelivered_at_once() -> None:
    async with world() as setup:
        socket = Socket()
        handle = await setup.subscribe(socket, kind=SHARED)
        positions = await setup.publish(payload=entry(NOON_MS + 1_000))
        await later(setup, 1.1)
        assert socket.take() == positions
        handle.redeliver()
        await setup.settle()
        assert socket.take() == positions
        ack(handle, *positions)
        assert setup.subscriptions.stats(0.0)["audit"]["msgBacklog"] == 0


async def test_the_next_broker_waits_for_the_same_moment() -> None:
    async with world() as setup:
        first = Socket()
        handle = await setup.subscribe(first, kind=SHARED)
        (slow,) = await setup.publish(payload=entry(NOON_MS + 2_000))
        (quick,) = await setup.publish()
        await setup.settle()
        ack(handle, quick)
        await setup.subscriptions.save()
        await setup.subscriptions.close("moving")
        await setup.reload()
        socket = Socket()
        await setup.subscribe(socket, kind=SHARED)
        assert socket.take() == []
        assert setup.subscriptions.stats(0.0)["audit"]["msgDelayed"] == 1
        await later(setup, 2.1)
        assert socket.take() == [slow]


async def test_a_skipped_delayed_entry_is_not_delivered() -> None:
    async with world() as setup:
        socket = Socket()
        await setup.subscribe(socket, kind=SHARED)
        await setup.publish(payload=entry(NOON_MS + 1_000))
        await setup.settle()
        await setup.subscriptions.skip_all("audit")
        await later(setup, 1.1)
        assert socket.take() == []


async def test_at_the_bound_nothing_further_is_read_until_some_are_due() -> None:
    async with world(limits=Limits(delayed_max=2)) as setup:
        socket = Socket()
        await setup.subscribe(socket, kind=SHARED)
        slow = [(await setup.publish(payload=entry(NOON_MS + 1_000)))[0] for _ in range(3)]
        (quick,) = await setup.publish()
        await setup.settle()
        assert socket.take() == []
        await later(setup, 1.1)
        assert sorted(socket.take()) == [*slow, quick]


@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize(
    ("deliver_at_ms", "content", "looks_delayed"),
    [(0, b"x", False), (NOON_MS, b"x", True), (0, b"\x98\x01" * 50, False)],
)
def test_only_the_metadata_is_examined(
    deliver_at_ms: int, content: bytes, looks_delayed: bool, checksum: bool
) -> None:
    plain = entry(content=b"\x98\x01")
    one = entry(deliver_at_ms, content=content, checksum=checksum)
    payload = plain + one + plain
    lengths = [len(plain), len(one), len(plain)]
    block = Block(Position(1, 1), lengths, payload, None, 0, b"")
    ends = [lengths[0], lengths[0] + lengths[1], len(payload)]
    assert may_be_delayed(EntryRun(block, ends, 0, 3)) is looks_delayed
    assert may_be_delayed(EntryRun(block, ends, 1, 2)) is looks_delayed
    assert may_be_delayed(EntryRun(block, ends, 2, 3)) is False


@pytest.mark.parametrize(
    "damaged", [b"", b"\x0e\x01", b"\x0e\x01\0\0\0\0\xff\xff\xff\xff", b"\0\0"]
)
async def test_a_damaged_entry_is_delivered_unchanged(damaged: bytes) -> None:
    async with world() as setup:
        socket = Socket()
        await setup.subscribe(socket, kind=SHARED)
        setup.log.accept((NoSender(), Send(0, 0, 1), memoryview(damaged)))
        await setup.publish()
        await setup.settle()
        await setup.publish()
        await setup.settle()
        assert len(socket.take()) == 3
