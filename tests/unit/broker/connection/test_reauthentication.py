"""A connection's proof of identity expires, is renewed, or cannot be checked for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from onewriter_broker.auth.authentication import Authenticated
from onewriter_broker.auth.authorization import Authorization
from onewriter_broker.connection import listener
from onewriter_broker.connection.clients import Clients
from onewriter_broker.connection.listener import ClientProtocol
from onewriter_broker.settings import Settings
from onewriter_core.api.manifests import DesiredState
from onewriter_core.errors import Refused, ServerError, Unavailable
from onewriter_core.ids import Identity
from onewriter_core.wire.client import ClientConnection
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

POD = Identity("system:serviceaccount:shop:writer", "u1")
NOW_MS = 1_000_000


class Judge:
    """Says what a test wants of the next proof."""

    def __init__(self) -> None:
        self.says: Authenticated | Exception = Authenticated(POD)
        self.requests: list[bytes] = []

    async def authenticate(self, method: str, data: bytes) -> Authenticated:
        self.requests.append(data)
        if isinstance(self.says, Exception):
            raise self.says
        return self.says


class Pipe(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.is_closed = False

    def writelines(self, parts: Any) -> None:
        for part in parts:
            self.written += part

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def get_extra_info(self, name: str, default: object = None) -> object:
        return None

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...


class World:
    """One connection, its client, and the timers that it set (seconds from now)."""

    def __init__(self) -> None:
        self.judge = Judge()
        self.token_ms = NOW_MS
        self.works: list[Coroutine[object, object, None]] = []
        clients = Clients(
            settings=Settings(),
            topics=cast("Any", SimpleNamespace(desired=DesiredState(), loaded={})),
            ownerships=cast("Any", SimpleNamespace()),
            appender=cast("Any", SimpleNamespace(append_soon=None, prove=None)),
            authenticator=self.judge,
            addresses=cast("Any", SimpleNamespace()),
            incarnation="broker-0~one",
            authorization=Authorization(Settings(), (), DesiredState),
            now=lambda: 100.0,
            wall_ms=lambda: 0,
            token_seconds=lambda: self.token_ms / 1000,
            store=cast("Any", SimpleNamespace()),
            registrations=cast("Any", SimpleNamespace()),
        )
        self.link = ClientProtocol(clients, "c1", self.works.append)
        self.pipe = Pipe()
        self.link.connection_made(self.pipe)
        self.client = ClientConnection()

    async def receive(self, data: bytes) -> None:
        """Bytes of the client, and all the work that they cause."""
        view = self.link.get_buffer(len(data))
        view[: len(data)] = data
        self.link.buffer_updated(len(data))
        for work in self.works:
            await work
        self.works.clear()
        await asyncio.sleep(0)

    async def connect(self) -> None:
        await self.receive(self.client.connect("test", auth_method="token", auth_data=b"first"))
        assert self.said(pb.CommandConnected)

    async def renew(self) -> None:
        data = pb.AuthData(auth_method_name="token", auth_data=b"second")
        await self.receive(self.client.encode(pb.CommandAuthResponse(response=data)))

    def pass_seconds(self, seconds: float) -> None:
        """On the clock of tokens alone: timers do not come."""
        self.token_ms += int(seconds * 1000)

    def said(self, kind: type) -> bool:
        """Whether the broker has said that since the last question."""
        data, self.pipe.written = bytes(self.pipe.written), bytearray()
        return any(isinstance(command, kind) for command, _ in self.client.feed(data))

    @property
    def asks_in(self) -> float | None:
        """In how many seconds the connection is asked again, or closed."""
        timer = self.link._challenge_timer
        return None if timer is None else timer.when() - asyncio.get_running_loop().time()


def in_seconds(seconds: float) -> float:
    return NOW_MS / 1000 + seconds


async def test_the_earlier_of_renewal_and_end_counts() -> None:
    world = World()
    world.judge.says = Authenticated(POD, in_seconds(600), in_seconds(20), may_only_resume=True)
    await world.connect()
    assert world.link.may_only_resume
    assert world.asks_in == pytest.approx(20, abs=10)


async def test_a_confirmed_identity_may_do_everything_again() -> None:
    world = World()
    world.judge.says = Authenticated(POD, in_seconds(600), in_seconds(20), may_only_resume=True)
    await world.connect()
    world.link._challenge(in_seconds(600))
    await asyncio.sleep(0)
    assert world.said(pb.CommandAuthChallenge)
    world.judge.says = Authenticated(POD, in_seconds(600))
    await world.renew()
    assert not world.link.may_only_resume
    assert world.asks_in == pytest.approx(600 - listener.CHALLENGE_SECONDS_MAX, abs=10)
    assert world.judge.requests == [b"first", b"second"]


async def test_without_a_working_authenticator_a_connection_continues_until_its_token_expires() -> (
    None
):
    world = World()
    world.judge.says = Authenticated(POD, in_seconds(100))
    await world.connect()
    world.pass_seconds(50)
    world.link._challenge(in_seconds(100))
    world.judge.says = Unavailable("the API server is away")
    for _ in range(2):
        await world.renew()
        assert world.asks_in == pytest.approx(listener.RETRY_SECONDS, abs=10)
        world.pass_seconds(listener.RETRY_SECONDS)
        world.link._challenge(in_seconds(100))
    await world.receive(world.client.encode(pb.CommandPing()))
    assert world.said(pb.CommandPong)
    assert not world.pipe.is_closed
    assert not world.link.may_only_resume, "what was proved once stays proved"
    await world.renew()
    assert world.asks_in == pytest.approx(10, abs=2), "that is when the token ends"
    world.pass_seconds(10)
    world.link._challenge(in_seconds(100))
    assert world.pipe.is_closed


async def test_a_token_without_expiry_ends_no_connection_while_the_api_server_is_away() -> None:
    world = World()
    world.judge.says = Authenticated(POD, None, in_seconds(20))
    await world.connect()
    world.link._challenge(None)
    world.judge.says = Unavailable("the API server is away")
    await world.renew()
    assert world.asks_in == pytest.approx(listener.RETRY_SECONDS, abs=10)
    world.pass_seconds(10_000)
    await world.receive(world.client.encode(pb.CommandPing()))
    assert world.said(pb.CommandPong)
    assert not world.pipe.is_closed


@pytest.mark.parametrize(
    "answer",
    [
        Refused(ServerError.AUTHENTICATION_ERROR, "the pod is gone"),
        Authenticated(Identity("somebody else")),
        Authenticated(Identity(POD.subject, "u2")),
    ],
)
async def test_another_or_refused_identity_ends_the_connection(
    answer: Authenticated | Exception,
) -> None:
    world = World()
    await world.connect()
    world.link._challenge(None)
    world.judge.says = answer
    await world.renew()
    assert world.pipe.is_closed


async def test_a_client_that_cannot_renew_is_closed_when_its_token_ends_and_not_before() -> None:
    world = World()
    await world.connect()
    peer = world.link._wire.peer
    assert peer is not None
    peer.feature_flags.supports_auth_refresh = False
    world.link._challenge(in_seconds(300))
    assert not world.pipe.is_closed
    assert world.asks_in == pytest.approx(300, abs=10)
    world.link._challenge(in_seconds(0))
    assert world.pipe.is_closed


@pytest.mark.parametrize(("life", "lead"), [(3600, 60), (60, 30), (3, 1.5), (0.5, 0)])
async def test_a_client_is_asked_well_before_its_token_expires(life: float, lead: float) -> None:
    world = World()
    world.judge.says = Authenticated(POD, in_seconds(life))
    await world.connect()
    assert world.asks_in == pytest.approx(life - lead, abs=0.4)


async def test_a_client_that_shows_the_same_token_is_asked_again_until_it_expires() -> None:
    world = World()
    world.judge.says = Authenticated(POD, in_seconds(100))
    await world.connect()
    waits: list[float] = []
    while world.asks_in is not None and world.token_ms < NOW_MS + 100_000 and len(waits) < 20:
        waits.append(world.asks_in)
        world.pass_seconds(world.asks_in + 0.001)
        world.link._challenge(in_seconds(100))
        if world.pipe.is_closed:
            break
        await asyncio.sleep(0)
        assert world.said(pb.CommandAuthChallenge)
        await world.renew()
    assert world.pipe.is_closed
    assert 5 < len(waits) < 12
    assert world.token_ms == pytest.approx(NOW_MS + 100_000, abs=1000)


async def test_commands_after_the_expiry_of_the_token_are_not_handled() -> None:
    """Also where the timer is late."""
    world = World()
    world.judge.says = Authenticated(POD, in_seconds(10))
    await world.connect()
    world.pass_seconds(10)
    await world.receive(world.client.encode(pb.CommandPing()))
    assert not world.said(pb.CommandPong)
    assert world.pipe.is_closed


async def test_a_client_that_does_not_answer_the_challenge_is_served_until_its_token_expires() -> (
    None
):
    world = World()
    world.judge.says = Authenticated(POD, in_seconds(600))
    await world.connect()
    world.pass_seconds(540)
    world.link._challenge(in_seconds(600))
    assert world.asks_in == pytest.approx(60, abs=1)
