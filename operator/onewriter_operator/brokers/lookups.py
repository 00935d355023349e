"""Looks up topics at the brokers in batches: one request for all topics that wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from onewriter_operator.brokers.client import BrokerClient, BrokerRefused, BrokerUnreachable
from onewriter_operator.plan.facts import StoredTopic

TOGETHER_MAX: Final = 500
"""Topics in one request."""

UNKNOWN: Final = StoredTopic(is_known=False)

log = structlog.get_logger(__name__)


class LookUps:
    """``brokers`` returns the reachable brokers. At most one look-up per running reconcile waits."""

    def __init__(
        self, brokers: Callable[[], Sequence[BrokerClient]], together_max: int = TOGETHER_MAX
    ) -> None:
        self._together_max = together_max
        self._brokers = brokers
        self._waiting: dict[str, asyncio.Future[StoredTopic]] = {}
        self._is_wanted = asyncio.Event()

    async def stored(self, topic: str) -> StoredTopic:
        """Any broker's answer about a topic; ``is_known`` False if no broker could answer."""
        answer = self._waiting.get(topic)
        if answer is None:
            answer = self._waiting[topic] = asyncio.get_running_loop().create_future()
            self._is_wanted.set()
        return await asyncio.shield(answer)

    async def run(self) -> None:
        """Send the requests until cancelled."""
        while True:
            await self._is_wanted.wait()
            together = list(self._waiting)[: self._together_max]
            waiting = {topic: self._waiting.pop(topic) for topic in together}
            if not self._waiting:
                self._is_wanted.clear()
            found = await self._ask(together)
            for topic, answer in waiting.items():
                answer.set_result(found.get(topic, UNKNOWN))

    async def _ask(self, topics: Sequence[str]) -> dict[str, StoredTopic]:
        """Ask one broker after the other, until each topic is known to one of them."""
        found: dict[str, StoredTopic] = {}
        left = list(topics)
        for broker in self._brokers():
            if not left:
                break
            try:
                known, elsewhere = await broker.look_up(left)
            except (BrokerUnreachable, BrokerRefused) as error:
                log.info("topics.unknown", broker=broker.name, count=len(left), reason=str(error))
                continue
            found |= known
            left = [topic for topic in left if topic in elsewhere]
        return found
