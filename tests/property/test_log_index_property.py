"""A log that grows, rolls and is trimmed at random while it is indexed and read a part at a time.

In the end the index describes exactly what is stored. A reader that saw no hole has received every entry after its
start once.
"""

from __future__ import annotations

import random

import pytest
from tests.unit.broker.topic.retention.test_segments import (
    counted,
    everything,
    segments_by_ledger,
    stored,
    trimmed,
)
from tests.unit.broker.verify.histories import BUCKETS, TopicHistory, entry, waiter

from onewriter_broker.log.store.api import Block
from onewriter_broker.log.topic_log.ranges import EntriesMissing, Range, lacks
from onewriter_broker.topic.retention.segments import SegmentIndexes, SegmentLimits
from onewriter_core.ids import EARLIEST, Position
from onewriter_core.topic.model import Purpose
from onewriter_testing.fake_store.server import FakeServer
from onewriter_testing.fake_store.store import FakeLogStore

SEEDS = 40
STEPS = 80


class Reader:
    """Reads the log from some position, as the stream of its blocks does."""

    def __init__(self, history: TopicHistory, start: Position, limits: SegmentLimits) -> None:
        self._read_bytes_max = limits.read_bytes_max
        self.start = self.at = start
        self.read: list[Position] = []
        self.is_gone = False
        self._story = history

    async def step(self, drawn: random.Random) -> None:
        """Read further for a while. If an entry has been trimmed, the reader gets an error and ends."""
        blocks = Range(self._story.log, self.at, read_bytes_max=self._read_bytes_max)
        for _ in range(drawn.randrange(1, 4)):
            at = blocks.at
            try:
                found = await blocks.read()
            except EntriesMissing:
                self.is_gone = True
                return
            if not found:
                return
            if lacks(self._story.log, at, found[0].position):
                self.is_gone = True
                return
            for block in found:
                if isinstance(block, Block):
                    first = block.position
                    positions = (
                        Position(first.ledger, first.entry + k) for k in range(len(block.lengths))
                    )
                    self.read += [each for each in positions if each >= self.at]
                    self.at = block.last.next
                else:
                    self.at = block.position.next


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_an_index_and_readers_of_a_restless_log(seed: int) -> None:
    drawn = random.Random(seed)
    limits = SegmentLimits(
        request_bytes_max=drawn.choice([1, 2_000, 10_000_000]),
        segments_per_page=drawn.choice([2, 1_000]),
        segments_per_log_max=drawn.choice([4, 4_000]),
        read_bytes_max=drawn.choice([1, 1_000, 1_000_000]),
    )
    server = FakeServer()
    history = await TopicHistory.begin(FakeLogStore(server.resolve, buckets=BUCKETS))
    indexes, readers = SegmentIndexes(limits), list[Reader]()
    written: list[Position] = []
    after = EARLIEST
    await history.fence(Purpose.GRANT, waiter("alice"))
    for _ in range(STEPS):
        match drawn.randrange(10):
            case 0 | 1 | 2 | 3:
                count = drawn.randrange(1, 5)
                first = Position(history.log.ledger, history.log.next_entry - 1).next
                await history.publish(
                    *(entry("alice", k, batch=drawn.randrange(4)) for k in range(count))
                )
                written += [Position(first.ledger, first.entry + k) for k in range(count)]
            case 4:
                await history.fence(drawn.choice([Purpose.ROLL, Purpose.REFENCE]))
            case 5:
                if written:
                    cut = drawn.choice(written)
                    marker = Position(history.log.ledger, 0)
                    await trimmed(history, min(marker, drawn.choice([cut, cut.next])))
            case 6:
                history.log.forget_tail()
                if drawn.random() < 0.3:  # like a broker that has just begun to serve it
                    history.log._ends.clear()
            case 7:
                page = await indexes.page(history.log, history.binding.bucket, after)
                after = drawn.choice([page.next, EARLIEST])
            case _:
                start = drawn.choice([EARLIEST, *written, *(each.next for each in written)])
                first_kept = stored(server)[0].position
                if not lacks(history.log, start, first_kept):
                    readers.append(Reader(history, start, limits))
        for reader in readers:
            if not reader.is_gone and drawn.random() < 0.3:
                await reader.step(drawn)
    assert segments_by_ledger(await everything(indexes, history)) == counted(stored(server))
    for reader in readers:
        assert reader.read == [each for each in written if reader.start <= each < reader.at]
    assert history.log.committed >= max(written, default=EARLIEST)
