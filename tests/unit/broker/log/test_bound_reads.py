"""Reads of a dataset that wait at the same time share a transaction, within limits, and each gets its own answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import hiredis
import pytest

from onewriter_broker.log.store.api import BrokenKey
from onewriter_broker.log.store.keys import Keys
from onewriter_broker.log.store.redis.bound_reads import (
    BLOCKS_PER_CALL_MAX,
    CALLS_MAX,
    LARGE_REPLY_WORDS,
    READS_PER_CALL_MAX,
    BoundReads,
)
from onewriter_broker.log.store.redis.channel import StoreChannel, error_of
from onewriter_broker.log.store.redis.compacted import RedisCompactedStore, Write
from onewriter_broker.log.store.redis.script_calls import Word
from onewriter_core.errors import Undecided
from onewriter_core.ids import TopicName

PRIMARY = cast("Any", object())


class Channel:
    """Answers each read with its key, after ``allowed`` is set."""

    def __init__(self) -> None:
        self.calls: list[list[Sequence[Word]]] = []
        self.replid = b"one"
        self.dropped: list[object] = []
        self.allowed = asyncio.Event()
        self.allowed.set()
        self.reply: Callable[[Sequence[Word]], object] = lambda words: words[1]
        self.error: Undecided | None = None
        self.refusal: Callable[[Sequence[Sequence[Word]]], hiredis.ReplyError | None] = lambda _: (
            None
        )

    async def send(self, commands: Sequence[Sequence[Word]]) -> tuple[Any, list[object]]:
        assert commands[0] == ["MULTI"]
        assert commands[-1] == ["EXEC"]
        reads = list(commands[2:-1])
        self.calls.append(reads)
        await self.allowed.wait()
        if self.error is not None:
            raise self.error
        refusal = self.refusal(reads)
        if refusal is not None:
            raise error_of(reads[0], refusal) from refusal
        info = b"# Replication\r\nrole:master\r\nmaster_replid:" + self.replid + b"\r\n"
        results = [info, *(self.reply(words) for words in reads)]
        return PRIMARY, [b"OK", *[b"QUEUED"] * (1 + len(reads)), results]

    def drop(self, primary: object) -> None:
        self.dropped.append(primary)


@pytest.fixture
def channel() -> Channel:
    return Channel()


def reads_of(
    channel: Channel, slot_of: Callable[[Sequence[Word]], int] = lambda _: 0
) -> BoundReads:
    return BoundReads(cast("StoreChannel", channel), slot_of)


def read_all(
    reads: BoundReads, keys: Sequence[str], *, replid: str = "one", blocks: int = 0
) -> list[asyncio.Task[object]]:
    return [
        asyncio.get_running_loop().create_task(reads.read(["HGETALL", key], replid, blocks=blocks))
        for key in keys
    ]


async def called(channel: Channel, calls: int) -> None:
    """Let tasks run until the channel has got that many calls."""
    for _ in range(100):
        if len(channel.calls) >= calls:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"{len(channel.calls)} calls")


async def test_reads_of_one_tick_share_a_transaction(channel: Channel) -> None:
    reads = reads_of(channel)
    assert await asyncio.gather(*read_all(reads, ["a", "b", "c"])) == ["a", "b", "c"]
    assert [len(call) for call in channel.calls] == [3]
    assert await reads.read(["HGETALL", "d"], "one") == "d"
    assert [len(call) for call in channel.calls] == [3, 1]


async def test_the_transactions_and_their_reads_are_limited(channel: Channel) -> None:
    reads = reads_of(channel)
    channel.allowed.clear()
    waiting = read_all(reads, [str(each) for each in range((CALLS_MAX + 1) * READS_PER_CALL_MAX)])
    await called(channel, CALLS_MAX)
    for _ in range(10):
        await asyncio.sleep(0)
    assert [len(call) for call in channel.calls] == [READS_PER_CALL_MAX] * CALLS_MAX
    channel.allowed.set()
    assert await asyncio.gather(*waiting) == [str(each) for each in range(len(waiting))]
    assert len(channel.calls) == CALLS_MAX + 1


async def test_reads_of_many_blocks_do_not_share_a_transaction(channel: Channel) -> None:
    reads = reads_of(channel)
    await asyncio.gather(*read_all(reads, ["a", "b", "c", "d"], blocks=BLOCKS_PER_CALL_MAX // 2))
    await asyncio.gather(*read_all(reads, ["e", "f"], blocks=4 * BLOCKS_PER_CALL_MAX))
    assert [len(call) for call in channel.calls] == [2, 2, 1, 1]


async def test_reads_of_a_compacted_view_count_their_blocks(channel: Channel) -> None:
    reads = reads_of(channel)
    channel.reply = lambda words: [None] * (len(words) - 2)
    store = RedisCompactedStore(Keys(), cast("Write", None), reads.read)
    topic = TopicName.parse("orders")
    views = [
        store.read(topic, 0, 1, BLOCKS_PER_CALL_MAX // 2, replid="one"),
        store.read(topic, 0, 1 + BLOCKS_PER_CALL_MAX // 2, BLOCKS_PER_CALL_MAX, replid="one"),
    ]
    assert await asyncio.gather(*views) == [[], []]
    assert [len(call) for call in channel.calls] == [1, 1]


async def test_reads_of_other_datasets_and_slots_have_transactions_of_their_own(
    channel: Channel,
) -> None:
    reads = reads_of(channel, lambda words: ord(str(words[1])[0]))
    channel.allowed.clear()
    waiting = read_all(reads, ["a1", "b1", "a2"]) + read_all(reads, ["a3"], replid="two")
    await called(channel, 3)
    keys = [[str(words[1]) for words in call] for call in channel.calls]
    assert sorted(keys) == [["a1", "a2"], ["a3"], ["b1"]]
    channel.allowed.set()
    *found, other = await asyncio.gather(*waiting, return_exceptions=True)
    assert [str(each) for each in found] == ["a1", "b1", "a2"]
    assert isinstance(other, Undecided)
    assert channel.dropped == [PRIMARY]


async def test_a_broken_key_concerns_only_its_own_read(channel: Channel) -> None:
    reads = reads_of(channel)
    error = hiredis.ReplyError("WRONGTYPE Operation against a key holding the wrong kind of value")
    channel.reply = lambda words: error if words[1] == "b" else words[1]
    found = await asyncio.gather(*read_all(reads, ["a", "b", "c"]), return_exceptions=True)
    assert [str(found[0]), str(found[2])] == ["a", "c"]
    second = found[1]
    assert isinstance(second, BrokenKey)
    assert str(second).startswith("b: WRONGTYPE")


async def test_all_reads_of_a_failed_transaction_fail_and_later_ones_go_on(
    channel: Channel,
) -> None:
    reads = reads_of(channel)
    channel.error = Undecided("the store did not answer in time")
    failed = await asyncio.gather(*read_all(reads, ["a", "b"]), return_exceptions=True)
    assert [str(each) for each in failed] == ["the store did not answer in time"] * 2
    channel.error = None
    assert await reads.read(["HGETALL", "c"], "one") == "c"


@pytest.mark.parametrize("answer", ["ASK 7 127.0.0.1:7001", "TRYAGAIN Multiple keys request"])
async def test_a_key_that_was_moved_away_fails_only_its_own_read(
    channel: Channel, answer: str
) -> None:
    """In a hash slot that is being moved, a missing key makes the server refuse the whole transaction."""
    reads = reads_of(channel)
    channel.refusal = lambda call: (
        hiredis.ReplyError(answer) if any(words[1] == "b" for words in call) else None
    )
    found = await asyncio.gather(*read_all(reads, ["a", "b", "c"]), return_exceptions=True)
    assert [str(found[0]), str(found[2])] == ["a", "c"]
    assert isinstance(found[1], Undecided)
    assert answer in str(found[1])
    assert [len(call) for call in channel.calls] == [3, 1, 1, 1]


async def test_a_cancelled_read_does_not_disturb_the_others(channel: Channel) -> None:
    reads = reads_of(channel)
    channel.allowed.clear()
    first, second = read_all(reads, ["a", "b"])
    await called(channel, 1)
    later, last = read_all(reads, ["c", "d"])
    await asyncio.sleep(0)
    first.cancel()
    later.cancel()
    channel.allowed.set()
    assert (await second, await last) == ("b", "d")
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_other_work_runs_between_the_callers_of_large_replies(channel: Channel) -> None:
    reads, ticks = reads_of(channel), 0
    channel.reply = lambda words: [b""] * (LARGE_REPLY_WORDS + (str(words[1]) < "c"))

    async def tick_of(key: str) -> int:
        await reads.read(["HGETALL", key], "one")
        return ticks

    async def count() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    counting = asyncio.get_running_loop().create_task(count())
    found = await asyncio.gather(*map(tick_of, ["a", "b", "c", "d"]))
    counting.cancel()
    assert len(channel.calls) == 1
    assert found[0] < found[1] < found[2] == found[3]


async def test_closing_waits_for_the_transactions(channel: Channel) -> None:
    reads = reads_of(channel)
    await reads.close()
    channel.allowed.clear()
    (waiting,) = read_all(reads, ["a"])
    await called(channel, 1)
    closing = asyncio.get_running_loop().create_task(reads.close())
    await asyncio.sleep(0)
    assert not closing.done()
    channel.allowed.set()
    await closing
    assert await waiting == "a"
