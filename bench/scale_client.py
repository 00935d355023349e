"""Thousands of holders and waiters in one process, over few connections: cheap enough that the brokers are measured.

Each topic gets a producer that holds it and another one that waits behind it. A lost connection is opened again
at the next broker, where every topic is looked up and asked for, with the pauses of a stock client: the holders
with their epochs. The process reports on its standard output, one JSON object per line. bench/scale_run.py
starts it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import uvloop
from bench.raw_client import (
    CONNECT,
    CONNECTED,
    LOOKUP,
    LOOKUP_RESPONSE,
    PING,
    PONG_FRAME,
    PRODUCER,
    PRODUCER_SUCCESS,
    Fields,
    decode,
    encode_command,
)

CLOSE_PRODUCER, ERROR = 15, 14
PRODUCER_FENCED = 25
WAIT_FOR_EXCLUSIVE = 2
LOOKUP_CONNECT = 1

BACKOFF_SECONDS = 0.1
BACKOFF_SECONDS_MAX = 1.0
"""Pauses before a topic is looked up again; they double, as in the stock clients."""

IN_FLIGHT_MAX = 64
"""Requests of one connection without an answer."""

PROGRESS_SECONDS = 0.5


def say(**event: object) -> None:
    """Report to the process that measures."""
    print(json.dumps(event), flush=True)


@dataclass(slots=True, eq=False)
class Session:
    """One producer of one topic."""

    topic: str
    number: int
    holds: bool
    epoch: int = 0
    is_answered: bool = False
    answered_at: float = 0.0
    attempts: int = 0
    refusals: list[str] = field(default_factory=list)


class Fleet:
    """All sessions of the process, and what has become of them."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.urls = urls
        self.staying: set[Connection] = set()
        """Connections that have not been lost since the last order."""
        self.all_lost = asyncio.Event()
        self.answered = 0
        self.lost_epochs = 0
        self.promoted = 0
        self.randomness = random.Random(1)

    def ready(self, session: Session, epoch: int, *, is_ready: bool) -> None:
        """A session's producer has its answer: granted, or queued."""
        if session.holds and is_ready:
            if session.epoch not in {0, epoch}:
                self.lost_epochs += 1
            session.epoch = epoch
        elif session.holds:
            self.lost_epochs += 1  # a waiter was promoted before it came back
        elif is_ready:
            self.promoted += 1
        self._answer(session)

    def fenced(self, session: Session) -> None:
        """A session's epoch is over: its client does not try again."""
        self.lost_epochs += 1
        session.epoch = 0
        self._answer(session)

    def _answer(self, session: Session) -> None:
        if not session.is_answered:
            session.is_answered = True
            session.answered_at = time.monotonic()
            self.answered += 1


class Connection(asyncio.Protocol):
    """One connection with its sessions; it is opened again when it is lost."""

    def __init__(self, fleet: Fleet, sessions: Sequence[Session]) -> None:
        self._fleet = fleet
        self._sessions = {session.number: session for session in sessions}
        self._waiting = [session.number for session in reversed(sessions)]
        self._in_flight = 0
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self._is_connected = False
        self._at = 0

    @property
    def _url(self) -> str:
        return self._fleet.urls[self._at % len(self._fleet.urls)]

    async def open(self) -> None:
        """Connect to a broker; try the next one after a failure."""
        loop = asyncio.get_running_loop()
        while True:
            target = urlsplit(self._url)
            try:
                await loop.create_connection(
                    lambda: self, target.hostname or "127.0.0.1", target.port or 6650
                )
            except OSError:
                self._at += 1
                await asyncio.sleep(BACKOFF_SECONDS)
            else:
                return

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's does not inherit from it
        self._received.clear()
        self._write(CONNECT, [(1, "onewriter-bench"), (4, 20)])

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._fleet.staying.discard(self)
        if not self._fleet.staying:
            self._fleet.all_lost.set()
        self._transport, self._is_connected = None, False
        self._in_flight = 0
        self._at += 1
        for session in self._sessions.values():
            if session.is_answered:
                session.is_answered = False
                self._fleet.answered -= 1
        self._waiting = list(reversed(self._sessions))
        _keep(asyncio.get_running_loop().create_task(self.open()))

    def data_received(self, data: bytes) -> None:
        self._received += data
        received, taken = self._received, 0
        while len(received) - taken >= 10:
            end = taken + 4 + int.from_bytes(received[taken : taken + 4], "big")
            if end > len(received):
                break
            kind = received[taken + 9]
            if kind == PING and self._transport is not None:
                self._transport.write(PONG_FRAME)
            elif kind != PING:
                size = int.from_bytes(received[taken + 4 : taken + 8], "big")
                fields = decode(bytes(received[taken + 8 : taken + 8 + size]))
                body = fields.get(kind, b"")
                self._handle(kind, decode(body) if isinstance(body, bytes) else {})
            taken = end
        del received[:taken]
        self._fill()

    def _handle(self, kind: int, fields: Fields) -> None:
        if kind == CONNECTED:
            self._is_connected = True
        elif kind == LOOKUP_RESPONSE:
            session = self._sessions[number_of(fields, 4)]
            url = fields.get(1, b"")
            if (
                fields.get(3) == LOOKUP_CONNECT
                and isinstance(url, bytes)
                and url.decode() == self._url
            ):
                self._ask(session)
            else:
                self._later(session, f"look-up: {fields}")
        elif kind == PRODUCER_SUCCESS:
            session = self._sessions[number_of(fields, 1)]
            is_ready = fields.get(6, 1) == 1
            if not session.is_answered:
                self._in_flight -= 1
            session.attempts = 0
            self._fleet.ready(session, number_of(fields, 5) if is_ready else 0, is_ready=is_ready)
        elif kind == ERROR and number_of(fields, 2) == PRODUCER_FENCED:
            self._in_flight -= 1
            self._fleet.fenced(self._sessions[number_of(fields, 1)])
        elif kind == ERROR:
            self._later(self._sessions[number_of(fields, 1)], f"error: {fields}")
        elif kind == CLOSE_PRODUCER:
            session = self._sessions[number_of(fields, 1)]
            if session.is_answered:
                session.is_answered = False
                self._fleet.answered -= 1
                self._in_flight += 1
            self._later(session, "closed")

    def _fill(self) -> None:
        while self._is_connected and self._waiting and self._in_flight < IN_FLIGHT_MAX:
            self._in_flight += 1
            self._look_up(self._sessions[self._waiting.pop()])

    def _look_up(self, session: Session) -> None:
        self._write(LOOKUP, [(1, session.topic), (2, session.number), (3, 0)])

    def _ask(self, session: Session) -> None:
        fields: list[tuple[int, int | bytes | str]] = [
            *((1, session.topic), (2, session.number), (3, session.number)),
            *((4, f"p-{session.number}"), (10, WAIT_FOR_EXCLUSIVE)),
        ]
        if session.epoch:
            fields += [(8, 1), (11, session.epoch)]
        self._write(PRODUCER, fields)

    def _later(self, session: Session, why: str) -> None:
        """Try again after a pause; another topic may be tried meanwhile."""
        if len(session.refusals) < 3:
            session.refusals.append(why)
        self._in_flight -= 1
        pause = min(BACKOFF_SECONDS * 2**session.attempts, BACKOFF_SECONDS_MAX)
        session.attempts += 1
        pause *= self._fleet.randomness.uniform(0.9, 1.1)
        asyncio.get_running_loop().call_later(pause, self._again, session, self._transport)

    def _again(self, session: Session, transport: asyncio.Transport | None) -> None:
        if transport is self._transport and not session.is_answered:
            self._waiting.insert(0, session.number)
            self._fill()

    def _write(self, kind: int, fields: Sequence[tuple[int, int | bytes | str]]) -> None:
        if self._transport is not None:
            self._transport.write(encode_command(kind, fields))


def number_of(fields: Fields, at: int) -> int:
    """A number of a decoded message; 0 if it is missing."""
    value = fields.get(at, 0)
    assert isinstance(value, int)
    return value


_TASKS: set[asyncio.Task[None]] = set()


def _keep(task: asyncio.Task[None]) -> None:
    _TASKS.add(task)
    task.add_done_callback(_TASKS.discard)


async def run(
    urls: Sequence[str], topics: Sequence[str], connections: int, *, waiters: bool
) -> None:
    """Open all topics, then wait for lines on the standard input: each one asks for a report of the next return."""
    fleet = Fleet(urls)
    holders = [Session(topic, number, True) for number, topic in enumerate(topics, 1)]
    behind = (
        [Session(topic, number, False) for number, topic in enumerate(topics, 1)] if waiters else []
    )
    started = time.monotonic()
    connections_opened: list[Connection] = []
    for group in (holders, behind):
        opened = [
            Connection(fleet, group[at::connections]) for at in range(min(connections, len(group)))
        ]
        connections_opened += opened
        await asyncio.gather(*(connection.open() for connection in opened))
        await all_answered(holders if group is holders else holders + behind, "opened")
    seconds = time.monotonic() - started
    say(event="open", seconds=seconds, topics=len(topics))
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        if line.strip() == b"kill":
            fleet.staying = set(connections_opened)
            fleet.all_lost.clear()
            await fleet.all_lost.wait()
            await all_answered(holders, "back")
            back = sorted(session.answered_at for session in holders)
            await all_answered(holders + behind, "queued")
            say(
                event="back",
                first=back[0],
                half=back[len(back) // 2],
                last=back[-1],
                queued=max((session.answered_at for session in behind), default=back[-1]),
                lost_epochs=fleet.lost_epochs,
                promoted=fleet.promoted,
            )


async def all_answered(sessions: Sequence[Session], what: str) -> None:
    """Wait until every session has its answer."""
    while (missing := sum(not session.is_answered for session in sessions)) > 0:
        refused = next(
            (each.refusals[0] for each in sessions if each.refusals and not each.is_answered), ""
        )
        say(
            event="progress",
            what=what,
            answered=len(sessions) - missing,
            of=len(sessions),
            refused=refused,
        )
        await asyncio.sleep(PROGRESS_SECONDS if missing > 100 else 0.005)


def main() -> None:
    """Open producers of many topics, and keep them open until the standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m bench.scale_client", description=main.__doc__)
    parser.add_argument("topics", type=Path, help="a file with one topic per line")
    parser.add_argument("urls", nargs="+", help="service URLs of the brokers")
    parser.add_argument("--connections", type=int, default=16, help="for each role")
    parser.add_argument("--no-waiters", action="store_true")
    arguments = parser.parse_args()
    topics = arguments.topics.read_text().split()
    uvloop.run(run(arguments.urls, topics, arguments.connections, waiters=not arguments.no_waiters))


if __name__ == "__main__":
    main()
