"""Consumers of a terminated topic are notified once, when their subscription has acknowledged all of it."""

from __future__ import annotations

from tests.unit.broker.dispatch.world import Socket, World, ack, world

from onewriter_broker.dispatch.api import SubscriptionType
from onewriter_core.ids import EARLIEST, Position
from onewriter_core.log_format.field_names import TERMINATED


async def terminated(setup: World, last: Position) -> None:
    """The log is terminated, and another broker has taken it over."""
    await setup.log.save_state({TERMINATED: str(last)})
    await setup.reload()


async def test_the_end_is_reported_with_the_last_acknowledgement() -> None:
    async with world() as setup:
        positions = await setup.publish(3)
        await terminated(setup, positions[-1])
        socket = Socket()
        handle = await setup.subscribe(socket)
        assert socket.take() == positions
        ack(handle, positions[0], positions[2])
        assert socket.ended == []
        ack(handle, positions[1])
        await setup.settle()
        assert socket.ended == [1]
        ack(handle, positions[1])
        assert socket.ended == [1]


async def test_a_later_consumer_is_notified_of_the_end_immediately() -> None:
    async with world() as setup:
        positions = await setup.publish(2)
        await terminated(setup, positions[-1])
        first, second = Socket(), Socket()
        handle = await setup.subscribe(first, kind=SubscriptionType.SHARED)
        ack(handle, *positions)
        await setup.settle()
        await setup.subscribe(second, kind=SubscriptionType.SHARED, consumer_id=2)
        assert (first.ended, second.ended) == ([1], [2])


async def test_a_topic_without_a_message_is_at_its_end() -> None:
    async with world() as setup:
        await terminated(setup, EARLIEST)
        socket = Socket()
        await setup.subscribe(socket)
        assert socket.ended == [1]


async def test_an_administrator_who_skips_to_the_end_ends_it_too() -> None:
    async with world() as setup:
        positions = await setup.publish(2)
        await terminated(setup, positions[-1])
        socket = Socket()
        await setup.subscribe(socket)
        assert socket.ended == []
        await setup.subscriptions.skip_all("audit")
        assert socket.ended == [1]


async def test_a_continuing_topic_causes_no_notification() -> None:
    async with world() as setup:
        positions = await setup.publish(1)
        socket = Socket()
        handle = await setup.subscribe(socket)
        ack(handle, *positions)
        await setup.settle()
        assert socket.ended == []
