"""An owner: a task that owns a topic for a group, and reads it as the only reader of the group.

An owner requests the ownership under the generation that it knows, sometimes under a higher one. Each attempt has its
own nonce, by which the owner resumes after it lost its connection. It acknowledges with receipts, so that the history
shows whose acknowledgements the broker accepted. After it lost the ownership it tries again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from urllib.parse import urlsplit

from tests.simulation.actors.client import Backoff, Client, ClientEnd, Gone
from tests.simulation.history import Kind, Outcome
from tests.simulation.recording import value_of

from onewriter_core.errors import ServerError
from onewriter_core.ids import Position
from onewriter_core.wire.commands import Command
from onewriter_core.wire.encoding import encode_ack, encode_flow
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import Delivery, MessageId

GROUP = "owners"
PERMITS = 1_000
HOPS_MAX = 4
ALREADY_GONE = frozenset({ServerError.PRODUCER_FENCED, ServerError.PRODUCER_BUSY})


class Denied(Exception):
    """Another task owns the topic. ``current`` is its generation."""

    def __init__(self, current: int) -> None:
        super().__init__(f"generation {current} is current")
        self.current = current


class Owner:
    """Owns ``topic`` for the group. ``task`` is the identity that it sends."""

    def __init__(self, client: Client, topic: str, task: str) -> None:
        self.client = client
        self.topic = topic
        self.task = task
        self.generation = 1
        self.nonce = ""
        self.is_lost = False
        self._consumer_id = 0
        self._end: ClientEnd | None = None
        self._deliveries: deque[Position] = deque()
        self._recorder = client.recorder
        self._lives = 0

    async def run(self) -> None:
        """Own the topic repeatedly."""
        randomness, backoff = self.client.randomness, Backoff(self.client)
        while True:
            self._lives += 1
            self.nonce = f"{self.client.process.name}/{self._lives}"
            try:
                await self._begin()
                backoff.reset()
                await self._live(until=self.client.loop.time() + randomness.uniform(0.5, 8.0))
                if randomness.random() < 0.5:
                    await self._give_up()
            except Denied as denied:
                is_bold = randomness.random() < 0.5
                self.generation = denied.current + 1 if is_bold else 1
            except Gone:
                await backoff.wait()
            self._drop()
            await self.client.pause(0.2, 2.0)

    async def _begin(self) -> None:
        end, generation = await self._ask(self.generation, only_returns=False)
        self._attach(end, generation)

    async def _live(self, *, until: float) -> None:
        """Read, acknowledge, and continue on another connection when this one is lost."""
        while not self.is_lost and self.client.loop.time() < until:
            try:
                if self._end is None or self._end.is_closed:
                    end, generation = await self._ask(self.generation, only_returns=True)
                    self._recorder.seen("owner reconnected")
                    self._attach(end, generation)
                if not self._consumer_id:
                    await self._subscribe()
                await self._acknowledge()
            except Gone:
                self._consumer_id = 0
            await self.client.pause(0.02, 0.3)
        if self.is_lost:
            self._recorder.seen("owner informed that it was deposed")
            await self._acknowledge_late()

    def _attach(self, end: ClientEnd, generation: int) -> None:
        self.generation = generation
        self.is_lost = False
        self._end = end
        self._consumer_id = 0
        end.owners[self.topic, generation] = self

    def _drop(self) -> None:
        end, self._end = self._end, None
        if end is not None:
            end.owners.pop((self.topic, self.generation), None)
            end.close()
        self._consumer_id = 0
        self._deliveries.clear()

    # ------------------------------------------------------------ owning

    async def _ask(self, generation: int, *, only_returns: bool) -> tuple[ClientEnd, int]:
        """Request the ownership under ``generation``. Raises Denied or Gone."""
        operation = self._recorder.invoke(
            Kind.OWN,
            self.client.process.name,
            self.topic,
            name=GROUP,
            holder=self.nonce,
            number=generation,
        )
        try:
            end, result = await self._answer(generation, only_returns=only_returns)
        except Gone as gone:
            self._recorder.complete(operation, Outcome.INFO, str(gone))
            raise
        if result.HasField("generation"):
            self._recorder.complete(operation, Outcome.OK, epoch=result.generation)
            return end, result.generation
        if ServerError(result.error) in ALREADY_GONE:
            self._recorder.complete(operation, Outcome.FAIL, result.message)
            raise Denied(result.current_generation)
        self._recorder.complete(operation, Outcome.INFO, result.message)
        raise Gone(result.message)

    async def _answer(
        self, generation: int, *, only_returns: bool
    ) -> tuple[ClientEnd, pb.CommandOwnResponse.Result]:
        """Return the answer of the broker that serves the topic. Raises Gone."""
        port = self.client.randomness.choice(self.client.ports)
        for _ in range(HOPS_MAX):
            end = await self.client.end(port)
            request_id = self.client.next_id()
            answer = await end.request(
                request_id,
                pb.CommandOwn(
                    request_id=request_id,
                    group=GROUP,
                    resources=[pb.OwnedResource(name=self.topic, generation=generation)],
                    identity=self.task,
                    nonce=self.nonce,
                    only_returns=only_returns,
                ),
            )
            if not isinstance(answer, pb.CommandOwnResponse):
                raise Gone("not answered with results")
            (result,) = answer.results
            if not result.broker_service_url:
                return end, result
            following = urlsplit(result.broker_service_url).port
            assert following is not None
            port = following
        raise Gone("sent from broker to broker")

    async def _give_up(self) -> None:
        end = self._end
        if end is None or end.is_closed or self.is_lost:
            return
        request_id = self.client.next_id()
        await end.request(
            request_id,
            pb.CommandDisown(
                request_id=request_id,
                group=GROUP,
                resources=[pb.OwnedResource(name=self.topic, generation=self.generation)],
            ),
        )

    def lost(self, command: pb.CommandOwnershipLost) -> None:
        """The broker reports that the ownership is over or continues elsewhere."""
        if command.is_moving:
            self._end = None
            self._recorder.seen("owner redirected")
        else:
            self.is_lost = True

    # ------------------------------------------------------------ reading

    async def _subscribe(self) -> None:
        end = self._end
        if end is None:
            raise Gone("detached")
        consumer_id = self.client.next_id()
        end.consumers[consumer_id] = self
        request_id = self.client.next_id()
        properties = {
            "onewriter.own-generation": str(self.generation),
            "onewriter.own-nonce": self.nonce,
        }
        answer = await end.request(
            request_id,
            pb.CommandSubscribe(
                topic=self.topic,
                subscription=GROUP,
                sub_type=pb.CommandSubscribe.EXCLUSIVE,
                consumer_id=consumer_id,
                request_id=request_id,
                consumer_name=self.client.process.name,
                durable=True,
                initial_position=pb.CommandSubscribe.EARLIEST,
                metadata=[pb.KeyValue(key=key, value=value) for key, value in properties.items()],
            ),
        )
        if not isinstance(answer, pb.CommandSuccess):
            end.consumers.pop(consumer_id, None)
            self._recorder.seen("subscription of an owner refused")
            raise Gone("not subscribed")
        self._consumer_id = consumer_id
        self._deliveries.clear()
        end.send(encode_flow(consumer_id, PERMITS))

    async def _acknowledge(self) -> None:
        """Acknowledge some messages and wait for the receipts. Raises Gone."""
        for _ in range(self.client.randomness.randint(0, 5)):
            if not self._deliveries or self.is_lost:
                return
            await self._acknowledge_one(self._deliveries.popleft())

    async def _acknowledge_late(self) -> None:
        """Acknowledge after the loss. The history shows whether the successor's grant was answered before."""
        await self.client.pause(0.0, 1.0)
        if self._deliveries and self._consumer_id:
            try:
                await self._acknowledge_one(self._deliveries.popleft())
            except Gone:
                return

    async def _acknowledge_one(self, position: Position) -> None:
        end = self._end
        if end is None or end.is_closed:
            raise Gone("detached")
        operation = self._recorder.invoke(
            Kind.ACK,
            self.client.process.name,
            self.topic,
            position=position,
            name=GROUP,
            mode="individual",
            epoch=self.generation,
            holder=self.nonce,
        )
        request_id = self.client.next_id()
        frame = encode_ack(
            self._consumer_id, 0, [MessageId(position.ledger, position.entry)], request_id
        )
        try:
            answer = await end.ask(request_id, frame)
        except Gone as gone:
            self._recorder.complete(operation, Outcome.INFO, str(gone))
            raise
        if not isinstance(answer, pb.CommandAckResponse) or answer.HasField("error"):
            self._recorder.complete(operation, Outcome.FAIL, "refused")
            self._consumer_id = 0
            return
        self._recorder.complete(operation, Outcome.OK)

    def received(self, command: Command, payload: memoryview | None) -> None:
        """Handle a message or the end of the consumer."""
        match command:
            case Delivery():
                assert payload is not None
                operation = self._recorder.invoke(
                    Kind.DELIVER,
                    self.client.process.name,
                    self.topic,
                    position=command.message_id.position,
                    value=value_of(payload),
                    name=GROUP,
                    epoch=self.generation,
                    holder=self.nonce,
                )
                self._recorder.complete(operation, Outcome.OK)
                self._deliveries.append(command.message_id.position)
            case pb.CommandCloseConsumer():
                # The owner acknowledges its remaining messages under the old consumer id. The broker must refuse that.
                self._recorder.seen("consumer of a deposed owner closed")
            case pb.CommandAckResponse():
                end = self._end
                if end is not None:
                    end.answered(command.request_id, command)
            case _:
                pass

    def disconnected(self, end: ClientEnd) -> None:
        if end is self._end:
            self._end = None


async def own_repeatedly(client: Client, topic: str, task: str) -> None:
    """The body of a client that owns a topic, which needs onewriter's own commands."""
    client.extensions_version = 1
    await asyncio.sleep(client.randomness.uniform(0.0, 2.0))
    await Owner(client, topic, task).run()
