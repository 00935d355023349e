"""A publish that waits for its topic: its place in the line, from one request to the next; and its turn."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest
from tests.unit.broker.fence_path_world import ORDERS, Gates, Told, serving, until
from tests.unit.broker.test_publishing_turns import APP, DUPLICATE, Room, room_of
from tests.unit.broker.test_staging import body, frame

from onewriter_broker.log.publishing import PUBLISHES_WAITING_MAX, TooLarge
from onewriter_broker.log.topic_log import TopicLog
from onewriter_broker.topic import staging
from onewriter_broker.topic.producer import Producer
from onewriter_broker.topic.publish_requests import (
    FORGOTTEN_SECONDS,
    Answer,
    Asked,
    PublishRequest,
)
from onewriter_broker.topic.publishing import Publishing
from onewriter_broker.topic.publishing_turn import TURN_SECONDS, Turn
from onewriter_broker.topic.staging import Claimed, MissingPart
from onewriter_core.errors import Refused, Unavailable, Undecided
from onewriter_core.ids import TopicName
from onewriter_core.topic.model import WHOLE, AccessMode, Departure, Vacant

pytestmark = pytest.mark.looptime

PAUSE_SECONDS = 2.0
"""Of a client, at most, between two requests."""


def begun(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return asyncio.get_running_loop().create_task(work)


async def taken(room: Room, name: str = "holder") -> Producer:
    """Somebody has the topic."""
    producer, told = room.world.ask(room.runner, AccessMode.EXCLUSIVE, name)
    await until(lambda: told.ready)
    return producer


def later(room: Room) -> Told:
    """Somebody gets in line."""
    return room.world.ask(room.runner, AccessMode.WAIT_FOR_EXCLUSIVE, "later")[1]


async def waited(
    room: Room,
    parts: Sequence[Claimed],
    *,
    version: int = 1,
    app: str = APP,
    mode: AccessMode = AccessMode.WAIT_FOR_EXCLUSIVE,
) -> Answer:
    """One request."""
    asked = Asked(app, version, None, parts, mode=mode)
    return await room.publishing.publish(ORDERS, room.topic, asked, 1_234)


async def insisted(room: Room, parts: Sequence[Claimed], seconds: float) -> None:
    """So long it is asked again and again, in vain; it ends in a pause."""
    now = asyncio.get_running_loop().time
    until_ = now() + seconds
    while now() < until_:
        began = now()
        with pytest.raises(Unavailable, match="nothing was published"):
            await waited(room, parts)
        assert now() - began == pytest.approx(TURN_SECONDS, abs=0.5)
        await asyncio.sleep(PAUSE_SECONDS)


def names(room: Room) -> list[str]:
    return [waiter.producer_name for waiter in room.runner.topic.queue]


async def test_its_place_is_kept_from_one_request_to_the_next() -> None:
    async with serving() as world:
        room = await room_of(world)
        holder, parts = await taken(room), await room.staged()
        await insisted(room, parts, 15.0)
        next_one = later(room)
        await insisted(room, parts, 100.0)
        assert names(room) == [APP, "later"]
        room.runner.gone(holder, Departure.CLOSED)
        await asyncio.sleep(PAUSE_SECONDS)
        assert await room.entries() == 0, "nobody asks"
        answer = await waited(room, parts)
        assert (answer.is_duplicate, await room.entries()) == (False, 2)
        assert answer.where is not None
        await until(lambda: next_one.ready)
        assert next_one.ready[0] is not None
        assert next_one.ready[0] > answer.where.last.ledger, "who came later has it later"


async def test_it_leaves_the_line_when_nobody_asks_any_more() -> None:
    async with serving() as world:
        room = await room_of(world)
        await taken(room)
        parts, topic_log = await room.staged(), room.runner.logs[WHOLE]
        with pytest.raises(Unavailable):
            await waited(room, parts)
        await asyncio.sleep(FORGOTTEN_SECONDS - 0.5)
        assert names(room) == [APP]
        with pytest.raises(Unavailable), room.publishing.keeping_still(topic_log, APP):
            pass
        await asyncio.sleep(1.0)
        assert names(room) == []
        with room.publishing.keeping_still(topic_log, APP):
            pass


async def test_what_was_not_published_is_not_published_while_nobody_asks() -> None:
    async with serving() as world:
        room = await room_of(world)
        holder, parts = await taken(room), await room.staged()
        with pytest.raises(Unavailable, match="nothing was published"):
            await waited(room, parts)
        next_one = later(room)
        room.runner.gone(holder, Departure.CLOSED)
        await asyncio.sleep(FORGOTTEN_SECONDS - 0.5)
        assert not next_one.ready, "it may yet be asked for"
        await asyncio.sleep(1.0)
        assert next_one.ready, "but not for ever"
        assert await room.entries() == 0


async def test_once_its_turn_is_used_nobody_is_told_that_nothing_is_published() -> None:
    async with serving() as world:
        room = await room_of(world)
        holder, parts = await taken(room), await room.staged()
        gates = Gates(world.store, "append")
        asking = begun(waited(room, parts))
        await asyncio.sleep(TURN_SECONDS - 0.5)
        room.runner.gone(holder, Departure.CLOSED)
        await gates.reached("append")
        again = begun(waited(room, parts))
        await asyncio.sleep(TURN_SECONDS + 1.0)
        assert not asking.done()
        assert not again.done()
        gates.open("append")
        found = await asyncio.gather(asking, again)
        assert sorted(each.is_duplicate for each in found) == [False, True]


async def test_one_that_begins_while_its_place_is_looked_at_is_not_denied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving() as world:
        room = await room_of(world)
        holder, parts = await taken(room), await room.staged()
        read, go_on, reads = room.publishing.state_of, asyncio.Event(), 0

        async def slow(topic_log: TopicLog) -> dict[str, str]:
            nonlocal reads
            reads += 1
            if reads == 2:  # behind the one in front of the line
                await go_on.wait()
                raise Unavailable("the store is away")
            return await read(topic_log)

        monkeypatch.setattr(room.publishing, "state_of", slow)
        gates = Gates(world.store, "append")
        asking = begun(waited(room, parts))
        await asyncio.sleep(TURN_SECONDS + 1.0)
        room.runner.gone(holder, Departure.CLOSED)
        await gates.reached("append")
        go_on.set()
        await asyncio.sleep(1.0)
        assert (reads, asking.done()) == (3, False)
        gates.open("append")
        assert (await asking).where is not None


@pytest.mark.parametrize("is_begun", [True, False])
async def test_cut_off_it_is_asked_for_again(*, is_begun: bool) -> None:
    async with serving() as world:
        room = await room_of(world)
        holder, parts = await taken(room), await room.staged()
        gates = Gates(world.store, "append")
        asking = begun(waited(room, parts))
        await asyncio.sleep(1.0)
        next_one = later(room)
        if is_begun:
            room.runner.gone(holder, Departure.CLOSED)
            await gates.reached("append")
        asking.cancel()
        await asyncio.sleep(PAUSE_SECONDS)
        if not is_begun:
            room.runner.gone(holder, Departure.CLOSED)
        gates.open("append")
        assert (await waited(room, parts)).where is not None, "nobody was told before"
        assert await waited(room, parts) == DUPLICATE
        await until(lambda: next_one.ready)
        assert await room.entries() == 2


async def test_other_attempts_share_the_place_of_their_version() -> None:
    async with serving() as world:
        room = await room_of(world)
        holder, old = await taken(room), await room.staged()
        new = [await room.staging.keep(ORDERS, f"{APP}/1/0/2", body(frame(b"all rows")))]
        with pytest.raises(Unavailable):
            await waited(room, old)
        next_one = later(room)
        with pytest.raises(Undecided, match="asked for before"):
            await waited(room, new)
        with pytest.raises(Undecided, match="asked for before"):
            await waited(room, old)
        assert names(room) == [APP, "later"]
        asking = begun(waited(room, new))
        await asyncio.sleep(1.0)
        room.runner.gone(holder, Departure.CLOSED)
        assert (await asking).where is not None
        await until(lambda: next_one.ready)
        assert await waited(room, old) == DUPLICATE
        assert await room.entries() == 1


async def test_of_attempts_that_ask_at_once_one_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as world:
        room = await room_of(world)
        holder, old = await taken(room), await room.staged()
        new = [await room.staging.keep(ORDERS, f"{APP}/1/0/2", body(frame(b"all rows")))]
        asking = [begun(waited(room, parts)) for parts in (old, new)]
        await asyncio.sleep(1.0)
        load, loaded = room.staging.load, []

        async def noted(name: TopicName, part: Claimed) -> bytes:
            loaded.append(part)
            return await load(name, part)

        monkeypatch.setattr(room.staging, "load", noted)
        room.runner.gone(holder, Departure.CLOSED)
        found = await asyncio.gather(*asking)
        assert [each.is_duplicate for each in found] == [False, True]
        assert loaded == old


async def test_one_without_its_parts_leaves_the_turn_to_another_attempt() -> None:
    async with serving() as world:
        room = await room_of(world)
        holder, old = await taken(room), await room.staged()
        new = [await room.staging.keep(ORDERS, f"{APP}/1/0/2", body(frame(b"all rows")))]
        asking = [begun(waited(room, parts)) for parts in (old, new)]
        await asyncio.sleep(1.0)
        await room.staging.drop_parts(ORDERS, [part.key for part in old])
        room.runner.gone(holder, Departure.CLOSED)
        with pytest.raises(Undecided, match="not there any more"):
            await asking[0]
        assert (await asking[1]).where is not None
        assert await waited(room, old) == DUPLICATE
        assert isinstance(room.ownership, Vacant)


async def test_while_it_waits_others_publish() -> None:
    async with serving() as world:
        room = await room_of(world)
        holder, parts = await taken(room), await room.staged()
        asking = begun(waited(room, parts))
        await asyncio.sleep(1.0)
        began = asyncio.get_running_loop().time()
        with pytest.raises(Refused, match="existing exclusive producer: holder"):
            await waited(room, parts, app="other", mode=AccessMode.EXCLUSIVE)
        answer = await room.publish(await room.staged(2), version=2, epoch=holder.epoch)
        assert answer.where is not None
        assert asyncio.get_running_loop().time() - began < 1.0
        found = await asking
        assert (found.is_duplicate, found.held) == (True, 2), "published by another rule"


async def test_whoever_does_not_wait_is_not_refused_for_a_publish_that_has_waited() -> None:
    async with serving() as world:
        room = await room_of(world)
        holder, parts = await taken(room), await room.staged()
        gates = Gates(world.store, "append")
        asking = begun(waited(room, parts))
        await asyncio.sleep(1.0)
        room.runner.gone(holder, Departure.CLOSED)
        await gates.reached("append")
        other = begun(waited(room, parts, app="other", mode=AccessMode.EXCLUSIVE))
        await asyncio.sleep(1.0)
        assert not other.done()
        gates.open("append")
        assert (await asking).where is not None
        assert (await other).where is not None
        assert isinstance(room.ownership, Vacant)


def without_memory(monkeypatch: pytest.MonkeyPatch, parts: Sequence[Claimed]) -> None:
    """There is room for one of these publishes."""
    size = sum(each.bytes + staging.ENTRY_MEMORY_BYTES * each.rows for each in parts)
    monkeypatch.setattr(staging, "TOPIC_MEMORY_BYTES", 0)
    monkeypatch.setattr(staging, "LOADED_BYTES_MAX", size)


async def test_while_it_waits_it_has_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as world:
        room = await room_of(world)
        holder, parts = await taken(room), await room.staged()
        without_memory(monkeypatch, parts)
        asking = begun(waited(room, parts))
        await asyncio.sleep(1.0)
        with room.staging.loading(TopicName.parse("other"), parts):
            room.runner.gone(holder, Departure.CLOSED)
            await asyncio.sleep(5.0)
            assert not asking.done(), "it waits for memory, and keeps its turn"
        assert (await asking).where is not None


async def test_without_memory_its_turn_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as world:
        room = await room_of(world)
        parts = await room.staged()
        without_memory(monkeypatch, parts)
        with room.staging.loading(TopicName.parse("other"), parts):
            with pytest.raises(Refused, match="fill the memory"):
                await waited(room, parts)
            assert isinstance(room.ownership, Vacant)


async def test_a_place_is_kept_for_as_many_as_may_wait() -> None:
    async with serving() as world:
        room = await room_of(world)
        await taken(room)
        parts = await room.staged()
        for _ in range(3):
            asking = [
                begun(waited(room, parts, app=f"app-{number}"))
                for number in range(PUBLISHES_WAITING_MAX)
            ]
            await asyncio.sleep(1.0)
            for app in ("one more", "app-0"):
                with pytest.raises(Refused, match="wait already"):
                    await waited(room, parts, app=app)
            found = await asyncio.gather(*asking, return_exceptions=True)
            assert {type(each) for each in found} == {Unavailable}
            await asyncio.sleep(PAUSE_SECONDS)
            with pytest.raises(Refused, match="wait already"):
                await waited(room, parts, app="one more")
        assert names(room) == [f"app-{number}" for number in range(PUBLISHES_WAITING_MAX)]


async def test_parts_that_are_gone_by_then_are_told_of_and_end_its_turn() -> None:
    async with serving() as world:
        room = await room_of(world)
        holder, parts = await taken(room), await room.staged()
        asking = begun(waited(room, parts))
        await asyncio.sleep(1.0)
        await room.staging.drop(ORDERS, f"{APP}/")
        room.runner.gone(holder, Departure.CLOSED)
        with pytest.raises(MissingPart):
            await asking
        assert isinstance(room.ownership, Vacant)


async def test_what_is_too_large_does_not_wait() -> None:
    async with serving() as world:
        room = await room_of(world)
        await taken(room)
        began = asyncio.get_running_loop().time()
        with pytest.raises(TooLarge):
            await waited(room, [Claimed(f"{APP}/1/0/1", 1, 1 << 30, "")])
        assert asyncio.get_running_loop().time() - began < 1.0


async def test_in_a_store_that_is_full_by_then_it_is_not_published() -> None:
    async with serving() as world:
        room = await room_of(world)
        is_full = False
        room.publishing = Publishing(
            world.store, world.appender, room.staging, is_full=lambda: is_full
        )
        holder, parts = await taken(room), await room.staged()
        asking = begun(waited(room, parts))
        await asyncio.sleep(1.0)
        is_full = True
        room.runner.gone(holder, Departure.CLOSED)
        with pytest.raises(Unavailable, match="nearly full: nothing is published"):
            await asking
        assert isinstance(room.ownership, Vacant)
        assert await room.entries() == 0


async def test_a_topic_that_leaves_takes_its_line_along() -> None:
    async with serving() as world:
        room = await room_of(world)
        await taken(room)
        asking = begun(waited(room, await room.staged()))
        await asyncio.sleep(1.0)
        room.runner.unload("moving")
        with pytest.raises(Refused, match="moving"):
            await asking


async def test_deposed_in_its_turn_while_nobody_asks_it_publishes_nothing() -> None:
    async with serving() as world:
        room = await room_of(world)
        holder, parts = await taken(room), await room.staged()
        with pytest.raises(Unavailable):
            await waited(room, parts)
        room.runner.gone(holder, Departure.CLOSED)
        await asyncio.sleep(1.0)
        _, told = world.ask(room.runner, AccessMode.EXCLUSIVE_WITH_FENCING, "next")
        await until(lambda: told.ready)
        await asyncio.sleep(1.0)
        with pytest.raises(Unavailable, match="The place"):
            await waited(room, parts)
        assert names(room) == [APP]
        assert await room.entries() == 0


async def test_what_is_left_of_a_moment_is_not_waited_for_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A timer may be early by as much as the clock cannot tell; looked at anew, that much is left still."""
    async with serving() as world:
        room = await room_of(world)
        await taken(room)
        asked = Asked(APP, 1, None, await room.staged(), mode=AccessMode.WAIT_FOR_EXCLUSIVE)
        turn = Turn(room.runner, WHOLE, asked, world.appender.gathered)
        looks = 0

        def left(_request: PublishRequest) -> float:
            nonlocal looks
            looks += 1
            assert looks < 10
            return 3e-15

        monkeypatch.setattr(PublishRequest, "seconds_left", property(left))
        with pytest.raises(Unavailable, match="nobody has asked"):
            await turn.come(PublishRequest(asked))
        turn.give_back()
