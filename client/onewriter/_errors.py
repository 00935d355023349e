"""What an application may have to handle, drawn as a tree; each error says what is certain.

::

    OnewriterError
    ├── Refused            a definite no to what was asked; ``code`` says why
    │   └── Fenced         the writer lost its turn: the message is definitely not in the log
    ├── Unavailable        nothing happened, and it may work later
    │   ├── NotSent        the message was not handed to a broker in time: definitely not in the log
    │   └── NoMessage      nothing came in the time that was given; also a TimeoutError
    ├── OutcomeUnknown     the message may or may not be in the log; nobody will ever tell this producer
    ├── Unreadable         an entry that came cannot be taken apart; the ones behind it can be had
    ├── EndOfTopic         the topic is terminated, and all of it was had: nothing comes any more
    ├── Closed             this program closed the producer or the client itself
    └── ConfigurationError a URL, a file or an option is wrong

A send ends with a message id, or with exactly one of these. **Fenced** and **NotSent** are promises
about the log, so they are only given for a message that no broker can still append: one that was
never written to a connection, or one that the broker answered for on the very connection on which
it was written. Whatever was under way when a connection broke, and could not be resumed, is
**OutcomeUnknown**.
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
    """A topic that was named as a whole has partitions."""

    def __init__(self, topic: str, partitions: int) -> None:
        text = f"{topic} has {partitions} partitions; name one of them: {topic}-partition-0"
        super().__init__(ServerError.NOT_ALLOWED_ERROR, text)
        self.partitions = partitions


class NotSent(Unavailable):
    """The message was not handed to any broker in time and was withdrawn: it is not in the log."""


class NoMessage(Unavailable, TimeoutError):
    """No message came in the time that was given; none is lost by that."""


class Unreadable(OnewriterError):
    """The entry at ``message_id`` is damaged, encrypted, or lacks parts; why is in the text.

    It stands in the place of its messages. Receiving again goes on behind it; a consumer may
    acknowledge ``message_id``, else the entry comes again.
    """

    def __init__(self, message_id: MessageId, why: str) -> None:
        super().__init__(f"{message_id}: {why}")
        self.message_id = message_id


class EndOfTopic(OnewriterError):
    """The topic is terminated, and nothing of it is left to be received: nothing comes any more."""


class OutcomeUnknown(Undecided):
    """The message may or may not be in the log. Sending it again may store it twice."""


class Closed(OnewriterError):
    """The producer or client was closed by this program; nothing more is sent."""


RETRYABLE = frozenset(
    {
        ServerError.UNKNOWN_ERROR,
        ServerError.METADATA_ERROR,
        ServerError.SERVICE_NOT_READY,
        ServerError.TOO_MANY_REQUESTS,
    }
)
"""Codes with which a broker says "not now": the topic is looked up and asked for again."""

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
"""Codes that end a producer which was granted before; after any other it asks again."""

_CURRENT_EPOCH = re.compile(r"[Cc]urrent (?:epoch:|one is) (\d+)")


def answer_of(code: int, text: str, *, epoch: int | None = None) -> OnewriterError:
    """The exception for a broker's error; ``epoch`` is the one that the producer carried."""
    known = ServerError(code)
    if known is ServerError.PRODUCER_FENCED:
        named = _CURRENT_EPOCH.search(text)
        return Fenced(text, epoch=epoch, current_epoch=int(named[1]) if named else None)
    if known in RETRYABLE:
        return Unavailable(text)
    return Refused(known, text)
