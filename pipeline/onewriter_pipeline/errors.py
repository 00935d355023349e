"""The errors that the pipeline raises on purpose. Each message is short and complete.

::

    PipelineError
    ├── Invalid        the request is invalid: an option, a range, a name
    ├── NotFound       the topic, partition or bucket does not exist
    ├── NotAllowed     the token is invalid, has expired, or lacks the right
    ├── Conflict       the topic has another epoch, ledger or version than the request names
    ├── Trimmed        the log no longer has the requested entries
    ├── MissingPart    a staged part is gone or was replaced: stage it again
    ├── LogEnds        the log ends before the requested position
    ├── EntriesLost    entries of the requested range are missing in the log
    ├── Damaged        the log, or a stream of it, has contents that a broker does not write
    │   └── CorruptEntry  an entry is not what a Pulsar client sends (``decode.decoder``)
    ├── TableError     a table cannot be used: a newer version, not one of ours, no space
    │   ├── Overtaken  another process committed to the table first; nothing was committed
    │   ├── Contradicted  a table is not what the brokers' witnesses say
    │   └── Gap        neither the table nor the log has all requested entries
    ├── EngineFailed   Spark did not start, or failed
    └── Away           no broker served the request within the client's time limit
"""

from __future__ import annotations

from onewriter_core.errors import OnewriterError
from onewriter_core.ids import Position


class PipelineError(OnewriterError):
    """Root of all errors of the pipeline."""


class Invalid(PipelineError):
    """The request is invalid; the message says what to write instead."""


class NotFound(PipelineError):
    """The topic, partition or bucket does not exist."""


class NotAllowed(PipelineError):
    """The token is missing, invalid or expired, or does not allow the request."""


class Conflict(PipelineError):
    """The topic has another epoch or ledger than the request names, or a later version of the app. Nothing was
    done.
    """


class Trimmed(PipelineError):
    """The log no longer has the requested entries.

    ``first`` is the first position that the log has. The log was trimmed up to ``trimmed``; None: it was not
    trimmed.
    """

    def __init__(self, message: str, first: Position | None, trimmed: Position | None) -> None:
        super().__init__(message, first, trimmed)
        self.first = first
        self.trimmed = trimmed

    def __str__(self) -> str:
        return str(self.args[0])


class MissingPart(PipelineError):
    """A staged part expired, was lost, or was replaced. Nothing was published; stage it again."""


class LogEnds(PipelineError):
    """The log ends at ``end``, before the requested position: its tail was lost, or is not written yet."""

    def __init__(self, message: str, end: Position) -> None:
        super().__init__(message, end)
        self.end = end

    def __str__(self) -> str:
        return str(self.args[0])


class EntriesLost(PipelineError):
    """Entries of the requested range are missing in the log."""


class Damaged(PipelineError):
    """The log, or a stream of it, has contents that a broker does not write."""


class Away(PipelineError):
    """No broker answered or served the topic within the client's time limit."""


class TableError(PipelineError):
    """The table cannot be used or written; the message says why."""


class Overtaken(TableError):
    """Another process committed to the table first. Nothing was committed; the job can be repeated."""


class Contradicted(TableError):
    """A table is not what was copied to it, as the witnesses in the brokers' state say: a violation."""


class Gap(TableError):
    """Neither the table nor the log has all requested entries."""


class EngineFailed(PipelineError):
    """Spark did not start, or failed. What was committed is valid; the job can be repeated."""
