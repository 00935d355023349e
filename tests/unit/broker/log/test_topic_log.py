"""What a log gathers into a block, whom it tells, and what it reads back out of memory."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from onewriter_broker.log.store.api import Binding
from onewriter_broker.log.topic_log.entries import entries_of
from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_broker.log.topic_log.pending_blocks import PendingBlock, PendingEntry
from onewriter_core.ids import Position, TopicName
from onewriter_core.log_format.limits import BLOCK_BYTES_MAX, BLOCK_ENTRIES_MAX
from onewriter_core.wire.values import Send
from onewriter_testing.fake_store.store import FakeLogStore

LEDGER = 7


class Notebook:
    """A sender that writes down what it is told."""

    def __init__(self) -> None:
        self.stored_entries: list[tuple[int, Position, int]] = []
        self.refused_bytes: list[int] = []

    def stored(self, entries: Sequence[PendingEntry], first: Position, size: int) -> None:
        self.stored_entries.append((entries[0][1].sequence_id, first, size))

    def unknown(self, size: int) -> None:
        raise AssertionError

    def refused(self, size: int) -> None:
        self.refused_bytes.append(size)


@pytest.fixture
def log() -> TopicLog:
    log = TopicLog(TopicName.parse("orders"), FakeLogStore(lambda: None))
    log.open(LEDGER, Binding(0, "dataset", 1, "broker-a", 1), 0.0)
    log._is_writable = True
    return log


def hand_in(log: TopicLog, sender: Notebook, *sizes: int, messages: int = 1) -> None:
    for number, size in enumerate(sizes):
        log.accept((sender, Send(1, number, messages), memoryview(bytes(size))))


def next_block(log: TopicLog) -> PendingBlock:
    pending = log.next_block(1)
    assert pending is not None
    return pending


def test_a_block_is_as_large_as_its_bytes_allow_and_the_rest_waits(log: TopicLog) -> None:
    hand_in(log, Notebook(), *[BLOCK_BYTES_MAX // 4] * 5)
    first, second = next_block(log), next_block(log)
    assert [len(first.entries), len(second.entries)] == [4, 1]
    assert first.size == BLOCK_BYTES_MAX
    assert second.block.position == Position(LEDGER, 5)
    assert log.next_block(1) is None


def test_a_block_has_a_limit_of_entries_however_small_they_are(log: TopicLog) -> None:
    hand_in(log, Notebook(), *[0] * (BLOCK_ENTRIES_MAX + 1))
    assert len(next_block(log).entries) == BLOCK_ENTRIES_MAX
    assert len(next_block(log).entries) == 1


def test_an_entry_larger_than_a_block_has_its_own_block(log: TopicLog) -> None:
    hand_in(log, Notebook(), 10, BLOCK_BYTES_MAX + 1, 10)
    sizes = [next_block(log).size for _ in range(3)]
    assert sizes == [10, BLOCK_BYTES_MAX + 1, 10]


def test_an_entry_of_no_messages_or_fewer_counts_as_one(log: TopicLog) -> None:
    for messages in (-1, 0, 1):
        hand_in(log, Notebook(), 10, messages=messages)
    assert next_block(log).block.counts is None
    hand_in(log, Notebook(), 10, messages=-5)
    hand_in(log, Notebook(), 10, messages=3)
    assert next_block(log).block.counts == [1, 3]


def test_sender_gets_one_call_for_consecutive_entries(log: TopicLog) -> None:
    one, other = Notebook(), Notebook()
    hand_in(log, one, 10, 20)
    hand_in(log, other, 5)
    hand_in(log, one, 1)
    log.block_committed(next_block(log))
    assert one.stored_entries == [(0, Position(LEDGER, 1), 30), (0, Position(LEDGER, 4), 1)]
    assert other.stored_entries == [(0, Position(LEDGER, 3), 5)]


def test_entries_that_are_put_back_precede_waiting_ones(log: TopicLog) -> None:
    sender = Notebook()
    hand_in(log, sender, 10, 20)
    pending = next_block(log)
    hand_in(log, sender, 30)
    log.put_back(pending)
    assert [len(payload) for _, _, payload in log.waiting] == [10, 20, 30]
    log.refuse_waiting()
    assert sender.refused_bytes == [10, 20, 30]


def test_a_read_ends_at_its_limits_but_gives_one_entry_at_least(log: TopicLog) -> None:
    sender = Notebook()
    for sizes in ([10, 20, 30], [40, 50], [60]):
        hand_in(log, sender, *sizes)
        log.block_committed(next_block(log))

    def read(after: int, entries_max: int, bytes_max: int) -> list[int]:
        found = log.read_tail(Position(LEDGER, after), entries_max, bytes_max)
        assert found is not None
        entries = entries_of(found)
        numbers = range(after + 1, after + 1 + len(entries))
        assert [entry.position for entry in entries] == [Position(LEDGER, n) for n in numbers]
        return [len(entry.payload) for entry in entries]

    assert read(0, 10, 1000) == [10, 20, 30, 40, 50, 60]
    assert read(0, 4, 1000) == [10, 20, 30, 40]
    assert read(1, 2, 1000) == [20, 30]
    assert read(2, 2, 1000) == [30, 40]
    assert read(4, 1, 1) == [50]
    assert read(6, 1, 1) == []
    # Bytes are counted by the block: the rest of one would only be read again.
    assert read(0, 10, 1) == [10, 20, 30]
    assert read(0, 10, 60) == [10, 20, 30]
    assert read(0, 10, 61) == [10, 20, 30, 40, 50]
    assert read(1, 10, 51) == [20, 30, 40, 50]


def test_the_oldest_blocks_leave_memory_and_the_newest_stays(log: TopicLog) -> None:
    for _ in range(20):
        hand_in(log, Notebook(), 1000)
        log.block_committed(next_block(log))
    log.shrink_tail(10_000)
    assert 0 < log.tail_bytes <= 10_000
    log.shrink_tail(0)
    assert [block.position for block in log.tail] == [Position(LEDGER, 20)]
    assert log.read_tail(Position(LEDGER, 3), 1, 1) is None


def test_other_modules_cannot_assign_the_state_of_a_log(log: TopicLog) -> None:
    configured = {"name", "store", "tail_bytes_max"}
    fields = {slot for slot in TopicLog.__slots__ if not slot.startswith("__")}
    assert {field for field in fields if not field.startswith("_")} == configured
    for field in fields - configured:
        public = field.removeprefix("_")
        if hasattr(TopicLog, public):
            with pytest.raises(AttributeError):
                setattr(log, public, None)
