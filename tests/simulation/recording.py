"""The recorder writes the history. It gives all events one order and the virtual time."""

from __future__ import annotations

from typing import Any

from tests.simulation.history import History, Kind, Operation, Outcome, Span
from tests.simulation.loop import VirtualLoop

from onewriter_core.ids import Position
from onewriter_core.wire.messages import Bytes, entry_payload


def value_of(entry: Bytes) -> str:
    """Return the value that a simulated producer wrote into an entry."""
    return bytes(entry_payload(entry)).decode()


def holder_and_number(value: str) -> tuple[str, int]:
    """Split a value, which is ``<holder incarnation>/<number>``."""
    holder, _, number = value.rpartition("/")
    return holder, int(number)


class Recorder:
    """The only writer of a run's History."""

    def __init__(self, loop: VirtualLoop, seed: int) -> None:
        self.history = History(seed)
        self.is_closed = False
        self._loop = loop
        self._events = 0
        self._held_since: dict[str, tuple[str, str, float]] = {}

    def _next(self) -> int:
        self._events += 1
        return self._events

    def moment(self) -> tuple[int, float]:
        """Return the next number in the order of all events, and the time."""
        return self._next(), self._loop.time()

    def invoke(self, kind: Kind, process: str, topic: str, **fields: Any) -> Operation:
        """Record that an operation begins."""
        operation = Operation(kind, process, topic, self._next(), self._loop.time(), **fields)
        if not self.is_closed:
            self.history.operations.append(operation)
        return operation

    def complete(
        self,
        operation: Operation,
        outcome: Outcome,
        error: str = "",
        *,
        position: Position | None = None,
        epoch: int | None = None,
    ) -> None:
        """Record the outcome of an operation, once."""
        if self.is_closed:
            return
        assert operation.completed_at > self._loop.time(), operation
        operation.completed = self._next()
        operation.completed_at = self._loop.time()
        operation.outcome = outcome
        operation.error = error
        if position is not None:
            operation.position = position
        if epoch is not None:
            operation.epoch = epoch
        if operation.kind not in {Kind.WRITE, Kind.REFENCE}:
            self.seen(f"{operation.kind.value}.{outcome.value}")

    def seen(self, what: str) -> None:
        """Count an event, for example one of ``SOMETIMES``."""
        if not self.is_closed:
            self.history.add_event(what)

    def journal(self, process: str, line: str) -> None:
        """Add a line to the brokers' log lines."""
        if not self.is_closed:
            self.history.journal.append(f"{self._loop.time():.4f} {process} info {line}")

    def anomaly(self, text: str) -> None:
        """Record an event that must never occur. The test of the run then fails."""
        if not self.is_closed:
            self.history.anomalies.append(f"{self._loop.time():.4f} {text}")

    def holds(self, topic: str, process: str, holder: str) -> None:
        """Record that a producer holds the topic from now on."""
        self._held_since[holder] = (topic, process, self._loop.time())

    def holds_no_more(self, holder: str) -> None:
        """Record the end of a producer's tenure, if it has one."""
        found = self._held_since.pop(holder, None)
        if found is not None and not self.is_closed:
            topic, _, since = found
            self.history.tenures.append((topic, Span(holder, since, self._loop.time())))

    def process_ended(self, process: str) -> None:
        """Record the end of all tenures of a process."""
        for holder, (_, owner, _) in list(self._held_since.items()):
            if owner == process:
                self.holds_no_more(holder)

    def close(self) -> None:
        """End the run. Events during the teardown are not recorded."""
        for holder in list(self._held_since):
            self.holds_no_more(holder)
        self.history.ended_at = self._loop.time()
        self.is_closed = True
