"""S9: a subscription skips no message that was not acknowledged, and an owner is the only reader of its group."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate

from tests.simulation.history import History, Kind, Operation, Outcome

from onewriter_core.ids import EARLIEST, Position


def single_reader(history: History) -> list[str]:
    """S9: cursors pass only acknowledged messages; redelivery begins at the first unacknowledged one."""
    problems: list[str] = []
    for topic in history.topics:
        entries = history.logs[topic].entries
        gone = history.destroyed.get(topic, {})
        names = sorted({o.name for o in history.of(Kind.ACK, topic)})
        acks = {name: _Acknowledged(history, topic, name) for name in names}
        for name, mark in sorted(history.logs[topic].cursors.items()):
            known = acks.get(name)
            problems += [
                f"{topic}: cursor {name} at {mark} passed {entry.position}"
                for entry in entries
                if entry.position <= mark
                and not (known and known.has(entry.position))
                and entry.value not in gone  # destroyed, passed by the cursor, and restored later
            ]
        problems += _redeliveries(history, topic, acks)
        problems += _owners(history, topic)
    return problems


def _owners(history: History, topic: str) -> list[str]:
    """A generation has one owner, generations rise in real time, and an older one acknowledges nothing."""
    problems: list[str] = []
    granted = [o for o in history.of(Kind.OWN, topic) if o.outcome is Outcome.OK]
    for group in sorted({o.name for o in granted}):
        owns = sorted((o for o in granted if o.name == group), key=lambda o: o.completed)
        holders: dict[int, str] = {}
        for own in owns:
            generation = own.epoch or 0
            if holders.setdefault(generation, own.holder) != own.holder:
                problems.append(f"{topic}: generation {generation} was given twice: {own}")
        known = _Highest(owns)
        problems += [
            f"{topic}: a generation was granted after a newer one: {own}"
            for own in owns
            if (own.epoch or 0) < known.before(own.invoked)
        ]
        problems += [
            f"{topic}: a deposed owner's acknowledgement was accepted: {ack}"
            for ack in history.of(Kind.ACK, topic)
            if ack.name == group
            and ack.outcome is Outcome.OK
            and (ack.epoch or 0) < known.before(ack.invoked)
        ]
    return problems


class _Highest:
    """The highest generation that was granted before a moment."""

    def __init__(self, owns: Sequence[Operation]) -> None:
        self._moments = [own.completed for own in owns]
        self._highest = list(accumulate((own.epoch or 0 for own in owns), max))

    def before(self, moment: int) -> int:
        at = bisect_left(self._moments, moment)
        return self._highest[at - 1] if at else 0


def _redeliveries(history: History, topic: str, acks: dict[str, _Acknowledged]) -> list[str]:
    """After a redelivery request, no message of an older epoch arrives and no unacknowledged message is missing."""
    problems: list[str] = []
    positions = [entry.position for entry in history.logs[topic].entries]
    waiting: dict[tuple[str, str], Operation] = {}
    epochs: dict[tuple[str, str], int] = defaultdict(int)
    for operation in history.operations:
        if operation.topic != topic:
            continue
        who = (operation.process, operation.name)
        if operation.kind is Kind.REDELIVER:
            waiting[who] = operation
            epochs[who] = operation.epoch or 0
        elif operation.kind is Kind.DELIVER:
            assert operation.position is not None
            if (operation.epoch or 0) < epochs[who]:
                problems.append(f"{topic}: an old epoch's message after redeliver: {operation}")
            if waiting.pop(who, None) is not None:
                known = acks.get(operation.name)
                problems += [
                    f"{topic}: redelivery to {who} left out {position}: {operation}"
                    for position in positions
                    if position < operation.position and not (known and known.has(position))
                ]
    return problems


class _Acknowledged:
    """The messages that consumers of a subscription acknowledged in the whole run."""

    def __init__(self, history: History, topic: str, name: str) -> None:
        self._until = EARLIEST
        self._single: set[Position] = set()
        for ack in history.of(Kind.ACK, topic):
            if ack.name != name or ack.position is None:
                continue
            if ack.mode == "cumulative":
                self._until = max(self._until, ack.position)
            else:
                self._single.add(ack.position)

    def has(self, position: Position) -> bool:
        return position <= self._until or position in self._single
