"""A consumer of a durable Failover subscription, and a reader that reads a whole log.

The consumer acknowledges its messages one by one or cumulatively. From time to time it requests redelivery under a
higher consumer epoch. From then on it drops messages with a lower consumer epoch (PIP-84).
"""

from __future__ import annotations

import asyncio
from collections import deque

from tests.simulation.actors.client import Backoff, Client, ClientEnd, Gone
from tests.simulation.history import Kind, Outcome
from tests.simulation.recording import value_of

from onewriter_core.ids import EARLIEST, Position
from onewriter_core.wire.commands import Command
from onewriter_core.wire.encoding import encode_ack, encode_flow
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import Delivery, MessageId

PERMITS = 40
INDIVIDUAL, CUMULATIVE = 0, 1
EARLIEST_WIRE = 2**64 - 1
READ_SECONDS = 20.0
"""A reader gives up after this time."""


class Consumer:
    """One consumer of a subscription."""

    def __init__(self, client: Client, topic: str, subscription: str) -> None:
        self.client = client
        self.topic = topic
        self.subscription = subscription
        self.consumer_id = client.next_id()
        self.epoch = 0
        self.is_hasty = False
        """Whether it acknowledges everything at once, because the run is about to end."""
        self._recorder = client.recorder
        self._end: ClientEnd | None = None
        self._unacknowledged: deque[Position] = deque()
        self._granted = 0
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Stay subscribed until cancelled."""
        backoff = Backoff(self.client)
        while True:
            try:
                await self._subscribe()
                backoff.reset()
                while self._end is not None:
                    await self._work()
            except Gone:
                self._drop()
            await backoff.wait()

    async def _subscribe(self) -> None:
        end = await self.client.serving_broker(self.topic)
        request_id = self.client.next_id()
        end.consumers[self.consumer_id] = self
        answer = await end.request(
            request_id,
            pb.CommandSubscribe(
                topic=self.topic,
                subscription=self.subscription,
                sub_type=pb.CommandSubscribe.FAILOVER,
                consumer_id=self.consumer_id,
                request_id=request_id,
                consumer_name=self.client.process.name,
                durable=True,
                initial_position=pb.CommandSubscribe.EARLIEST,
                consumer_epoch=self.epoch,
            ),
        )
        if not isinstance(answer, pb.CommandSuccess):
            self._recorder.seen("subscription refused")
            raise Gone("not subscribed")
        self._recorder.seen("subscribed")
        self._end = end
        self._unacknowledged.clear()
        self._granted = PERMITS
        end.send(encode_flow(self.consumer_id, PERMITS))

    async def _work(self) -> None:
        """Wait, acknowledge some messages, and sometimes request redelivery of all others."""
        randomness = self.client.randomness
        await self.client.pause(0.02, 0.3)
        end = self._end
        if end is None:
            return
        if self._unacknowledged and (self.is_hasty or randomness.random() < 0.8):
            self._acknowledge(end)
        if not self.is_hasty and randomness.random() < 0.05:
            self.epoch += 1
            self._unacknowledged.clear()
            operation = self._recorder.invoke(
                Kind.REDELIVER,
                self.client.process.name,
                self.topic,
                epoch=self.epoch,
                name=self.subscription,
            )
            end.write(
                pb.CommandRedeliverUnacknowledgedMessages(
                    consumer_id=self.consumer_id, consumer_epoch=self.epoch
                )
            )
            self._recorder.complete(operation, Outcome.OK)

    def _acknowledge(self, end: ClientEnd) -> None:
        randomness = self.client.randomness
        if self.is_hasty or randomness.random() < 0.3:
            positions = [self._unacknowledged[-1]]
            kind = CUMULATIVE
            self._unacknowledged.clear()
        else:
            count = randomness.randint(1, len(self._unacknowledged))
            positions = [self._unacknowledged.popleft() for _ in range(count)]
            kind = INDIVIDUAL
        for position in positions:
            operation = self._recorder.invoke(
                Kind.ACK,
                self.client.process.name,
                self.topic,
                position=position,
                name=self.subscription,
                mode="cumulative" if kind == CUMULATIVE else "individual",
            )
            self._recorder.complete(operation, Outcome.OK)
        end.send(
            encode_ack(self.consumer_id, kind, [MessageId(p.ledger, p.entry) for p in positions])
        )

    def received(self, command: Command, payload: memoryview | None) -> None:
        """Handle a message or the end of the consumer."""
        match command:
            case Delivery():
                assert payload is not None
                self._delivered(command, payload)
            case pb.CommandCloseConsumer():
                self._drop()
            case _:
                pass

    def _delivered(self, delivery: Delivery, payload: memoryview) -> None:
        end = self._end
        if end is None:
            return
        position = delivery.message_id.position
        is_stale = delivery.consumer_epoch is not None and delivery.consumer_epoch < self.epoch
        self._granted -= 1
        if self._granted <= PERMITS // 2:
            end.send(encode_flow(self.consumer_id, PERMITS - self._granted))
            self._granted = PERMITS
        if is_stale:
            self._recorder.seen("stale delivery dropped")
            return
        operation = self._recorder.invoke(
            Kind.DELIVER,
            self.client.process.name,
            self.topic,
            position=position,
            value=value_of(payload),
            name=self.subscription,
            epoch=self.epoch,
        )
        self._recorder.complete(operation, Outcome.OK)
        self._unacknowledged.append(position)

    def disconnected(self, end: ClientEnd) -> None:
        if end is self._end:
            self._drop()

    def _drop(self) -> None:
        end = self._end
        self._end = None
        if end is not None:
            end.consumers.pop(self.consumer_id, None)
        self.consumer_id = self.client.next_id()


class Reader:
    """Reads a topic once, from its beginning to its present end."""

    def __init__(self, client: Client, topic: str) -> None:
        self.client = client
        self.topic = topic
        self.consumer_id = client.next_id()
        self._values: list[tuple[Position, str]] = []
        self._changed = asyncio.Event()
        self._is_over = False

    async def read(self) -> bool:
        """Read the log. Return whether the reader reached the end."""
        recorder = self.client.recorder
        operation = recorder.invoke(Kind.READ, self.client.process.name, self.topic)
        try:
            async with asyncio.timeout(READ_SECONDS):
                await self._read()
        except (Gone, TimeoutError) as error:
            recorder.complete(operation, Outcome.INFO, str(error))
            return False
        operation.values = self._values
        recorder.complete(operation, Outcome.OK)
        return True

    async def _read(self) -> None:
        end = await self.client.serving_broker(self.topic)
        end.consumers[self.consumer_id] = self
        request_id = self.client.next_id()
        answer = await end.request(
            request_id,
            pb.CommandSubscribe(
                topic=self.topic,
                subscription=f"reader-{self.client.process.name}-{self.consumer_id}",
                sub_type=pb.CommandSubscribe.EXCLUSIVE,
                consumer_id=self.consumer_id,
                request_id=request_id,
                consumer_name=f"reader-{self.consumer_id}",
                durable=False,
                start_message_id=pb.MessageIdData(ledger_id=EARLIEST_WIRE, entry_id=EARLIEST_WIRE),
            ),
        )
        if not isinstance(answer, pb.CommandSuccess):
            raise Gone("not subscribed")
        request_id = self.client.next_id()
        last = await end.request(
            request_id,
            pb.CommandGetLastMessageId(consumer_id=self.consumer_id, request_id=request_id),
        )
        if not isinstance(last, pb.CommandGetLastMessageIdResponse):
            raise Gone("no last message id")
        until = EARLIEST
        if last.last_message_id.ledger_id != EARLIEST_WIRE:
            until = Position(last.last_message_id.ledger_id, last.last_message_id.entry_id)
        end.send(encode_flow(self.consumer_id, 1000))
        while (self._values[-1][0] if self._values else EARLIEST) < until:
            if self._is_over:
                raise Gone("closed")
            self._changed.clear()
            await self._changed.wait()
        end.consumers.pop(self.consumer_id, None)
        request_id = self.client.next_id()
        end.write(pb.CommandCloseConsumer(consumer_id=self.consumer_id, request_id=request_id))

    def received(self, command: Command, payload: memoryview | None) -> None:
        """Handle a message or the end of the consumer."""
        if isinstance(command, Delivery):
            assert payload is not None
            self._values.append((command.message_id.position, value_of(payload)))
            if len(self._values) % 500 == 0:
                end = self.client.ends
                for each in end.values():
                    if each.consumers.get(self.consumer_id) is self:
                        each.send(encode_flow(self.consumer_id, 500))
        elif isinstance(command, pb.CommandCloseConsumer):
            self._is_over = True
        self._changed.set()

    def disconnected(self, _end: ClientEnd) -> None:
        self._is_over = True
        self._changed.set()
