"""What shared state may have to tell, beside the SDK's own errors; each says what is certain.

::

    OnewriterError
    ├── StateError             the state itself: asking again does not help
    │   ├── StateGap           the log was cut and no checkpoint covers what is missing
    │   └── UnreadableEntry    one entry does not deserialise or apply; ``position`` says which
    ├── VersionConflict        the state moved on: nothing was written
    ├── WatchOverflow          this watcher was too slow: list again and watch anew
    └── WrongType              a key or value that the serialiser does not take: nothing was written
"""

from __future__ import annotations

from onewriter._errors import OnewriterError
from onewriter_core.ids import Position


class StateError(OnewriterError):
    """The shared state cannot go on; ``position`` is where in its log."""

    def __init__(self, message: str, *, position: Position) -> None:
        super().__init__(message)
        self.position = position


class StateGap(StateError):
    """Entries are missing in front of ``position`` and no checkpoint covers them.

    No state is given out at all: it would lack what the missing entries did.
    """


class UnreadableEntry(StateError):
    """The entry at ``position`` does not deserialise, or the applier raised on it.

    The state stays readable up to the entry before (``read`` without ``latest``); nothing is
    written any more by this instance.
    """


class VersionConflict(OnewriterError):
    """The state was no longer of the version that the write expected: nothing was written."""

    def __init__(self, expected: int, actual: int) -> None:
        super().__init__(f"the state is of version {actual}, not {expected}: nothing was written")
        self.expected = expected
        self.actual = actual


class WatchOverflow(OnewriterError):
    """The watcher took its changes too slowly and lost some: watch anew, from what there is now."""


class WrongType(OnewriterError, TypeError):
    """A key or a value is of a type that its serialiser does not take: nothing was written."""
