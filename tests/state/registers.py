"""Is a history of one key's operations linearizable? A register's checker, by configurations.

Events are gone through in time order. A configuration is a value that the register may have, and
which of the operations under way have taken effect already. When one returns, only configurations
remain in which it has, with the result that it gave. None left: no order explains what was seen.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

UNKNOWN = object()
"""The result of an operation that may or may not have taken effect, even later."""


@dataclass(slots=True, eq=False)
class Operation:
    """``step(value)`` gives the value behind it and what it returns."""

    key: str
    name: str
    step: Callable[[Any], tuple[Any, Any]]
    begun: int
    ended: int | None = None
    result: Any = UNKNOWN


@dataclass(slots=True)
class History:
    """What was seen, by all processes, in one order of time."""

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
        """It definitely had no effect."""
        self.operations.remove(operation)

    def violations(self) -> list[str]:
        """One sentence per key whose history nothing explains."""
        keys = {operation.key for operation in self.operations}
        found = (explain(key, [o for o in self.operations if o.key == key]) for key in sorted(keys))
        return [sentence for sentence in found if sentence is not None]


Configuration = tuple[Any, frozenset[Operation]]


def explain(key: str, operations: Iterable[Operation]) -> str | None:
    """None if some order explains the history, else where it stops doing so."""
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
    """The configurations in which ``operation`` has taken effect, without it."""
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
