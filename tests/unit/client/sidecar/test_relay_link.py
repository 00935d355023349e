"""One link of the relay: handshake, forwarding, back-pressure, silence, on a clock and transports of the test."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

import pytest

from onewriter._config import Address
from onewriter._errors import Unavailable
from onewriter.sidecar.relay import answers
from onewriter.sidecar.relay.link import READ_BYTES, LinkLimits, RelayEnd, RelayLink
from onewriter_core.wire import replies
from onewriter_core.wire.commands import encode_command
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

CONNECT = encode_command(pb.CommandConnect(client_version="stock"))
CONNECTED = encode_command(pb.CommandConnected(server_version="onewriter"))
MESSAGE = (2000).to_bytes(4, "big") + (4).to_bytes(4, "big") + b"\x08\x06\x32\x00" + bytes(1992)
CHALLENGE = encode_command(pb.CommandAuthChallenge(server_version="onewriter"))


class FakeTransport:
    """A socket that accepts everything and remembers what was done to it."""

    def __init__(self) -> None:
        self.sent = b""
        self.is_closed = self.is_aborted = self.is_reading_paused = False

    def write(self, data: bytes) -> None:
        self.sent += data

    def taken(self) -> bytes:
        sent, self.sent = self.sent, b""
        return sent

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = self.is_aborted = True

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        self.is_reading_paused = True

    def resume_reading(self) -> None:
        self.is_reading_paused = False

    def set_write_buffer_limits(self, high: int) -> None:
        assert high > 0


def connected(end: RelayEnd) -> FakeTransport:
    transport = FakeTransport()
    end.connection_made(cast("asyncio.Transport", transport))
    return transport


class FakeRelay:
    """The host of one link."""

    def __init__(self) -> None:
        self.limits = LinkLimits(connect_seconds=5, ask_after_seconds=1, answer_seconds=2)
        self.is_tls = False
        self.time = 100.0
        self.token_now: str | None = "secret"  # noqa: S105
        self.work: list[Coroutine[object, object, None]] = []
        self.opened: list[Address | None] = []
        self.known: list[Address] = []
        self.ends: list[str] = []
        self.is_full = False
        self.led = ""
        self.error: Exception | None = None
        self.broker = FakeTransport()
        self.broker_end: RelayEnd | None = None

    def now(self) -> float:
        return self.time

    def spawn(self, work: Coroutine[object, object, None]) -> object:
        self.work.append(work)
        return None

    async def token(self) -> str | None:
        return self.token_now

    async def open(self, broker: Address | None, end: RelayEnd) -> Address:
        self.opened.append(broker)
        if self.error is not None:
            raise self.error
        self.broker_end = end
        end.connection_made(cast("asyncio.Transport", self.broker))
        return broker or Address("any", 6650, False)

    def learned(self, broker: Address) -> None:
        self.known.append(broker)

    @property
    def leads(self) -> bool:
        return bool(self.led)

    def is_led(self, topic: str) -> bool:
        return topic == self.led

    def admits(self, link: RelayLink) -> bool:
        del link
        return not self.is_full

    def ended(self, link: RelayLink, reason: str) -> None:
        del link
        self.ends.append(reason)

    async def settle(self) -> None:
        while self.work:
            await self.work.pop(0)


class World:
    """A link with both of its sockets."""

    def __init__(self, relay: FakeRelay) -> None:
        self.relay = relay
        self.link = RelayLink(relay)
        self.client = connected(self.link.client)

    async def open(self, connect: bytes = CONNECT) -> None:
        self.from_client(connect)
        await self.relay.settle()
        self.relay.broker.taken()

    def from_client(self, data: bytes) -> None:
        feed(self.link.client, data)

    def from_broker(self, data: bytes) -> None:
        assert self.relay.broker_end is not None
        feed(self.relay.broker_end, data)

    def wait(self, seconds: float) -> None:
        self.relay.time += seconds
        self.link.check(self.relay.time)


def feed(end: RelayEnd, data: bytes) -> None:
    """As asyncio does it: through the buffer, in pieces."""
    for at in range(0, len(data), READ_BYTES):
        piece = data[at : at + READ_BYTES]
        end.get_buffer(-1)[: len(piece)] = piece
        end.buffer_updated(len(piece))


@pytest.fixture
def world() -> World:
    return World(FakeRelay())


# ---------------------------------------------------------------- handshake


async def test_the_broker_gets_the_clients_connect_with_the_pods_token(world: World) -> None:
    world.from_client(CONNECT[:5])
    world.from_client(CONNECT[5:] + replies.PING)
    assert world.client.is_reading_paused, "until the broker is reached"
    await world.relay.settle()
    assert world.relay.opened == [None]
    sent = world.relay.broker.taken()
    assert sent.endswith(replies.PING), "what came early follows"
    connect = answers.decoded(sent.removesuffix(replies.PING))
    assert isinstance(connect, pb.CommandConnect)
    assert (connect.auth_method_name, connect.auth_data) == ("token", b"secret")
    assert not world.client.is_reading_paused
    world.from_broker(CONNECTED)
    assert world.client.taken() == CONNECTED


async def test_a_client_that_names_a_broker_is_connected_to_that_one(world: World) -> None:
    await world.open(
        encode_command(pb.CommandConnect(client_version="c", proxy_to_broker_url="b:6651"))
    )
    assert world.relay.opened == [Address("b", 6651, False)]


@pytest.mark.parametrize(
    "first",
    [
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        replies.PING,
        encode_command(pb.CommandLookup(topic="t", request_id=1)),
        MESSAGE[:100],
        encode_command(pb.CommandConnect(client_version="x" * 30_000)),
        b"\x00\x00\x00\x08\x00\x00\x00\x04\x08\x02\x12\x00",
    ],
    ids=["http", "ping", "look-up", "message", "long", "unfilled"],
)
async def test_any_command_before_connect_closes_the_connection(world: World, first: bytes) -> None:
    world.from_client(first)
    assert world.client.is_aborted
    assert world.relay.ends == ["protocol"]
    assert world.relay.work == [], "no broker was asked for"


async def test_a_silent_client_is_disconnected(world: World) -> None:
    world.from_client(CONNECT[:7])
    world.wait(4.9)
    assert world.relay.ends == []
    world.wait(0.2)
    assert world.relay.ends == ["no-connect"]
    assert world.client.is_aborted


async def test_one_too_many_is_dropped() -> None:
    relay = FakeRelay()
    relay.is_full = True
    world = World(relay)
    assert world.client.is_aborted
    assert relay.ends == ["too-many"]


async def test_without_a_broker_the_relay_closes_the_connection_of_the_client(
    world: World,
) -> None:
    world.relay.error = Unavailable("nobody there")
    await world.open()
    assert world.relay.ends == ["unreachable"]
    assert world.client.is_closed


async def test_a_client_that_left_while_the_broker_was_being_reached(world: World) -> None:
    world.from_client(CONNECT)
    world.link.client.connection_lost(None)
    await world.relay.settle()
    assert world.relay.ends == ["client"]
    assert world.relay.opened == []


# ---------------------------------------------------------------- forwarding


async def test_bytes_pass_unchanged_in_both_directions(world: World) -> None:
    await world.open()
    world.from_client(MESSAGE[:700])
    world.from_client(MESSAGE[700:] + replies.PING)
    assert world.relay.broker.taken() == MESSAGE + replies.PING
    world.from_broker(replies.PONG + MESSAGE)
    assert world.client.taken() == replies.PONG + MESSAGE, "an answer to the client's own ping"


def producer(topic: str, request_id: int = 7) -> bytes:
    """A request for a producer, with a schema that makes it larger than what is read at once."""
    return encode_command(
        pb.CommandProducer(
            topic=topic,
            producer_id=1,
            request_id=request_id,
            schema=pb.Schema(name="s", schema_data=bytes(READ_BYTES), type=pb.Schema.AVRO),
        )
    )


async def test_a_producer_of_the_topic_that_the_sidecar_leads_reaches_no_broker() -> None:
    relay = FakeRelay()
    relay.led = "led"
    world = World(relay)
    await world.open()
    other = producer("other")
    world.from_client(replies.PING + producer("led") + other[:100])
    world.from_client(other[100:] + MESSAGE)
    assert relay.broker.taken() == replies.PING + other + MESSAGE
    answer = answers.decoded(world.client.taken())
    assert isinstance(answer, pb.CommandError)
    assert (answer.request_id, answer.error) == (7, pb.NOT_ALLOWED_ERROR)
    assert relay.ends == [], "other producers of the connection continue"


async def test_commands_that_arrive_together_with_connect_are_handled() -> None:
    relay = FakeRelay()
    relay.led = "led"
    world = World(relay)
    small = encode_command(pb.CommandProducer(topic="led", producer_id=1, request_id=9))
    world.from_client(CONNECT + replies.PING + small + replies.PONG)
    await relay.settle()
    sent = relay.broker.taken()
    assert sent.endswith(replies.PING + replies.PONG)
    assert b"led" not in sent
    answer = answers.decoded(world.client.taken())
    assert isinstance(answer, pb.CommandError)
    assert answer.request_id == 9


async def test_a_relay_without_a_topic_examines_no_producer(world: World) -> None:
    await world.open()
    world.from_client(producer("led"))
    assert world.relay.broker.taken() == producer("led")


async def test_a_look_up_teaches_the_relay_a_broker(world: World) -> None:
    await world.open()
    world.from_broker(replies.lookup_connect(1, "pulsar://b:6650"))
    assert world.relay.known == [Address("b", 6650, False)]
    assert (
        world.client.taken()
        == answers.lookup_answer(replies.lookup_connect(1, "pulsar://b:6650"), is_tls=False)[0]
    )


async def test_a_slow_client_does_not_count_as_silence_of_the_broker(world: World) -> None:
    await world.open()
    world.link.client.pause_writing()
    assert world.relay.broker.is_reading_paused
    for _ in range(20):
        world.wait(1)
    assert world.relay.ends == []
    assert world.client.taken() == b""
    world.link.client.resume_writing()
    assert not world.relay.broker.is_reading_paused


async def test_a_slow_broker_slows_down_the_client(world: World) -> None:
    await world.open()
    assert world.relay.broker_end is not None
    world.relay.broker_end.pause_writing()
    assert world.client.is_reading_paused
    world.relay.broker_end.resume_writing()
    assert not world.client.is_reading_paused


async def test_the_end_of_one_side_is_the_end_of_the_other(world: World) -> None:
    await world.open()
    world.link.client.connection_lost(None)
    assert world.relay.broker.is_closed
    assert not world.relay.broker.is_aborted, "what the client sent last is still forwarded"
    assert world.relay.ends == ["client"]


async def test_a_broker_that_leaves_is_not_hidden(world: World) -> None:
    await world.open()
    assert world.relay.broker_end is not None
    world.relay.broker_end.connection_lost(None)
    assert world.client.is_closed
    assert world.relay.ends == ["broker"]


# ---------------------------------------------------------------- a fresh token


async def test_a_challenge_is_answered_by_the_relay(world: World) -> None:
    await world.open()
    world.relay.token_now = "fresh"  # noqa: S105
    world.from_broker(CHALLENGE)
    await world.relay.settle()
    assert world.client.taken() == b""
    answer = answers.decoded(world.relay.broker.taken())
    assert isinstance(answer, pb.CommandAuthResponse)
    assert answer.response.auth_data == b"fresh"


async def test_a_fresh_token_waits_for_the_end_of_a_frame(world: World) -> None:
    await world.open()
    world.from_client(MESSAGE[:900])
    world.from_broker(CHALLENGE)
    await world.relay.settle()
    assert world.relay.broker.taken() == MESSAGE[:900]
    world.from_client(MESSAGE[900:] + MESSAGE[:10])
    sent = world.relay.broker.taken()
    assert sent.startswith(MESSAGE[900:])
    assert sent.endswith(MESSAGE[:10])
    answer = answers.decoded(sent[len(MESSAGE) - 900 : -10])
    assert isinstance(answer, pb.CommandAuthResponse)


async def test_a_client_with_its_own_credentials_answers_by_itself(world: World) -> None:
    own = pb.CommandConnect(client_version="c", auth_method_name="token", auth_data=b"its own")
    await world.open(encode_command(own))
    world.from_broker(CHALLENGE)
    assert world.client.taken() == CHALLENGE
    assert world.relay.work == []


# ---------------------------------------------------------------- silence


async def test_a_broker_that_answers_stays(world: World) -> None:
    await world.open()
    world.from_broker(CONNECTED)
    for _ in range(30):
        world.client.taken()
        world.wait(1)
        assert world.client.taken() == replies.PING
        world.from_client(replies.PONG)
        assert world.relay.broker.taken() == replies.PING
        world.from_broker(replies.PONG)
        assert world.client.taken() == b"", "the answer is the relay's"
    assert world.relay.ends == []


async def test_a_silent_broker_ends_the_clients_connection(world: World) -> None:
    await world.open()
    world.from_broker(CONNECTED)
    world.wait(1)
    world.from_client(replies.PONG)
    world.wait(1.9)
    assert world.relay.ends == []
    world.wait(0.2)
    assert world.relay.ends == ["silent"]
    assert world.relay.broker.is_aborted
    assert world.client.is_closed
    assert not world.client.is_aborted, "what the broker sent before still arrives"


async def test_a_silent_broker_that_accepts_nothing_ends_it_too(world: World) -> None:
    await world.open()
    world.from_broker(CONNECTED)
    assert world.relay.broker_end is not None
    world.relay.broker_end.pause_writing()
    world.wait(1)
    world.wait(2.1)
    assert world.relay.ends == ["silent"]


async def test_a_broker_that_pings_but_reads_nothing_stays(world: World) -> None:
    """It waits for its store, and reads no messages meanwhile."""
    await world.open()
    assert world.relay.broker_end is not None
    world.relay.broker_end.pause_writing()
    for _ in range(30):
        world.from_broker(replies.PING)
        world.wait(1)
        world.wait(0.5)
    assert world.relay.ends == []


async def test_a_frozen_client_is_silent_to_its_broker(world: World) -> None:
    """The broker detects it as without the relay: no byte reaches the broker that the client did not cause."""
    await world.open()
    world.from_broker(CONNECTED)
    for _ in range(30):
        world.wait(1)
    assert world.relay.broker.taken() == b""
    assert world.relay.ends == []


async def test_no_answer_to_the_handshake_is_silence(world: World) -> None:
    await world.open()
    world.wait(4.9)
    assert world.relay.ends == []
    world.wait(0.2)
    assert world.relay.ends == ["silent"]


async def test_a_relay_that_was_frozen_does_not_count_its_broker_as_silent(world: World) -> None:
    await world.open()
    world.from_broker(CONNECTED)
    world.wait(1)
    world.from_client(replies.PONG)
    world.relay.time += 60
    world.link.check(world.relay.time, was_frozen=True)
    assert world.relay.ends == []


async def test_a_defect_ends_one_link(world: World) -> None:
    error: Any = RuntimeError("a defect")
    world.relay.error = error
    await world.open()
    assert world.relay.ends == ["defect"]
