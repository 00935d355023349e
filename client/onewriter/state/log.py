"""The interface between shared state and its log: append under a grant, follow, find the end.

There are two implementations: a topic (topic_log.py), and memory (memory.py) for tests. Both pass the same test
suite.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from onewriter._errors import OnewriterError, Unavailable
from onewriter_core.ids import Position

BEGINNING = Position(-1, -1)
"""The position before every entry of every log; Pulsar's logs begin at entry 0."""


class BarrierUnsupported(Unavailable):
    """The broker cannot prove the end of its log; an append is needed to find it."""


@dataclass(frozen=True, slots=True)
class LogMessage:
    """One message of an entry."""

    content: bytes
    properties: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class LogEntry:
    """The messages of one append; the log contains all of them or none."""

    position: Position
    messages: tuple[LogMessage, ...]


class Grant(Protocol):
    """The right to append, from ``Log.acquire`` until it is handed over or lost."""

    @property
    def end(self) -> OnewriterError | None:
        """The reason of the end; None while the grant is not known to be over."""
        ...

    @property
    def waiting(self) -> int | None:
        """Number of writers that wait for the log; None if the broker does not report it."""
        ...

    async def append(self, messages: Sequence[LogMessage]) -> asyncio.Future[object]:
        """Append one entry after all earlier ones, and return the future of its receipt.

        The future raises Fenced or another definite refusal (not in the log), or OutcomeUnknown. The call
        itself raises the same errors if it does not accept the entry.
        """
        ...

    async def hand_over(self) -> None:
        """Wait for all receipts, and release the log to the next waiter. Never raises."""
        ...


class Log(Protocol):
    """A log of entries, with one writer at a time."""

    @property
    def name(self) -> str:
        """The topic's name."""
        ...

    @property
    def entry_bytes_max(self) -> int:
        """Largest content of one entry, in bytes."""
        ...

    async def acquire(self, on_change: Callable[[], None]) -> Grant:
        """Wait for the grant without a limit. Raises Refused, Unavailable.

        From then on no earlier grant appends anything. ``on_change`` is called whenever the grant's ``end`` or
        ``waiting`` changes; it must not block or raise.
        """
        ...

    def follow(self, after: Position | None) -> AsyncGenerator[LogEntry, None]:
        """Yield every entry after a position (None: from the first stored one), then all new entries.

        Raises Unavailable when the connection breaks: follow again, after the last entry.
        """
        ...

    async def end(self) -> Position:
        """Return the last entry's position, without a proof. Raises Unavailable."""
        ...

    async def barrier(self) -> Position:
        """Return a proved end: every entry that was acknowledged before the call is at or before it.

        Raises BarrierUnsupported, Unavailable.
        """
        ...
