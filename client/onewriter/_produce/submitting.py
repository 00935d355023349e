"""The call by which messages are handed in: of producers, guarded producers and leaderships."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping

from onewriter._message import MessageId

Handed = tuple[bytes, str | None, bytes | None, Mapping[str, str] | None, int]
"""A message as it is handed on: content, key, ordering key, properties, event time in ms."""


class Submitting(ABC):
    """Whatever takes messages for a topic."""

    async def submit(
        self,
        content: bytes,
        *,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        ordering_key: bytes | None = None,
        event_time_ms: int = 0,
    ) -> asyncio.Future[MessageId]:
        """Hand a message in once there is room, and get the future of its receipt.

        Messages are appended in the order of these calls. The future ends as ``send`` does, without
        its time-out. Raises Fenced, Closed, Refused, ConfigurationError (what cannot be a message),
        and, where it is guarded, NotSent (nobody could be asked in time) when it was not taken.
        """
        return await self.take(content, key, ordering_key, properties, event_time_ms)

    @abstractmethod
    def take(self, *message: *Handed) -> Awaitable[asyncio.Future[MessageId]]:
        """As ``submit``, for who has the message in this order already."""
