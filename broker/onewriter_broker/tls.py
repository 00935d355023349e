"""The certificate with which this broker serves TLS, and the authorities that it trusts as a client.

To renew it, cert-manager or an administrator replaces two files. The broker reads them again at run time and
uses the new certificate for new connections. A pair that does not match, as in the middle of a copy, changes
nothing. A certificate that is about to expire causes a log line and a metric.
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

from onewriter_broker.anchor.api import Addresses
from onewriter_broker.settings import Settings
from onewriter_core.errors import ConfigurationError, Unavailable

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

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Pair:
    """The files that were read: their contents, and the lifetime of the certificate (Unix seconds)."""

    contents: tuple[bytes, bytes]
    not_before: float
    not_after: float


class ServerCertificate:
    """Certificate and key in PEM files; ``context`` is the context of the servers.

    Raises ConfigurationError for unusable files. ``unix_seconds`` is the wall clock.
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
        self._refused: str | None = None
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
            self._refused = None
        except ConfigurationError as error:
            if str(error) != self._refused:  # report each error once
                log.error("tls.unusable", reason=str(error))  # noqa: TRY400 - a person's mistake
            self._refused = str(error)
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
        """The files, if they match. Raises ConfigurationError."""
        from cryptography import x509  # noqa: PLC0415 - it takes a part of every start without TLS

        contents = (_content(self._certificate), _content(self._key))
        try:
            found = x509.load_pem_x509_certificates(contents[0])[0]
        except ValueError as error:
            raise ConfigurationError(f"{self._certificate}: no certificate in PEM") from error
        not_before, not_after = found.not_valid_before_utc, found.not_valid_after_utc
        return _Pair(contents, not_before.timestamp(), not_after.timestamp())

    def _load(self, pair: _Pair) -> None:
        """Use these files from now on, if they match. Raises ConfigurationError."""
        trial = _context()  # after a failure, a context keeps half of the pair
        for context in (trial, self.context):
            try:
                context.load_cert_chain(self._certificate, self._key, password=_no_password)
            except (OSError, ValueError) as error:
                raise ConfigurationError(
                    f"{self._certificate} and {self._key} cannot be used: {error}"
                ) from error
        if (_content(self._certificate), _content(self._key)) != pair.contents:
            raise ConfigurationError(f"{self._certificate} changes while it is read")


class Authorities:
    """The authorities that this broker trusts when it connects to another broker: a PEM file, or the
    system's.

    The file is read for each connection, so a renewed one needs no restart.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._content: bytes | None = None
        self._context: ssl.SSLContext | None = None

    async def context(self) -> ssl.SSLContext:
        """A context that checks certificate and host name. Raises Unavailable for an unusable file."""
        return await asyncio.to_thread(self._current)

    def _current(self) -> ssl.SSLContext:
        content = None if self._file is None else self._read(self._file)
        if self._context is None or content != self._content:
            self._context = self._made(content)
            self._content = content
        return self._context

    def _read(self, file: Path) -> bytes:
        try:
            return _content(file)
        except ConfigurationError as error:
            raise Unavailable(f"tls_ca_file cannot be read: {error}") from error

    def _made(self, content: bytes | None) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks certificate and host name
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if content is None:
            context.load_default_certs()
            return context
        try:
            context.load_verify_locations(cadata=content.decode("ascii", "ignore"))
        except (ssl.SSLError, ValueError) as error:
            raise Unavailable(
                f"tls_ca_file {self._file}: no certificates in PEM: {error}"
            ) from error
        return context


def certificate_of(settings: Settings) -> ServerCertificate | None:
    """The certificate of the settings; None if TLS is not served. Raises ConfigurationError."""
    if settings.tls_cert_file is None and settings.tls_key_file is None:
        if settings.tls_only:
            raise ConfigurationError("tls_only needs tls_cert_file and tls_key_file")
        return None
    if settings.tls_cert_file is None or settings.tls_key_file is None:
        raise ConfigurationError("tls_cert_file and tls_key_file go together")
    return ServerCertificate(settings.tls_cert_file, settings.tls_key_file)


def over_tls(addresses: Addresses, settings: Settings) -> Addresses:
    """The TLS addresses of the same broker; empty if TLS is not served.

    All brokers of a cluster have the same configuration. Anchor and heartbeats contain their plain addresses,
    whether clients may use those or not.
    """
    if settings.tls_cert_file is None or not addresses.broker_url:
        return Addresses()
    return Addresses(
        _moved(addresses.broker_url, "pulsar+ssl", settings.tls_port - settings.port),
        _moved(addresses.http_url, "https", settings.https_port - settings.http_port),
    )


def over_plain(addresses: Addresses, settings: Settings) -> Addresses:
    """The plain addresses of the same broker for clients; empty if brokers accept no plain connections."""
    return Addresses() if settings.tls_only else addresses


def _moved(url: str, scheme: str, distance: int) -> str:
    """The URL with another scheme, and a port that is higher by ``distance``."""
    host, _, port = url.partition("://")[2].rpartition(":")
    return f"{scheme}://{host}:{int(port) + distance}"


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _no_password() -> str:
    raise ValueError("the key needs a password")


def _content(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            return stream.read(FILE_BYTES_MAX)
    except OSError as error:
        raise ConfigurationError(f"{file}: {error.strerror or error}") from error
