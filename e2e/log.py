"""Compares a topic's log with the acknowledgements that its writers received.

``onewriter verify`` judges log and audit. This module also judges the writers' own lines: each line names
its grant and has a number of its process, so that a line of a deposed writer after a line of its
successor is visible without trusting the broker.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

Term = tuple[str, int]
"""A process, and the number of its term."""


@dataclass(frozen=True, slots=True)
class Line:
    """One acknowledged or stored line.

    ``grant`` is what its writer knows of its right to write: a producer, or a sidecar's session.
    ``epoch`` is the epoch in the log, or -1 if only the writer reported the line. ``took_ms``: from the send
    to its acknowledgement, as the writer reports it.
    """

    position: str
    grant: str
    term: Term
    number: int
    epoch: int = -1
    took_ms: int = 0


@dataclass
class Tally:
    """Measurements of the whole run, for its summary."""

    topics: int = 0
    epochs: int = 0
    lines: int = 0
    acknowledged: int = 0
    refused: int = 0
    stale: int = 0
    figures: list[str] = field(default_factory=list)
    """Measurements, one sentence each."""


@dataclass(frozen=True)
class Stored:
    """A topic's log in the store, and the result of ``onewriter verify``."""

    verdict: dict[str, Any]
    lines: list[Line]


def stored(printed: str) -> dict[str, Stored]:
    """Return the output of ``read_log.py``, by topic."""
    found = {}
    for text in printed.splitlines():
        document = json.loads(text)
        lines = [
            _line(json.loads(each["text"]), each["position"], each["epoch"])
            for each in document["entries"]
        ]
        found[document["topic"]] = Stored(document["verdict"], lines)
    return found


def acknowledged(printed: str) -> set[Line]:
    """Return the lines that a writer reports as acknowledged."""
    return {_line(each, each["position"]) for each in _events(printed, "wrote")}


def acknowledged_ms(printed: str) -> list[int]:
    """Return when a writer got its acknowledgements, in milliseconds of its wall clock."""
    return [int(each["atMs"]) for each in _events(printed, "wrote") if "atMs" in each]


def refused(printed: str) -> int:
    """Return how often a writer was refused because another writer led."""
    return len(_events(printed, "refused"))


def turned_away(printed: str) -> int:
    """Return how often a writer that asked to wait got an error instead."""
    return len(_events(printed, "turnedAway"))


def stale(lines: Sequence[Line]) -> list[Line]:
    """Return lines after a line of a later epoch, or in an epoch that was granted to another writer."""
    found, newest = [], -1
    owners: dict[int, str] = {}
    epochs: dict[str, int] = {}
    for line in lines:
        is_owner = owners.setdefault(line.epoch, line.grant) == line.grant
        is_epoch = epochs.setdefault(line.grant, line.epoch) == line.epoch
        if line.epoch < newest or not is_owner or not is_epoch:
            found.append(line)
        newest = max(newest, line.epoch)
    return found


def holes(lines: Iterable[Line]) -> list[Line]:
    """Return duplicate lines, and lines after a gap: a writer sends a line after the former is acknowledged."""
    found = []
    last: dict[Term, int] = {}
    for line in lines:
        if line.number != last.get(line.term, 0) + 1:
            found.append(line)
        last[line.term] = line.number
    return found


def lost(lines: Iterable[Line], reported: Iterable[Line]) -> list[Line]:
    """Return acknowledged lines that are not at their acknowledged position."""
    there = {(line.position, line.term, line.number) for line in lines}
    return [line for line in reported if (line.position, line.term, line.number) not in there]


def _line(fields: dict[str, Any], position: str, epoch: int = -1) -> Line:
    term = (str(fields["process"]), int(fields["term"]))
    took_ms = int(fields.get("tookMs", 0))
    return Line(position, str(fields["grant"]), term, int(fields["number"]), epoch, took_ms)


def _events(printed: str, name: str) -> list[dict[str, Any]]:
    """Return a writer's output as JSON, without an incomplete last line."""
    found: list[dict[str, Any]] = []
    for text in printed.splitlines():
        if text.startswith("{") and text.endswith("}"):
            event = json.loads(text)
            if event["event"] == name:
                found.append(event)
    return found
