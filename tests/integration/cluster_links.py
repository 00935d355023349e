"""The network between the parts of a Valkey Cluster, its brokers and a writer, as a proxy on loopback addresses.

Each part reaches the others through the proxy, which knows both ends of every connection. A cut is silent: connections
stay open and no byte arrives until the cut is repaired, as when a network drops packets. Nodes are known by their
source address, brokers by the user of the store that they log in as, and writers by the port that they connect to.

The proxy is a process of its own, so that work of the test does not delay the cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Self

from tests.integration.forked import fork
from tests.integration.raw import eventually

POLL_SECONDS = 0.02
"""Time between two checks whether a cut is repaired."""

CHUNK_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Route:
    """Connections from one part to another. ``bus``: those of the cluster's own protocol."""

    source: str
    target: str
    bus: bool = False

    @property
    def reverse(self) -> Route:
        """The connections that the other end opens."""
        return Route(self.target, self.source, self.bus)


@dataclass(frozen=True, slots=True)
class Sources:
    """Names the source of a connection by its address, or else by a user in its first bytes, or else ``other``."""

    addresses: Mapping[str, str]
    users: Mapping[bytes, str]
    other: str

    def name(self, address: str, first: bytes) -> str:
        if address in self.addresses:
            return self.addresses[address]
        return next((part for user, part in self.users.items() if user in first), self.other)


@dataclass(frozen=True, slots=True)
class Entrance:
    """A port that leads to a part. ``source``: the only part that uses it."""

    port: int
    address: tuple[str, int]
    target: str
    bus: bool = False
    source: str = ""


class Links:
    """The proxy. ``with`` starts its process, and ends it."""

    def __init__(self, entrances: Iterable[Entrance], sources: Sources, folder: Path) -> None:
        self._arguments = (tuple(entrances), sources, str(folder / "links"))
        self._log = folder / "links.log"

    def __enter__(self) -> Self:
        self._process = fork(_forward_until_told, *self._arguments, log=self._log)
        eventually(self._has_connected, what=f"the proxy did not start: {self._log}")
        self._tell("repair")
        return self

    def _has_connected(self) -> bool:
        with contextlib.suppress(OSError):  # it does not listen yet
            self._control = Client(self._arguments[-1])
            return True
        return False

    def __exit__(self, *_: object) -> None:
        self._control.close()
        self._process.wait()

    def cut(self, routes: Iterable[Route]) -> None:
        """Let nothing pass on these routes, in either direction."""
        self._tell("cut", routes)

    def repair(self) -> None:
        """Repair all cuts: what was sent meanwhile arrives."""
        self._tell("repair")

    def reset(self, routes: Iterable[Route]) -> None:
        """Close the connections of these routes: what is under way on them is lost."""
        self._tell("reset", routes)

    def _tell(self, what: str, routes: Iterable[Route] = ()) -> None:
        self._control.send((what, frozenset(routes)))
        self._control.recv()


def _forward_until_told(entrances: Sequence[Entrance], sources: Sources, control: str) -> int:
    """Run the proxy until the other end of the control connection is closed."""
    with (
        _Proxy(entrances, sources) as proxy,
        Listener(control) as listener,
        listener.accept() as told,
        contextlib.suppress(EOFError),
    ):
        while True:
            what, routes = told.recv()
            proxy.apply(what, routes)
            told.send(None)
    return 0


class _Proxy:
    """Forwards connections in a thread of its own."""

    def __init__(self, entrances: Sequence[Entrance], sources: Sources) -> None:
        self._entrances = entrances
        self._sources = sources
        self._cut: frozenset[Route] = frozenset()
        self._open: dict[Route, set[asyncio.WriteTransport]] = {}
        self._transports: set[asyncio.WriteTransport] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run)
        self._is_listening = threading.Event()
        self._is_over = asyncio.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        self._is_listening.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._is_over.set)
        self._thread.join()

    def apply(self, what: str, routes: frozenset[Route]) -> None:
        """Do what Links was told."""
        match what:
            case "cut":
                self._cut |= routes
            case "repair":
                self._cut = frozenset()
            case "reset":
                self._loop.call_soon_threadsafe(self._abort, routes)
            case _:
                raise AssertionError(f"unknown command {what}")

    def _abort(self, routes: frozenset[Route]) -> None:
        for route in routes:
            for transport in tuple(self._open.get(route, ())):
                transport.abort()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            tasks: set[asyncio.Task[None]] = set()
            for entrance in self._entrances:

                def accept(
                    reader: asyncio.StreamReader,
                    writer: asyncio.StreamWriter,
                    entrance: Entrance = entrance,
                ) -> None:
                    task = self._loop.create_task(self._forward(entrance, reader, writer))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)

                server = await asyncio.start_server(accept, "127.0.0.1", entrance.port)
                stack.callback(server.close)
            self._is_listening.set()
            await self._is_over.wait()
            for transport in tuple(self._transports):
                transport.abort()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _forward(
        self, entrance: Entrance, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Serve one connection until an end closes it."""
        with contextlib.ExitStack() as stack:
            address = writer.get_extra_info("peername")[0]
            stack.callback(self._closed, writer.transport)
            self._transports.add(writer.transport)
            try:
                first = await reader.read(CHUNK_BYTES)
                source = entrance.source or self._sources.name(address, first)
                route = Route(source, entrance.target, entrance.bus)
                back, onward = await asyncio.open_connection(*entrance.address)
                stack.callback(self._closed, onward.transport)
                self._transports.add(onward.transport)
                self._open.setdefault(route, set()).update({writer.transport, onward.transport})
                async with asyncio.TaskGroup() as pumps:
                    pumps.create_task(self._pump(reader, onward, route, first))
                    pumps.create_task(self._pump(back, writer, route))
            except* (OSError, EOFError):
                pass

    def _closed(self, transport: asyncio.WriteTransport) -> None:
        transport.close()  # after the bytes that were received for it
        self._transports.discard(transport)
        for transports in self._open.values():
            transports.discard(transport)

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        route: Route,
        data: bytes = b"",
    ) -> None:
        data = data or await reader.read(CHUNK_BYTES)
        while data:
            while route in self._cut:  # noqa: ASYNC110 - other threads cut and repair
                await asyncio.sleep(POLL_SECONDS)
            writer.write(data)
            await writer.drain()
            data = await reader.read(CHUNK_BYTES)
        raise EOFError


def both_ways(one: str, others: Iterable[str]) -> frozenset[Route]:
    """All routes between a part and others."""
    return frozenset(
        route
        for other in others
        for bus in (False, True)
        for route in (Route(one, other, bus), Route(other, one, bus))
    )
