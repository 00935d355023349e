"""A producer that behaves like those of the stock clients (C++, Java), over the wire.

It looks the topic up, connects, sends PRODUCER, and waits if the broker answers so. After a lost connection or
CLOSE_PRODUCER it returns with its topic epoch and a higher reconnect counter, and sends all messages without a receipt
again, in order. A fenced producer never returns, and its pending messages fail.

Every second producer behaves like that of the C++ client: if it returns before its first receipt, it restarts its
sequence ids.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections import deque
from dataclasses import dataclass, field

from tests.simulation.actors.client import Backoff, Client, ClientEnd, Gone
from tests.simulation.history import Kind, Operation, Outcome

from onewriter_core.property_names import GUARD_PROPERTY
from onewriter_core.wire.commands import Command
from onewriter_core.wire.encoding import encode_send_header
from onewriter_core.wire.messages import build_entry
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import SendReceipt

DRIFT = 0.01
"""Share of its time that a serving process deducts, because its clock may be slow."""

CREATE_SECONDS = 25.0
"""A producer gives up this time after its first attempt, unless it waits in the queue."""

MODES = {
    "Shared": pb.SHARED,
    "Exclusive": pb.EXCLUSIVE,
    "WaitForExclusive": pb.WAIT_FOR_EXCLUSIVE,
    "ExclusiveWithFencing": pb.EXCLUSIVE_WITH_FENCING,
}


class State(enum.Enum):
    """The state of a producer."""

    CREATING = "creating"
    READY = "ready"
    RECONNECTING = "reconnecting"
    OVER = "over"
    """Refused, fenced, given up or closed. It never returns."""


@dataclass(slots=True, eq=False)
class Pending:
    """A message without a receipt, and the connections that it was written to."""

    operation: Operation
    sequence_id: int
    frame: bytes
    written_to: list[ClientEnd] = field(default_factory=list)


class Producer:
    """One producer object. ``incarnation`` is unique in the run."""

    def __init__(
        self,
        client: Client,
        topic: str,
        mode: str,
        *,
        name: str = "",
        priority: int = 0,
        properties: dict[str, str] | None = None,
        serve_seconds: float = 0.0,
    ) -> None:
        self.client = client
        self.topic = topic
        self.mode = mode
        self.name = name
        self.priority = priority
        self.properties = dict(properties or {})
        self.serve_seconds = serve_seconds
        if serve_seconds:
            self.properties["onewriter.serve-seconds"] = str(serve_seconds)
        self.producer_id = client.next_id()
        self.incarnation = f"{client.process.name}.{self.producer_id}"
        self.state: State = State.CREATING
        self.epoch: int | None = None
        self.error = ""
        self.pending: deque[Pending] = deque()
        self._recorder = client.recorder
        self._sent = 0
        self._sequence = 0
        self._has_receipt = False
        self._reconnects = 0
        self._end: ClientEnd | None = None
        self._request_id = 0
        self._operation: Operation | None = None
        self._was_closed_over: ClientEnd | None = None
        self._changed = asyncio.Event()
        self._is_waiting = False
        self._serves: list[Operation] = []

    @property
    def is_over(self) -> bool:
        """Whether the producer is over. A property, because mypy does not expect ``state`` to change during a wait."""
        return self.state is State.OVER

    # ------------------------------------------------------------ calls of the application

    async def create(self) -> bool:
        """Become a producer. Return False if the broker refused it, or did not grant the topic in time."""
        self._operation = self._recorder.invoke(
            Kind.GRANT,
            self.client.process.name,
            self.topic,
            holder=self.incarnation,
            name=self.name,
            mode=self.mode,
            number=self.priority,
        )
        self.client.loop.spawn(self.client.process, self._stay())
        if self.serve_seconds:
            self.client.loop.spawn(self.client.process, self._serve())
        while self.state is State.CREATING:
            await self._change()
        return self.state is State.READY

    def send(self, begun: tuple[int, float] | None = None) -> Operation | None:
        """Send one message. Return None if the producer is over.

        ``begun`` is the moment in which the application began the write, if that was earlier.
        """
        if self.state is State.OVER:
            return None
        value = f"{self.incarnation}/{self._sent}"
        entry = build_entry(
            pb.MessageMetadata(
                producer_name=self.name,
                sequence_id=self._sequence,
                publish_time=int(self.client.loop.time() * 1000) + 1,
            ),
            value.encode(),
        )
        operation = self._recorder.invoke(
            Kind.APPEND,
            self.client.process.name,
            self.topic,
            holder=self.incarnation,
            epoch=self.epoch,
            number=self._sent,
            value=value,
            mode=self.mode,
            guard=self.properties.get(GUARD_PROPERTY, ""),
            guard_epoch=int(self.properties.get(f"{GUARD_PROPERTY}-number", "0")),
        )
        if begun is not None:
            operation.invoked, operation.invoked_at = begun
        header = encode_send_header(self.producer_id, self._sequence, len(entry))
        pending = Pending(operation, self._sequence, header + entry)
        self._sequence += 1
        self._sent += 1
        self.pending.append(pending)
        if self.state is State.READY:
            self._write(pending)
        return operation

    async def close(self) -> None:
        """Close the producer at the broker, if the connection still exists."""
        end = self._end
        self._over("closed", Outcome.INFO)
        if end is not None and not end.is_closed:  # also while PRODUCER is not answered yet
            request_id = self.client.next_id()
            with contextlib.suppress(Gone):
                await end.request(
                    request_id,
                    pb.CommandCloseProducer(producer_id=self.producer_id, request_id=request_id),
                )

    async def wait_until_over(self, seconds: float) -> bool:
        """Wait until the producer is over. Return False if it is not within this time."""
        try:
            async with asyncio.timeout(seconds):
                while self.state is not State.OVER:
                    await self._change()
        except TimeoutError:
            return False
        return True

    async def settled(self) -> None:
        """Wait until no message is pending, or the producer is over."""
        while self.pending and self.state is not State.OVER:
            await self._change()

    async def _serve(self) -> None:
        """Serve while the broker confirms regularly that the producer may."""
        while not self.is_over:
            await asyncio.sleep(self.serve_seconds / 3)
            end = self._end
            if self.state is not State.READY or end is None or self.epoch is None:
                continue
            operation = self._recorder.invoke(
                Kind.SERVE,
                self.client.process.name,
                self.topic,
                holder=self.incarnation,
                epoch=self.epoch,
            )
            request_id = self.client.next_id()
            question = pb.CommandCheck(request_id=request_id, topic=self.topic, epoch=self.epoch)
            try:
                answer = await end.request(request_id, question)
            except Gone:
                continue
            is_current = isinstance(answer, pb.CommandCheckResponse) and answer.is_current
            if is_current and not self.is_over:
                operation.until = operation.invoked_at + self.serve_seconds * (1 - DRIFT)
                self._serves.append(operation)
                self._recorder.complete(operation, Outcome.OK)

    # ------------------------------------------------------------ staying connected

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _stay(self) -> None:
        backoff = Backoff(self.client)
        started_at = self.client.loop.time()
        while not self.is_over:
            try:
                await self._attach()
                backoff.reset()
                while self._end is not None and not self.is_over:
                    await self._change()
            except Gone as gone:
                self._recorder.seen(f"gone: {gone}")
                self._detach()
            if self.is_over:
                return
            late = self.client.loop.time() - started_at > CREATE_SECONDS
            if self.state is State.CREATING and late:
                self._over("not created in time", Outcome.INFO)
                return
            await backoff.wait()

    async def _attach(self) -> None:
        """Request the topic and wait for the answer. Raises Gone if the producer must try again."""
        end = await self.client.serving_broker(self.topic)
        if self.is_over:
            return
        request_id = self.client.next_id()
        self._request_id = request_id
        self._is_waiting = False
        command = pb.CommandProducer(
            topic=self.topic,
            producer_id=self.producer_id,
            request_id=request_id,
            producer_name=self.name or None,
            user_provided_producer_name=bool(self.name),
            epoch=self._reconnects,
            producer_access_mode=MODES[self.mode],
            topic_epoch=self.epoch,
        )
        if self.priority:
            self.properties["onewriter.queue-priority"] = str(self.priority)
        for key, value in self.properties.items():
            command.metadata.add(key=key, value=value)
        if self.state is not State.CREATING and self._operation is None:
            self._operation = self._recorder.invoke(
                Kind.RESUME,
                self.client.process.name,
                self.topic,
                holder=self.incarnation,
                name=self.name,
                mode=self.mode,
                epoch=self.epoch,
            )
        self._end = end
        end.producers[self.producer_id] = self
        end.listeners[request_id] = self
        end.write(command)
        asked_at = self.client.loop.time()
        while self._end is end and not self._is_waiting and self.state is not State.READY:
            try:
                async with asyncio.timeout_at(asked_at + 15.0):
                    await self._change()
            except TimeoutError:
                if not end.is_closed:  # as stock clients do: it frees the producer id
                    close_id = self.client.next_id()
                    end.write(
                        pb.CommandCloseProducer(producer_id=self.producer_id, request_id=close_id)
                    )
                raise Gone("PRODUCER was not answered") from None
            if self.is_over:
                return

    def _detach(self) -> None:
        end = self._end
        if end is not None:
            self._end = None
            end.producers.pop(self.producer_id, None)
            end.listeners.pop(self._request_id, None)
        if self.state is State.READY:
            self.state = State.RECONNECTING
            self._recorder.holds_no_more(self.incarnation)
        self._reconnects += 1
        self._changed.set()

    def disconnected(self, end: ClientEnd) -> None:
        """Handle the loss of a connection."""
        if end is self._end:
            self._detach()

    # ------------------------------------------------------------ messages from the broker

    def received(self, command: Command, _payload: memoryview | None) -> None:
        """Handle an answer to PRODUCER, a receipt, or the end of the producer."""
        match command:
            case pb.CommandProducerSuccess():
                self._succeeded(command)
            case pb.CommandError():
                self._refused(command)
            case SendReceipt():
                self._receipt(command)
            case pb.CommandCloseProducer():
                if self.state is not State.READY:
                    self._recorder.anomaly(
                        f"CLOSE_PRODUCER for {self.incarnation}, which does not hold the topic"
                    )
                self._recorder.seen("producer closed by the broker")
                self._was_closed_over = self._end
                self._detach()
            case pb.CommandSendError():
                self._recorder.anomaly(f"SEND_ERROR for {self.incarnation}: {command.message}")
            case _:
                self._recorder.anomaly(f"{self.incarnation} received an unexpected {command!r}")
        self._changed.set()

    def _succeeded(self, command: pb.CommandProducerSuccess) -> None:
        if command.request_id != self._request_id or self.state is State.OVER:
            return
        if not command.producer_ready:
            self._is_waiting = True
            self.name = command.producer_name
            if self._operation is not None and not self._operation.is_waiting:
                self._operation.is_waiting = True
                self._recorder.seen("producer waits")
            return
        self.name = command.producer_name
        epoch = command.topic_epoch if command.HasField("topic_epoch") else None
        operation = self._operation
        assert operation is not None
        self._operation = None
        if operation.kind is Kind.RESUME and self.mode != "Shared" and epoch != self.epoch:
            self._recorder.anomaly(
                f"{self.incarnation} resumed epoch {self.epoch} and received epoch {epoch}"
            )
        operation.name = self.name
        self._recorder.complete(operation, Outcome.OK, epoch=epoch)
        self._recorder.holds(self.topic, self.client.process.name, self.incarnation)
        self.epoch = epoch
        self.state = State.READY
        if not self._has_receipt and self.producer_id % 2:
            if self.pending:
                self._recorder.seen("sequence ids restarted")
            self._sequence = command.last_sequence_id + 1
        for pending in self.pending:
            self._write(pending)

    def _write(self, pending: Pending) -> None:
        assert self._end is not None
        if pending.written_to:
            self._recorder.seen("message resent")
        if pending.operation.epoch is None:
            pending.operation.epoch = self.epoch
        pending.written_to.append(self._end)
        self._end.send(pending.frame)

    def _receipt(self, receipt: SendReceipt) -> None:
        if not self.pending:
            return
        first = self.pending[0]
        if receipt.sequence_id > first.sequence_id:
            self._recorder.anomaly(
                f"{self.incarnation}: receipt {receipt.sequence_id} before {first.sequence_id}"
            )
            return
        if receipt.sequence_id < first.sequence_id:
            return  # the message already has a receipt
        self._has_receipt = True
        assert receipt.message_id is not None
        self.pending.popleft()
        self._recorder.complete(first.operation, Outcome.OK, position=receipt.message_id.position)

    def _refused(self, command: pb.CommandError) -> None:
        name = pb.ServerError.Name(command.error)
        self._recorder.seen(f"refused.{self.mode}.{name}")
        if command.error == pb.PRODUCER_FENCED:
            self._over(name, Outcome.FAIL)
        elif command.error == pb.SERVICE_NOT_READY:
            self._recorder.seen(f"not ready: {command.message[:60]}")
            self._detach()
        elif self.state is State.CREATING:
            self._over(name, Outcome.FAIL)
        else:
            self._detach()  # ProducerBusy and similar errors are retried without limit

    def _over(self, why: str, outcome: Outcome) -> None:
        """End the producer. Its pending messages failed (FAIL), or their outcome is unknown (INFO)."""
        if self.state is State.OVER:
            return
        end = self._end
        self.error = why
        self.state = State.OVER
        self._recorder.holds_no_more(self.incarnation)
        for serve in self._serves:
            serve.until = min(serve.until, self.client.loop.time())
        if end is not None:
            end.producers.pop(self.producer_id, None)
            end.listeners.pop(self._request_id, None)
        self._end = None
        if self._operation is not None:
            self._recorder.complete(self._operation, outcome, why)
            self._operation = None
        for pending in self.pending:
            definite = outcome is Outcome.FAIL and all(
                each is end and each is self._was_closed_over for each in pending.written_to
            )
            self._recorder.complete(
                pending.operation, Outcome.FAIL if definite else Outcome.INFO, why
            )
        self.pending.clear()
        self._changed.set()
