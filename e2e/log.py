"""What stands in a topic's log, and what its writers were told: the two must agree.

``onewriter verify`` judges log and audit. Here the writers' own lines are judged as well: each names
the grant that it was written under, and is numbered by its process, so that a line of a deposed
writer behind its successor's is seen by anybody, whatever the broker believes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

Term = tuple[str, int]
"""A process, and which of its terms."""


@dataclass(frozen=True, slots=True)
class Line:
    """One acknowledged or stored line.

    ``grant`` is what its writer knows of its right to write: a producer, or a sidecar's session.
    ``epoch`` is what the log says; -1 where only the writer speaks. ``took_ms``: from the send to its
    acknowledgement, as the writer says.
    """

    position: str
    grant: str
    term: Term
    number: int
    epoch: int = -1
    took_ms: int = 0


@dataclass
class Tally:
    """What the whole run has seen, for its last words."""

    topics: int = 0
    epochs: int = 0
    lines: int = 0
    acknowledged: int = 0
    refused: int = 0
    stale: int = 0
    figures: list[str] = field(default_factory=list)
    """One sentence each."""


@dataclass(frozen=True)
class Stored:
    """A topic's log as the store has it, and what ``onewriter verify`` says of it."""

    verdict: dict[str, Any]
    lines: list[Line]


def stored(printed: str) -> dict[str, Stored]:
    """What ``read_log.py`` printed, by topic."""
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
    """The lines that a writer says were acknowledged."""
    return {_line(each, each["position"]) for each in _events(printed, "wrote")}


def refused(printed: str) -> int:
    """How often a writer was refused: it had led, and another one did."""
    return len(_events(printed, "refused"))


def turned_away(printed: str) -> int:
    """How often one that did not lead, and asked to wait, got an error instead."""
    return len(_events(printed, "turnedAway"))


def stale(lines: Sequence[Line]) -> list[Line]:
    """Lines that stand behind a later epoch's, or in an epoch that was granted to another."""
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
    """Lines before which one is missing, or that stand twice: each was sent when its former was in."""
    found = []
    last: dict[Term, int] = {}
    for line in lines:
        if line.number != last.get(line.term, 0) + 1:
            found.append(line)
        last[line.term] = line.number
    return found


def lost(lines: Iterable[Line], told: Iterable[Line]) -> list[Line]:
    """Acknowledged lines that do not stand where they were acknowledged."""
    there = {(line.position, line.term, line.number) for line in lines}
    return [line for line in told if (line.position, line.term, line.number) not in there]


def _line(fields: dict[str, Any], position: str, epoch: int = -1) -> Line:
    term = (str(fields["process"]), int(fields["term"]))
    took_ms = int(fields.get("tookMs", 0))
    return Line(position, str(fields["grant"]), term, int(fields["number"]), epoch, took_ms)


def _events(printed: str, name: str) -> list[dict[str, Any]]:
    """What a writer told; a last line that was cut off is none."""
    found: list[dict[str, Any]] = []
    for text in printed.splitlines():
        if text.startswith("{") and text.endswith("}"):
            event = json.loads(text)
            if event["event"] == name:
                found.append(event)
    return found
