"""A process in the pod, or a page in its browser, tries to misuse the sidecar's relay, which has the pod's token."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from onewriter._config import ClientOptions, fixed_token
from onewriter.sidecar.metrics import Metrics
from onewriter.sidecar.relay.link import LinkLimits
from onewriter.sidecar.relay.listener import HOSTS, Relay
from onewriter.sidecar.settings import Settings
from onewriter_core.wire import replies
from onewriter_core.wire.commands import encode_command
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_testing.ports import free_ports

SECONDS_MAX = 60.0
CONNECTIONS_MAX = 5
TOKEN = "the pod's token"  # noqa: S105 - of a test
HURRIED = LinkLimits(connect_seconds=0.2)


class FakeBroker:
    """Records what it receives; answers CONNECT and nothing else."""

    def __init__(self) -> None:
        self.port = free_ports(1)
        self.received = b""
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.closing(writer):
            while data := await reader.read(65536):
                self.received += data
                writer.write(encode_command(pb.CommandConnected(server_version="fake")))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with await asyncio.start_server(self.serve, "127.0.0.1", self.port):
            yield


@contextlib.asynccontextmanager
async def relaying(
    broker: FakeBroker, limits: LinkLimits | None = None, *, led_topic: str = ""
) -> AsyncIterator[int]:
    """A relay to a broker; the port."""
    port = free_ports(1)
    async with asyncio.TaskGroup() as tasks:

        def spawn(work: Coroutine[object, object, None]) -> asyncio.Task[None]:
            return tasks.create_task(work)

        relay = Relay(
            f"pulsar://127.0.0.1:{broker.port}",
            ClientOptions(token=fixed_token(TOKEN)),
            spawn,
            Metrics(),
            led_topic=led_topic,
            limits=limits,
            connections_max=CONNECTIONS_MAX,
        )
        async with broker.running(), relay.running(port):
            yield port


async def answer(port: int, sent: bytes) -> bytes:
    """What a client receives until the relay closes its connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.closing(writer):
        writer.write(sent)
        async with asyncio.timeout(SECONDS_MAX):
            try:
                return await reader.read()
            except ConnectionError:
                return b""


def connect(**fields: str) -> bytes:
    return encode_command(pb.CommandConnect(client_version="attacker", **fields))  # type: ignore[arg-type]


def test_the_relay_listens_on_loopback_and_no_setting_changes_that() -> None:
    assert HOSTS == ("127.0.0.1", "::1")
    assert [name for name in Settings.model_fields if "relay" in name] == ["relay_port"]


async def test_the_relay_cannot_be_reached_from_the_network() -> None:
    addresses = {
        each[4][0] for each in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
    } - {"127.0.0.1"}
    async with relaying(FakeBroker()) as port:
        for address in addresses:
            if not str(address).startswith("127."):
                with pytest.raises(OSError):
                    await asyncio.open_connection(str(address), port)


@pytest.mark.parametrize(
    "first",
    [
        b"POST / HTTP/1.1\r\nHost: 127.0.0.1:6650\r\nContent-Type: text/plain\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        replies.PING,
        encode_command(pb.CommandProducer(topic="t", producer_id=1, request_id=1)),
        connect(proxy_to_broker_url="x" * 30_000),
        b"\xff" * 1000,
        b"\x00" * 1000,
    ],
    ids=["page", "tls", "ping", "producer", "long", "ones", "zeros"],
)
async def test_a_hostile_first_frame_reaches_no_broker(first: bytes) -> None:
    broker = FakeBroker()
    async with relaying(broker) as port:
        assert await answer(port, first) == b""
    assert broker.connections == 0


async def test_the_token_goes_to_no_address_that_a_client_invents() -> None:
    broker, thief = FakeBroker(), FakeBroker()
    async with relaying(broker) as port, thief.running():
        for wanted in (f"127.0.0.1:{thief.port}", f"pulsar://localhost:{thief.port}"):
            assert await answer(port, connect(proxy_to_broker_url=wanted)) == b""
    assert (thief.connections, broker.connections) == (0, 0)


LED = (
    "orders",
    "public/default/orders",
    "persistent://public/default/orders",
    "persistent://public/default/orders-partition-0",
)


def takeover(topic: str, **fields: Any) -> bytes:
    """The request that resumes the sidecar's producer, whose name and epoch every process of the pod may ask for."""
    return encode_command(
        pb.CommandProducer(
            topic=topic,
            producer_id=1,
            request_id=1,
            producer_name="writer-0-a6275d6a",
            user_provided_producer_name=True,
            producer_access_mode=pb.EXCLUSIVE,
            topic_epoch=7,
            epoch=9,
            **fields,
        )
    )


@pytest.mark.parametrize("topic", LED)
@pytest.mark.parametrize("led_topic", LED[:3])
@pytest.mark.parametrize("size", [1, 7, 65536])
async def test_no_client_resumes_or_closes_the_sidecars_producer_through_the_relay(
    topic: str, led_topic: str, size: int
) -> None:
    """It would release the topic: the relay's clients prove no identity, and the relay has the pod's token."""
    broker = FakeBroker()
    sent = connect() + takeover(topic) + replies.PING
    async with relaying(broker, led_topic=led_topic) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.closing(writer):
            for at in range(0, len(sent), size):
                writer.write(sent[at : at + size])
                await writer.drain()
            async with asyncio.timeout(SECONDS_MAX):
                while not broker.received.endswith(replies.PING):
                    await reader.read(65536)
    assert b"orders" not in broker.received


@pytest.mark.parametrize("spelling", [b"\x85\x00", b"\x85\x80\x00"])
async def test_a_request_for_a_producer_in_disguise_reaches_no_broker(spelling: bytes) -> None:
    """Protobuf reads 5, the type of PRODUCER, in several spellings."""
    broker = FakeBroker()
    body = takeover("orders")[8:]
    assert body[:2] == b"\x08\x05"
    command = b"\x08" + spelling + body[2:]
    frame = (len(command) + 4).to_bytes(4, "big") + len(command).to_bytes(4, "big") + command
    async with relaying(broker, led_topic="orders") as port:
        await answer(port, connect() + frame)
    assert b"orders" not in broker.received


async def test_a_silent_connection_is_closed() -> None:
    broker = FakeBroker()
    async with relaying(broker, HURRIED) as port:
        assert await answer(port, b"") == b""
        assert await answer(port, connect()[:9]) == b""
    assert broker.connections == 0


async def test_many_connections_do_not_use_up_the_memory() -> None:
    broker = FakeBroker()
    async with relaying(broker) as port, contextlib.AsyncExitStack() as stack:
        for _ in range(CONNECTIONS_MAX):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            stack.enter_context(contextlib.closing(writer))
            writer.write(connect())
            async with asyncio.timeout(SECONDS_MAX):
                assert await reader.read(1)
        assert await answer(port, connect()) == b""
    assert broker.connections == CONNECTIONS_MAX
