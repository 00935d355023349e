"""The certificate of this broker, the authorities that it trusts as a client, and the addresses that serve TLS."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

from onewriter_broker.anchor.api import Addresses
from onewriter_broker.settings import Settings
from onewriter_core.errors import ConfigurationError, Unavailable
from onewriter_http import certificate
from onewriter_http.certificate import ServerCertificate, UnusableCertificateError


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
            return certificate.read(file)
        except UnusableCertificateError as error:
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
    try:
        return ServerCertificate(settings.tls_cert_file, settings.tls_key_file)
    except UnusableCertificateError as error:
        raise ConfigurationError(str(error)) from error


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
