"""Every entry of a span must arrive, or its absence is reported."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import pytest
from tests.unit.pipeline.entries import Entry, Sent, chunk_of

from onewriter_core.ids import Position
from onewriter_pipeline.brokers.broker import Broker
from onewriter_pipeline.brokers.frames import Chunk
from onewriter_pipeline.errors import EntriesLost, LogEnds, PipelineError, Trimmed
from onewriter_pipeline.read.offsets import Run, Span
from onewriter_pipeline.read.spans import Reading, Seen, read_span

LOG = "persistent://public/default/orders"


def span(*runs: tuple[int, int, int]) -> Span:
    return Span(
        LOG, tuple(Run(ledger, 5, first, end, 0, end - first) for ledger, first, end in runs)
    )


def chunk(*positions: tuple[int, int]) -> Chunk:
    """A chunk of entries at these positions."""
    made = chunk_of([Entry((Sent(b"%d:%d" % position),)).encoded() for position in positions])
    ledger, entry = (np.array([at[n] for at in positions], np.int64) for n in (0, 1))
    return Chunk(made.payload, made.offsets, ledger, entry, made.messages, made.time_ms)


class ScriptedBroker:
    """Returns these chunks, and raises these errors."""

    def __init__(self, *answers: Sequence[Chunk | PipelineError] | PipelineError) -> None:
        self._answers = list(answers)
        self.requests: list[tuple[Position, Position]] = []

    def read(self, log: str, start: Position, end: Position) -> Iterator[Chunk]:
        self.requests.append((start, end))
        answers = self._answers.pop(0)
        for answer in (answers,) if isinstance(answers, PipelineError) else answers:
            if isinstance(answer, PipelineError):
                raise answer
            yield answer


def values(broker: ScriptedBroker, of: Span, **how: Any) -> list[str]:
    batches = read_span(cast("Broker", broker), of, Reading(("value", "__epoch"), **how))
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert all(row["__epoch"] == 5 for row in rows)
    return [row["value"].decode() for row in rows]


def test_span_over_several_ledgers_in_several_chunks() -> None:
    whole = span((1, 3, 5), (4, 1, 4))
    broker = ScriptedBroker([chunk((1, 3)), chunk((1, 4), (4, 1)), chunk((4, 2), (4, 3))])
    assert values(broker, whole) == ["1:3", "1:4", "4:1", "4:2", "4:3"]
    assert broker.requests == [(Position(1, 3), Position(4, 4))]


GAPS: dict[str, tuple[list[Chunk], str]] = {
    "at the beginning": ([chunk((1, 4), (4, 1), (4, 2))], "1:3 to 1:3"),
    "inside": ([chunk((1, 3), (1, 4), (4, 2))], "4:1 to 4:1"),
    "between chunks": ([chunk((1, 3)), chunk((4, 1), (4, 2))], "1:4 to 1:4"),
    "a ledger": ([chunk((4, 1), (4, 2))], "1:3 to 1:4"),
    "at the end": ([chunk((1, 3), (1, 4), (4, 1))], "4:2 to 4:2"),
    "everything": ([], "4:1 to 4:2|1:3 to 1:4"),
}


@pytest.mark.parametrize("name", GAPS)
def test_missing_entries_are_reported(name: str, caplog: pytest.LogCaptureFixture) -> None:
    chunks, named = GAPS[name]
    whole = span((1, 3, 5), (4, 1, 3))
    with pytest.raises(EntriesLost, match=named):
        values(ScriptedBroker(chunks), whole)
    with caplog.at_level(logging.WARNING):
        found = values(ScriptedBroker(chunks), whole, fail_on_loss=False)
    assert len(found) == sum(len(each) for each in chunks)
    assert "are no longer in the log" in caplog.text


def test_log_that_is_trimmed_or_ends_early() -> None:
    whole = span((1, 3, 5), (4, 1, 3))
    trimmed = Trimmed("gone", Position(4, 0), None)
    rest = [chunk((4, 1), (4, 2))]
    with pytest.raises(Trimmed):
        values(ScriptedBroker(trimmed), whole)
    broker = ScriptedBroker(trimmed, rest)
    assert values(broker, whole, fail_on_loss=False) == ["4:1", "4:2"]
    assert broker.requests[1] == (Position(4, 0), Position(4, 3))
    gone = Trimmed("all gone", Position(9, 0), None)
    assert values(ScriptedBroker(gone), whole, fail_on_loss=False) == []
    ends = LogEnds("too early", Position(4, 1))
    answers: list[Chunk | PipelineError] = [chunk((1, 3), (1, 4)), ends]
    with pytest.raises(LogEnds):
        values(ScriptedBroker(answers), whole)
    assert values(ScriptedBroker(answers), whole, fail_on_loss=False) == ["1:3", "1:4"]


def test_skipped_corrupt_entries_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    good = chunk((1, 3), (1, 4))
    broken = Chunk(
        good.payload[:-1] + b"?", good.offsets, good.ledger, good.entry, good.messages, good.time_ms
    )
    with caplog.at_level(logging.WARNING):
        found = values(ScriptedBroker([broken]), span((1, 3, 5)), skip_corrupt=True)
    assert found == ["1:3"]
    assert "1 entries were skipped" in caplog.text
    assert "1:4 cannot be read: its checksum is wrong" in caplog.text


@pytest.mark.parametrize("pieces", [1, 2, 5])
def test_seen_finds_missing_entries(pieces: int) -> None:
    seen = Seen(span((1, 1, 11), (2, 1, 11)))
    positions = [(ledger, entry) for ledger in (1, 2) for entry in range(1, 11)]
    size = len(positions) // pieces
    for start in range(0, len(positions), size):
        assert seen.missing_before(chunk(*positions[start : start + size])) is None
    assert seen.missing_at_end() is None
