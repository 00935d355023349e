"""Limits of an HTTP server, as one value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for one client and for all clients. Times are in seconds, sizes in bytes."""

    connections_max: int = 2_000
    """Open connections. A new one replaces the oldest that has not sent a whole request."""

    connections_per_address_max: int = 1_000
    """Open connections of one address (IPv6: of one /64 network)."""

    header_seconds: float = 5.0
    """From the first byte of a request, or from connecting, to the end of its headers."""

    body_seconds: float = 10.0
    """From the headers to the end of the body. A larger body gets more time: see ``body_rate``."""

    body_rate: int = 1024 * 1024
    """Bytes per second of a body that needs more than ``body_seconds``."""

    idle_seconds: float = 60.0
    """A connection without a request is closed after this time."""

    answer_seconds: float = 60.0
    """A client that does not read its response within this time is disconnected."""

    linger_seconds: float = 2.0
    """The server discards an unneeded body for this time. Then it closes the connection."""

    handshake_seconds: float = 5.0
    """Time for a TLS handshake."""

    body_bytes_max: int = 256 * 1024
    """The body of a request."""

    stop_seconds: float = 2.0
    """A stopping server waits this long for requests in progress."""

    def seconds_for_body(self, size: int | None) -> float:
        """The time limit of a body. ``size`` is its announced length, None if unknown."""
        return self.body_seconds + min(size or 0, self.body_bytes_max) / self.body_rate


PROBE_LIMITS: Final = Limits(
    connections_max=256,
    connections_per_address_max=64,
    header_seconds=2.0,
    body_seconds=2.0,
    idle_seconds=30.0,
    answer_seconds=20.0,
    body_bytes_max=0,
)
"""The limits of a port for probes and metrics."""
