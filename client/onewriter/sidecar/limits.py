"""The limits of a sidecar that are not settings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarLimits:
    """One value for all parts of a sidecar. Tests pass other limits."""

    bodies_bytes_max: int = 64 * 1024 * 1024
    """Largest total size of the bodies of one kind of request."""
    stream_bytes_max: int = 8 * 1024 * 1024
    """Largest size of a publish stream's messages without an answer; above it, the stream is not read."""
    page_bytes_max: int = 8 * 1024 * 1024
    """Largest size of the values in one page of a map; a single value may be larger."""
    ownerships_max: int = 10_000
    """Largest number of ownerships of one sidecar; further ones are refused."""
    verify_seconds: float = 1.0
    """Time limit of the broker's confirmation that this sidecar leads."""
    own_check_seconds: float = 5.0
    """Time limit of the brokers' confirmation of ownerships, for ``?verified=true``."""
    ping_seconds: float = 5.0
    """Interval of comments on an event stream without events."""
    troubled_seconds: float = 5.0
    """Time for which a map that no longer follows its log is kept before it is opened again."""

    @property
    def changes_max(self) -> int:
        """Largest number of changes that an event stream has not sent yet; above it, the stream is closed."""
        return 2 * self.ownerships_max


DEFAULT_LIMITS = SidecarLimits()
