"""Every error that onewriter raises on purpose, and the code each has on Pulsar's wire.

::

    OnewriterError
    ├── Refused              definite: what was asked did not happen; carries a ServerError
    │   └── Fenced           the writer lost its turn; retrying cannot help
    ├── Unavailable          not now; ask again (a lookup first)
    │   └── BrokenKey        a key of the store holds what no broker wrote: a person must repair it
    ├── Undecided            it may or may not have happened; retry idempotently, never say Fenced
    ├── MalformedBlock       the store holds what no version of the log format explains (broker)
    ├── ProtocolError        the peer broke the protocol; its connection is closed
    └── ConfigurationError   settings or manifests; names the file and the field

"Fenced" means *definitely not appended* (promise 2 of docs/concepts.md). Whatever is not definite
is Undecided.
"""

from __future__ import annotations

import enum


class ServerError(enum.IntEnum):
    """Pulsar's error codes, as CommandError and its siblings carry them."""

    UNKNOWN_ERROR = 0
    METADATA_ERROR = 1
    PERSISTENCE_ERROR = 2
    AUTHENTICATION_ERROR = 3
    AUTHORIZATION_ERROR = 4
    CONSUMER_BUSY = 5
    SERVICE_NOT_READY = 6
    PRODUCER_BLOCKED_QUOTA_EXCEEDED_ERROR = 7
    PRODUCER_BLOCKED_QUOTA_EXCEEDED_EXCEPTION = 8
    CHECKSUM_ERROR = 9
    UNSUPPORTED_VERSION_ERROR = 10
    TOPIC_NOT_FOUND = 11
    SUBSCRIPTION_NOT_FOUND = 12
    CONSUMER_NOT_FOUND = 13
    TOO_MANY_REQUESTS = 14
    TOPIC_TERMINATED_ERROR = 15
    PRODUCER_BUSY = 16
    INVALID_TOPIC_NAME = 17
    INCOMPATIBLE_SCHEMA = 18
    CONSUMER_ASSIGN_ERROR = 19
    TRANSACTION_COORDINATOR_NOT_FOUND = 20
    INVALID_TXN_STATUS = 21
    NOT_ALLOWED_ERROR = 22
    TRANSACTION_CONFLICT = 23
    TRANSACTION_NOT_FOUND = 24
    PRODUCER_FENCED = 25


class OnewriterError(Exception):
    """The root of the tree."""


class Refused(OnewriterError):
    """A definite no.

    ``message`` must not contain the name of another error: the Go client recognises errors by
    substring.
    """

    def __init__(self, code: ServerError, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Fenced(Refused):
    """A newer epoch was granted; nothing of this writer is appended any more.

    ``epoch`` is the writer's own, ``current_epoch`` the newer one, each None where it is not known.
    """

    def __init__(
        self, message: str, *, epoch: int | None = None, current_epoch: int | None = None
    ) -> None:
        super().__init__(ServerError.PRODUCER_FENCED, message)
        self.epoch = epoch
        self.current_epoch = current_epoch


class Unavailable(OnewriterError):
    """The broker cannot serve this now: look the topic up and ask again."""

    code = ServerError.SERVICE_NOT_READY


class Undecided(OnewriterError):
    """The store did not answer: the write may or may not have happened."""


class ProtocolError(OnewriterError):
    """The peer sent what the protocol does not allow; its connection cannot go on."""


class ConfigurationError(OnewriterError):
    """Settings or manifests are wrong; the message names where and what to write instead."""
