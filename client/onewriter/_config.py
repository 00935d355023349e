"""A client's configuration: addresses of brokers, credentials, time limits.

The only I/O is reading tokens and certificates from files.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from onewriter._errors import ConfigurationError, OnewriterError, Unavailable

TOKEN_BYTES_MAX = 64 * 1024
"""Largest token file in bytes."""

PLAIN_PORT = 6650
TLS_PORT = 6651

BACKOFF_FIRST_SECONDS = 0.05
BACKOFF_MAX_SECONDS = 2.0
"""Pauses between attempts double from the first value to this one; each is drawn from its upper half."""

REQUEUE_SECONDS_PER_PRIORITY = 0.01
REQUEUE_SECONDS_MAX = 1.0
"""PIP-440: the higher a producer's priority, the longer it delays its reconnect."""

TokenSource = Callable[[], Awaitable[str]]
"""A coroutine function that returns the token; called for each connection and each challenge."""


class Address(NamedTuple):
    """One broker's endpoint."""

    host: str
    port: int
    is_tls: bool

    def __str__(self) -> str:
        scheme = "pulsar+ssl" if self.is_tls else "pulsar"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}"


def parse_service_url(url: str) -> tuple[Address, ...]:
    """The endpoints of ``pulsar://a:6650,b`` or ``pulsar+ssl://...``. Raises ConfigurationError."""
    scheme, separator, rest = url.strip().partition("://")
    if not separator or scheme not in {"pulsar", "pulsar+ssl"} or not rest.strip("/"):
        raise ConfigurationError(
            f"{url!r} is not a service URL: write pulsar://HOST:PORT or pulsar+ssl://HOST:PORT"
        )
    is_tls = scheme == "pulsar+ssl"
    return tuple(_address(part, url, is_tls=is_tls) for part in rest.rstrip("/").split(","))


def _address(text: str, url: str, *, is_tls: bool) -> Address:
    text = text.strip()
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(TLS_PORT if is_tls else PLAIN_PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigurationError(f"{url!r} contains {text!r}, which is not HOST or HOST:PORT")
    return Address(host, int(port), is_tls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """TLS settings. The files are read again for each connection.

    ``ca_file`` contains the trusted authorities (default: the system's). ``certificate_file`` and
    ``key_file`` are the client's own, for brokers that require one. ``verify=False`` accepts any broker
    certificate; use it for trials only.
    """

    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    check_host_name: bool = True
    verify: bool = True

    def context(self) -> ssl.SSLContext:
        """Return a context of the files' current contents. Reads files. Raises ConfigurationError."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            context.check_hostname = self.check_host_name and self.verify
            if not self.verify:
                context.verify_mode = ssl.CERT_NONE
            if self.certificate_file is not None:
                context.load_cert_chain(self.certificate_file, self.key_file)
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(f"the TLS files cannot be used: {error}") from error
        return context


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Time limits of a client, in seconds."""

    connect_timeout_seconds: float = 5.0
    """Limit for a connection, from the first packet until the broker has accepted the credentials."""
    operation_timeout_seconds: float = 30.0
    """Limit for an operation as a whole: creating a producer that does not queue, closing a producer."""
    request_timeout_seconds: float = 20.0
    """Limit for one answer of a broker. A look-up may wait for a topic that moves between brokers."""
    ping_after_seconds: float = 2.0
    """The client pings a connection after this time without an inbound byte."""
    silent_after_seconds: float = 5.0
    """The client closes a connection after this time without an inbound byte."""
    proof_seconds: float = 1.0
    """A producer writes without asking only if the broker has sent a byte within this time.

    After a longer silence the producer pings the broker first. The value must be less than the silence after
    which a broker deposes a holder (2.5 s by default). A process that was frozen and deposed then learns of
    its loss before it writes, and the message is definitely not in the log.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """The settings that connections use."""

    token: TokenSource | None = None
    tls: Tls = field(default_factory=Tls)
    limits: Limits = field(default_factory=Limits)
    version: str = "onewriter-python"
    """The client's name and version in the handshake."""


async def token_of(source: TokenSource) -> bytes:
    """Return the source's token. Raises Unavailable for any error of the source except OnewriterError."""
    try:
        return (await source()).encode()
    except OnewriterError:
        raise
    except Exception as error:
        raise Unavailable(f"the token source failed: {error!r}") from error


def fixed_token(token: str) -> TokenSource:
    """Return a source of a token that never changes."""

    async def give() -> str:
        return token

    return give


def token_file(path: Path) -> TokenSource:
    """Return a source that reads the file each time, so that a rotated token takes effect."""

    async def give() -> str:
        try:
            text = await asyncio.to_thread(_read_token, path)
        except OSError as error:
            raise Unavailable(f"the token file cannot be read: {error}") from error
        if not text:
            raise Unavailable(f"the token file {path} is empty")
        return text

    return give


def _read_token(path: Path) -> str:
    with path.open("rb") as file:
        content = file.read(TOKEN_BYTES_MAX + 1)
    if len(content) > TOKEN_BYTES_MAX:
        raise OSError(f"{path} has more than {TOKEN_BYTES_MAX} bytes")
    return content.decode("utf-8", "replace").strip()


class Backoff:
    """Growing, jittered pauses between the attempts at one operation."""

    def __init__(
        self,
        first_seconds: float = BACKOFF_FIRST_SECONDS,
        max_seconds: float = BACKOFF_MAX_SECONDS,
    ) -> None:
        self._first = first_seconds
        self._max = max_seconds
        self._next = first_seconds

    def seconds(self) -> float:
        """Return the next pause in seconds."""
        pause, self._next = self._next, min(self._next * 2, self._max)
        return pause * random.uniform(0.5, 1.0)  # noqa: S311 - spreads attempts, hides nothing

    def reset(self) -> None:
        """Begin again with the shortest pause, after an attempt that succeeded."""
        self._next = self._first


def requeue_delay_seconds(priority: int, draw: Callable[[], float] = random.random) -> float:
    """Return the seconds that a producer of this priority waits before it queues again (PIP-440).

    The delay grows with the priority up to one second and is jittered (``draw`` returns 0 to 1). It is 0 for
    priority 0 and below. A holder that resumes its epoch never waits.
    """
    longest = min(max(priority, 0) * REQUEUE_SECONDS_PER_PRIORITY, REQUEUE_SECONDS_MAX)
    return longest * (0.5 + 0.5 * draw())
