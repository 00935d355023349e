"""Tools for tests of atomic publishes: publishes, calls with a side effect, and the stored result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise

from tests.unit.broker.topic.fence_path_world import World

from onewriter_broker.log.store.api import (
    Block,
)
from onewriter_broker.log.topic_log.atomic_publish import Entries, Publish, Published
from onewriter_broker.log.topic_log.entries import entries_of
from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_broker.topic.runner import TopicRunner
from onewriter_core.errors import OnewriterError
from onewriter_core.ids import EARLIEST
from onewriter_core.log_format.chain import chain
from onewriter_core.topic.model import WHOLE
from onewriter_core.wire.values import Send
from onewriter_testing.fake_store.store import Moment

SIZE = 200_000
"""Bytes of an entry. A block has one entry, a call about five."""

APP = "query"


def asked(
    count: int, *, version: int = 1, size: int = SIZE, may_write: Callable[[], bool] = lambda: True
) -> Publish:
    entries = [
        (Send(0, version), memoryview(f"{version}/{number} ".encode().ljust(size, b".")))
        for number in range(count)
    ]
    return Publish(APP, version, Entries(entries), may_write)


def request(world: World, log: TopicLog, publish: Publish) -> Publish:
    log.publish(publish)
    world.appender.append_soon(log)
    return publish


class Calls:
    """Changes the world before or after the n-th append."""

    def __init__(
        self,
        world: World,
        number: int,
        act: Callable[[], object],
        moment: Moment = "before",
        *,
        call: str = "append",
    ) -> None:
        self.made = 0
        self._call = call
        self._number = number
        self._act = act
        self._moment = moment
        world.store.faults.hook = self._hook

    async def _hook(self, call: str, moment: Moment) -> None:
        if call != self._call:
            return
        if moment == "before":
            self.made += 1
        if moment == self._moment and self.made == self._number:
            self._act()
        for _ in range(10):  # a call takes some time
            await asyncio.sleep(0)


async def log_of(world: World) -> tuple[TopicRunner, TopicLog]:
    runner = await world.load()
    return runner, runner.logs[WHOLE]


async def contents(log: TopicLog) -> list[str]:
    """The contents that a reader gets from the beginning of the log."""
    found: list[str] = []
    after = EARLIEST
    while runs := await log.read(after, 100, 1 << 20):
        found += [_text(bytes(each.payload)) for each in entries_of(runs)]
        after = runs[-1].last
    return found


def _text(payload: bytes) -> str:
    return payload.split(b" ")[0].decode(errors="replace")


async def whole(world: World) -> list[Block]:
    """The log's blocks, after a check that their numbers and chain are complete."""
    blocks = [block for block in await world.stored() if isinstance(block, Block)]
    for one, other in pairwise(blocks):
        if one.position.ledger == other.position.ledger:
            assert other.position.entry == one.last.entry + 1
            assert other.chain == chain(one.chain, other.position, other.lengths, other.payload)
    return blocks


async def ended(publish: Publish) -> Published | OnewriterError | None:
    async with asyncio.timeout(60):
        try:
            return await publish.done
        except OnewriterError as error:
            return error
