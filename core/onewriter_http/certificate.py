"""The certificate with which a server of the project serves TLS.

To renew it, cert-manager or an administrator replaces two files. The server reads them again at run time and
uses the new certificate for new connections. A pair that does not match, as in the middle of a copy, changes
nothing. A certificate that is about to expire causes a log line.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog

POLL_SECONDS: Final = 5.0
"""Polling interval of the files."""

LATE_SHARE: Final = 0.1
"""A certificate should have been renewed when less than this share of its lifetime is left."""

REMIND_SECONDS: Final = 3600.0
"""Interval between two log lines about that."""

HANDSHAKE_SECONDS: Final = 10.0
"""Time for a client's TLS handshake."""

SHUTDOWN_SECONDS: Final = 2.0
"""Time for a peer to confirm the end of a connection."""

FILE_BYTES_MAX: Final = 1024 * 1024
"""The part of a file that is read. No certificate is that long."""

log = structlog.get_logger(__name__)


class UnusableCertificateError(Exception):
    """Certificate and key cannot be used. The text names the file and the reason."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """The files that were read: their contents, and the lifetime of the certificate (Unix seconds)."""

    contents: tuple[bytes, bytes]
    not_before: float
    not_after: float


class ServerCertificate:
    """Certificate and key in PEM files; ``context`` is the context of the servers.

    Raises UnusableCertificateError for unusable files. ``unix_seconds`` is the wall clock.
    """

    def __init__(
        self,
        certificate: Path,
        key: Path,
        *,
        unix_seconds: Callable[[], float] = lambda: time.time_ns() / 1e9,
    ) -> None:
        self._certificate = certificate
        self._key = key
        self._unix_seconds = unix_seconds
        self.context = _context()
        self._pair = self._read()
        self._load(self._pair)
        self.problem = ""
        """Why the present files are not used; empty while they are."""
        self._reminded_at: float | None = None

    @property
    def not_after(self) -> float:
        """The expiry of the certificate in use, in Unix seconds."""
        return self._pair.not_after

    def server_options(self) -> dict[str, Any]:
        """The arguments of ``create_server`` besides host and port."""
        return {
            "ssl": self.context,
            "ssl_handshake_timeout": HANDSHAKE_SECONDS,
            "ssl_shutdown_timeout": SHUTDOWN_SECONDS,
        }

    async def run(self) -> None:
        """Follow the files until cancelled."""
        while True:
            await asyncio.to_thread(self.reload_if_changed)
            await asyncio.sleep(POLL_SECONDS)

    def reload_if_changed(self) -> None:
        """Use the present contents of the files, and report a late renewal. Blocks on the file system."""
        try:
            pair = self._read()
            if pair.contents != self._pair.contents:
                self._load(pair)
                self._pair, self._reminded_at = pair, None
                log.info("tls.renewed", file=str(self._certificate), not_after=pair.not_after)
            self.problem = ""
        except UnusableCertificateError as error:
            if str(error) != self.problem:  # report each error once
                log.error("tls.unusable", reason=str(error))  # noqa: TRY400 - a person's mistake
            self.problem = str(error)
        self._remind()

    def _remind(self) -> None:
        now, pair = self._unix_seconds(), self._pair
        left = pair.not_after - now
        if left > (pair.not_after - pair.not_before) * LATE_SHARE:
            return
        if self._reminded_at is not None and now - self._reminded_at < REMIND_SECONDS:
            return
        self._reminded_at = now
        if left > 0:
            log.warning("tls.expires", file=str(self._certificate), seconds_left=round(left))
        else:
            log.error("tls.expired", file=str(self._certificate), seconds_ago=round(-left))

    def _read(self) -> _Pair:
        """The files, if they match. Raises UnusableCertificateError."""
        from cryptography import x509  # noqa: PLC0415 - it takes a part of every start without TLS

        contents = (read(self._certificate), read(self._key))
        try:
            found = x509.load_pem_x509_certificates(contents[0])[0]
        except ValueError as error:
            raise UnusableCertificateError(f"{self._certificate}: no certificate in PEM") from error
        not_before, not_after = found.not_valid_before_utc, found.not_valid_after_utc
        return _Pair(contents, not_before.timestamp(), not_after.timestamp())

    def _load(self, pair: _Pair) -> None:
        """Use these files from now on, if they match. Raises UnusableCertificateError."""
        trial = _context()  # after a failure, a context keeps half of the pair
        for context in (trial, self.context):
            try:
                context.load_cert_chain(self._certificate, self._key, password=_no_password)
            except (OSError, ValueError) as error:
                raise UnusableCertificateError(
                    f"{self._certificate} and {self._key} cannot be used: {error}"
                ) from error
        if (read(self._certificate), read(self._key)) != pair.contents:
            raise UnusableCertificateError(f"{self._certificate} changes while it is read")


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _no_password() -> str:
    raise ValueError("the key needs a password")


def read(file: Path) -> bytes:
    """A file of a certificate. Raises UnusableCertificateError."""
    try:
        with file.open("rb") as stream:
            return stream.read(FILE_BYTES_MAX)
    except OSError as error:
        raise UnusableCertificateError(f"{file}: {error.strerror or error}") from error
