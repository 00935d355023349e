"""Compares an outage that writers saw with the outage that the product reported. No I/O.

A gap is the longest time between two acknowledgements of a topic, whichever of its writers got them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

Json = dict[str, Any]

TOLERANCE_MS = 1_000
"""The report may be this much shorter than the gap: a writer prints a line some time after the broker stored it."""

NOT_READY_AFTER_MS = 20_000
"""``Ready`` must not be True for longer than this while no write is possible: the operator waits ten seconds for a
bucket, and then writes the status."""

BEGIN, END = "<!-- Written by `make trust`. -->", "<!-- End of what `make trust` writes. -->"
"""The lines around the table in the documentation."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The status of the condition ``Ready`` at one time, in milliseconds of the wall clock."""

    at_ms: int
    ready: str


@dataclass(frozen=True)
class Outage:
    """One fault: what the writers saw, and what was reported.

    ``reported``: the transition after the fault, None if the holder kept the topic all the time.
    """

    fault: str
    began_ms: int
    acknowledged_ms: Sequence[int]
    reported: Json | None
    samples: Sequence[Sample] = field(default=())

    @property
    def gap(self) -> tuple[int, int]:
        """The last acknowledgement before the longest gap that ended after the fault began, and the next one."""
        pairs = [
            each for each in pairwise(sorted(self.acknowledged_ms)) if each[1] >= self.began_ms
        ]
        return max(pairs, key=lambda each: each[1] - each[0])

    @property
    def gap_ms(self) -> int:
        return self.gap[1] - self.gap[0]

    @property
    def reported_ms(self) -> int | None:
        """The outage and the first message after it. None: no transition, or unknown."""
        if self.reported is None or self.reported.get("outageMs") is None:
            return None
        return int(self.reported["outageMs"]) + int(self.reported.get("firstMessageMs") or 0)

    def contradictions(self) -> list[str]:
        """How the reports contradict the writers; empty if they do not."""
        found = []
        if self.reported is not None and self.reported_ms is None:
            found.append(f"{self.fault}: the holder changed, and the outage is not reported")
        if self.reported_ms is not None and self.gap_ms > self.reported_ms + TOLERANCE_MS:
            found.append(
                f"{self.fault}: writers saw {self.gap_ms} ms without a write, and"
                f" {self.reported_ms} ms are reported"
            )
        last, following = self.gap
        late = [
            each
            for each in self.samples
            if last + NOT_READY_AFTER_MS < each.at_ms < following and each.ready == "True"
        ]
        if late:
            found.append(
                f"{self.fault}: Ready was True {late[0].at_ms - last} ms after the last write, and no"
                " write was possible"
            )
        return found


def table(outages: Iterable[Outage]) -> str:
    """The outages as a Markdown table."""
    lines = [
        "| fault | gap at the writers | cause | detection | handover | outage | first message |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in outages:
        reported = each.reported or {}
        names = ("detectionMs", "handoverMs", "outageMs", "firstMessageMs")
        times = [_ms(reported.get(name)) for name in names]
        cause = reported.get("cause", "the holder stays")
        lines.append(f"| {' | '.join([each.fault, _ms(each.gap_ms), cause, *times])} |")
    return "\n".join(lines)


def _ms(value: int | None) -> str:
    return "" if value is None else f"{value} ms"


def written(page: str, text: str) -> str:
    """The page with this text between its two lines. Raises ValueError if a line is missing."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page needs the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"
