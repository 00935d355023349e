"""S9, the parts that exist: a subscription skips nothing that nobody has acknowledged."""

from __future__ import annotations

from collections import defaultdict

from tests.simulation.history import History, Kind, Operation

from onewriter_core.ids import EARLIEST, Position


def single_reader(history: History) -> list[str]:
    """S9: cursors pass only what was acknowledged; redelivery begins at the first that was not."""
    problems: list[str] = []
    for topic in history.topics:
        entries = history.logs[topic].entries
        names = sorted({o.name for o in history.of(Kind.ACK, topic)})
        acks = {name: _Acknowledged(history, topic, name) for name in names}
        for name, mark in sorted(history.logs[topic].cursors.items()):
            known = acks.get(name)
            problems += [
                f"{topic}: cursor {name} at {mark} passed {entry.position}"
                for entry in entries
                if entry.position <= mark and not (known and known.has(entry.position))
            ]
        problems += _redeliveries(history, topic, acks)
    return problems


def _redeliveries(history: History, topic: str, acks: dict[str, _Acknowledged]) -> list[str]:
    """After redeliver(epoch): nothing of an older epoch; nothing unacknowledged is left out."""
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
    """What consumers of a subscription acknowledged in the whole run."""

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
