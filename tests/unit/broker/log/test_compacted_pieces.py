"""Compacted views, of which most entries are gone: read in steps, and what would be read at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.broker.ticks import Others

from onewriter_broker.log.store.compacted import CompactedBlock, Piece
from onewriter_broker.log.topic_log import compacted_log
from onewriter_broker.log.topic_log.entries import EntryRun, runs_after
from onewriter_core.ids import EARLIEST, Position

TICKS = 5
"""As often others have their turn at the least."""


def block(offsets: list[int], masks: Mapping[int, int], first: int = 1) -> CompactedBlock:
    numbers = range(len(offsets))
    payload = b"".join(b"%d" % (number % 10) * (1 + number % 3) for number in numbers)
    lengths = [1 + number % 3 for number in numbers]
    counts = [1 + number % 2 for number in numbers]
    return CompactedBlock(Position(5, first), offsets, lengths, payload, counts, masks, b"")


SPARSE = st.sets(st.integers(1, 30), max_size=20).map(lambda found: [0, *sorted(found)])
MASKS = st.dictionaries(st.integers(0, 20), st.integers(1, 9))


@given(SPARSE, MASKS)
def test_each_entry_keeps_its_mask_in_its_new_piece(
    offsets: list[int], masks: dict[int, int]
) -> None:
    masks = {index: mask for index, mask in masks.items() if index < len(offsets)}
    found = {
        piece.position.entry + index - 1: mask
        for piece in block(offsets, masks).pieces()
        for index, mask in piece.masks.items()
    }
    assert found == {offsets[index]: mask for index, mask in masks.items()}


class Looked(dict[int, int]):
    """Masks, and how many of them were looked at."""

    reads = 0

    def items(self) -> Iterator[tuple[int, int]]:  # type: ignore[override]
        for item in super().items():
            self.reads += 1
            yield item

    def __contains__(self, index: object) -> bool:
        self.reads += 1
        return super().__contains__(index)

    def __getitem__(self, index: int) -> int:
        self.reads += 1
        return super().__getitem__(index)


def test_masks_are_examined_once_not_once_for_each_piece() -> None:
    masks = Looked(dict.fromkeys(range(500), 1))
    assert len(list(block(list(range(0, 1000, 2)), masks).pieces())) == 500
    assert masks.reads <= 2 * 500


def shown(runs: list[EntryRun]) -> list[tuple[object, ...]]:
    return [(run.position, bytes(run.payload), run.messages) for run in runs]


@settings(deadline=None)
@given(SPARSE, st.integers(1, 40), st.integers(1, 60), st.integers(0, 70))
async def test_a_view_read_in_steps_equals_the_whole_view(
    offsets: list[int], entries_max: int, bytes_max: int, after: int
) -> None:
    blocks = [block(offsets, {}), block(offsets, {}, first=40)]
    behind, horizon = Position(5, after), Position(5, 80)
    pieces = [piece for each in blocks for piece in each.pieces()]
    at_once = runs_after(pieces, behind, horizon, entries_max, bytes_max)
    found = await compacted_log._runs(
        blocks, behind, horizon, entries_max, bytes_max, pieces_per_tick=3
    )
    assert shown(found) == shown(at_once)


async def test_reading_a_sparse_view_lets_other_tasks_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = 0
    pieces = CompactedBlock.pieces

    def counted(self: CompactedBlock) -> Iterator[Piece]:
        nonlocal made
        for piece in pieces(self):
            made += 1
            yield piece

    monkeypatch.setattr(CompactedBlock, "pieces", counted)
    count = TICKS * compacted_log.PIECES_PER_TICK
    blocks = [block(list(range(0, 2 * count, 2)), {})] * 2
    with Others() as others:
        runs = await compacted_log._runs(blocks, EARLIEST, Position(9, 1), count, 1 << 20)
    assert (len(runs), made) == (count, count)
    assert others.ticks >= TICKS - 1
