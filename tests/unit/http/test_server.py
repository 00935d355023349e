"""A server within small limits: what is late, too much or compressed is refused, the rest is served."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from tests.clock import skip

from onewriter_http.limits import Limits
from onewriter_http.routes import Routes
from onewriter_http.server import Server
from onewriter_testing.ports import free_ports

ASKED = b"POST /echo HTTP/1.1\r\nHost: localhost\r\n"
READ_SECONDS_MAX = 60.0


class Served:
    """A server that answers POST /echo with the length of the body."""

    def __init__(self, limits: Limits) -> None:
        self.port = free_ports(1)
        self.release = asyncio.Event()
        self._limits = limits
        self._writers: list[asyncio.StreamWriter] = []

    @contextlib.asynccontextmanager
    async def running(self, path: Path | None = None) -> AsyncIterator[Server]:
        application = web.Application()
        routes: Routes[str] = Routes(application.router)
        routes.add_post("/echo", self._echo, "everybody")
        routes.add_post("/held", self._held, "everybody")
        routes.add_post("/stream", self._echo, "everybody")
        server = Server(
            application,
            self._limits,
            routes,
            name="served",
            is_stream=lambda request: request.path == "/stream",
        )
        await server.listen("127.0.0.1", self.port)
        if path is not None:
            await server.listen_unix(path)
        try:
            yield server
        finally:
            for writer in self._writers:
                writer.close()
            await server.stop()

    async def _echo(self, request: web.Request) -> web.Response:
        return web.json_response({"length": len(await request.read())})

    async def _held(self, request: web.Request) -> web.Response:
        await self.release.wait()
        return web.json_response({})

    async def connect(self, data: bytes = b"") -> asyncio.StreamReader:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self._writers.append(writer)
        writer.write(data)
        return reader

    async def ask(self, data: bytes) -> bytes:
        return await ended(await self.connect(data))


async def ended(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(READ_SECONDS_MAX):
        with contextlib.suppress(ConnectionError):
            return await reader.read()
    return b""


async def answered(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(READ_SECONDS_MAX):
        return await reader.readuntil(b"}")


def posted(body: bytes, *headers: str, path: str = "/echo") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Connection: close", *headers]
    lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@pytest.mark.parametrize("encoding", ["gzip", "identity, deflate", "x"])
async def test_an_encoded_body_is_refused(encoding: str) -> None:
    served = Served(Limits())
    async with served.running():
        found = await served.ask(posted(b"{}", f"Content-Encoding: {encoding}"))
        assert found.startswith(b"HTTP/1.1 415")
        assert b'{"length": 2}' in await served.ask(posted(b"{}", "Content-Encoding: Identity"))


async def test_headers_that_are_late_end_the_connection() -> None:
    served = Served(Limits(header_seconds=0.1))
    async with served.running():
        assert await served.ask(b"") == b""
        assert await served.ask(ASKED) == b""


async def test_the_headers_of_a_second_request_have_the_same_time() -> None:
    # Long enough for the first request on a machine of any speed.
    served = Served(Limits(header_seconds=60.0, idle_seconds=1_000.0))
    async with served.running() as server:
        first = ASKED + b"Content-Length: 0\r\n\r\n"
        reader = await served.connect(first)
        assert b'{"length": 0}' in await answered(reader)
        served._writers[-1].write(ASKED)
        async with asyncio.timeout(READ_SECONDS_MAX):
            while not server.table._arriving:  # noqa: ASYNC110 - the table tells nobody
                await asyncio.sleep(0.005)
        skip(60.0)
        assert await ended(reader) == b""


async def test_a_body_that_is_late_is_answered_and_the_connection_closed() -> None:
    served = Served(Limits(body_seconds=0.1))
    async with served.running():
        found = await served.ask(ASKED + b"Content-Length: 10\r\n\r\nabc")
        assert found.startswith(b"HTTP/1.1 408")


async def test_a_stream_may_take_its_time() -> None:
    served = Served(Limits(body_seconds=0.1))
    async with served.running():
        head = b"POST /stream HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        reader = await served.connect(head + b"Content-Length: 4\r\n\r\nab")
        await asyncio.sleep(0.4)
        served._writers[-1].write(b"cd")
        assert b'{"length": 4}' in await ended(reader)


def test_a_large_body_may_take_longer_but_not_for_ever() -> None:
    limits = Limits(body_seconds=10.0, body_rate=1_000, body_bytes_max=5_000)
    found = [limits.seconds_for_body(size) for size in (None, 0, 2_000, 10**15)]
    assert found == [10.0, 10.0, 12.0, 15.0]


async def test_a_full_table_gives_up_who_has_not_asked_yet_oldest_first() -> None:
    served = Served(Limits(connections_max=3))
    async with served.running() as server:
        oldest = await served.connect(ASKED)
        await connections(server, 1)
        held = await served.connect(posted(b"", path="/held"))
        await connections(server, 2)
        newest = await served.connect(ASKED)
        await connections(server, 3)
        assert b'{"length": 1}' in await served.ask(posted(b"x"))
        assert await ended(oldest) == b""
        assert not newest.at_eof()
        served.release.set()
        assert (await ended(held)).startswith(b"HTTP/1.1 200")


async def test_a_client_that_is_served_is_not_given_up() -> None:
    served = Served(Limits(connections_max=2))
    async with served.running() as server:
        held = [await served.connect(posted(b"", path="/held")) for _ in range(2)]
        await connections(server, 2)
        await asyncio.sleep(0.05)
        assert await served.ask(posted(b"x")) == b""
        served.release.set()
        for each in held:
            assert (await ended(each)).startswith(b"HTTP/1.1 200")


async def test_an_address_has_a_share_of_the_connections() -> None:
    served = Served(Limits(connections_max=100, connections_per_address_max=2))
    async with served.running() as server:
        first = await served.connect(ASKED)
        await connections(server, 1)
        for _ in range(2):
            await served.connect(ASKED)
        assert await ended(first) == b""
        assert len(server.table) == 2


async def test_the_answer_names_no_library() -> None:
    served = Served(Limits())
    async with served.running():
        for data in (posted(b""), b"\x00\r\n\r\n", posted(b"", path="/nowhere")):
            found = await served.ask(data)
            assert found.startswith(b"HTTP/1.")
            assert b"server:" not in found.lower()
            assert b"aiohttp" not in found


async def test_a_unix_socket_is_served(tmp_path: Path) -> None:
    served = Served(Limits())
    async with served.running(tmp_path / "socket"):
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "socket"))
        writer.write(posted(b"abc"))
        assert b'{"length": 3}' in await ended(reader)
        writer.close()


async def connections(server: Server, count: int) -> None:
    async with asyncio.timeout(READ_SECONDS_MAX):
        while len(server.table) < count:  # noqa: ASYNC110 - the table tells nobody
            await asyncio.sleep(0.005)
