"""Producers whose sequence ids do not exclude duplicates."""

from __future__ import annotations

import random

import pyarrow as pa

from onewriter_pipeline.audit import facts
from onewriter_pipeline.audit.repeats import possible_repeats


def spread(first: int, last: int, *, log: str = "l", producer: str = "p") -> dict[str, object]:
    return {
        "kind": facts.SPREAD,
        "log": log,
        "producer": producer,
        "sequence": first,
        "last_sequence": last,
        "entries": last - first + 1,
    }


def reported(*rows: dict[str, object]) -> dict[str, tuple[set[str], int]]:
    found = possible_repeats(pa.Table.from_pylist(list(rows), facts.FACTS))
    return {log: (each.producers, each.entries) for log, each in found.items()}


def test_rising_numbers_exclude_duplicates() -> None:
    assert reported() == {}
    assert reported({"kind": facts.RUN, "log": "l"}) == {}
    assert reported(spread(0, 9), spread(10, 12), spread(0, 5, producer="q")) == {}
    assert reported(spread(0, 9), spread(0, 9, log="m")) == {}


def test_producer_that_restarts_its_numbers_is_doubtful_with_all_its_entries() -> None:
    assert reported(spread(5, 9), spread(0, 5), spread(1, 1, producer="q")) == {"l": ({"p"}, 11)}
    assert reported(spread(0, 99), spread(3, 4)) == {"l": ({"p"}, 102)}
    alone = spread(3, 4) | {"kind": facts.UNORDERED}
    assert reported(alone, spread(9, 9), spread(1, 2, log="m")) == {"l": ({"p"}, 3)}


def test_every_overlap_is_found() -> None:
    numbers = random.Random(7)
    for _ in range(300):
        rows = []
        for _ in range(numbers.randint(1, 6)):
            first = numbers.randint(0, 30)
            rows.append(spread(first, first + numbers.randint(0, 6)))
        spans = [range(int(str(r["sequence"])), int(str(r["last_sequence"])) + 1) for r in rows]
        seen = [number for span in spans for number in span]
        assert bool(reported(*rows)) == (len(seen) != len(set(seen)))
