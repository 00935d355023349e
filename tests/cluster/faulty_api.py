"""A proxy that forwards to an API server and answers some requests with an error.

It uses plain HTTP to the client and the administrator's certificate to the server. It forwards streams as they
arrive, and can cut them.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import aiohttp
import yaml
from aiohttp import web
from tests.cluster.control_plane import ControlPlane
from tests.loop_threads import ANSWER_SECONDS_MAX, end_loop


@dataclass
class Fault:
    """Answers the first ``times`` requests that match with this status; with status 0 the server answers them.

    While ``is_held`` these requests wait for their answer.
    """

    method: str
    path: str
    status: int
    times: int
    headers: dict[str, str]
    is_held: bool = False
    count: int = 0


class FaultyApi:
    """The proxy. ``writes`` contains every write that it forwarded, and ``reads`` counts by path."""

    def __init__(self, cluster: ControlPlane, directory: Path) -> None:
        self._cluster = cluster
        self._directory = directory
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.faults: list[Fault] = []
        self.writes: list[tuple[str, str, int]] = []
        self.reads: Counter[str] = Counter()
        self.is_down = False
        self._streams: set[asyncio.Task[Any]] = set()
        self._serving = self._served()
        self.kubeconfig = directory / "faulty.kubeconfig"

    def __enter__(self) -> Self:
        self._thread.start()
        starting = asyncio.run_coroutine_threadsafe(self._serving.__aenter__(), self._loop)
        port = starting.result(ANSWER_SECONDS_MAX)
        self.kubeconfig.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "faulty",
                    "clusters": [
                        {"name": "faulty", "cluster": {"server": f"http://127.0.0.1:{port}"}}
                    ],
                    "users": [{"name": "nobody", "user": {}}],
                    "contexts": [
                        {"name": "faulty", "context": {"cluster": "faulty", "user": "nobody"}}
                    ],
                }
            )
        )
        return self

    def __exit__(self, *error: object) -> None:
        end_loop(self._loop, self._thread, self._serving.__aexit__(None, None, None))

    # ------------------------------------------------------------ faults

    def fail(
        self,
        method: str,
        path: str,
        status: int,
        *,
        times: int = 1,
        headers: dict[str, str] | None = None,
        is_held: bool = False,
    ) -> Fault:
        """Answer the next requests with this status. ``path`` is a regular expression."""
        fault = Fault(method, path, status, times, headers or {}, is_held)
        self._do(lambda: self.faults.append(fault))
        return fault

    def cut_streams(self) -> None:
        """Cut every watch."""
        self._do(lambda: [task.cancel() for task in self._streams])

    def counted(self, ignoring: str = "/leases") -> list[tuple[str, str, int]]:
        """Return the writes since the last call, except the ignored ones."""
        found = [each for each in self.writes if ignoring not in each[1]]
        self.writes.clear()
        return found

    def _do(self, action: Callable[[], Any]) -> None:
        async def done() -> None:
            action()

        asyncio.run_coroutine_threadsafe(done(), self._loop).result(ANSWER_SECONDS_MAX)

    # ------------------------------------------------------------ the proxy

    @contextlib.asynccontextmanager
    async def _served(self) -> AsyncIterator[int]:
        pki = self._cluster.authority.directory
        context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        context.load_cert_chain(str(pki / "admin.crt"), str(pki / "admin.key"))
        connector = aiohttp.TCPConnector(ssl=context, limit=0)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:
            self._session = session
            app = web.Application(client_max_size=16 * 1024 * 1024)
            app.router.add_route("*", "/{path:.*}", self._pass)
            runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            try:
                yield runner.addresses[0][1]
            finally:
                await runner.cleanup()

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        if self.is_down:
            assert request.transport is not None
            request.transport.abort()
            return web.Response(status=503)
        for fault in self.faults:
            is_meant = request.method == fault.method and re.search(fault.path, request.path)
            if is_meant and fault.count < fault.times:
                fault.count += 1
                while fault.is_held:  # noqa: ASYNC110 - a test's thread releases it
                    await asyncio.sleep(0.02)
                if fault.status:
                    return web.json_response(
                        {"kind": "Status", "message": "injected", "code": fault.status},
                        status=fault.status,
                        headers=fault.headers,
                    )
        body = await request.read()
        headers = {
            name: value
            for name, value in request.headers.items()
            if name.lower() in {"content-type", "accept"}
        }
        timeout = aiohttp.ClientTimeout(total=None)
        async with self._session.request(
            request.method,
            self._cluster.url + str(request.rel_url),
            data=body or None,
            headers=headers,
            timeout=timeout,
        ) as answer:
            if request.method in {"GET", "HEAD"}:
                self.reads[request.path] += 1
            else:
                self.writes.append((request.method, request.path, answer.status))
            response = web.StreamResponse(
                status=answer.status,
                headers={"Content-Type": answer.headers.get("Content-Type", "application/json")},
            )
            await response.prepare(request)
            task = asyncio.current_task()
            assert task is not None
            if "watch" in request.query:
                self._streams.add(task)
                task.add_done_callback(self._streams.discard)
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            return response
