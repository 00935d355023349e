"""L1 to L3: without faults, every wait ends within a bound."""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.history import History, Kind, Operation, Span

WAIT_SECONDS = 12.0
"""After this time without a fault, a topic with waiters has a holder. It includes the detection of a dead broker
(2 s), the resume window (3 s) and the clients' own pauses (2 s and a look-up)."""

HANDOVER_SECONDS = 5.9
"""Within this time without a fault, a broker answers a handover."""

CONTENDING = frozenset({"Exclusive", "WaitForExclusive", "ExclusiveWithFencing", "Shared"})


def some_holder(history: History) -> list[str]:
    """L1: a topic that a running client requests has a holder while the store works."""
    return _leaderless(history, [o for o in history.of(Kind.GRANT) if o.mode in CONTENDING])


def queue_moves(history: History) -> list[str]:
    """L2: a topic for which a client waits has a holder."""
    return _leaderless(history, [o for o in history.of(Kind.GRANT) if o.is_waiting])


def handovers_end(history: History) -> list[str]:
    """L3: a handover is completed or rolled back in time."""
    problems: list[str] = []
    for handover in history.of(Kind.HANDOVER):
        end = min(handover.completed_at, history.ended_at)
        quiet = _longest_quiet(history, handover.invoked_at, end)
        if quiet >= HANDOVER_SECONDS:
            problems.append(
                f"a handover was not answered within {quiet:.1f} s without a fault: {handover}"
            )
    return problems


def _leaderless(history: History, asking: list[Operation]) -> list[str]:
    problems: list[str] = []
    for topic in history.topics:
        held = [span for name, span in history.tenures if name == topic]
        held += history.faults
        waits: list[Span] = []
        for operation in asking:
            if operation.topic == topic:
                end = min(operation.completed_at, history.ended_at)
                waits += _without(
                    Span(operation.process, operation.invoked_at, end),
                    [a for a in history.absences if a.what == operation.process],
                )
        for gap in _gaps(held, history.ended_at):
            for wait in waits:
                seconds = min(gap.end, wait.end) - max(gap.start, wait.start)
                if seconds > WAIT_SECONDS:
                    problems.append(
                        f"{topic}: {wait.what} waits, but the topic has no holder for {seconds:.1f} s from"
                        f" {max(gap.start, wait.start):.1f} s"
                    )
    return problems


def _longest_quiet(history: History, start: float, end: float) -> float:
    """Return the length of the longest period within these times without a fault."""
    longest = 0.0
    for gap in _gaps(history.faults, history.ended_at):
        longest = max(longest, min(gap.end, end) - max(gap.start, start))
    return longest


def _gaps(spans: Iterable[Span], end: float) -> list[Span]:
    """Return the times from 0 to ``end`` that no span covers."""
    gaps: list[Span] = []
    at = 0.0
    for span in sorted(spans, key=lambda each: each.start):
        if span.start > at:
            gaps.append(Span("", at, span.start))
        at = max(at, span.end)
    if at < end:
        gaps.append(Span("", at, end))
    return gaps


def _without(span: Span, absences: list[Span]) -> list[Span]:
    """Return the parts of a span in which its process was running."""
    parts: list[Span] = []
    at = span.start
    for absence in sorted(absences, key=lambda each: each.start):
        if absence.end <= at or absence.start >= span.end:
            continue
        if absence.start > at:
            parts.append(Span(span.what, at, absence.start))
        at = absence.end
    if at < span.end:
        parts.append(Span(span.what, at, span.end))
    return parts
