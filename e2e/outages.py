"""Compares the outages that writers saw with the outages that the product reported. No I/O.

A gap is a time between two acknowledgements of a topic, whichever of its writers got them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Final

Json = dict[str, Any]

TOLERANCE_MS: Final = 1_500
"""How far a report may be from a gap: writers note a time some moments after the broker stored the message, an application may
end before its sidecar releases the topic, and a busy machine stops each of them for a while."""

GAP_MS: Final = 1_000
"""Every gap of at least this length is compared. The longest gap of a fault is compared in any case."""

NOT_READY_AFTER_MS: Final = 20_000
"""``Ready`` must not be True for longer than this while no write is possible: the operator waits ten seconds for a
bucket, and then writes the status."""

TIMES: Final = ("detectionMs", "handoverMs", "outageMs", "firstMessageMs")

BEGIN, END = "<!-- Written by `make trust`. -->", "<!-- End of what `make trust` writes. -->"
"""The lines around the table in the documentation."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Two conditions of the topic at one time, in milliseconds of the wall clock: ``True``, ``False`` or ``Unknown``."""

    at_ms: int
    ready: str
    writer_active: str = ""


@dataclass(frozen=True)
class Reports:
    """What the product says about one topic after a fault.

    ``transitions``: of the broker that serves the topic. ``shown``: of the object's status. ``history``: the audit records.
    ``why``: the plugin's sentences. ``counted``: for each cause, by how much the operator's metric of outages grew, in
    milliseconds; None if the leading operator is another process than before.
    """

    transitions: Sequence[Json] = ()
    shown: Sequence[Json] = ()
    history: Sequence[Json] = ()
    why: str = ""


@dataclass(frozen=True)
class Gap:
    """A time without an acknowledgement, between two of them."""

    last_ms: int
    next_ms: int

    @property
    def ms(self) -> int:
        return self.next_ms - self.last_ms

    def holds(self, at_ms: int) -> bool:
        """Whether a transition at this time belongs to the gap."""
        return self.last_ms - GAP_MS <= at_ms <= self.next_ms + GAP_MS // 2


@dataclass(frozen=True)
class Outage:
    """One fault for one topic: what the writers saw, and what was reported.

    ``is_served``: for a part of the outage a broker served the topic, and only the writers' clients had to notice it: they
    had lost their broker, or waited before they tried again. The topic was ready then, without an active writer.
    """

    fault: str
    writers: str
    began_ms: int
    acknowledged_ms: Sequence[int]
    reports: Reports = field(default=Reports())
    samples: Sequence[Sample] = ()
    is_served: bool = False
    outcomes: Sequence[str] = ()

    @property
    def title(self) -> str:
        return f"{self.fault}, {self.writers}"

    @property
    def gaps(self) -> list[Gap]:
        """The gaps that ended after the fault began, the longest first."""
        pairs = (Gap(*each) for each in pairwise(sorted(self.acknowledged_ms)))
        found = [each for each in pairs if each.next_ms >= self.began_ms]
        return sorted(found, key=lambda each: -each.ms)

    @property
    def gap(self) -> Gap:
        """The gap that the table shows: the longest one. Of short ones, one with a transition comes first.

        A busy machine makes short gaps, too.
        """
        gaps = self.gaps
        with_transition = [each for each in gaps if self.reported(each) is not None]
        return gaps[0] if gaps[0].ms >= GAP_MS or not with_transition else with_transition[0]

    def reported(self, gap: Gap) -> Json | None:
        """The transition of a gap, or the one with the longest outage; None: the holder kept the topic."""
        found = [each for each in self.reports.transitions if self._belongs(at_ms(each), gap)]
        return max(found, key=lambda each: reported_ms(each) or -1, default=None)

    def _belongs(self, at_ms: int, gap: Gap) -> bool:
        """Whether a transition at this time is of the gap, and not of another long one that contains the time."""
        within = [each for each in self.gaps if each.last_ms <= at_ms <= each.next_ms]
        long = [each for each in within if each.ms >= GAP_MS]
        return gap.holds(at_ms) and (gap in within or not long)

    def contradictions(self) -> list[str]:
        """How the reports contradict the writers, or each other; empty if they do not."""
        compared = [each for each in self.gaps if each.ms >= GAP_MS] or self.gaps[:1]
        found = [answer for gap in compared for answer in self._of_gap(gap)]
        found += [answer for each in self._changes() for answer in self._of_change(each)]
        return [f"{self.title}: {each}" for each in (*found, *self._of_why())]

    def _of_gap(self, gap: Gap) -> Iterable[str]:
        reported = self.reported(gap)
        answer = None if reported is None else reported_ms(reported)
        # A store that lost its volume has no record of the holder before: the outage of ``Initial`` is unknown.
        kind, cause = (reported or {}).get("kind", "resume"), (reported or {}).get("cause")
        if kind != "resume" and cause != "Initial" and answer is None:
            yield f"the holder changed ({cause}), and the outage is not reported"
        elif answer is not None and gap.ms > answer + TOLERANCE_MS:
            yield f"writers saw {gap.ms} ms without a write, and {answer} ms are reported"
        elif answer is not None and answer > gap.ms + TOLERANCE_MS:
            yield f"{answer} ms are reported, and writers saw only {gap.ms} ms without a write"
        late = [
            each
            for each in self.samples
            if gap.last_ms + NOT_READY_AFTER_MS < each.at_ms < gap.next_ms
            and each.ready == "True"
            and (not self.is_served or each.writer_active == "True")
        ]
        if late:
            what = "WriterActive" if self.is_served else "Ready"
            yield f"{what} was True {late[0].at_ms - gap.last_ms} ms after the last write"

    def _changes(self) -> list[Json]:
        """The changes of the holder after the fault began, as the broker reports them."""
        return [
            each
            for each in self.reports.transitions
            if each.get("kind") != "resume" and each.get("holder") and at_ms(each) >= self.began_ms
        ]

    def _of_change(self, change: Json) -> Iterable[str]:
        """Whether status and history say the same as the broker."""
        epoch = change["epoch"]
        expected = times(change)
        shown = [each for each in self.reports.shown if each.get("epoch") == epoch]
        if not shown:
            yield f"the status does not show epoch {epoch}"
        elif times(shown[0]) != expected:
            yield f"epoch {epoch}: the status shows {times(shown[0])}, the broker {expected}"
        recorded = [
            each
            for each in self.reports.history
            if str(each.get("epoch")) == str(epoch) and each.get("kind") != "resume" and times(each)
        ]
        if expected.get("outageMs") and not recorded:
            yield f"the history has no times of epoch {epoch}"
        elif recorded and times(recorded[-1]) != expected:
            yield f"epoch {epoch}: the history has {times(recorded[-1])}, the broker {expected}"

    def _of_why(self) -> Iterable[str]:
        """Whether ``why`` names the outage of the newest change."""
        newest = next(iter(self.reports.shown), None)
        if not self.reports.why or newest is None or newest.get("outageMs") is None:
            return
        outage = newest["outageMs"]
        words = f"No producer could write for {outage} ms" if outage else "There was no gap"
        if words not in self.reports.why:
            yield f"`why` does not say '{words}'"


@dataclass(frozen=True)
class Measurement:
    """The outages of one fault. ``load``: of the machine at its end."""

    measured_at: str
    load: float
    outages: Sequence[Outage]

    def text(self) -> str:
        """It as JSON."""
        return json.dumps(asdict(self), indent=1)


def parsed(text: str) -> Measurement:
    """A measurement from its JSON."""
    found = json.loads(text)
    outages = [
        Outage(
            **{
                **each,
                "reports": Reports(**each["reports"]),
                "samples": [Sample(**sample) for sample in each["samples"]],
            }
        )
        for each in found["outages"]
    ]
    return Measurement(found["measured_at"], found["load"], outages)


def at_ms(transition: Json) -> int:
    """The time of a transition, in milliseconds."""
    return round(datetime.fromisoformat(transition["at"]).timestamp() * 1000)


def unshifted(transitions: Iterable[Json], began_ms: int, shift_ms: int) -> list[Json]:
    """The transitions by the machine's clock. Some of them have the time of a broker whose clock was shifted."""
    return [
        {**each, "at": _moved(each["at"], -shift_ms)}
        if abs(at_ms(each) - began_ms - shift_ms) < abs(shift_ms) // 2
        else each
        for each in transitions
    ]


def _moved(at: str, ms: int) -> str:
    return (datetime.fromisoformat(at) + timedelta(milliseconds=ms)).isoformat()


def times(found: Mapping[str, Any]) -> dict[str, int]:
    """The known times of a transition. The audit has numbers as text."""
    return {name: int(found[name]) for name in TIMES if found.get(name) is not None}


def reported_ms(transition: Json) -> int | None:
    """The outage of a transition and the first message after it. None: unknown."""
    if transition.get("outageMs") is None:
        return None
    return int(transition["outageMs"]) + int(transition.get("firstMessageMs") or 0)


def uncounted(counted: Mapping[str, int] | None, outages: Iterable[Outage]) -> list[str]:
    """How the operator's metric contradicts the status: it must contain each outage that a status shows.

    ``counted``: by how many milliseconds the metric grew, by cause; None if the leading operator is another process.
    """
    if counted is None:
        return []
    shown: dict[str, int] = {}
    for outage in outages:
        for each in outage.reports.shown:
            if at_ms(each) >= outage.began_ms and each.get("outageMs") is not None:
                cause = str(each["cause"])
                shown[cause] = shown.get(cause, 0) + int(each["outageMs"])
    return [
        f"the status shows outages of {total} ms for {cause}, and the metric grew by {counted.get(cause, 0)} ms"
        for cause, total in sorted(shown.items())
        if counted.get(cause, 0) < total - TOLERANCE_MS
    ]


HEAD: Final = (
    "| fault | writers | longest gap | cause | detection | handover | first message | pod of the former writer |",
    "|---|---|---|---|---|---|---|---|",
)


def table(outages: Iterable[Outage]) -> str:
    """The outages as a Markdown table."""
    lines = [*HEAD]
    for each in outages:
        reported = each.reported(each.gap) or {}
        cells = [each.fault, each.writers, _ms(each.gap.ms), _cause(reported)]
        cells += [_ms(reported.get(name)) for name in ("detectionMs", "handoverMs")]
        cells += [_ms(reported.get("firstMessageMs")), ", ".join(each.outcomes)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def rows(text: str) -> dict[str, list[str]]:
    """The rows of the table in a text, by the title of their fault."""
    found: dict[str, list[str]] = {}
    _, _, after = text.partition(HEAD[1])
    for line in after.splitlines()[1:]:
        if not line.startswith("| "):
            break
        found.setdefault(line.split(" | ")[0].removeprefix("| "), []).append(line)
    return found


@dataclass(frozen=True)
class Span:
    """The days and loads of all measurements in the table."""

    dates: frozenset[str] = frozenset()
    measured_loads: frozenset[int] = frozenset()

    @classmethod
    def of(cls, page: str) -> Span:
        """As the page states it; empty if it does not."""
        found = _SPAN.search(page)
        if found is None:
            return cls()
        dates = {each for each in found.group("first", "last") if each}
        loads = {int(each) for each in found.group("low", "high")}
        return cls(frozenset(dates), frozenset(loads))

    def wider(self, more: Iterable[tuple[str, float]]) -> Span:
        """It with these days and loads."""
        listed = list(more)
        dates = self.dates | {date for date, _ in listed}
        return Span(dates, self.measured_loads | {round(load) for _, load in listed})

    @property
    def days(self) -> str:
        return " to ".join(dict.fromkeys((min(self.dates), max(self.dates))))

    @property
    def loads(self) -> str:
        return f"{min(self.measured_loads)} to {max(self.measured_loads)}"


_SPAN: Final = re.compile(
    r"Measured on (?P<first>[\d-]+)(?: to (?P<last>[\d-]+))? on a machine with \d+ cores and a load of"
    r" (?P<low>\d+) to (?P<high>\d+):"
)


def _cause(reported: Json) -> str:
    if not reported:
        return "the holder stays"
    if reported.get("kind") == "resume":
        return "the holder resumes"
    return str(reported.get("cause"))


def _ms(value: int | None) -> str:
    return "" if value is None else f"{value / 1000:.2f} s"


def written(page: str, text: str) -> str:
    """The page with this text between its two lines. Raises ValueError if a line is missing."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page needs the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"
