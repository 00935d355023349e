"""Runs of entries give the same result as the simple way, which reads one entry after the other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from onewriter_broker.log.store.api import Block, Marker, StoredBlock
from onewriter_broker.log.topic_log.entries import Entry, EntryRun, entries_of, runs_after
from onewriter_core.ids import Position

ENTRIES = st.lists(st.tuples(st.binary(max_size=5), st.integers(1, 3)), min_size=1, max_size=6)
LOGS = st.lists(st.lists(ENTRIES, max_size=4), min_size=1, max_size=3)
"""Ledgers of blocks of entries: their bytes, and their number of messages."""


def log_of(ledgers: list[list[list[tuple[bytes, int]]]]) -> tuple[list[StoredBlock], list[Entry]]:
    """Return the log as it is stored, and its entries."""
    blocks: list[StoredBlock] = []
    entries: list[Entry] = []
    for ledger, contents in enumerate(ledgers, 5):
        blocks.append(Marker(Position(ledger, 0), {}))
        number = 1
        for content in contents:
            payloads = [payload for payload, _ in content]
            counts = [messages for _, messages in content]
            blocks.append(
                Block(
                    Position(ledger, number),
                    [len(payload) for payload in payloads],
                    b"".join(payloads),
                    None if set(counts) == {1} else counts,
                    0,
                    b"",
                )
            )
            for payload, messages in content:
                entries.append(Entry(Position(ledger, number), memoryview(payload), messages))
                number += 1
    return blocks, entries


@given(ledgers=LOGS, data=st.data(), entries_max=st.integers(1, 20), bytes_max=st.integers(1, 40))
def test_a_read_returns_the_entries_after_a_position_up_to_the_limits(
    ledgers: list[list[list[tuple[bytes, int]]]],
    data: st.DataObject,
    entries_max: int,
    bytes_max: int,
) -> None:
    blocks, entries = log_of(ledgers)
    after = data.draw(st.sampled_from([Position(0, 0), *(entry.position for entry in entries)]))
    ends = [block.last if isinstance(block, Block) else block.position for block in blocks]
    committed = data.draw(st.sampled_from(ends))
    runs = runs_after(blocks, after, committed, entries_max, bytes_max)
    found = entries_of(runs)
    expected = [entry for entry in entries if after < entry.position <= committed]
    assert found == expected[: len(found)]
    assert len(found) <= entries_max
    if len(found) < min(len(expected), entries_max):
        assert sum(run.size for run in runs) >= bytes_max
    assert sum(run.size for run in runs[:-1]) < bytes_max, "no block beyond the limit"
    assert [len(run) for run in runs] == [len(list(run.entries())) for run in runs]


@given(content=ENTRIES, messages_max=st.integers(1, 10), bytes_max=st.integers(1, 20))
def test_a_read_ends_with_the_entry_that_reaches_a_limit(
    content: list[tuple[bytes, int]], messages_max: int, bytes_max: int
) -> None:
    blocks, entries = log_of([[content]])
    (run,) = runs_after(blocks, Position(0, 0), entries[-1].position, 100, 100)
    expected = messages = size = 0
    for entry in entries:
        if messages >= messages_max or size >= bytes_max:
            break
        expected += 1
        messages += entry.messages
        size += len(entry.payload)
    assert run.fitting(messages_max, bytes_max) == expected


@given(content=ENTRIES, data=st.data())
def test_a_run_may_be_cut_anywhere(content: list[tuple[bytes, int]], data: st.DataObject) -> None:
    blocks, entries = log_of([[content]])
    (run,) = runs_after(blocks, Position(0, 0), entries[-1].position, 100, 100)
    runs: list[EntryRun] = []
    while len(run) > 1 and data.draw(st.booleans()):
        first, run = run.split(data.draw(st.integers(1, len(run) - 1)))
        runs.append(first)
    runs.append(run)
    assert entries_of(runs) == entries
    for part in runs:
        own = list(part.entries())
        assert (part.position, part.last) == (own[0].position, own[-1].position)
        assert part.messages == sum(entry.messages for entry in own)
        assert bytes(part.payload) == b"".join(entry.payload for entry in own)
        assert list(part.lengths) == [len(entry.payload) for entry in own]
        assert list(part.costs()) == [(entry.position, entry.messages) for entry in own]
