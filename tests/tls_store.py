"""A store or a cluster that serves TLS: by a proxy in front of each server, or by Redis itself if its build supports TLS."""

from __future__ import annotations

import asyncio
import contextlib
import socketserver
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from tests.cluster.pki import Authority
from tests.servers import SERVER_PROGRAMS, StoreServer, running_server
from tests.store_cluster import StoreCluster, running_cluster, wait_until

from onewriter_testing.ports import free_ports

KINDS = ["proxy", *(kind for kind in ("redis7",) if kind in SERVER_PROGRAMS)]
"""Ways to serve TLS: a proxy in front of Valkey, and Redis itself where it is installed."""

HOST = "127.0.0.1"
CHUNK_BYTES = 256 * 1024
ENDED_SECONDS_MAX = 60.0


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


async def connections_ended() -> None:
    """Wait until the running loop, one of asyncio's own, has no sockets: the end of a connection with TLS takes several turns."""
    selector = cast("Any", asyncio.get_running_loop())._selector
    async with asyncio.timeout(ENDED_SECONDS_MAX):
        while len(selector.get_map()) > 1:  # noqa: ASYNC110 - one is the loop's own
            await asyncio.sleep(0.01)


# ------------------------------------------------------------ a cluster


CLUSTER_NAME = "store.example"
"""The only name in the certificate of a cluster: its nodes announce addresses."""


@contextlib.contextmanager
def running_tls_cluster(directory: Path) -> Iterator[tuple[StoreCluster, str]]:
    """Run a cluster whose nodes announce ports with TLS, and require client certificates; yields it and its URL.

    It has no replicas, because a node that copies another one connects to the announced port without TLS.
    """
    authority = Authority(directory)
    authority.server("store", [CLUSTER_NAME])
    authority.client("broker", "broker")
    context = serve_with(directory, "store", asks_for=authority.certificate)
    with running_cluster(replicas=0) as cluster, contextlib.ExitStack() as stack:
        ports: set[int] = set()
        for server in cluster.servers:
            proxy = TlsProxy(server.path, context)
            stack.callback(proxy.close)
            server.command("CONFIG", "SET", "cluster-announce-port", proxy.port)
            ports.add(proxy.port)
        wait_until(
            lambda: all(
                {node.port for node in cluster.view(server).nodes} == ports
                for server in cluster.servers
            )
        )
        yield cluster, "rediss+cluster://" + ",".join(f"{HOST}:{port}" for port in sorted(ports))


# ------------------------------------------------------------ Sentinels


class FakeSentinel(socketserver.ThreadingUnixStreamServer):
    """Answers each command on a Unix socket with the address of a primary, like a Sentinel.

    Sentinel itself names the port by which it monitors the primary, which is without TLS where Valkey has none.
    """

    daemon_threads = True

    def __init__(self, path: Path, port: int) -> None:
        super().__init__(str(path), _SentinelHandler)
        self.port = port
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self.shutdown()
        self.server_close()


class _SentinelHandler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, FakeSentinel)
        while count := self.rfile.readline().strip():
            words = []
            for _ in range(int(count[1:])):
                self.rfile.readline()
                words.append(self.rfile.readline().strip().decode())
            host, port = HOST, str(self.server.port)
            answer = "*2\r\n" + "".join(f"${len(each)}\r\n{each}\r\n" for each in (host, port))
            known = words[-1] == SENTINEL_PRIMARY
            self.wfile.write((answer if known else "*-1\r\n").encode())


SENTINEL_PRIMARY = "shard"
"""The name of the primary at the Sentinels of the tests."""


@contextlib.contextmanager
def running_tls_sentinel(
    store: TlsStore, directory: Path, *, asks_for_client: bool = False
) -> Iterator[TlsProxy]:
    """Run a Sentinel that serves TLS with the certificate ``store`` and names the store as the primary."""
    asks_for = store.authority.certificate if asks_for_client else None
    with tempfile.TemporaryDirectory(prefix="ow-") as folder:
        sentinel = FakeSentinel(Path(folder) / "s", store.port)
        proxy = TlsProxy(Path(folder) / "s", serve_with(directory, "store", asks_for=asks_for))
        try:
            yield proxy
        finally:
            proxy.close()
            sentinel.stop()


@contextlib.contextmanager
def running_redis_sentinel(store: TlsStore, directory: Path) -> Iterator[int]:
    """Run Redis' own Sentinel with TLS only, beside a store of Redis that requires client certificates."""
    port = free_ports(1)
    with tempfile.TemporaryDirectory(prefix="ow-") as folder:
        configuration = Path(folder) / "sentinel.conf"
        configuration.write_text(
            f"port 0\ntls-port {port}\nbind {HOST}\ndir {folder}\ntls-replication yes\n"
            f"tls-cert-file {directory / 'store.crt'}\ntls-key-file {directory / 'store.key'}\n"
            f"tls-ca-cert-file {store.authority.certificate}\ntls-auth-clients yes\n"
            f"sentinel monitor {SENTINEL_PRIMARY} {HOST} {store.port} 1\n"
        )
        process = subprocess.Popen(
            [str(SERVER_PROGRAMS["redis7"]), str(configuration), "--sentinel"],
            stdout=subprocess.DEVNULL,
        )
        try:
            yield port
        finally:
            process.kill()
            process.wait()
