"""A process in the pod, or a page in its browser, tries to misuse the sidecar's relay, which has the pod's token."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Coroutine

import pytest

from onewriter._config import ClientOptions, fixed_token
from onewriter.sidecar.metrics import Metrics
from onewriter.sidecar.relay.link import LinkLimits
from onewriter.sidecar.relay.listener import HOSTS, Relay
from onewriter.sidecar.settings import Settings
from onewriter_broker.testing.ports import free_ports
from onewriter_core.wire import replies
from onewriter_core.wire.commands import encode_command
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

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
async def relaying(broker: FakeBroker, limits: LinkLimits | None = None) -> AsyncIterator[int]:
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


async def test_from_the_network_nobody_reaches_it() -> None:
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


async def test_a_connection_that_says_nothing_ends() -> None:
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
