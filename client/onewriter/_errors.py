"""The errors of the SDK as a tree. Each error states what is certain.

::

    OnewriterError
    ├── Refused            the broker rejected the request; ``code`` is the reason
    │   └── Fenced         the writer lost the topic: the message is definitely not in the log
    ├── Unavailable        the operation had no effect, and may succeed later
    │   ├── NotSent        the message was not sent to a broker in time: definitely not in the log
    │   └── NoMessage      no message arrived within the given time; also a TimeoutError
    ├── OutcomeUnknown     the message may or may not be in the log, and this producer cannot learn which
    ├── Unreadable         an entry cannot be decoded; later entries can be received
    ├── EndOfTopic         the topic is terminated, and all its messages were received
    ├── Closed             this program closed the producer or the client itself
    └── ConfigurationError a URL, a file or an option is invalid

A send ends with a message id or with exactly one of these errors. **Fenced** and **NotSent** are promises
about the log. The SDK raises them only for a message that no broker can append any more: a message that was
never written to a connection, or one that the broker rejected on the connection on which it was
written. A message that was in flight when a connection broke, and that could not be resent under the same
epoch, ends with **OutcomeUnknown**.
"""

from __future__ import annotations

import re

from onewriter._message import MessageId
from onewriter_core.errors import (
    ConfigurationError,
    Fenced,
    OnewriterError,
    Refused,
    ServerError,
    Unavailable,
    Undecided,
)

__all__ = [
    "Closed",
    "ConfigurationError",
    "EndOfTopic",
    "Fenced",
    "NoMessage",
    "NotSent",
    "OnewriterError",
    "OutcomeUnknown",
    "Partitioned",
    "Refused",
    "ServerError",
    "Unavailable",
    "Unreadable",
]


class Partitioned(Refused):
    """The named topic has partitions, and the operation needs the name of one partition."""

    def __init__(self, topic: str, partitions: int) -> None:
        text = f"{topic} has {partitions} partitions; name one of them: {topic}-partition-0"
        super().__init__(ServerError.NOT_ALLOWED_ERROR, text)
        self.partitions = partitions


class NotSent(Unavailable):
    """The message was not sent to any broker in time and was withdrawn: it is not in the log."""


class NoMessage(Unavailable, TimeoutError):
    """No message arrived within the given time. No message is lost."""


class Unreadable(OnewriterError):
    """The entry at ``message_id`` is damaged, encrypted or incomplete; the text states which.

    The next call of ``receive`` continues after the entry. A consumer may acknowledge ``message_id``;
    otherwise the broker delivers the entry again later.
    """

    def __init__(self, message_id: MessageId, why: str) -> None:
        super().__init__(f"{message_id}: {why}")
        self.message_id = message_id


class EndOfTopic(OnewriterError):
    """The topic is terminated, and all its messages were received: no message will follow."""


class OutcomeUnknown(Undecided):
    """The message may or may not be in the log. Sending it again may store it twice."""


class Closed(OnewriterError):
    """This program closed the producer or the client; it sends nothing any more."""


RETRYABLE = frozenset(
    {
        ServerError.UNKNOWN_ERROR,
        ServerError.METADATA_ERROR,
        ServerError.SERVICE_NOT_READY,
        ServerError.TOO_MANY_REQUESTS,
    }
)
"""Codes of temporary errors: the client looks the topic up and asks again."""

FINAL_FOR_HOLDERS = frozenset(
    {
        ServerError.PRODUCER_FENCED,
        ServerError.TOPIC_TERMINATED_ERROR,
        ServerError.INVALID_TOPIC_NAME,
        ServerError.NOT_ALLOWED_ERROR,
        ServerError.INCOMPATIBLE_SCHEMA,
        ServerError.UNSUPPORTED_VERSION_ERROR,
    }
)
"""Codes that end a producer that was granted before. After any other code the producer asks again."""

_CURRENT_EPOCH = re.compile(r"[Cc]urrent (?:epoch:|one is) (\d+)")


def answer_of(code: int, text: str, *, epoch: int | None = None) -> OnewriterError:
    """Return the exception for a broker's error; ``epoch`` is the producer's epoch."""
    known = ServerError(code)
    if known is ServerError.PRODUCER_FENCED:
        named = _CURRENT_EPOCH.search(text)
        return Fenced(text, epoch=epoch, current_epoch=int(named[1]) if named else None)
    if known in RETRYABLE:
        return Unavailable(text)
    return Refused(known, text)
