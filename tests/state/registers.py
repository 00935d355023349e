"""Checks whether the history of one key's operations is linearizable, by configurations of a register.

The checker goes through the events in time order. A configuration is a possible value of the register, with the set
of pending operations that have already taken effect. When an operation returns, only configurations remain in which
it has taken effect with the result that it returned. If none remains, no order explains the history.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

UNKNOWN = object()
"""The result of an operation that may or may not have taken effect, or may do so later."""


@dataclass(slots=True, eq=False)
class Operation:
    """``step(value)`` returns the value after the operation, and the operation's result."""

    key: str
    name: str
    step: Callable[[Any], tuple[Any, Any]]
    begun: int
    ended: int | None = None
    result: Any = UNKNOWN


@dataclass(slots=True)
class History:
    """The observed operations of all processes, in one order of time."""

    operations: list[Operation] = field(default_factory=list)
    _clock: itertools.count[int] = field(default_factory=itertools.count)

    def begin(self, key: str, name: str, step: Callable[[Any], tuple[Any, Any]]) -> Operation:
        operation = Operation(key, name, step, next(self._clock))
        self.operations.append(operation)
        return operation

    def end(self, operation: Operation, result: Any) -> None:
        operation.ended = next(self._clock)
        operation.result = result

    def withdraw(self, operation: Operation) -> None:
        """Remove an operation that definitely had no effect."""
        self.operations.remove(operation)

    def violations(self) -> list[str]:
        """Return one sentence for each key whose history no order explains."""
        keys = {operation.key for operation in self.operations}
        found = (explain(key, [o for o in self.operations if o.key == key]) for key in sorted(keys))
        return [sentence for sentence in found if sentence is not None]


Configuration = tuple[Any, frozenset[Operation]]


def explain(key: str, operations: Iterable[Operation]) -> str | None:
    """Return None if some order explains the history, otherwise the place where none does any more."""
    events = sorted(
        [(o.begun, True, o) for o in operations]
        + [(o.ended, False, o) for o in operations if o.ended is not None],
        key=lambda event: event[0],
    )
    configurations: set[Configuration] = {(None, frozenset())}
    pending: set[Operation] = set()
    for _, is_begin, operation in events:
        if is_begin:
            pending.add(operation)
            continue
        configurations = _with(operation, configurations, pending)
        pending.remove(operation)
        if not configurations:
            return f"{key}: {operation.name} cannot have returned {operation.result!r}"
    return None


def _with(
    operation: Operation, configurations: set[Configuration], pending: set[Operation]
) -> set[Configuration]:
    """Return the configurations in which ``operation`` has taken effect, without it."""
    reached: set[Configuration] = set()
    seen = set(configurations)
    stack = list(configurations)
    while stack:
        value, done = stack.pop()
        if operation in done:
            reached.add((value, done - {operation}))
            continue
        for other in pending - done:
            after, result = other.step(value)
            if other.result is not UNKNOWN and other.result != result:
                continue
            configuration = (after, done | {other})
            if configuration not in seen:
                seen.add(configuration)
                stack.append(configuration)
    return reached
