"""Failures of the connection to a broker, as plain sentences. Pure."""

from __future__ import annotations

import errno
import ssl
from collections.abc import Iterator
from http.client import RemoteDisconnected
from typing import Final
from urllib.parse import urlsplit

from urllib3.exceptions import (
    ConnectTimeoutError,
    IncompleteRead,
    NameResolutionError,
    NewConnectionError,
    ProtocolError,
    ReadTimeoutError,
)

CAUSES_MAX: Final = 8
"""Chained errors that are inspected."""

_UNREACHABLE: Final = frozenset({errno.EHOSTUNREACH, errno.ENETUNREACH})
_UNTRUSTED: Final = "CERTIFICATE_VERIFY_FAILED"
_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")


def sentence(error: Exception, url: str) -> str:
    """A sentence about a failure of the connection to a broker's address."""
    where = urlsplit(url).netloc
    return next(filter(None, (_message(each, where) for each in _chain(error))), "") or (
        f"the connection to {where} failed ({type(error).__name__})"
    )


def lasting(error: Exception, url: str) -> str | None:
    """A sentence about a failure that retries cannot fix; None: retries may help."""
    where = urlsplit(url).netloc
    for each in _chain(error):
        if not isinstance(each, ssl.SSLError):
            continue
        reason = f"{_reason(each)} {each}"
        if _UNTRUSTED in reason:
            why = getattr(each, "verify_message", "") or "it cannot be verified"
            return (
                f"the certificate of {where} is not trusted: {why};"
                " set tls.caFile to the file of its authority"
            )
        if any(word in reason.upper().replace(" ", "_") for word in _NO_TLS):
            return f"{where} does not use TLS: write its address with http://"
    return None


def _message(error: BaseException, where: str) -> str | None:
    match error:
        case NameResolutionError():
            return f"unknown host: {where.rpartition(':')[0] or where}"
        case NewConnectionError():
            return None  # the error that caused it says why
        case ConnectTimeoutError():
            return f"{where} did not accept the connection in time"
        case ReadTimeoutError() | TimeoutError():
            return f"{where} did not answer in time"
        case ConnectionRefusedError():
            return f"{where} refused the connection: nothing listens there"
        case ssl.SSLError():
            return f"TLS with {where} failed: {_reason(error) or error}"
        case RemoteDisconnected() | ConnectionResetError() | BrokenPipeError():
            return f"{where} closed the connection"
        case IncompleteRead():
            return f"{where} closed the connection in the middle of an answer"
        case OSError() if error.errno in _UNREACHABLE:
            return f"{where} cannot be reached from here"
        case OSError() if error.strerror:
            return f"the connection to {where} failed: {error.strerror}"
        case ProtocolError() if not _behind(error):
            return f"the connection to {where} broke off"
        case _:
            return None


def _reason(error: ssl.SSLError) -> str:
    """OpenSSL's reason code; errors created by Python itself have none."""
    return getattr(error, "reason", None) or ""


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and the errors that caused it, the outermost first."""
    found: list[BaseException] = [error]
    for each in found:
        yield each
        if len(found) < CAUSES_MAX:
            found += [other for other in _behind(each) if other not in found]


def _behind(error: BaseException) -> list[BaseException]:
    """The causes of an error: errors in its arguments, and those it was raised from."""
    held = [*error.args, error.__cause__, error.__context__]
    return [each for each in held if isinstance(each, BaseException)]
