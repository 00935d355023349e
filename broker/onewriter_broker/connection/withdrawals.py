"""Closes consumers that have lost the right to read, as soon as declarations change.

The right is checked when a consumer subscribes. When the declarations change, or a claim no longer
selects a pod, the broker checks all open consumers again, some per tick, so that many consumers do
not delay other work. A subscription that is being opened meanwhile is checked again when it is open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol

import structlog

from onewriter_broker.auth.authorization import Authorization
from onewriter_broker.ticks import Ticks
from onewriter_core.authorization import Action
from onewriter_core.errors import Refused
from onewriter_core.ids import Identity, TopicName

CONSUMERS_PER_TICK: Final = 200
"""Consumers that are checked in one tick of the event loop: one or two milliseconds."""

log = structlog.get_logger(__name__)


class ConnectionConsumers(Protocol):
    """The consumers of one connection."""

    identity: Identity

    def open_consumers(self) -> Iterator[tuple[int, TopicName]]:
        """The ids of the open consumers, and the topic that each one reads."""
        ...

    def withdraw(self, consumer_id: int) -> None:
        """Close a consumer and notify its client."""
        ...


class Withdrawals:
    """Checks the open consumers of one broker. ``declared`` returns the present declarations; it returns
    the same object until they change.
    """

    def __init__(
        self,
        authorization: Authorization,
        connections: Callable[[], Iterable[ConnectionConsumers]],
        declared: Callable[[], object],
    ) -> None:
        self._authorization = authorization
        self._connections = connections
        self._declared = declared
        self._judged: object = None
        self._woken = asyncio.Event()

    def check(self) -> None:
        """Check all consumers again if the declarations have changed since the last check."""
        if self._declared() is not self._judged:
            self._woken.set()

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            self._judged = self._declared()
            await self._judge()

    async def _judge(self) -> None:
        ticks = Ticks(CONSUMERS_PER_TICK)
        for each in list(self._connections()):
            for consumer_id, name in list(each.open_consumers()):
                await ticks.step()
                try:
                    self._authorization.require(each.identity, Action.CONSUME, name)
                except Refused:
                    log.info("consumer.withdrawn", topic=str(name), subject=each.identity.subject)
                    each.withdraw(consumer_id)
