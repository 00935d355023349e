"""What shared state needs of a log: append under a grant, follow, and know where the end is.

Two things implement it: a topic (topic_log.py) and memory (memory.py), which is the variant for
tests and passes the same suite.
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
"""In front of every entry of every log; Pulsar's own logs begin at entry 0."""


class BarrierUnsupported(Unavailable):
    """The broker cannot prove where its log ends: append something to learn it."""


@dataclass(frozen=True, slots=True)
class LogMessage:
    """One message of an entry."""

    content: bytes
    properties: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class LogEntry:
    """What was appended at once: all its messages, or none of them, are in the log."""

    position: Position
    messages: tuple[LogMessage, ...]


class Grant(Protocol):
    """The right to append, from ``Log.acquire`` until it is handed over or lost."""

    @property
    def end(self) -> OnewriterError | None:
        """Why it is over; None while it is not known to be."""
        ...

    @property
    def waiting(self) -> int | None:
        """How many wait for the log behind us; None where nobody tells."""
        ...

    async def append(self, messages: Sequence[LogMessage]) -> asyncio.Future[object]:
        """Append one entry behind all that were given before; the future of its receipt.

        The future raises Fenced or another definite refusal (not in the log), or OutcomeUnknown.
        Raises the same when the entry was not even taken.
        """
        ...

    async def hand_over(self) -> None:
        """See through what was appended and let the next in line have the log. Never raises."""
        ...


class Log(Protocol):
    """One log."""

    @property
    def name(self) -> str:
        """Of the topic."""
        ...

    @property
    def entry_bytes_max(self) -> int:
        """The largest content that one entry may have."""
        ...

    async def acquire(self, on_change: Callable[[], None]) -> Grant:
        """Wait for one's turn, for ever if need be. Raises Refused, Unavailable.

        From then on no grant of before appends anything any more. ``on_change`` is called whenever
        the grant's ``end`` or ``waiting`` changes; it must not block or raise.
        """
        ...

    def follow(self, after: Position | None) -> AsyncGenerator[LogEntry, None]:
        """Every entry behind a position, then what is appended; None: from what is kept first.

        Raises Unavailable when it breaks: follow again, behind the last entry that came.
        """
        ...

    async def end(self) -> Position:
        """The last entry's position, as the broker knows it. Raises Unavailable."""
        ...

    async def barrier(self) -> Position:
        """The same, proved: every entry acknowledged before this call is at or in front of it.

        Raises BarrierUnsupported, Unavailable.
        """
        ...
