"""Maps on one topic of a broker, for the contract."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.state.map_contract import LIMITS

from onewriter import AccessMode, Batching, Client, ProducerOptions
from onewriter.state import SharedMap, SharedState, SharedStateBuilder
from onewriter.state.log import LogEntry
from onewriter.state.topic_log import TopicLog


class BrokerWorld:
    def __init__(self, client: Client, topic: str) -> None:
        self.client = client
        self.topic = topic

    def map(self, keys: Any, values: Any, **options: Any) -> SharedMap[Any, Any]:
        options.setdefault("limits", LIMITS)
        return SharedMap(self.client, self.topic, keys, values, **options)

    def state(self, builder: SharedStateBuilder[Any, Any]) -> SharedState[Any, Any]:
        return builder.open(self.client, self.topic)

    async def log(self) -> list[LogEntry]:
        log = TopicLog(self.client, self.topic)
        end = await log.end()
        found: list[LogEntry] = []
        if end.entry >= 0:
            async for entry in log.follow(None):
                found.append(entry)
                if entry.position >= end:
                    break
        return found

    async def entries(self) -> list[list[bytes]]:
        return [[message.content for message in entry.messages] for entry in await self.log()]

    async def append(self, contents: list[bytes]) -> None:
        options = ProducerOptions(
            access_mode=AccessMode.WAIT_FOR_EXCLUSIVE, batching=Batching(delay_seconds=0)
        )
        producer = await self.client.create_producer(self.topic, options)
        await asyncio.gather(*[await producer.submit(content) for content in contents])
        await producer.close()
