"""A guardian: a leader of a topic that also writes to other topics under its guard (S8).

A guarded write is accepted only while the guardian's epoch is current. If the other topic is in the same bucket, the
store compares the epoch in the call that appends. If it is in another bucket, the guardian asks the broker of its own
topic for a proof, after it began the write and before it sends it.

A guardian that was frozen does not know that it was deposed, and continues to write. Every such write must fail.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tests.simulation.actors.client import Client, Gone
from tests.simulation.actors.producer import Producer
from tests.simulation.history import Operation

from onewriter_core.ids import TopicName, bucket_of
from onewriter_core.property_names import GUARD_PROPERTY
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

CHECKS_MAX = 3
"""Attempts at one proof."""

LATE_WRITES_MAX = 6
"""Largest number of rounds of writes that a guardian tries after its tenure."""


def beside(topic: str) -> str:
    """Return a topic in the same bucket. Its hash tag places it there."""
    name = TopicName.parse(topic)
    return f"persistent://{name.namespace_name}/{{{name.local}}}-audit"


def elsewhere(topic: str, buckets: int) -> str:
    """Return a topic in another bucket."""
    name = TopicName.parse(topic)
    own = bucket_of(name, buckets)
    names = (f"persistent://{name.namespace_name}/{name.local}-far-{n}" for n in range(1_000))
    return next(each for each in names if bucket_of(TopicName.parse(each), buckets) != own)


def guardian(topic: str, name: str, buckets: int) -> Callable[[Client], Awaitable[None]]:
    """Repeatedly lead a topic, and write under its guard to a topic in the same bucket and to one in another."""

    async def body(client: Client) -> None:
        while True:
            leader = Producer(client, topic, "WaitForExclusive", name=name)
            if await leader.create() and leader.epoch is not None:
                writers = [
                    Guarded(client, beside(topic), topic, leader.epoch, is_atomic=True),
                    Guarded(client, elsewhere(topic, buckets), topic, leader.epoch),
                ]
                await _lead(client, leader, writers)
                await leader.close()
                await _write_after_the_end(client, writers)
            await client.pause(0.1, 1.5)

    return body


async def _lead(client: Client, leader: Producer, writers: list[Guarded]) -> None:
    for _ in range(client.randomness.randint(5, 40)):
        if leader.is_over:
            return
        leader.send()
        for writer in writers:
            await writer.write()
        await client.pause(0.01, 0.3)


async def _write_after_the_end(client: Client, writers: list[Guarded]) -> None:
    """Write through the old producers and through new ones, like a client that does not know that it was deposed."""
    for _ in range(client.randomness.randint(0, LATE_WRITES_MAX)):
        for writer in writers:
            await writer.write()
        await client.pause(0.05, 0.5)
    for writer in writers:
        await writer.close()


class Guarded:
    """Writes to ``target`` under the guard of an epoch of ``topic``."""

    def __init__(
        self, client: Client, target: str, topic: str, epoch: int, *, is_atomic: bool = False
    ) -> None:
        self._client = client
        self._target = target
        self._topic = topic
        self._epoch = epoch
        self._is_atomic = is_atomic
        self._producer: Producer | None = None

    async def write(self) -> Operation | None:
        """Send one message. Return None if it was not sent."""
        begun = self._client.recorder.moment()
        producer = await self._opened()
        if producer is None or not (self._is_atomic or await self._is_current()):
            self._client.recorder.seen("guarded write not sent")
            return None
        return producer.send(begun=begun)

    async def close(self) -> None:
        if self._producer is not None:
            await self._producer.close()

    async def _opened(self) -> Producer | None:
        if self._producer is None or self._producer.is_over:
            if self._producer is not None:
                self._client.recorder.seen("guarded producer fenced")
            properties = {
                GUARD_PROPERTY: self._topic,
                f"{GUARD_PROPERTY}-number": str(self._epoch),
            }
            self._producer = Producer(self._client, self._target, "Shared", properties=properties)
            if not await self._producer.create():
                return None
        return self._producer

    async def _is_current(self) -> bool:
        """Ask the broker of the guard's topic whether the epoch is current."""
        for _ in range(CHECKS_MAX):
            try:
                end = await self._client.serving_broker(self._topic)
                request_id = self._client.next_id()
                answer = await end.request(
                    request_id,
                    pb.CommandCheck(request_id=request_id, topic=self._topic, epoch=self._epoch),
                )
            except Gone:
                answer = None
            if isinstance(answer, pb.CommandCheckResponse):
                self._client.recorder.seen(
                    "guard check passed" if answer.is_current else "guard check failed"
                )
                return answer.is_current
            await self._client.pause(0.1, 0.5)
        return False
