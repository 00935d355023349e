"""Reads that must come from a named dataset. Reads that wait at the same time share a transaction.

A broker that takes over thousands of topics reads the states and the last blocks of their logs. A transaction of
one read costs several times the read: three more commands, and the server's report of its dataset. In a cluster
a transaction has the reads of one hash slot, so a shard that does not answer delays no reads of other shards. If the
server refuses a transaction because the hash slot is being moved, each of its reads is sent once more, alone.

The number of transactions and of the reads in one is limited. Further reads wait in the order of the calls, and their
time limit begins when they are sent. Heartbeats do not wait for them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import hiredis

from onewriter_broker.log.store.redis.channel import StoreChannel, error_of
from onewriter_broker.log.store.redis.connection import Reply
from onewriter_broker.log.store.redis.primary import Primary, parse_info
from onewriter_broker.log.store.redis.script_calls import Word
from onewriter_core.errors import OnewriterError, Undecided

CALLS_MAX = 4
"""Transactions that await their replies at the same time: of the store, or in a cluster of each hash slot."""

READS_PER_CALL_MAX = 64
"""Reads of one transaction. The server executes them in about one millisecond if their replies are small."""

LARGE_REPLY_WORDS = 1_000
"""A caller whose reply has more words decodes it before the next reply is given to another caller."""

MOVING = ("ASK", "TRYAGAIN")
"""Errors of a cluster's server that moves a hash slot and lacks a key, so that it refuses the whole transaction."""

BLOCKS_PER_CALL_MAX = 64
"""Blocks that several reads of one transaction may ask for together, because a reply must not be large."""


@dataclass(slots=True, eq=False)
class _Read:
    """A command, and how many blocks its reply has at most."""

    words: Sequence[Word]
    replid: str
    blocks: int
    reply: asyncio.Future[Reply]
    is_alone: bool = False
    """It has a transaction of its own."""


@dataclass(slots=True, eq=False)
class _Queue:
    """The reads of the store, or of one hash slot, that were not sent yet."""

    slot: int
    waiting: deque[_Read] = field(default_factory=deque)
    calls: int = 0
    """Transactions that await their replies."""
    is_scheduled: bool = False


class BoundReads:
    """``slot_of`` returns the hash slot of a command in a cluster, otherwise a constant."""

    def __init__(self, channel: StoreChannel, slot_of: Callable[[Sequence[Word]], int]) -> None:
        self._channel = channel
        self._slot_of = slot_of
        self._queues: dict[int, _Queue] = {}
        self._calls: set[asyncio.Task[None]] = set()

    async def read(self, words: Sequence[Word], replid: str, *, blocks: int = 0) -> Reply:
        """The reply to a command from this dataset. ``blocks``: how many blocks it has at most.

        Raises Undecided, also if the server has another dataset, and BrokenKey.
        """
        loop = asyncio.get_running_loop()
        slot = self._slot_of(words)
        queue = self._queues.get(slot)
        if queue is None:
            queue = self._queues[slot] = _Queue(slot)
        read = _Read(words, replid, blocks, loop.create_future())
        queue.waiting.append(read)
        if not queue.is_scheduled:
            queue.is_scheduled = True
            loop.call_soon(self._send_waiting, queue)  # after the other reads of this tick
        return await read.reply

    async def close(self) -> None:
        """Wait for the transactions, whose connection was closed."""
        while self._calls:  # a transaction that ends sends the reads that wait
            await asyncio.wait(self._calls)

    def _send_waiting(self, queue: _Queue) -> None:
        queue.is_scheduled = False
        while queue.waiting and queue.calls < CALLS_MAX:
            reads = _next_reads(queue.waiting)
            if reads:
                queue.calls += 1
                call = asyncio.get_running_loop().create_task(self._call(queue, reads))
                self._calls.add(call)
                call.add_done_callback(self._calls.discard)
        if not queue.waiting and not queue.calls:
            self._queues.pop(queue.slot, None)

    async def _call(self, queue: _Queue, reads: Sequence[_Read]) -> None:
        try:
            primary, replies = await self._channel.send(
                [["MULTI"], ["INFO", "replication"], *(read.words for read in reads), ["EXEC"]]
            )
            await self._answer(reads, primary, replies[-1])
        except OnewriterError as error:
            if len(reads) > 1 and str(error.__cause__).startswith(MOVING):
                # The server still has the keys of other reads.
                queue.waiting.extendleft(replace(read, is_alone=True) for read in reversed(reads))
                reads = ()
            for read in reads:
                _fail(read, error)
        finally:
            queue.calls -= 1
            for read in reads:  # only if this task was cancelled
                _fail(read, Undecided("the read was cancelled"))
            self._send_waiting(queue)

    async def _answer(self, reads: Sequence[_Read], primary: Primary, results: Reply) -> None:
        """Give the reads their replies. Raises Undecided if they are from another dataset.

        Decoding a large state takes milliseconds. If the callers of many such replies ran one after another, nothing
        else would run meanwhile.
        """
        if not isinstance(results, list) or len(results) != 1 + len(reads):
            raise Undecided(f"the store answered {str(results)[:200]} to a read")
        replid = parse_info(results[0]).get("master_replid")
        if replid != reads[0].replid:
            self._channel.drop(primary)
            raise Undecided(f"read from dataset {replid}, not {reads[0].replid}")
        for read, reply in zip(reads, results[1:], strict=True):
            if isinstance(reply, hiredis.ReplyError):
                error = error_of(read.words, reply)
                error.__cause__ = reply
                _fail(read, error)
            elif not read.reply.done():
                read.reply.set_result(reply)
                if isinstance(reply, list) and len(reply) > LARGE_REPLY_WORDS:
                    await asyncio.sleep(0)  # its caller runs now


def _next_reads(waiting: deque[_Read]) -> list[_Read]:
    """Take the reads of the next transaction: of one dataset, and within the limits. Empty: no caller waits for them."""
    reads: list[_Read] = []
    blocks = 0
    while waiting and len(reads) < READS_PER_CALL_MAX:
        read = waiting[0]
        blocks += read.blocks
        is_shared = not read.is_alone and blocks <= BLOCKS_PER_CALL_MAX
        if reads and (read.replid != reads[0].replid or not is_shared or reads[0].is_alone):
            break
        waiting.popleft()
        if read.reply.done():  # its caller was cancelled
            blocks -= read.blocks
        else:
            reads.append(read)
    return reads


def _fail(read: _Read, error: OnewriterError) -> None:
    if not read.reply.done():
        read.reply.set_exception(error)
