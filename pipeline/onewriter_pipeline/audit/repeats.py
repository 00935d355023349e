"""Finds producers whose entries may be stored twice, from their sequence ids. Pure.

It considers only ledgers without a single holder. If the sequence ids of a producer rise within each chunk (the part of
a log that a task reads at once) and from chunk to chunk, no entry is stored twice. All other producers are *doubtful*:
their entries are compared one by one. Most logs have none.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onewriter_pipeline.audit import facts


@dataclass(slots=True)
class PossibleRepeats:
    """The doubtful producers of one log, and the number of their entries in ledgers without a single holder."""

    producers: set[str] = field(default_factory=set)
    entries: int = 0


def possible_repeats(observed: pa.Table) -> dict[str, PossibleRepeats]:
    """By log, the producers whose sequence ids decrease within a chunk, or whose ranges in two chunks overlap."""
    kinds = pa.array([facts.SPREAD, facts.UNORDERED])
    columns = ["log", "producer", "sequence", "last_sequence", "entries", "kind"]
    order = [(name, "ascending") for name in columns[:3]]
    numbers = observed.filter(pc.is_in(observed["kind"], kinds)).select(columns).sort_by(order)
    if not len(numbers):
        return {}
    first, last = (np.asarray(numbers[name]) for name in ("sequence", "last_sequence"))
    is_open = np.asarray(pc.equal(numbers["kind"], facts.UNORDERED)).copy()
    same = _same_as_before(numbers["log"]) & _same_as_before(numbers["producer"])
    # Ranges sorted by their beginning overlap only if two consecutive ranges do.
    is_open[1:] |= same & (first[1:] <= last[:-1])
    found: dict[str, PossibleRepeats] = {}
    for row in numbers.filter(pa.array(is_open)).select(["log", "producer"]).to_pylist():
        found.setdefault(row["log"], PossibleRepeats()).producers.add(row["producer"])
    for log, each in found.items():
        of_producer = pc.and_(
            pc.equal(numbers["log"], log),
            pc.is_in(numbers["producer"], pa.array(sorted(each.producers))),
        )
        each.entries = int(pc.sum(numbers.filter(of_producer)["entries"]).as_py())
    return found


def _same_as_before(column: pa.ChunkedArray) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    whole = column.combine_chunks()
    return np.asarray(pc.equal(whole[1:], whole[:-1]))
