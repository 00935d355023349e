"""How many reads a broker needs for the entries of a returning producer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from onewriter_broker.log.store.api import Block, LogStore, StoredBlock
from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_broker.log.topic_log.read_sizes import BLOCKS_MAX, BYTES, FIRST_BLOCKS
from onewriter_broker.topic.producers.deduplication import FIELD, resume
from onewriter_broker.topic.producers.resends import TAIL_BYTES_MAX, lineage_from_log
from onewriter_core.ids import Position, TopicName
from onewriter_core.log_format.limits import BLOCK_BYTES_MAX
from onewriter_core.wire.messages import build_entry
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

LEDGER = 5


class CountingStore:
    """A log of blocks with one entry each, of the given sizes; notes the sizes of the reads and of the replies."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.blocks = [block(number, size) for number, size in enumerate(sizes, 1)]
        self.counts: list[int] = []
        self.bytes_max = 0

    async def read_blocks(
        self,
        topic: TopicName,
        start: Position,
        end: Position,
        *,
        count: int,
        reverse: bool = False,
        replid: str = "",
    ) -> list[StoredBlock]:
        del topic, replid
        found = [each for each in self.blocks if start <= each.position <= end]
        answer = found[::-1][:count] if reverse else found[:count]
        self.counts.append(count)
        self.bytes_max = max(self.bytes_max, sum(len(each.payload) for each in answer))
        return list(answer)


def block(number: int, size: int) -> Block:
    metadata = pb.MessageMetadata(producer_name="writer", sequence_id=number, publish_time=number)
    payload = build_entry(metadata, bytes(size))
    return Block(Position(LEDGER, number), [len(payload)], payload, None, 0, b"")


def log_of(store: CountingStore) -> TopicLog:
    log = TopicLog(TopicName.parse("persistent://public/default/t"), cast("LogStore", store))
    log._committed = store.blocks[-1].position
    return log


async def test_small_blocks_need_few_reads() -> None:
    """Each read waits until the tasks of all other topics had their turn: 2,000 entries once took 125 reads."""
    store = CountingStore([100] * 2_000)
    runs, _ = await lineage_from_log(log_of(store), "writer", LEDGER)
    assert sum(len(run.marks) for run in runs) == 2_000
    assert len(store.counts) <= 2_000 / BLOCKS_MAX + 3
    assert max(store.counts) == BLOCKS_MAX


async def test_full_blocks_are_read_in_small_numbers() -> None:
    store = CountingStore([BLOCK_BYTES_MAX] * 100)
    await lineage_from_log(log_of(store), "writer", LEDGER)
    assert set(store.counts) == {FIRST_BLOCKS}
    assert store.bytes_max <= BYTES + FIRST_BLOCKS * 100
    assert sum(store.counts) * BLOCK_BYTES_MAX <= TAIL_BYTES_MAX + BYTES


async def test_full_blocks_before_small_ones_make_no_reply_larger_than_the_whole_search() -> None:
    store = CountingStore([BLOCK_BYTES_MAX] * 100 + [100] * 80)
    await lineage_from_log(log_of(store), "writer", LEDGER)
    assert store.bytes_max <= TAIL_BYTES_MAX + BLOCKS_MAX * 100


@pytest.mark.parametrize("size", [100, BLOCK_BYTES_MAX])
async def test_deduplication_continues_with_as_few_reads(size: int) -> None:
    entries = 1_000 if size == 100 else 100
    store = CountingStore([size] * entries)
    log = log_of(store)
    cast("Any", log)._state[FIELD] = f"{Position(LEDGER, 0)} {{}}"
    deduplication = await resume(log)
    assert deduplication.last_sequence_id("writer") == entries
    most = BLOCKS_MAX if size == 100 else FIRST_BLOCKS
    assert len(store.counts) <= entries / most + 3
    assert max(store.counts) == most
