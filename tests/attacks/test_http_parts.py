"""The HTTP servers of sidecar, operator and webhook refuse what the broker's server refuses."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import secrets
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from tests.attacks.http_bytes import ANSWER_SECONDS_MAX, request
from tests.unit.client.fake_broker import FakeBroker, until
from tests.unit.client.sidecar_world import running_sidecar
from tests.unit.kube.test_webhook import World

from onewriter_operator.metrics import Metrics
from onewriter_operator.web import Web
from onewriter_testing.ports import free_ports

BOMB = gzip.compress(b"[" * 20_000_000)


async def send(port: int, data: bytes, tls: ssl.SSLContext | None = None) -> bytes:
    """The answer to bytes that ask for the connection to be closed."""
    name = None if tls is None else "localhost"
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname=name)
    try:
        writer.write(data)
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            return await reader.read()
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def status(answer: bytes) -> int:
    return int(answer[9:12] or b"0")


async def listens(port: int) -> bool:
    with contextlib.suppress(ConnectionRefusedError):
        await send(port, request("GET", "/healthz"))
        return True
    return False


@contextlib.asynccontextmanager
async def sidecar(folder: Path) -> AsyncIterator[tuple[int, int]]:
    """Its ports: of the API, and of probes."""
    api = free_ports(2)
    broker = FakeBroker()
    await broker.start()
    try:
        chosen: dict[str, Any] = {"port": api, "health_port": api + 1, "health_host": "127.0.0.1"}
        async with running_sidecar(broker, folder, **chosen):
            await until(lambda: listens(api + 1))
            yield api, api + 1
    finally:
        await broker.stop()


async def test_a_sidecar_inflates_nothing(tmp_path: Path) -> None:
    requested = request("POST", "/publish", "Content-Encoding: gzip", body=BOMB)
    async with sidecar(tmp_path) as ports:
        for port in ports:
            assert status(await send(port, requested)) == 415


@pytest.mark.parametrize(
    ("host", "header"),
    [
        ("evil.example:6680", "X: y"),
        ("[::1", "X: y"),
        ("localhost", "Origin: http://localhost"),
        ("localhost", "Origin: http://[::1"),
        ("localhost", "Sec-Fetch-Site: cross-site"),
        ("localhost", "Sec-Fetch-Site: same-site"),
    ],
)
async def test_a_page_neither_reads_a_sidecar_nor_publishes(
    tmp_path: Path, host: str, header: str
) -> None:
    async with sidecar(tmp_path) as (port, _):
        for method, path in (("GET", "/leadership"), ("GET", "/metrics"), ("POST", "/publish")):
            found = await send(port, request(method, path, header, host=host))
            assert status(found) in {400, 403}
        assert status(await send(port, request("GET", "/leadership"))) == 200


async def test_the_operators_probes_inflate_nothing_and_log_no_request() -> None:
    port = free_ports(1)
    web = Web(Metrics(), list)
    await web.start("127.0.0.1", port)
    try:
        with structlog.testing.capture_logs() as lines:
            bomb = request("POST", "/healthz", "Content-Encoding: gzip", body=BOMB)
            assert status(await send(port, bomb)) == 415
            long = request("GET", "/", f"Authorization: Bearer {'hunter2' * 2_000}")
            found = await send(port, long)
            assert status(found) == 400
            assert b"aiohttp" not in found
        assert "hunter2" not in repr(lines)
        assert "Traceback" not in repr(lines)
        for path in ("/healthz", "/readyz", "/metrics"):
            assert status(await send(port, request("GET", path))) == 200
    finally:
        await web.stop()


async def test_the_operators_metrics_are_for_the_token_in_its_file(tmp_path: Path) -> None:
    port, file = free_ports(1), tmp_path / "token"
    token = secrets.token_hex(16)
    web = Web(Metrics(), list, metrics_token_file=file)
    await web.start("127.0.0.1", port)

    async def read(method: str = "GET", *headers: str) -> int:
        return status(await send(port, request(method, "/metrics", *headers)))

    try:
        assert await read("GET", f"Authorization: Bearer {token}") == 401, "there is no file yet"
        for path in ("/healthz", "/readyz"):
            assert status(await send(port, request("GET", path))) == 200
    finally:
        await web.stop()
    file.write_text(f"{token}\n")
    web = Web(Metrics(), list, metrics_token_file=file)
    await web.start("127.0.0.1", port)
    try:
        assert await read("GET", f"Authorization: Bearer {token}") == 200
        for method in ("GET", "HEAD"):
            assert await read(method) == 401
            for wrong in ("", token[:-1], token + "0", token.upper() + "é"):
                assert await read(method, f"Authorization: Bearer {wrong}") == 401
            assert await read(method, f"Authorization: Basic {token}") == 401
    finally:
        await web.stop()


REVIEWS = [
    b"[" * 100_000,
    b'{"request": ' + b"9" * 100_000 + b"}",
    b"[]",
    b"null",
    b'{"request": []}',
    b'{"request": {"uid": 1, "object": {}}}',
    b'{"request": {"uid": "u", "object": []}}',
    b'{"request": {"uid": "u", "object": {}, "namespace": 3}}',
    b"\xff\xfe",
    b"",
]

PODS: list[object] = [
    {},
    {"metadata": []},
    {"metadata": {"labels": [], "annotations": 3}, "spec": {}},
    {"metadata": {"labels": {"onewriter.dev/inject": "true"}}, "spec": []},
    {"metadata": {"labels": {"onewriter.dev/inject": "true"}}, "spec": {"containers": 3}},
    {"metadata": {"labels": {"onewriter.dev/inject": "true"}}, "spec": {"containers": [3]}},
    {"metadata": {"labels": {"\ud800": "\udfff"}}, "spec": {"containers": []}},
]


async def test_the_webhook_survives_reviews_that_the_api_server_never_sends(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    await world.webhook.start("127.0.0.1", world.port)
    context = ssl.create_default_context(cafile=str(world.directory / "ca.crt"))
    try:
        with structlog.testing.capture_logs() as lines:
            bomb = request("POST", "/inject", "Content-Encoding: gzip", body=BOMB)
            assert status(await send(world.port, bomb, context)) == 415
            for body in REVIEWS:
                found = await send(world.port, request("POST", "/inject", body=body), context)
                assert status(found) in {400, 413}, body[:100]
            for pod in PODS:
                review = {"request": {"uid": "u", "object": pod}}
                requested = request("POST", "/inject", body=json.dumps(review).encode())
                assert status(await send(world.port, requested, context)) == 200, pod
        assert [line for line in lines if line["log_level"] == "error"] == []
    finally:
        await world.webhook.stop()
