"""The output of ``timeline``: a bar for each epoch of a topic, over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from onewriter_core import tables
from onewriter_core.json_values import Json
from onewriter_core.kubernetes.kinds import seconds_of
from onewriter_core.kubernetes.objects import TopicStatus
from onewriter_kubectl.texts import duration

BAR_COLUMNS_MIN: Final = 20
"""Fewest columns of the bars, however wide the texts are."""

HELD, OUTAGE = "=", "."


@dataclass(frozen=True, slots=True)
class Span:
    """The time of one epoch, in Unix seconds. ``holder`` is empty if no producer held the topic.

    ``outage_ms``: time without a writer before it; None if unknown.
    """

    epoch: int
    holder: str
    cause: str
    begins: float
    ends: float
    outage_ms: int | None = None


def spans(status: TopicStatus, now: float) -> list[Span]:
    """The epochs of ``status.transitions``, oldest first. Entries without a time are left out."""
    begun = [(seconds_of(each.at), each) for each in status.transitions]
    known = [(begins, each) for begins, each in begun if begins is not None]
    known.sort(key=lambda pair: (pair[0], pair[1].epoch))
    ends = [*(begins for begins, _ in known), now][1:]
    return [
        Span(
            epoch=each.epoch,
            holder=(each.holder.pod or each.holder.producer_name) if each.holder else "",
            cause=each.cause,
            begins=begins,
            ends=max(begins, end),
            outage_ms=each.leaderless_ms if each.outage_ms is None else each.outage_ms,
        )
        for (begins, each), end in zip(known, ends, strict=True)
    ]


def documents(found: Sequence[Span]) -> list[Json]:
    """The same for programs, with times in ISO 8601."""
    return [
        {
            "epoch": each.epoch,
            "holder": each.holder or None,
            "cause": each.cause,
            "begins": _iso(each.begins),
            "ends": _iso(each.ends),
            "outageMs": each.outage_ms,
        }
        for each in found
    ]


def lines(found: Sequence[Span], width: int) -> list[str]:
    """The chart, in lines of at most ``width`` columns, or of the texts and the shortest bars."""
    if not found:
        return ["no change of the holder is known"]
    rows = [
        (
            str(each.epoch),
            tables.text(each.holder),
            duration(each.ends - each.begins),
            "-" if each.outage_ms is None else f"{each.outage_ms} ms",
            tables.text(each.cause),
        )
        for each in found
    ]
    heads = ("EPOCH", "HOLDER", "FOR", "OUTAGE", "CAUSE")
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    room = max(BAR_COLUMNS_MIN, width - sum(widths) - 2 * len(widths))
    begins, ends = found[0].begins, max(each.ends for each in found)
    first, last = _clock(begins), _clock(ends)
    scale = first + last.rjust(room - len(first))
    drawn = [_bar(each, begins, ends, room) for each in found]
    return [
        "  ".join(
            [*(text.ljust(size) for text, size in zip(row, widths, strict=True)), bar]
        ).rstrip()
        for row, bar in zip([heads, *rows], [scale, *drawn], strict=True)
    ]


def _bar(span: Span, begins: float, ends: float, room: int) -> str:
    """A span's part of the time, at least one column."""
    whole = max(ends - begins, 1e-9)
    start = min(int((span.begins - begins) / whole * room), room - 1)
    stop = max(start + 1, int((span.ends - begins) / whole * room))
    return " " * start + (HELD if span.holder else OUTAGE) * (min(stop, room) - start)


def _clock(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%H:%M:%S")


def _iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat().replace("+00:00", "Z")
