"""A broker that does as it is told, in the test's own loop, over real sockets.

It answers what nobody wants to script (CONNECT, LOOKUP, PARTITIONED_METADATA, PING, SEND, CLOSE) and
grants each producer the next epoch, unless a test replaces an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar, cast

from google.protobuf.message import Message

from onewriter import Client, Limits, Tls
from onewriter._config import TokenSource
from onewriter_core.errors import ServerError
from onewriter_core.wire import replies
from onewriter_core.wire.commands import MESSAGE_LENGTH_MAX, Command, encode_command
from onewriter_core.wire.encoding import encode_send_receipt
from onewriter_core.wire.messages import entry_payload
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.server import ServerConnection
from onewriter_core.wire.values import Send

Kind = TypeVar("Kind", bound=Command)
Result = TypeVar("Result")

SECONDS_MAX = 60.0

QUICK = Limits(
    connect_timeout_seconds=20.0,
    operation_timeout_seconds=20.0,
    request_timeout_seconds=20.0,
)


class FakeLink(asyncio.Protocol):
    """One client's connection, seen from the broker."""

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.wire = ServerConnection()
        self.is_lost = False
        self.entries = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.broker.links.append(self)
        self.broker.changed()

    def data_received(self, data: bytes) -> None:
        for command, payload in self.wire.feed(data):
            self.broker.received.append((self, command, bytes(payload or b"")))
            self.broker.answer(self, command, bytes(payload or b""))
        self.broker.changed()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self.broker.changed()

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    def say(self, message: Message) -> None:
        self.write(encode_command(message))

    def cut(self) -> None:
        self.transport.abort()


def begin(work: Coroutine[Any, Any, Result]) -> asyncio.Future[Result]:
    """Start something that the test awaits later."""
    return asyncio.ensure_future(work)  # noqa: TID251 - the test's own loop is its group


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Ask again and again until it holds."""
    async with asyncio.timeout(SECONDS_MAX):
        while not await holds():  # noqa: ASYNC110 - what is asked about is over HTTP
            await asyncio.sleep(0.005)


Answer = Callable[[FakeLink, Any], None]


class FakeBroker:
    """``answers`` by command class replace what is done by itself; None: say nothing."""

    def __init__(
        self, *, server_version: str = "onewriter fake", has_extensions: bool = True
    ) -> None:
        self.server_version = server_version
        self.has_extensions = has_extensions
        self.links: list[FakeLink] = []
        self.received: list[tuple[FakeLink, Command, bytes]] = []
        self.answers: dict[type, Answer | None] = {}
        self.epoch = 6
        self.registration: str | None = None
        """What it gives to holders beside their epoch."""
        self.url = ""
        self.message_bytes_max = MESSAGE_LENGTH_MAX
        self._change = asyncio.Event()
        self._server: asyncio.Server | None = None

    async def start(self, context: ssl.SSLContext | None = None) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: FakeLink(self), "127.0.0.1", 0, ssl=context)
        port = self._server.sockets[0].getsockname()[1]
        scheme = "pulsar" if context is None else "pulsar+ssl"
        self.url = f"{scheme}://127.0.0.1:{port}"

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for link in self.links:
            link.cut()
        await asyncio.sleep(0)

    # ------------------------------------------------------------ what it heard

    def changed(self) -> None:
        self._change.set()
        self._change = asyncio.Event()

    async def eventually(self, holds: Callable[[], bool], what: str = "") -> None:
        """Wait until it holds; something must have come or gone in between."""
        async with asyncio.timeout(SECONDS_MAX):
            while not holds():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await self._change.wait()
        assert holds(), what

    def all(self, kind: type[Kind]) -> list[Kind]:
        return [command for _, command, _ in self.received if isinstance(command, kind)]

    def sends(self) -> list[Send]:
        return [command for _, command, _ in self.received if isinstance(command, Send)]

    def contents(self) -> list[bytes]:
        """Of all SENDs, in the order in which they came."""
        return [bytes(entry_payload(payload)) for payload in self.payloads()]

    def payloads(self) -> list[bytes]:
        """Of all SENDs, with their metadata."""
        return [payload for _, command, payload in self.received if isinstance(command, Send)]

    async def received_of(self, kind: type[Kind], count: int = 1) -> Kind:
        """The ``count``-th command of that kind."""
        await self.eventually(lambda: len(self.all(kind)) >= count)
        return self.all(kind)[count - 1]

    # ------------------------------------------------------------ what it says

    def answer(self, link: FakeLink, command: Command, payload: bytes) -> None:
        kind = type(command)
        if kind in self.answers:
            answer = self.answers[kind]
            if answer is not None:
                answer(link, command)
            return
        match command:
            case pb.CommandConnect():
                if not self.has_extensions and link.wire.peer is not None:
                    link.wire.peer.onewriter_extensions = 0
                link.write(
                    link.wire.connected(
                        self.server_version, max_message_size=self.message_bytes_max
                    )
                )
            case pb.CommandLookup():
                link.write(
                    replies.lookup_connect(
                        command.request_id,
                        self.url,
                        broker_url_tls=self.url if self.url.startswith("pulsar+ssl") else "",
                    )
                )
            case pb.CommandPartitionedMetadata():
                link.write(replies.partitions(command.request_id, 0))
            case pb.CommandPing():
                link.write(replies.PONG)
            case pb.CommandProducer():
                self.grant(link, command)
            case pb.CommandCloseProducer():
                link.write(replies.success(command.request_id))
            case Send():
                self.receipt(link, command)
            case _:
                pass

    def grant(
        self, link: FakeLink, command: pb.CommandProducer, *, last_sequence_id: int = -1
    ) -> None:
        """Ready: under the epoch that it brings, else under the next one."""
        if command.HasField("topic_epoch"):
            epoch = command.topic_epoch
        else:
            self.epoch += 1
            epoch = self.epoch
        link.write(
            replies.producer_success(
                command.request_id,
                command.producer_name or "given-by-the-broker",
                topic_epoch=epoch,
                last_sequence_id=last_sequence_id,
                registration=self.registration,
            )
        )

    def queue(self, link: FakeLink, command: pb.CommandProducer) -> None:
        """Not ready: it waits for its turn."""
        name = command.producer_name or "given-by-the-broker"
        link.write(replies.producer_success(command.request_id, name, ready=False))

    def fence(self, link: FakeLink, command: pb.CommandProducer) -> None:
        """Refuse a producer that carries an old epoch, in a broker's usual words."""
        text = (
            f"Topic epoch has already moved. Current epoch: {self.epoch + 1},"
            f" Producer epoch: {command.topic_epoch}"
        )
        link.write(replies.error(command.request_id, ServerError.PRODUCER_FENCED, text))

    def refuse(self, code: ServerError, text: str = "no") -> Answer:
        def answer(link: FakeLink, command: Any) -> None:
            link.write(replies.error(command.request_id, code, text))

        return answer

    def receipt(self, link: FakeLink, send: Send) -> None:
        link.entries += 1
        link.write(
            encode_send_receipt(send.producer_id, send.sequence_id, self.epoch, link.entries)
        )


class Clock:
    """A clock for connections that can jump, as time does for a frozen process."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


@contextlib.asynccontextmanager
async def fake_broker(**options: Any) -> AsyncIterator[FakeBroker]:
    broker = FakeBroker(**options)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


def client_of(
    *brokers: FakeBroker,
    limits: Limits = QUICK,
    token: str | Path | TokenSource | None = None,
    tls: Tls | None = None,
) -> Client:
    """A client of these brokers."""
    hosts = [broker.url.partition("://")[2] for broker in brokers]
    scheme = brokers[0].url.partition("://")[0]
    return Client(f"{scheme}://{','.join(hosts)}", limits=limits, token=token, tls=tls)
