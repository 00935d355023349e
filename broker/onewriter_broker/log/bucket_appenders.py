"""The append path of a cluster: an Appender for each bucket, so that an undecided bucket delays no other.

In a cluster a call names one bucket. Each bucket's appender sends one call per tick and has at most one undecided
call, in order with the bucket's fences. The calls of different buckets share the connection to their primary, and
are under way at the same time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from onewriter_broker.log.appender import Appender, Statistics
from onewriter_broker.log.joint_append import JointAppend
from onewriter_broker.log.limits import LogLimits
from onewriter_broker.log.store.api import BrokenKey, Fence, LogStore, Outcome, OwnWrite
from onewriter_broker.log.topic_log.atomic_publish import Publish
from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_core.api.topic import Durability
from onewriter_core.errors import Refused, ServerError
from onewriter_core.ids import Position, TopicName


class BucketAppenders:
    """Implements AppendPath (appender.py). ``run`` must be running; it ends when cancelled."""

    def __init__(
        self,
        store: LogStore,
        *,
        now: Callable[[], float],
        wall_ms: Callable[[], int],
        deposed: Callable[[int, Outcome], None],
        broken: Callable[[TopicName, BrokenKey], None],
        limits: LogLimits = LogLimits(),
    ) -> None:
        self.statistics = Statistics()
        self.written: dict[TopicLog, None] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._appenders: dict[int, Appender] = {}

        def make() -> Appender:
            return Appender(
                store,
                now=now,
                wall_ms=wall_ms,
                deposed=deposed,
                broken=broken,
                limits=limits,
                statistics=self.statistics,
                written=self.written,
            )

        self._make = make
        # Proofs concern a whole dataset. They wait for no bucket's call.
        self._proofs = make()

    def append_soon(self, topic_log: TopicLog) -> None:
        binding = topic_log.binding
        if binding is not None:  # a log that is not open yet is gathered again when it is
            self._of(binding.bucket).append_soon(topic_log)

    async def fence(self, fence: Fence, logs: Sequence[TopicLog], *, flush: bool) -> Outcome:
        return await self._of(fence.binding.bucket).fence(fence, logs, flush=flush)

    async def own(self, write: OwnWrite, durability: Durability) -> Outcome:
        return await self._of(write.binding.bucket).own(write, durability)

    def abandon(self, topic_log: TopicLog, publish: Publish, why: str) -> bool:
        binding = topic_log.binding
        appender = self._proofs if binding is None else self._of(binding.bucket)
        return appender.abandon(topic_log, publish, why)

    async def append_jointly(self, request: JointAppend) -> list[Position]:
        for topic_log in request.logs:
            if topic_log.binding is not None:
                return await self._of(topic_log.binding.bucket).append_jointly(request)
        raise Refused(ServerError.SERVICE_NOT_READY, "the topics are not served here now; retry")

    async def prove(self, durability: Durability, replid: str) -> None:
        await self._proofs.prove(durability, replid)

    async def run(self) -> None:
        """Send calls until cancelled."""
        async with asyncio.TaskGroup() as self._tasks:
            for appender in (self._proofs, *self._appenders.values()):
                self._tasks.create_task(appender.run())

    def _of(self, bucket: int) -> Appender:
        appender = self._appenders.get(bucket)
        if appender is None:
            appender = self._appenders[bucket] = self._make()
            if self._tasks is not None:
                self._tasks.create_task(appender.run())
        return appender
