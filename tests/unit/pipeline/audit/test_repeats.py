"""Whose numbers leave it open whether an entry is there twice."""

from __future__ import annotations

import random

import pyarrow as pa

from onewriter_pipeline.audit import facts
from onewriter_pipeline.audit.repeats import doubtful


def spread(first: int, last: int, *, log: str = "l", producer: str = "p") -> dict[str, object]:
    return {
        "kind": facts.SPREAD,
        "log": log,
        "producer": producer,
        "sequence": first,
        "last_sequence": last,
        "entries": last - first + 1,
    }


def told(*rows: dict[str, object]) -> dict[str, tuple[set[str], int]]:
    found = doubtful(pa.Table.from_pylist(list(rows), facts.FACTS))
    return {log: (each.producers, each.entries) for log, each in found.items()}


def test_numbers_that_rise_are_there_once() -> None:
    assert told() == {}
    assert told({"kind": facts.RUN, "log": "l"}) == {}
    assert told(spread(0, 9), spread(10, 12), spread(0, 5, producer="q")) == {}
    assert told(spread(0, 9), spread(0, 9, log="m")) == {}


def test_a_producer_that_counts_anew_is_in_doubt_with_all_that_it_wrote() -> None:
    assert told(spread(5, 9), spread(0, 5), spread(1, 1, producer="q")) == {"l": ({"p"}, 11)}
    assert told(spread(0, 99), spread(3, 4)) == {"l": ({"p"}, 102)}
    alone = spread(3, 4) | {"kind": facts.TANGLE}
    assert told(alone, spread(9, 9), spread(1, 2, log="m")) == {"l": ({"p"}, 3)}


def test_no_overlap_is_missed() -> None:
    numbers = random.Random(7)
    for _ in range(300):
        rows = []
        for _ in range(numbers.randint(1, 6)):
            first = numbers.randint(0, 30)
            rows.append(spread(first, first + numbers.randint(0, 6)))
        spans = [range(int(str(r["sequence"])), int(str(r["last_sequence"])) + 1) for r in rows]
        seen = [number for span in spans for number in span]
        assert bool(told(*rows)) == (len(seen) != len(set(seen)))
