"""A store that serves TLS: a proxy that ends TLS in front of a server, or Redis itself where it can do so."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.cluster.pki import Authority
from tests.servers import SERVER_PROGRAMS, StoreServer, running_server

from onewriter_broker.testing.ports import free_ports

KINDS = ["proxy", *(kind for kind in ("redis7",) if kind in SERVER_PROGRAMS)]
"""Ways to serve TLS: a proxy in front of Valkey, and Redis itself where it is installed."""

HOST = "127.0.0.1"
CHUNK_BYTES = 256 * 1024


def serve_with(directory: Path, name: str, *, asks_for: Path | None) -> ssl.SSLContext:
    """The context of a server with this certificate, which requires client certificates of ``asks_for``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / f"{name}.crt", directory / f"{name}.key")
    if asks_for is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(asks_for)
    return context


class TlsProxy:
    """Ends TLS on a port of 127.0.0.1 and forwards to a Unix socket, in a thread of its own.

    ``context`` may be replaced at run time. ``drop`` cuts all connections.
    """

    def __init__(self, socket: Path, context: ssl.SSLContext) -> None:
        self.port = free_ports(1)
        self.context = context
        self._socket = socket
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()

    def use(self, context: ssl.SSLContext) -> None:
        """Serve new connections with another context, and cut the present ones."""
        self.context = context
        asyncio.run_coroutine_threadsafe(self._again(), self._loop).result()

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(
            self._serve, HOST, self.port, ssl=self.context, limit=CHUNK_BYTES
        )

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        running = asyncio.all_tasks() - {asyncio.current_task()}
        if running:
            await asyncio.wait(running, timeout=60)

    async def _again(self) -> None:
        await self._close()
        await self._listen()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            inner, outer = await asyncio.open_unix_connection(self._socket, limit=CHUNK_BYTES)
            self._writers |= {writer, outer}
            try:
                await asyncio.gather(_copy(reader, outer), _copy(inner, writer))
            finally:
                self._writers -= {writer, outer}
                outer.transport.abort()
        writer.transport.abort()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(CHUNK_BYTES):
            target.write(data)
            await target.drain()
    target.transport.abort()


class TlsStore:
    """A running store with TLS. ``authority`` issued its certificate ``store`` for 127.0.0.1."""

    def __init__(
        self, server: StoreServer, authority: Authority, port: int, proxy: TlsProxy | None
    ) -> None:
        self.server = server
        self.authority = authority
        self.port = port
        self.proxy = proxy

    @property
    def url(self) -> str:
        return f"rediss://{HOST}:{self.port}"


@contextlib.contextmanager
def running_tls_store(
    kind: str, directory: Path, *, hosts: tuple[str, ...] = (HOST,), asks_for_client: bool = False
) -> Iterator[TlsStore]:
    """Run a store that serves TLS."""
    authority = Authority(directory)
    authority.server("store", list(hosts))
    authority.client("broker", "broker")
    if kind == "proxy":
        with running_server() as server:
            context = serve_with(
                directory, "store", asks_for=authority.certificate if asks_for_client else None
            )
            proxy = TlsProxy(server.path, context)
            try:
                yield TlsStore(server, authority, proxy.port, proxy)
            finally:
                proxy.close()
        return
    port = free_ports(1)
    settings: dict[str, Any] = {
        "tls_port": str(port),
        "tls_cert_file": str(directory / "store.crt"),
        "tls_key_file": str(directory / "store.key"),
        "tls_ca_cert_file": str(authority.certificate),
        "tls_auth_clients": "yes" if asks_for_client else "no",
    }
    with running_server(kind, **settings) as server:
        yield TlsStore(server, authority, port, None)
