"""The roles of simulated clients: writers of every mode, a fencer, an impostor, consumers, readers, an administrator.

A role is a *body*: an asynchronous function that a client process runs until it is killed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from tests.simulation.actors.client import Client
from tests.simulation.actors.consumer import Consumer, Reader
from tests.simulation.actors.producer import Producer, State
from tests.simulation.history import Kind, Outcome

from onewriter_broker.log.store.api import LogStore
from onewriter_broker.ownership.acquisition import adopt_force
from onewriter_core.errors import OnewriterError
from onewriter_core.ids import TopicName, bucket_of
from onewriter_core.topic.effects import Answer
from onewriter_core.topic.events import Event, FenceRequested, HandoverRequested

if TYPE_CHECKING:  # world.py imports the actors
    from tests.simulation.world import World

Body = Callable[[Client], Awaitable[None]]

HANDOVER_SECONDS_MAX = 6.0
"""An administrator gives up after this time. L3's bound is in checkers/liveness.py."""


def writer(
    topic: str,
    mode: str,
    name: str,
    *,
    priority: int = 0,
    steadiness: float = 1.0,
    serve_seconds: float = 0.0,
) -> Body:
    """Become a producer, write while it holds the topic, leave, and begin again.

    ``name`` is the producer name. If it is empty, the broker generates one. A producer with a higher ``steadiness``
    stays longer. With ``serve_seconds`` it also serves (S14): it asks the broker regularly whether it may continue.
    """

    async def body(client: Client) -> None:
        randomness = client.randomness
        while True:
            host = {"onewriter.host": f"host-{name[-1:]}"}  # writers of both topics share hosts
            producer = Producer(
                client,
                topic,
                mode,
                name=name,
                priority=priority,
                properties=host,
                serve_seconds=serve_seconds if client.extensions_version else 0.0,
            )
            if await producer.create():
                await _write(client, producer, int(randomness.uniform(10, 150) * steadiness))
                if randomness.random() < 0.5:
                    await producer.settled()
                await producer.close()
            await client.pause(0.1, 1.5)

    return body


async def _write(client: Client, producer: Producer, messages: int) -> None:
    """Send messages one at a time, or in pipelined bursts."""
    randomness = client.randomness
    while messages > 0 and producer.state is not State.OVER:
        burst = randomness.choice([1, 1, 1, 3, 8, 20])
        for _ in range(burst):
            if producer.send() is None:
                return
        messages -= burst
        if burst == 1 and randomness.random() < 0.5:
            await producer.settled()
        await client.pause(0.005, 0.15)


def fencer(topic: str) -> Body:
    """Repeatedly take the topic over, and prove each time that its previous producer is fenced."""

    async def body(client: Client) -> None:
        old: Producer | None = None
        while True:
            await client.pause(1.0, 4.0)
            producer = Producer(client, topic, "ExclusiveWithFencing", name="fencer")
            if not await producer.create():
                continue
            if old is not None and old.epoch is not None and producer.epoch is not None:
                await _prove_fenced(client, old, producer)
            await _write(client, producer, client.randomness.randint(1, 15))
            if old is not None:
                await old.close()
            old = producer

    return body


async def _prove_fenced(client: Client, old: Producer, new: Producer) -> None:
    """Send a message through the old producer. It must never get a receipt."""
    recorder = client.recorder
    if old.state is State.OVER:
        recorder.seen("old producer already fenced")
        return
    operation = old.send()
    if not await old.wait_until_over(20.0):
        recorder.seen("old producer still tries")  # a fault delays the notification of its end
    if operation is not None and operation.outcome is Outcome.OK:
        recorder.anomaly(
            f"{old.incarnation} received a receipt after {new.incarnation} was granted the topic"
        )
    elif operation is not None:
        recorder.seen("old producer fenced")


def impostor(topic: str) -> Body:
    """Present epochs that are stale or were never granted. The broker must refuse them."""

    async def body(client: Client) -> None:
        while True:
            await client.pause(2.0, 6.0)
            mode = client.randomness.choice(
                ["Exclusive", "WaitForExclusive", "ExclusiveWithFencing"]
            )
            producer = Producer(client, topic, mode, name="impostor")
            producer.epoch = client.randomness.choice([1, 2, 10**9])
            if await producer.create():
                client.recorder.anomaly(
                    f"the broker accepted the false epoch of {producer.incarnation}"
                )
                await producer.close()
            else:
                client.recorder.seen("impostor refused")

    return body


def consumer(topic: str, subscription: str = "s") -> Body:
    """Consume from a subscription for the whole run."""

    async def body(client: Client) -> None:
        await Consumer(client, topic, subscription).run()

    return body


def reader(topics: list[str]) -> Body:
    """Read a whole topic from time to time."""

    async def body(client: Client) -> None:
        while True:
            await client.pause(2.0, 6.0)
            await Reader(client, client.randomness.choice(topics)).read()

    return body


class Administrator:
    """Requests handovers, deposes holders, unloads topics, and adopts datasets that the brokers refuse.

    It calls the brokers in their processes, without HTTP.
    """

    def __init__(self, world: World, topics: list[str], randomness: random.Random) -> None:
        self._world = world
        self._topics = topics
        self._randomness = randomness
        self._requests = 0

    async def run(self) -> None:
        """Give a random order every few seconds."""
        while True:
            await asyncio.sleep(self._randomness.uniform(1.5, 5.0))
            topic = self._randomness.choice(self._topics)
            draw = self._randomness.random()
            if draw < 0.5:
                await self.handover(topic)
            elif draw < 0.75:
                await self.fence(topic)
            else:
                await self.unload(topic)

    async def handover(self, topic: str) -> None:
        """Request a planned handover from the broker that serves the topic."""
        identifier = self._identifier()
        now = self._world.loop.time()
        await self._ask(Kind.HANDOVER, topic, identifier, HandoverRequested(identifier, "", now))

    async def fence(self, topic: str) -> None:
        """Depose the holder."""
        identifier = self._identifier()
        now = self._world.loop.time()
        await self._ask(Kind.FENCE, topic, identifier, FenceRequested(identifier, None, now))

    async def _ask(self, kind: Kind, topic: str, identifier: str, event: Event) -> None:
        world = self._world
        for node in world.nodes:
            loaded = node.broker.topics.loaded.get(topic) if node.is_up else None
            if loaded is None:
                continue
            operation = world.recorder.invoke(kind, "administrator", topic)
            task = world.loop.spawn(node.process, loaded.runner.administer(event, identifier))
            await asyncio.wait([task], timeout=HANDOVER_SECONDS_MAX)
            if not task.done():
                world.loop.call(node.process, task.cancel)
                world.recorder.complete(operation, Outcome.INFO, "not answered in time")
            elif task.cancelled() or task.exception() is not None:
                world.recorder.complete(operation, Outcome.INFO, "failed")
            else:
                answer: Answer = task.result()
                if answer.refusal:
                    world.recorder.complete(operation, Outcome.FAIL, answer.refusal)
                else:
                    world.recorder.complete(operation, Outcome.OK, epoch=answer.epoch)
            return

    async def unload(self, topic: str) -> None:
        """Make the broker unload the topic, so that the next client loads it again."""
        world = self._world
        name = TopicName.parse(topic)
        for node in world.nodes:
            if node.is_up and topic in node.broker.topics.loaded:
                world.recorder.seen("unload")
                world.recorder.journal(node.process.name, f"topic.unloaded topic={topic}")
                world.loop.spawn(node.process, self._unload(node.broker.topics.unload(name)))
                return

    async def _unload(self, work: Awaitable[None]) -> None:
        try:
            await work
        except OnewriterError as error:
            self._world.recorder.seen(f"unload failed {type(error).__name__}")

    async def adopt(self) -> None:
        """Do what ``onewriter adopt --force`` does for each bucket. It changes only buckets that are refused."""
        world = self._world
        for bucket in sorted({bucket_of(TopicName.parse(t), world.buckets) for t in self._topics}):
            store: LogStore = world.plain_store()
            forced = await adopt_force(
                bucket,
                anchor=world.anchor,
                store=store,
                operator="administrator",
                reason="simulated",
                time_ms=world.wall_ms(),
                single_node=False,
            )
            if not forced.problem:
                world.recorder.seen("adopted by force")

    def _identifier(self) -> str:
        self._requests += 1
        return f"request-{self._requests}"
