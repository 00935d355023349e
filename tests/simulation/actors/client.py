"""A simulated client process: connections, look-ups and requests, as in a stock client.

It answers pings at once, as stock clients do from their I/O threads. A frozen process does not answer them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Protocol
from urllib.parse import urlsplit

from google.protobuf.message import Message
from tests.simulation.loop import Process, VirtualLoop
from tests.simulation.network import End, Network, Wire
from tests.simulation.recording import Recorder

from onewriter_core.wire.client import ClientConnection
from onewriter_core.wire.commands import Command
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import Delivery, SendReceipt

REQUEST_SECONDS = 15.0
"""A request without an answer fails after this time (30 s in stock clients)."""

KEEP_ALIVE_SECONDS = 8.0
"""Interval of a client's pings. It closes if no byte arrives between two of them (30 s in stock clients)."""

BACKOFF_SECONDS = (0.1, 2.0)
"""The first and the longest pause between two attempts to connect."""


class Gone(Exception):
    """The connection ended or could not be made, or the request was not answered."""


class Handler(Protocol):
    """A producer or consumer that uses a connection."""

    def received(self, command: Command, payload: memoryview | None) -> None: ...

    def disconnected(self, end: ClientEnd) -> None: ...


class OwnerHandler(Protocol):
    """An owner of resources that uses a connection."""

    def lost(self, command: pb.CommandOwnershipLost) -> None: ...


class ClientEnd(End):
    """A client's end of one connection."""

    def __init__(self, client: Client, wire: Wire) -> None:
        super().__init__(client.process, wire)
        self.client = client
        self.codec = ClientConnection()
        self.requests: dict[int, asyncio.Future[Command | None]] = {}
        self.producers: dict[int, Handler] = {}
        self.consumers: dict[int, Handler] = {}
        self.listeners: dict[int, Handler] = {}
        """Producers whose PRODUCER request may be answered twice: ready=false, then ready."""
        self.owners: dict[tuple[str, int], OwnerHandler] = {}
        self.connected: asyncio.Future[bool] = client.loop.create_future()
        self.received_at = client.loop.time()

    def write(self, message: Message) -> None:
        self.send(self.codec.encode(message))

    async def request(self, request_id: int, message: Message) -> Command:
        """Send a request and wait for its answer. Raises Gone."""
        return await self.ask(request_id, self.codec.encode(message))

    async def ask(self, request_id: int, frame: bytes) -> Command:
        """Send an encoded request and wait for its answer. Raises Gone."""
        if self.is_closed:
            raise Gone("not connected")
        answer: asyncio.Future[Command | None] = self.client.loop.create_future()
        self.requests[request_id] = answer
        self.send(frame)
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                found = await answer
        except TimeoutError:
            raise Gone("not answered") from None
        finally:
            self.requests.pop(request_id, None)
        if found is None:
            raise Gone("connection lost")
        return found

    def received(self, data: bytes) -> None:
        self.received_at = self.client.loop.time()
        for command, payload in self.codec.feed(data):
            self._received(command, payload)

    def _received(self, command: Command, payload: memoryview | None) -> None:
        match command:
            case pb.CommandPing():
                self.write(pb.CommandPong())
            case pb.CommandPong():
                pass
            case pb.CommandConnected():
                self.connected.set_result(True)
            case SendReceipt() | pb.CommandSendError() | pb.CommandCloseProducer():
                handler = self.producers.get(command.producer_id)
                if handler is not None:
                    handler.received(command, payload)
            case pb.CommandQueueChanged() if self.client.extensions_version:
                self.client.recorder.seen("queue notice received")
            case (
                Delivery()
                | pb.CommandCloseConsumer()
                | pb.CommandActiveConsumerChange()
                | pb.CommandAckResponse()
            ):
                handler = self.consumers.get(command.consumer_id)
                if handler is not None:
                    handler.received(command, payload)
            case pb.CommandOwnershipLost():
                key = (command.resource.name, command.resource.generation)
                if (owner := self.owners.get(key)) is not None:
                    owner.lost(command)
            case _:
                self._answered(command, payload)

    def answered(self, request_id: int, command: Command) -> None:
        """Deliver an answer to the request that waits for it."""
        future = self.requests.get(request_id)
        if future is not None and not future.done():
            future.set_result(command)

    def _answered(self, command: Command, payload: memoryview | None) -> None:
        request_id = getattr(command, "request_id", None)
        if request_id is None:
            self.client.recorder.anomaly(
                f"{self.client.process.name} received an unexpected {command!r}"
            )
            return
        if request_id in self.listeners:
            self.listeners[request_id].received(command, payload)
            return
        self.answered(request_id, command)

    def lost(self) -> None:
        self.is_closed = True
        if not self.connected.done():
            self.connected.set_result(False)
        for future in self.requests.values():
            if not future.done():
                future.set_result(None)
        handlers = [*self.producers.values(), *self.consumers.values(), *self.listeners.values()]
        for handler in dict.fromkeys(handlers):
            handler.disconnected(self)

    def close(self) -> None:
        """Close the connection from this end."""
        if not self.is_closed:
            self.shut()
            self.lost()


class Client:
    """A client process with at most one connection to each broker."""

    def __init__(
        self,
        loop: VirtualLoop,
        network: Network,
        recorder: Recorder,
        ports: list[int],
        name: str,
        randomness: random.Random,
        subject: str = "",
    ) -> None:
        self.loop = loop
        self.network = network
        self.recorder = recorder
        self.ports = ports
        self.process: Process = loop.add_process(name)
        self.randomness = randomness
        self.extensions_version = randomness.choice([0, 1])
        """Half of the clients are stock clients, which must never receive onewriter's own commands."""
        self.subject = subject
        self.ends: dict[int, ClientEnd] = {}
        self.ids = 0

    def next_id(self) -> int:
        self.ids += 1
        return self.ids

    def spawn(self, work: Callable[[], object]) -> None:
        self.loop.call(self.process, work)

    async def end(self, port: int) -> ClientEnd:
        """Return the connection to a broker, and connect if there is none. Raises Gone."""
        end = self.ends.get(port)
        if end is not None and not end.is_closed:
            if await asyncio.shield(end.connected):
                return end
            raise Gone("connection lost")
        try:
            made = await self.network.connect(port, lambda wire: ClientEnd(self, wire))
        except ConnectionRefusedError as error:
            raise Gone(str(error)) from error
        assert isinstance(made, ClientEnd)
        self.ends[port] = made
        made.send(
            made.codec.connect(
                "simulated-1",
                auth_data=self.subject.encode(),
                extensions_version=self.extensions_version,
            )
        )
        self.loop.spawn(self.process, self._keep_alive(made))
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                if await asyncio.shield(made.connected):
                    return made
        except TimeoutError:
            made.close()
        raise Gone("connection lost")

    async def _keep_alive(self, end: ClientEnd) -> None:
        while not end.is_closed:
            received_at = end.received_at
            await asyncio.sleep(KEEP_ALIVE_SECONDS)
            if end.is_closed or not end.connected.done():
                continue
            if (
                end.received_at == received_at
                and self.loop.time() - received_at > 2 * KEEP_ALIVE_SECONDS
            ):
                end.close()
            else:
                end.write(pb.CommandPing())

    async def serving_broker(self, topic: str) -> ClientEnd:
        """Look the topic up and connect to the broker that serves it. Raises Gone."""
        request = await self.end(self.randomness.choice(self.ports))
        request_id = self.next_id()
        answer = await request.request(
            request_id, pb.CommandLookup(topic=topic, request_id=request_id)
        )
        if (
            not isinstance(answer, pb.CommandLookupResponse)
            or answer.response != pb.CommandLookupResponse.CONNECT
        ):
            raise Gone("no broker serves the topic")
        port = urlsplit(answer.broker_service_url).port
        assert port is not None
        return await self.end(port)

    async def pause(self, low: float, high: float) -> None:
        """Wait for a random time between these seconds."""
        await asyncio.sleep(self.randomness.uniform(low, high))


class Backoff:
    """Pauses between attempts. They double up to a limit, with jitter."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._attempts = 0

    def reset(self) -> None:
        self._attempts = 0

    async def wait(self) -> None:
        first, longest = BACKOFF_SECONDS
        seconds = min(first * 2**self._attempts, longest)
        self._attempts += 1
        await asyncio.sleep(seconds * self._client.randomness.uniform(0.8, 1.0))
