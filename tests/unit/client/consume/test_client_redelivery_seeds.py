"""S9 for the SDK's consumer, over seeds: cuts, closings, late messages and redeliveries in any order."""

from __future__ import annotations

import contextlib
import random

import pytest
from tests.unit.client.fake_broker import FakeBroker, FakeLink, client_of
from tests.unit.client.fake_topic import LEDGER, FakeTopic

from onewriter import Consumer, ConsumerOptions, MessageId, NoMessage, OutcomeUnknown
from onewriter._config import Backoff
from onewriter._consume import stream
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

SEEDS = 40
STEPS = 40

Redeliver = pb.CommandRedeliverUnacknowledgedMessages


class Scenario:
    """What the consumer may be handed next, by what happened."""

    def __init__(self, topic: FakeTopic, consumer: Consumer, dice: random.Random) -> None:
        self._topic = topic
        self._consumer = consumer
        self._dice = dice
        self._next = 0
        self._breaks = 0
        """How often the connection broke, or the topic moved: each time all may come again."""
        topic.broker.answers[Redeliver] = self._redeliver

    def _redeliver(self, link: FakeLink, command: Redeliver) -> None:
        """At times the connection breaks over it, at times messages of before come first."""
        fate = self._dice.random()
        if fate < 0.1:
            link.cut()
            return
        subscriber = self._topic.find(link, command.consumer_id)
        if subscriber is None:
            self._topic.redeliver(link, command)
            return
        may_send = subscriber.permits > 0 and subscriber.next < len(self._topic.entries)
        if fate < 0.6 and may_send:
            self._topic.send(subscriber, subscriber.next)
            subscriber.next += 1
        if fate < 0.2:
            self._topic.rewind(link, command)  # taken, and the answer is lost
            link.cut()
        else:
            self._topic.redeliver(link, command)

    async def step(self) -> None:
        match self._dice.choice(("publish", "receive", "receive", "acknowledge", "again", "break")):
            case "publish":
                count = self._dice.randint(1, 4)
                begin = len(self._topic.entries)
                self._topic.is_silent = self._dice.random() < 0.3
                self._topic.publish(*(b"%d" % number for number in range(begin, begin + count)))
                self._topic.is_silent = False
            case "receive":
                for _ in range(self._dice.randint(1, 4)):
                    with contextlib.suppress(NoMessage):
                        await self._receive(timeout_seconds=0.002)
            case "acknowledge":
                await self._acknowledge()
            case "again":
                await self._consumer.redeliver_unacknowledged()
                self._next = self._topic.first_unacknowledged()
                self._breaks = 0
            case "break":
                self._breaks += 1
                if self._dice.random() < 0.5:
                    self._topic.broker.links[-1].cut()
                else:
                    self._topic.close_consumers()

    async def _receive(self, timeout_seconds: float) -> None:
        message = await self._consumer.receive(timeout_seconds=timeout_seconds)
        found = int(message.content)
        if found != self._next:
            assert self._breaks > 0, f"{found} instead of {self._next}"
            assert found == self._topic.first_unacknowledged()
            self._breaks -= 1
        self._next = found + 1

    async def _acknowledge(self) -> None:
        if self._next > self._topic.first_unacknowledged() and self._breaks == 0:
            number = self._dice.randint(self._topic.first_unacknowledged(), self._next - 1)
            with contextlib.suppress(OutcomeUnknown):
                await self._consumer.acknowledge_cumulative(MessageId(LEDGER, number))

    async def finish(self) -> None:
        """Everything that is not acknowledged comes, in its order, and nothing else."""
        await self._consumer.redeliver_unacknowledged()
        self._breaks = 0
        self._next = self._topic.first_unacknowledged()
        self._topic.deliver()
        while self._next < len(self._topic.entries):
            await self._receive(timeout_seconds=60)
        with pytest.raises(NoMessage):
            await self._receive(timeout_seconds=0.01)


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_seeded_scenarios_deliver_messages_in_the_expected_order(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(stream, "Backoff", lambda: Backoff(0.001, 0.01))
    dice = random.Random(seed)
    topic = FakeTopic(broker)
    async with client_of(broker) as client:
        options = ConsumerOptions(queue_messages_max=dice.choice([1, 3, 1_000]))
        scenario = Scenario(topic, await client.subscribe("orders", "audit", options), dice)
        for _ in range(STEPS):
            await scenario.step()
        await scenario.finish()
