"""The page that a benchmark run leaves: tables of figures, and each goal with its verdict.

Knows nothing of what is measured. The page has six divisions, each written by a command of its own, which leaves the
others alone: ``make bench``, ``bench-sdk``, ``bench-pipeline``, ``bench-operator``, ``python -m bench.secured``, ``make
bench-scale``.
"""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

OUTPUT = Path(__file__).parent.parent / "docs" / "benchmarks.md"

SDK_HEADING = "## The SDK"
PIPELINE_HEADING = "## The pipeline"
OPERATOR_HEADING = "## The operator"
SECURED_HEADING = "## Tokens, TLS and authorization"
SCALE_HEADING = "## Scale"
HEADINGS = (SDK_HEADING, PIPELINE_HEADING, OPERATOR_HEADING, SECURED_HEADING, SCALE_HEADING)
"""They begin the second and the following divisions."""

OTHERS_SHARE_MAX = 0.05
"""The share of the processors that other processes may use before the page warns. The load average would not do: it stays
high for a minute after such processes have ended."""

_MISSING = "-"


@dataclass(slots=True)
class Samples:
    """What was measured: the repetitions of each figure on each side."""

    values: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def add(self, figure: str, side: str, value: float) -> None:
        """One more repetition."""
        self.values.setdefault((figure, side), []).append(value)

    def median(self, figure: str, side: str) -> float | None:
        """None if it was not measured."""
        found = self.values.get((figure, side))
        return statistics.median(found) if found else None


@dataclass(frozen=True, slots=True)
class Value:
    """A figure against a bound of its own; ``figure`` None: it was not measured."""

    figure: float | None
    unit: str
    at_most: float | None = None
    at_least: float | None = None
    digits: int | None = None

    def verdict(self) -> tuple[bool | None, str]:
        """Whether it holds (None: unknown), and what was seen."""
        if self.figure is None:
            return None, "not measured"
        seen = number(self.figure, self.unit, self.digits)
        return _within(self.figure, self.at_most, self.at_least), seen


@dataclass(frozen=True, slots=True)
class Ratio:
    """Our figure over theirs against a bound."""

    ours: float | None
    theirs: float | None
    at_most: float | None = None
    at_least: float | None = None

    def verdict(self) -> tuple[bool | None, str]:
        """Whether it holds (None: unknown), and what was seen."""
        if self.ours is None or not self.theirs:
            return None, "not measured"
        ratio = self.ours / self.theirs
        return _within(ratio, self.at_most, self.at_least), f"{ratio:.2f} times"


def _within(figure: float, at_most: float | None, at_least: float | None) -> bool:
    return (at_most is None or figure <= at_most) and (at_least is None or figure >= at_least)


def number(figure: float | None, unit: str, digits: int | None = None) -> str:
    """A figure for people."""
    if figure is None:
        return _MISSING
    if digits is None:
        digits = 0 if figure >= 100 else 1
    separator = "" if unit.startswith("/") else " "
    return f"{figure:,.{digits}f}{separator}{unit}"


def verdict_word(holds: bool | None) -> str:
    """How a goal's verdict is called."""
    return {True: "holds", False: "**missed**", None: "not measured"}[holds]


def halves(page: str) -> tuple[str, str]:
    """What each of the two commands wrote; empty for one that has not run."""
    return _parted(page, OPERATOR_HEADING)


def divisions(page: str) -> tuple[str, str, str, str, str, str]:
    """What each of the six commands wrote, in the page's order; empty for one that has not run."""
    others, scale = _parted(page, SCALE_HEADING)
    others, secured = _parted(others, SECURED_HEADING)
    others, operator = halves(others)
    others, pipeline = _parted(others, PIPELINE_HEADING)
    return *_parted(others, SDK_HEADING), pipeline, operator, secured, scale


def _parted(page: str, heading: str) -> tuple[str, str]:
    """What is before a division, and the division with its heading."""
    before, found, after = f"\n{page}".partition(f"\n{heading}\n")
    return before.removeprefix("\n"), f"{found}{after}".removeprefix("\n")


def put_first_half(path: Path, text: str) -> None:
    """Write what `make bench` says into the page."""
    _, *others = divisions(path.read_text()) if path.exists() else ("",)
    path.write_text(joined(text, *others))


def put_secured(path: Path, text: str) -> None:
    """Write what ``bench.secured`` says into the page."""
    *others, _, scale = divisions(path.read_text())
    path.write_text(joined(*others, f"{SECURED_HEADING}\n\n{text}", scale))


def joined(*texts: str) -> str:
    """Divisions as one page, those that are not empty."""
    return "\n".join(text.rstrip() + "\n" for text in texts if text.strip())


def parts_of(division: str) -> dict[str, str]:
    """A division's parts, by title."""
    pieces = re.split(r"^### (.+)\n", division, flags=re.MULTILINE)[1:]
    return dict(zip(pieces[::2], pieces[1::2], strict=True))


def division_of(
    heading: str, introduction: str, parts: Mapping[str, str], order: Sequence[str]
) -> str:
    """A division out of its parts; those that ``order`` does not name are left out."""
    blocks = [f"### {title}\n\n{parts[title].strip()}\n" for title in order if title in parts]
    return "\n".join([f"{heading}\n", f"{introduction}\n", *blocks])


def merged(
    page: str, heading: str, target: str, order: Sequence[str], measured: Mapping[str, str]
) -> str:
    """The page with these parts of one division in it, by title; everything else stays.

    ``target`` of the Makefile writes that division, ``order`` is that of its titles.
    """
    first, *others = divisions(page)
    introduction = (
        f"Written by `make {target}`; do not edit.\n"
        "[bench/README.md](../bench/README.md) says what is measured and how."
    )
    at = HEADINGS.index(heading)
    parts = {**parts_of(others[at]), **measured}
    others[at] = division_of(heading, introduction, parts, order)
    return joined(first.strip() or "# Benchmarks", *others)


@dataclass(frozen=True, slots=True)
class Conditions:
    """Under which a part was measured."""

    machine: str
    command: str
    others_share: float
    """Of the processors, used by others when nothing of this run was started yet; from 0 to 1."""
    load_highest: float
    """While it was measured, by the measured processes themselves as well."""

    def lines(self) -> list[str]:
        found = [
            f"- Machine: {self.machine}",
            f"- Command: `{self.command}`",
            (
                f"- Load average during the run: up to {self.load_highest:.1f}; all measured parts share "
                "the machine."
            ),
        ]
        if self.others_share > OTHERS_SHARE_MAX:
            found.append(
                f"  **Other processes used {self.others_share:.1%} of the processors when this run began. "
                "Times are too long.**"
            )
        return found


def command_line(module: str) -> str:
    """The command as it was given; where it writes to says nothing about what was measured."""
    words = sys.argv[1:]
    if "--output" in words:
        at = words.index("--output")
        del words[at : at + 2]
    return " ".join([f"python -m {module}", *words])


Goal = tuple[str, Value | Ratio]

Report = tuple[str, list[Goal], list[str]]
"""What a part did, its goals, and its figures."""


def part(text: str, conditions: Conditions, goals: Sequence[Goal], lines: Sequence[str]) -> str:
    """A part: what was done, under which conditions, the goals, and the figures."""
    judged = [(about, *value.verdict()) for about, value in goals]
    rows = [[about, seen, verdict_word(holds)] for about, holds, seen in judged]
    goals_table = table(("goal", "this run", ""), rows)
    return "\n".join([text, "", *conditions.lines(), "", *goals_table, "", *lines])


def table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Its lines."""
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    return lines + [f"| {' | '.join(row)} |" for row in rows]


class Page:
    """Collects sections, rows and goals; ``text`` renders them."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = columns
        self._head: list[str] = []
        self._body: list[str] = []
        self._goals: list[tuple[str, bool | None, str]] = []
        self._rows: list[tuple[str, str, Mapping[str, tuple[float | None, int]]]] = []

    def introduce(self, machine: str, command: str, warm_up_messages: int) -> None:
        """Where and how this was measured."""
        self._head = [
            "# Benchmarks",
            "",
            "Written by `make bench`; do not edit. [bench/README.md](../bench/README.md) says what each figure",
            "means and how to read it. Compare only columns of one run.",
            "",
            f"- Machine: {machine}",
            f"- Command: `{command}`",
            f"- Each server was warmed up with {warm_up_messages:,} unbatched messages before its",
            "  first rate or latency was taken: a cold Java server is several times slower.",
            "- onewriter: embedded Valkey with `appendfsync always`; the column *everysec*",
            "  acknowledges before the data is on disk (durability None). Pulsar: standalone, its default journal sync.",
        ]

    def disturbed(self, others_share: float) -> None:
        """How much of the processors others used meanwhile, which says how far to trust it."""
        self._head.append(
            f"- Other processes used {others_share:.1%} of the processors during the run."
        )
        if others_share > OTHERS_SHARE_MAX:
            self._head.append(
                "  **This is a lot: the rates of this run are too low and its latencies too high. CPU per "
                "message and memory are less affected.**"
            )

    def skipped(self, text: str) -> None:
        """Something could not run here."""
        self._head.append(f"- Skipped: {text}")

    def section(self, title: str, text: str) -> None:
        """Begin a section with an explanation."""
        self._end_table()
        self._body += ["", f"## {title}", "", text]

    def row(self, label: str, unit: str, values: Mapping[str, tuple[float | None, int]]) -> None:
        """A line of the section's table: a figure and its digits for each column."""
        self._rows.append((label, unit, values))

    def remark(self, text: str) -> None:
        """A paragraph behind the table."""
        self._end_table()
        self._body += ["", text]

    def goal(self, text: str, claim: Value | Ratio) -> None:
        """A goal and what this run says of it."""
        self._goals.append((text, *claim.verdict()))

    def text(self) -> str:
        """The whole page, goals first."""
        self._end_table()
        goals = ["", "## Goals", "", "| goal | this run | |", "|---|---|---|"]
        goals += [
            f"| {text} | {seen} | {verdict_word(holds)} |" for text, holds, seen in self._goals
        ]
        return "\n".join([*self._head, *goals, *self._body]) + "\n"

    def _end_table(self) -> None:
        if not self._rows:
            return
        used = [
            column
            for column in self._columns
            if any(values.get(column, (None, 0))[0] is not None for _, _, values in self._rows)
        ]
        self._body += ["", f"| | {' | '.join(used)} |", "|---|" + "---|" * len(used)]
        for label, unit, values in self._rows:
            cells = [number(*_order(values.get(column, (None, 0)), unit)) for column in used]
            self._body.append(f"| {label} | {' | '.join(cells)} |")
        self._rows = []


def _order(value: tuple[float | None, int], unit: str) -> tuple[float | None, str, int]:
    figure, digits = value
    return figure, unit, digits
