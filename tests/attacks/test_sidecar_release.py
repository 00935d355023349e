"""A process that reaches the sidecar's addresses, but may not read the release key, tries to release what the sidecar has."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from tests.unit.client.fake_broker import FakeBroker, fake_broker
from tests.unit.client.sidecar.test_sidecar_own import Table
from tests.unit.client.sidecar_world import SidecarWorld, running_sidecar

from onewriter.sidecar.settings import Settings
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_testing.ports import free_ports

SCHEMES = ("", "{}", "Basic {}", "Bearer", "Bearer ", "Bearer {}x", "Bearer x{}", "Bearer {} {}")
"""What is sent instead of ``Bearer KEY``."""


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with fake_broker() as found:
        yield found


def releases(broker: FakeBroker) -> int:
    """How often the sidecar has released the topic."""
    return sum(isinstance(command, pb.CommandCloseProducer) for _, command, _ in broker.received)


async def refused(sidecar: SidecarWorld, url: str, **headers: str) -> None:
    """Every way to name the release is refused, and the sidecar still leads."""
    session = (await sidecar.standing())["session"]
    async with aiohttp.ClientSession(url) as client:
        for query in ("", "?rejoin=true", "?rejoin=false"):
            async with client.post(f"/release{query}", headers=headers) as answer:
                assert answer.status == 401, headers
                assert answer.headers["WWW-Authenticate"] == "Bearer"
                assert (await answer.json())["stored"] is False
    standing = await sidecar.standing()
    assert (standing["phase"], standing["session"]) == ("leading", session)


async def test_over_tcp_only_the_key_releases_the_topic(broker: FakeBroker, tmp_path: Path) -> None:
    port, path = free_ports(1), tmp_path / "key"
    async with running_sidecar(broker, tmp_path, port=port, release_key_file=path) as sidecar:
        session = await sidecar.lead()
        key, url = path.read_text().strip(), f"http://127.0.0.1:{port}"
        await refused(sidecar, url)
        for scheme in SCHEMES:
            await refused(sidecar, url, Authorization=scheme.format(key, key))
        for secret in ("", session, "é" * 43, "0" * len(key), "A" * 4096):
            await refused(sidecar, url, Authorization=f"Bearer {secret}")
        await refused(
            sidecar, url, **{"Onewriter-Session": session, "X-Forwarded-For": "127.0.0.1"}
        )
        assert releases(broker) == 0
        async with (
            aiohttp.ClientSession(url, headers={"Authorization": f"Bearer {key}"}) as client,
            client.post("/release?rejoin=false") as answer,
        ):
            assert answer.status == 200
        assert (await sidecar.standing())["phase"] == "standing-aside"
        assert releases(broker) == 1


@pytest.mark.parametrize("writable", [True, False])
async def test_without_a_key_nothing_over_tcp_releases_the_topic(
    broker: FakeBroker, tmp_path: Path, writable: bool
) -> None:
    """There is no file to read a key from, or the sidecar could not write it."""
    port = free_ports(1)
    path = None if writable else tmp_path / "none" / "key"
    async with running_sidecar(broker, tmp_path, port=port, release_key_file=path) as sidecar:
        await sidecar.lead()
        for secret in ("", "None", "x"):
            await refused(sidecar, f"http://127.0.0.1:{port}", Authorization=f"Bearer {secret}")
        assert (await sidecar.call("POST", "/release")).status == 200, "the socket's permissions"


async def test_the_port_of_probes_releases_nothing(broker: FakeBroker, tmp_path: Path) -> None:
    """It is the only port that the network reaches."""
    health, path = free_ports(1), tmp_path / "key"
    async with running_sidecar(
        broker, tmp_path, health_host="127.0.0.1", health_port=health, release_key_file=path
    ) as sidecar:
        await sidecar.lead()
        key = {"Authorization": f"Bearer {path.read_text().strip()}"}
        async with aiohttp.ClientSession(f"http://127.0.0.1:{health}", headers=key) as client:
            for method in ("POST", "GET", "DELETE"):
                for target in ("/release", "/rejoin", "/own", "/release/", "/healthz/../release"):
                    async with client.request(method, target) as answer:
                        assert answer.status in {404, 405}, (method, target)
        assert (await sidecar.standing())["phase"] == "leading"
        assert releases(broker) == 0


async def test_other_users_cannot_read_or_plant_the_key(broker: FakeBroker, tmp_path: Path) -> None:
    """A file and a link that were there before are replaced, not written to."""
    secret = tmp_path / "secret"
    secret.write_text("of somebody else")
    path = tmp_path / "key"
    path.symlink_to(secret)
    before = os.umask(0)
    try:
        async with running_sidecar(broker, tmp_path, release_key_file=path):
            assert not path.is_symlink()
            assert stat.S_IMODE(path.stat().st_mode) == 0o440
            assert secret.read_text() == "of somebody else"
            first = path.read_text()
            assert len(first.strip()) >= 40
            assert sorted(os.listdir(tmp_path)) == ["key", "secret", "sidecar.sock"]  # noqa: PTH208
    finally:
        os.umask(before)
    assert not path.exists()
    async with running_sidecar(broker, tmp_path, release_key_file=path):
        assert path.read_text() != first, "each process has its own key"


OWNED = json.dumps({"group": "g", "resources": ["a"]})


async def owned(sidecar: SidecarWorld) -> list[tuple[str, bool]]:
    shown = (await sidecar.call("GET", "/own")).body["ownerships"]
    return [(each["resource"], each["owned"]) for each in shown]


@pytest.mark.parametrize("has_key", [True, False])
async def test_over_tcp_only_the_key_releases_an_owned_resource(
    broker: FakeBroker, tmp_path: Path, has_key: bool
) -> None:
    port, path = free_ports(1), tmp_path / "key"
    table = Table(broker)
    async with running_sidecar(
        broker, tmp_path, port=port, release_key_file=path if has_key else None
    ) as sidecar:
        url = f"http://127.0.0.1:{port}"
        async with aiohttp.ClientSession(url) as client:
            async with client.post("/own", data=OWNED) as answer:
                assert answer.status == 200
            key = path.read_text().strip() if has_key else "None"
            for scheme in (*SCHEMES, "Bearer é", "Bearer None"):
                headers = {"Authorization": scheme.format(key, key)}
                for body in (OWNED, "", "[]", '{"resources": ["a"]}'):
                    async with client.delete("/own", data=body, headers=headers) as answer:
                        assert answer.status == 401, (scheme, body)
                        assert (await answer.json())["stored"] is False
            async with client.get("/own") as answer:
                assert answer.status == 200
        assert await owned(sidecar) == [("a", True)]
        assert table.released == []
        if has_key:
            key_header = {"Authorization": f"Bearer {key}"}
            async with (
                aiohttp.ClientSession(url, headers=key_header) as client,
                client.delete("/own", data=OWNED) as answer,
            ):
                assert await answer.json() == {"released": ["a"]}
        else:  # the permissions of the socket
            assert (await sidecar.call("DELETE", "/own", OWNED)).body == {"released": ["a"]}
        assert table.released == ["a"]


async def test_a_refused_request_does_not_end_an_ownership(
    broker: FakeBroker, tmp_path: Path
) -> None:
    """Generation 0 needs a permission, and everyone in the pod may request it."""
    port = free_ports(1)
    table = Table(broker)
    async with running_sidecar(broker, tmp_path, port=port) as sidecar:
        assert (await sidecar.call("POST", "/own", OWNED)).status == 200
        table.denied.add("a")
        body = json.dumps({"group": "g", "resources": [{"name": "a", "generation": 0}]})
        async with (
            aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client,
            client.post("/own", data=body) as answer,
        ):
            (refused_one,) = (await answer.json())["ownerships"]
        assert (refused_one["owned"], refused_one["currentGeneration"]) == (False, 9)
        assert await owned(sidecar) == [("a", True)], "it continues"


def test_only_an_explicit_setting_accepts_a_release_without_a_key() -> None:
    assert Settings(topic="t").release_without_key is False
