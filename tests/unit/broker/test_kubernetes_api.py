"""Requests to an API server that is slow, broken or overloaded, or that rejects the token."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.cluster.pki import Authority

from onewriter_broker import kubernetes_api
from onewriter_broker.kubernetes_api import ApiLimits, ApiServer, KubernetesApi, in_cluster
from onewriter_core.errors import ConfigurationError, Unavailable

WRONG_SECONDS = 5.0
"""What this machine's wall clock shows."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Lab:
    """A server whose answer a test chooses, and a client of it."""

    def __init__(self, directory: Path) -> None:
        self.tokens: list[str] = []
        self.bodies: list[object] = []
        self.handler: Handler
        self.clock = Clock()
        self.token_file = directory / "token"
        self.token_file.write_text("first\n")
        self.ca_file = Authority(directory).certificate
        self.api: KubernetesApi

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.tokens.append(request.headers["Authorization"])
        text = await request.text()
        self.bodies.append(json.loads(text) if text else None)
        return await self.handler(request)

    def says(self, code: int, text: str = "{}", **headers: str) -> None:
        async def handler(request: web.Request) -> web.StreamResponse:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            return web.Response(status=code, text=text, headers=named)

        self.handler = handler


@pytest.fixture
def limits() -> ApiLimits:
    return ApiLimits(request_seconds=60.0, connect_seconds=60.0)


@pytest.fixture
async def lab(tmp_path: Path, limits: ApiLimits) -> AsyncIterator[Lab]:
    found = Lab(tmp_path)
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", found.answer)
    async with TestServer(application) as server:
        url = str(server.make_url("")).rstrip("/")
        where = ApiServer(url, found.ca_file, found.token_file, "shop")
        found.api = KubernetesApi(
            where, limits=limits, now=found.clock, wall_seconds=lambda: WRONG_SECONDS
        )
        yield found
        await found.api.close()


async def test_an_object_survives_a_round_trip(lab: Lab) -> None:
    lab.says(201, '{"kind": "Thing"}')
    answer = await lab.api.send("POST", "/things", {"name": "x"})
    assert (answer.status, answer.document, answer.is_done) == (201, {"kind": "Thing"}, True)
    assert lab.bodies == [{"name": "x"}]
    assert lab.tokens == ["Bearer first"]


@pytest.mark.parametrize("code", [404, 409, 422])
async def test_client_errors_are_answers(lab: Lab, code: int) -> None:
    lab.says(code, '{"kind": "Status", "message": "no: spec.x"}')
    answer = await lab.api.get("/things/x")
    assert (answer.status, answer.is_done, answer.reason) == (code, False, "no: spec.x")


@pytest.mark.parametrize("code", [401, 403, 500, 502, 504])
async def test_server_errors_are_unavailable(lab: Lab, code: int) -> None:
    lab.says(code, '{"message": "because"}')
    with pytest.raises(Unavailable, match="because"):
        await lab.api.get("/things/x")


@pytest.mark.parametrize("text", ["", "{", "[]", "<html>", "[" * 100_000, "\x00\xff"])
async def test_a_body_that_is_not_an_object_is_an_empty_one(lab: Lab, text: str) -> None:
    lab.says(200, text)
    assert (await lab.api.get("/things/x")).document == {}


@pytest.mark.parametrize("limits", [ApiLimits(response_bytes_max=100)])
async def test_a_long_answer_is_not_read(lab: Lab) -> None:
    lab.says(200, json.dumps({"text": "x" * 100}))
    assert (await lab.api.get("/things/x")).document == {}


async def test_the_clock_is_the_api_servers_whatever_happens_to_the_machines(lab: Lab) -> None:
    assert lab.api.unix_seconds() == WRONG_SECONDS, "no response yet"
    lab.says(200, Date="Tue, 14 Nov 2023 22:13:20 GMT")
    await lab.api.get("/things/x")
    lab.clock.now += 60.0
    assert lab.api.unix_seconds() == 1_700_000_060.0


@pytest.mark.parametrize("date", ["", "soon", "Tue, 99 Nov 2023 22:13:20 GMT"])
async def test_a_response_without_a_time_changes_no_clock(lab: Lab, date: str) -> None:
    lab.says(200, Date=date)
    await lab.api.get("/things/x")
    assert lab.api.unix_seconds() == WRONG_SECONDS


async def test_a_redirect_is_not_followed_with_the_token(lab: Lab) -> None:
    lab.says(302, "", Location="http://127.0.0.1:1/elsewhere")
    assert (await lab.api.get("/things/x")).status == 302
    assert len(lab.tokens) == 1


async def test_a_requested_pause_is_kept(lab: Lab) -> None:
    lab.says(429, '{"message": "busy"}', Retry_After="3")
    with pytest.raises(Unavailable, match="busy"):
        await lab.api.get("/things/x")
    lab.says(200)
    lab.clock.now = 2.9
    with pytest.raises(Unavailable, match="pause"):
        await lab.api.get("/things/x")
    assert len(lab.tokens) == 1, "the server was left alone"
    lab.clock.now = 3.0
    assert (await lab.api.get("/things/x")).status == 200


async def test_a_requested_pause_is_limited(lab: Lab) -> None:
    lab.says(503, "", Retry_After="999999")
    with pytest.raises(Unavailable):
        await lab.api.get("/things/x")
    lab.says(200)
    lab.clock.now = kubernetes_api.PAUSE_SECONDS_MAX
    assert (await lab.api.get("/things/x")).status == 200


async def test_a_rotated_token_is_read_when_the_old_one_is_refused(lab: Lab) -> None:
    async def only_second(request: web.Request) -> web.StreamResponse:
        is_second = request.headers["Authorization"] == "Bearer second"
        return web.json_response({}, status=200 if is_second else 401)

    lab.handler = only_second
    with pytest.raises(Unavailable):
        await lab.api.get("/things/x")
    lab.token_file.write_text("second")
    assert (await lab.api.get("/things/x")).status == 200
    assert lab.tokens == ["Bearer first", "Bearer first", "Bearer second"]


async def test_a_rotated_token_is_read_in_time(lab: Lab) -> None:
    lab.says(200)
    await lab.api.get("/things/x")
    lab.token_file.write_text("second")
    await lab.api.get("/things/x")
    lab.clock.now = kubernetes_api.FILES_SECONDS
    await lab.api.get("/things/x")
    assert lab.tokens == ["Bearer first", "Bearer first", "Bearer second"]


@pytest.mark.parametrize("limits", [ApiLimits(request_seconds=0.05)])
async def test_a_slow_server_is_given_up(lab: Lab) -> None:
    forever = asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        await forever.wait()
        return web.Response()

    lab.handler = slow
    with pytest.raises(Unavailable, match="does not answer"):
        await lab.api.get("/things/x")
    forever.set()


async def test_an_answer_that_is_cut_off_is_none(lab: Lab) -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b'{"kind"')
        assert request.transport is not None
        request.transport.abort()
        return response

    lab.handler = cut
    with pytest.raises(Unavailable, match="does not answer"):
        await lab.api.get("/things/x")


async def test_missing_and_wrong_files_are_named(lab: Lab) -> None:
    lab.says(200)
    lab.ca_file.write_text("no certificate")
    with pytest.raises(Unavailable, match=r"ca\.crt: no CA certificate"):
        await lab.api.get("/things/x")
    lab.token_file.unlink()
    lab.clock.now = kubernetes_api.FILES_SECONDS
    with pytest.raises(Unavailable, match="token: No such file"):
        await lab.api.get("/things/x")


async def test_another_ca_makes_other_connections(lab: Lab, tmp_path: Path) -> None:
    lab.says(200)
    await lab.api.get("/things/x")
    (tmp_path / "other").mkdir()
    lab.ca_file.write_bytes(Authority(tmp_path / "other").certificate.read_bytes())
    lab.clock.now = kubernetes_api.FILES_SECONDS
    assert (await lab.api.get("/things/x")).status == 200


async def test_a_closed_client_is_unavailable(lab: Lab) -> None:
    await lab.api.close()
    with pytest.raises(Unavailable, match="closed"):
        await lab.api.get("/things/x")


def test_a_pod_finds_its_api_server(tmp_path: Path) -> None:
    (tmp_path / "namespace").write_text("shop\n")
    environment = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    found = in_cluster(environment, tmp_path)
    assert (found.url, found.namespace) == ("https://[fd00::1]:6443", "shop")
    with pytest.raises(ConfigurationError, match="KUBERNETES_SERVICE_HOST"):
        in_cluster({}, tmp_path)
    with pytest.raises(ConfigurationError, match="ServiceAccount"):
        in_cluster(environment, tmp_path / "elsewhere")
