"""Subscriptions and readers of a log that is trimmed while they use it: they continue at the first kept entry."""

from __future__ import annotations

import pytest
from tests.unit.broker.dispatch.world import Socket, World, ack, world

from onewriter_broker.dispatch.api import SeekToId, SubscriptionType
from onewriter_broker.dispatch.positions import last_message_id, position_before_time
from onewriter_broker.topic.retention.retention import Measured, noted, trim_once
from onewriter_core.ids import EARLIEST, Position
from onewriter_core.wire.values import EARLIEST_ID

KINDS = [
    SubscriptionType.EXCLUSIVE,
    SubscriptionType.FAILOVER,
    SubscriptionType.SHARED,
]


async def trim(here: World, cut: Position) -> None:
    binding = here.log.binding
    assert binding is not None
    measured = Measured(here.log, binding.generation)
    token = binding.token(here.log.ledger)
    done = await trim_once(measured, cut, await noted(here.log, cut), binding, token)
    assert not done.was_refused


async def two_ledgers(here: World) -> list[Position]:
    """Twenty entries in blocks of ten, and five in the current ledger."""
    published = await here.publish(20)
    here.log._exists = True
    await here.open(7)
    return published + await here.publish(5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("durable", [True, False], ids=["subscription", "reader"])
async def test_a_reader_from_the_earliest_position_gets_only_kept_entries(
    kind: SubscriptionType, *, durable: bool
) -> None:
    async with world() as here:
        published = await two_ledgers(here)
        await trim(here, published[14])
        socket = Socket()
        await here.subscribe(socket, kind=kind, durable=durable)
        await here.until(11, socket)
        assert socket.take() == published[14:]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_consumer_in_the_trimmed_part_continues_at_the_first_kept_entry(
    kind: SubscriptionType,
) -> None:
    async with world() as here:
        published = await two_ledgers(here)
        socket = Socket()
        handle = await here.subscribe(socket, kind=kind, permits=4)
        assert socket.take() == published[:4]
        await trim(here, published[14])
        handle.flow(1000)
        await here.until(11, socket)
        assert socket.take() == published[14:]


async def test_redelivery_leaves_trimmed_entries_out() -> None:
    async with world() as here:
        published = await two_ledgers(here)
        socket = Socket()
        handle = await here.subscribe(socket, kind=SubscriptionType.SHARED)
        assert socket.take() == published
        await trim(here, published[14])
        handle.redeliver([])
        await here.until(11, socket)
        assert socket.take() == published[14:]
        ack(handle, *published[14:])
        assert handle.subscription.cursor.mark_delete == published[-1]


async def test_a_seek_into_the_trimmed_part_continues_at_the_first_kept_entry() -> None:
    async with world() as here:
        published = await two_ledgers(here)
        await here.subscribe(Socket(), durable=False)
        await trim(here, published[14])
        await here.subscriptions.reset("audit", SeekToId(EARLIEST_ID))
        again = Socket()
        await here.subscribe(again, durable=False)
        await here.until(11, again)
        assert again.take() == published[14:]


async def test_a_log_that_was_trimmed_to_its_end_has_no_last_message() -> None:
    async with world() as here:
        published = await here.publish(20)
        here.log._exists = True
        await here.open(7)
        socket = Socket()
        await trim(here, Position(7, 0))
        await here.subscribe(socket)
        assert await last_message_id(here.log) == (EARLIEST_ID, EARLIEST)
        (new,) = await here.publish(1)
        await here.until(1, socket)
        assert socket.take() == [new]
        assert (await last_message_id(here.log))[1] == new > published[-1]


async def test_a_search_by_time_finds_the_first_kept_entry() -> None:
    async with world() as here:
        published = await two_ledgers(here)
        await trim(here, published[14])
        after = await position_before_time(here.log, here.wall_ms - 1, here.limits)
        (run, *_) = await here.log.read(after, 1, 1)
        assert run.position == published[14]
