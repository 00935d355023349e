"""Every error that the pipeline raises on purpose; each message is short and complete.

::

    PipelineError
    ├── Invalid        what was asked makes no sense: an option, a range, a name
    ├── NotFound       no such topic, partition, bucket
    ├── NotAllowed     the token is wrong, has expired, or is not enough
    ├── Conflict       the topic has another epoch, ledger or version than was named: somebody else writes it
    ├── Trimmed        what was asked for is not kept in the log any more
    ├── MissingPart    a staged part is not there any more, or is another one: stage it again
    ├── LogEnds        the log ends in front of what was asked for
    ├── EntriesLost    entries in the middle of what was asked for are not in the log any more
    ├── Damaged        the log, or the stream of it, holds what no broker wrote
    │   └── CorruptEntry  an entry is not what a Pulsar client sends (``decode.decoder``)
    ├── TableError     a table cannot be used as it is: a newer version, no table of ours, no space
    │   ├── Overtaken  somebody else committed to the table first: nothing of this was committed
    │   └── Gap        neither the table nor the log has what was asked for
    ├── EngineFailed   Spark could not be started, or gave up
    └── Away           no broker served it within the client's patience; may be tried again later
"""

from __future__ import annotations

from onewriter_core.errors import OnewriterError
from onewriter_core.ids import Position


class PipelineError(OnewriterError):
    """The root."""


class Invalid(PipelineError):
    """What was asked makes no sense; the message says what to write instead."""


class NotFound(PipelineError):
    """There is no such topic, partition or bucket."""


class NotAllowed(PipelineError):
    """The token is missing, wrong or expired, or does not allow this."""


class Conflict(PipelineError):
    """The topic has another epoch or ledger than the one that was named, or a later version of an app:
    nothing was done.
    """


class Trimmed(PipelineError):
    """The log does not go back to what was asked for.

    ``first`` is the first position that is kept; below ``trimmed`` the log was cut on purpose, None
    where it was not.
    """

    def __init__(self, message: str, first: Position | None, trimmed: Position | None) -> None:
        super().__init__(message, first, trimmed)
        self.first = first
        self.trimmed = trimmed

    def __str__(self) -> str:
        return str(self.args[0])


class MissingPart(PipelineError):
    """A staged part expired, was lost, or is another one: nothing was published; stage it again."""


class LogEnds(PipelineError):
    """The log ends at ``end``, in front of what was asked for: its tail was lost, or is not there yet."""

    def __init__(self, message: str, end: Position) -> None:
        super().__init__(message, end)
        self.end = end

    def __str__(self) -> str:
        return str(self.args[0])


class EntriesLost(PipelineError):
    """Entries that should be in a log are not there any more."""


class Damaged(PipelineError):
    """The log holds what its format does not explain, or a stream of it what no broker sends."""


class Away(PipelineError):
    """No broker answered, or none serves the topic, for as long as the client waits."""


class TableError(PipelineError):
    """A table cannot be used as it is, or could not be written; the message says why."""


class Overtaken(TableError):
    """Somebody else committed to the table first: nothing of this was committed, and it may be run again."""


class Gap(TableError):
    """Neither the table nor the log has some of what was asked for."""


class EngineFailed(PipelineError):
    """Spark could not be started, or gave up; what was committed counts, and it may be run again."""
