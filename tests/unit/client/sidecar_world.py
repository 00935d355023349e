"""A sidecar in the test's own loop, with a scripted broker and a client of its HTTP interface."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from tests.unit.client.fake_broker import FakeBroker, until

from onewriter.sidecar.app import serve
from onewriter.sidecar.limits import DEFAULT_LIMITS, SidecarLimits
from onewriter.sidecar.settings import Settings
from onewriter_core.wire import replies
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

SECONDS_MAX = 60.0


@dataclass
class Answer:
    """Status, and the body: JSON if it is, else text."""

    status: int
    body: Any
    headers: Any


class SidecarWorld:
    """``call`` it; ``stop`` ends it as SIGTERM does; ``standing_aside`` is set as by SIGUSR1."""

    def __init__(self, settings: Settings, session: aiohttp.ClientSession) -> None:
        self.settings = settings
        self.session = session
        self.stopping = asyncio.Event()
        self.standing_aside = asyncio.Event()

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        session: str | None = None,
        **headers: str,
    ) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if session is not None:
            named["Onewriter-Session"] = session
        async with self.session.request(
            method, f"http://sidecar{path}", data=body, headers=named
        ) as response:
            text = await response.text()
            try:
                found: Any = json.loads(text)
            except ValueError:
                found = text
            return Answer(response.status, found, response.headers)

    async def publish(self, body: Any, session: str | None, **headers: str) -> Answer:
        return await self.call("POST", "/publish", body, session=session, **headers)

    async def stream(
        self, body: Any, session: str, kind: str = "application/x-ndjson"
    ) -> list[Any]:
        """The lines of a stream's answer."""
        answer = await self.publish(body, session, Content_Type=kind)
        assert answer.status == 200, answer.body
        text = answer.body if isinstance(answer.body, str) else json.dumps(answer.body)
        return [json.loads(line) for line in text.splitlines()]

    async def standing(self) -> dict[str, Any]:
        found: dict[str, Any] = (await self.call("GET", "/leadership")).body
        return found

    async def until(self, phase: str) -> dict[str, Any]:
        """Wait for a phase; the standing then."""
        answer = await self.call("GET", f"/leadership?until={phase}&timeoutSeconds={SECONDS_MAX}")
        found: dict[str, Any] = answer.body
        assert found["phase"] == phase, found
        return found

    async def lead(self) -> str:
        """Wait until it leads; the session."""
        return str((await self.until("leading"))["session"])


@contextlib.asynccontextmanager
async def running_sidecar(
    broker: FakeBroker,
    directory: Path,
    *,
    limits: SidecarLimits = DEFAULT_LIMITS,
    **settings: Any,
) -> AsyncIterator[SidecarWorld]:
    """A sidecar on a unix socket in ``directory``."""
    chosen: dict[str, Any] = {
        "topic": "orders",
        "service_url": broker.url,
        "port": 0,
        "socket": directory / "sidecar.sock",
        "identity": "writer-0",
        "stop_seconds": 1.0,
    }
    made = Settings(**chosen | settings)
    assert made.socket is not None
    connector = aiohttp.UnixConnector(str(made.socket), limit=0)
    timeout = aiohttp.ClientTimeout(total=SECONDS_MAX)
    async with (
        asyncio.TaskGroup() as tasks,
        aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
    ):
        world = SidecarWorld(made, session)
        serving = tasks.create_task(serve(made, world.stopping, world.standing_aside, limits))
        await until(lambda: _listens(made.socket, serving))
        try:
            yield world
        finally:
            world.stopping.set()
            async with asyncio.timeout(SECONDS_MAX):
                await asyncio.wait([serving])


async def _listens(socket: Path | None, serving: asyncio.Task[None]) -> bool:
    return serving.done() or (socket is not None and socket.exists())  # noqa: ASYNC240


def lose_the_topic(broker: FakeBroker, *, producer_id: int = 1) -> None:
    """Depose the holder; from now on whoever brings an epoch is fenced, and others wait."""
    broker.answers[pb.CommandProducer] = lambda link, command: (
        broker.fence if command.HasField("topic_epoch") else broker.queue
    )(link, command)
    broker.links[-1].write(replies.close_producer(producer_id))


def ndjson(*messages: Any) -> bytes:
    """A stream's body, a line for each message."""
    return b"".join(json.dumps(message).encode() + b"\n" for message in messages)
