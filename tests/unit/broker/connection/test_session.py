"""A connection's part in the fence: silent connections, and the effects of a lost one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

from onewriter_broker.auth.authorization import Authorization
from onewriter_broker.connection.clients import Clients
from onewriter_broker.connection.deadlines import ProgressDeadlines
from onewriter_broker.connection.listener import ClientProtocol
from onewriter_broker.connection.session import Session
from onewriter_broker.settings import Settings
from onewriter_broker.topic.registry.loaded_topic import Detection
from onewriter_core.api.manifests import DesiredState
from onewriter_core.wire import replies


@dataclass
class Pipe(asyncio.Transport):
    """A transport whose peer takes as much as the test says."""

    unsent: int = 0
    aborted: bool = False
    is_reading_paused: bool = False

    def writelines(self, parts: object) -> None:
        self.unsent += sum(len(part) for part in cast("list[bytes]", parts))

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_extra_info(self, name: str, default: object = None) -> object:
        return None

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        self.is_reading_paused = True

    def resume_reading(self) -> None:
        self.is_reading_paused = False


@dataclass
class OneProducer:
    """A session whose lost connection still has resends that nobody answered."""

    link: ClientProtocol
    unanswered: int = 0
    received: list[str] = field(default_factory=list)

    def lost(self) -> None:
        self.link.pending_changed(-self.unanswered)

    def silent(self) -> None:
        self.received.append("silent")

    def space_freed(self) -> None: ...


@dataclass
class Clock:
    seconds: float = 100.0


def connected(clock: Clock) -> tuple[Clients, ClientProtocol, Pipe, OneProducer]:
    clients = Clients(
        settings=Settings(),
        topics=SimpleNamespace(desired=DesiredState(), loaded={}),  # type: ignore[arg-type]
        ownerships=SimpleNamespace(),  # type: ignore[arg-type]
        appender=SimpleNamespace(),
        authenticator=SimpleNamespace(),
        addresses=SimpleNamespace(),  # type: ignore[arg-type]
        incarnation="broker-0~one",
        authorization=Authorization(Settings(), (), DesiredState),
        now=lambda: clock.seconds,
        wall_ms=lambda: 0,
        token_seconds=lambda: 0.0,
        store=SimpleNamespace(),
        registrations=SimpleNamespace(),  # type: ignore[arg-type]
    )
    link = ClientProtocol(clients, "c1", lambda work: work.close())
    pipe = Pipe()
    link.connection_made(pipe)
    session = OneProducer(link)
    link._session = cast("Session", session)
    link.detection = Detection(1.0, 2.5)
    clients._checked_at = clock.seconds
    deadlines = SimpleNamespace(check=lambda _now: session.received.append("progress"))
    clients._deadlines = cast("ProgressDeadlines", deadlines)
    return clients, link, pipe, session


def pass_time(clients: Clients, clock: Clock, seconds: float) -> None:
    end = clock.seconds + seconds
    while clock.seconds < end:
        clock.seconds += 0.25
        clients.check(clock.seconds)


async def test_a_holder_that_takes_nothing_of_what_it_is_sent_is_silent() -> None:
    clock = Clock()
    clients, link, pipe, session = connected(clock)
    pipe.unsent = 2_000_000  # it consumes, too, and its node vanished
    link.pause_writing()
    assert pipe.is_reading_paused
    pass_time(clients, clock, 4.0)
    assert "silent" in session.received
    assert pipe.aborted


async def test_a_holder_that_is_slow_to_take_what_it_is_sent_is_not_silent() -> None:
    clock = Clock()
    clients, link, pipe, session = connected(clock)
    pipe.unsent = 2_000_000
    link.pause_writing()
    for _ in range(10):
        pipe.unsent -= 1_000
        pass_time(clients, clock, 2.0)
        await asyncio.sleep(0)  # a PING goes out
    assert "silent" not in session.received


async def test_a_holder_that_is_not_read_is_pinged_and_never_silent() -> None:
    """A ping that meets a closed socket brings the reset that tells of it."""
    clock = Clock()
    clients, link, pipe, session = connected(clock)
    link.pending_changed(clients.settings.pending_bytes_per_connection_max + 1)
    assert pipe.is_reading_paused
    pass_time(clients, clock, 20.0)
    await asyncio.sleep(0)
    assert pipe.unsent >= 20 * len(replies.PING)
    assert "silent" not in session.received
    assert not pipe.aborted


async def test_a_holder_whose_topic_was_loaded_slowly_is_pinged_before_it_counts_as_silent() -> (
    None
):
    clock = Clock()
    clients, link, _pipe, session = connected(clock)
    link.detection = None  # no producer depends on the connection yet
    pass_time(clients, clock, 10.0)
    link.detection = Detection(1.0, 2.5)
    pass_time(clients, clock, 0.25)
    link.last_inbound = clock.seconds  # it answers the ping at once
    pass_time(clients, clock, 1.0)
    assert "silent" not in session.received


async def test_a_holder_whose_topic_was_loaded_slowly_and_that_answers_no_ping_is_silent() -> None:
    clock = Clock()
    clients, link, _pipe, session = connected(clock)
    link.detection = None
    pass_time(clients, clock, 10.0)
    link.detection = Detection(1.0, 2.5)
    pass_time(clients, clock, 2.5)
    assert "silent" in session.received


async def test_a_lost_connection_leaves_no_pending_bytes() -> None:
    clients, link, _, session = connected(Clock())
    link.pending_changed(1_000)
    session.unanswered = 400
    link.connection_lost(None)
    assert clients.pending_bytes == 0


async def test_a_broker_that_stood_still_does_not_blame_its_producers_for_it() -> None:
    clock = Clock()
    clients, _, _, session = connected(clock)
    clock.seconds += 30.0
    clients.check(clock.seconds)
    assert session.received == []
    pass_time(clients, clock, 0.5)
    assert session.received == ["progress", "progress"]
