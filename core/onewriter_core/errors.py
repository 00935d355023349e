"""The errors that onewriter raises on purpose, and their codes in Pulsar's protocol.

::

    OnewriterError
    ├── Refused              definite: the request did not succeed; carries a ServerError
    │   └── Fenced           a newer writer was granted the topic; retrying cannot help
    ├── Unavailable          not now; look the topic up and retry
    │   └── BrokenKey        no broker wrote this content of the store: a person must repair it
    ├── Undecided            the request may or may not have succeeded; retry idempotently
    ├── MalformedBlock       a stored block is invalid in every version of the log format (broker)
    ├── ProtocolError        the peer violated the protocol; its connection is closed
    └── ConfigurationError   invalid settings or manifests; names the file and the field

"Fenced" means *definitely not appended* (docs/concepts.md). An error that is not definite is Undecided, never
Fenced.
"""

from __future__ import annotations

import enum


class ServerError(enum.IntEnum):
    """Pulsar's error codes, as in CommandError and similar commands."""

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
    """The base class of all errors."""


class Refused(OnewriterError):
    """The request was rejected: it definitely did not succeed.

    ``message`` must not contain the name of another error: the Go client recognizes errors by substring.
    """

    def __init__(self, code: ServerError, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Fenced(Refused):
    """A newer epoch was granted. No further write of this writer is appended.

    ``epoch`` is the epoch of the writer, ``current_epoch`` the newer one. Each is None if unknown.
    """

    def __init__(
        self, message: str, *, epoch: int | None = None, current_epoch: int | None = None
    ) -> None:
        super().__init__(ServerError.PRODUCER_FENCED, message)
        self.epoch = epoch
        self.current_epoch = current_epoch


class Unavailable(OnewriterError):
    """The broker cannot serve the request now: look the topic up and retry."""

    code = ServerError.SERVICE_NOT_READY


class Undecided(OnewriterError):
    """The store did not answer: the write may or may not have happened."""


class ProtocolError(OnewriterError):
    """The peer violated the protocol. Its connection must be closed."""


class ConfigurationError(OnewriterError):
    """Settings or manifests are invalid. The message names the place and a valid value."""


def install_command(*extras: str) -> str:
    """How to install these extras, for an error message. onewriter is in no package index, so it names the checkout."""
    return f"pip install '.[{','.join(extras)}]' in a checkout of onewriter"
