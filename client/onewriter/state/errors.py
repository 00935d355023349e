"""The errors of shared state, in addition to the SDK's. Each error states what is certain.

::

    OnewriterError
    ├── StateError             the state cannot be computed: a retry does not help
    │   ├── StateGap           entries were trimmed, and no checkpoint covers them
    │   └── UnreadableEntry    an entry cannot be deserialized or applied; see ``position``
    ├── VersionConflict        the state has another version: nothing was written
    ├── WatchOverflow          this watcher was too slow: list again and start another watch
    └── WrongType              the serializer does not accept a key or value: nothing was written
"""

from __future__ import annotations

from onewriter._errors import OnewriterError
from onewriter_core.ids import Position


class StateError(OnewriterError):
    """The shared state cannot continue; ``position`` is the position in its log."""

    def __init__(self, message: str, *, position: Position) -> None:
        super().__init__(message)
        self.position = position


class StateGap(StateError):
    """Entries before ``position`` are missing, and no checkpoint covers them.

    No state can be read, because it would lack the effects of the missing entries.
    """


class UnreadableEntry(StateError):
    """The entry at ``position`` cannot be deserialized, or the applier raised an exception for it.

    The state before this entry stays readable (``read`` without ``latest``). This instance writes nothing any
    more.
    """


class VersionConflict(OnewriterError):
    """The state no longer had the version that the write expected: nothing was written."""

    def __init__(self, expected: int, actual: int) -> None:
        super().__init__(f"the state is of version {actual}, not {expected}: nothing was written")
        self.expected = expected
        self.actual = actual


class WatchOverflow(OnewriterError):
    """The watcher was too slow and lost changes: start another watch from the current state."""


class WrongType(OnewriterError, TypeError):
    """The serializer does not accept the type of a key or a value: nothing was written."""
