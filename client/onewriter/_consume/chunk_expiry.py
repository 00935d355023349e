"""Expiry of incomplete chunked messages: the timer for _consume/chunks.py."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from onewriter._consume.chunks import CHUNKED_BYTES_MAX, ChunkAssembler
from onewriter._message import MessageId
from onewriter._transport.connection import STALL_SECONDS

CHUNKS_EXPIRE_SECONDS = 60.0
"""Longest wait for a message's next chunk; the default of Pulsar's clients."""


class ChunkLimits(NamedTuple):
    """Limits of incomplete chunked messages. ``expire_seconds`` 0: they never expire."""

    messages_max: int
    expire_seconds: float
    bytes_max: int = CHUNKED_BYTES_MAX
    stall_seconds: float = STALL_SECONDS
    """A timer that rings later than this shows that the process did not run for a while."""


class ChunkReceiver(Protocol):
    """The callbacks; see Role."""

    def chunk_begun(self, first: MessageId) -> None: ...

    def chunks_given_up(self, chunk_ids: Sequence[MessageId]) -> None: ...


class ChunkExpiry:
    """A ChunkAssembler for one receiver, and its timer; ``stop`` it in the end.

    Nothing expires while chunks may be waiting unread: after the process did not run for a while, and unless
    ``is_caught_up`` returns True, which means that the broker has permits to send.
    """

    def __init__(
        self,
        topic: str,
        receiver: ChunkReceiver,
        limits: ChunkLimits,
        is_caught_up: Callable[[], bool],
    ) -> None:
        self.assembler = ChunkAssembler(
            topic, self._begun, receiver.chunks_given_up, limits.messages_max, limits.bytes_max
        )
        self._receiver = receiver
        self._seconds = limits.expire_seconds
        self._stall_seconds = limits.stall_seconds
        self._is_caught_up = is_caught_up
        self._timer: asyncio.TimerHandle | None = None

    def stop(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _begun(self, first: MessageId) -> None:
        self._receiver.chunk_begun(first)
        if self._timer is None and self._seconds:
            self._wind()

    def _wind(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + self._seconds
        self._timer = loop.call_at(due, self._rings, due)

    def _rings(self, due: float) -> None:
        self._timer = None
        late_seconds = asyncio.get_running_loop().time() - due
        if late_seconds < self._stall_seconds and self._is_caught_up():
            self.assembler.expire()
        if self.assembler:
            self._wind()
