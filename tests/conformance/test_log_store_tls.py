"""The log store over TLS: writes, reads and checks, and what is said when no connection can be made."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

import pytest
from tests.cluster.pki import Authority
from tests.conformance.log_store_worlds import ServerWorld, decided, topics_of_bucket, writer
from tests.tls_store import (
    HOST,
    KINDS,
    SENTINEL_PRIMARY,
    TlsStore,
    running_redis_sentinel,
    running_tls_sentinel,
    running_tls_store,
    serve_with,
)

from onewriter_broker.log.store.api import Block, Outcome
from onewriter_broker.log.store.redis.primary import RedisSettings
from onewriter_broker.log.store.redis.server_checks import check_server, judge
from onewriter_broker.log.store.redis.store import RedisLogStore
from onewriter_broker.log.store.redis.store_tls import StoreTls
from onewriter_core.api.topic import Durability
from onewriter_core.errors import ConfigurationError, Undecided
from onewriter_core.ids import EARLIEST
from onewriter_testing.ports import free_ports

(TOPIC,) = topics_of_bucket(0, 1)
LARGE = b"x" * 3_000_000


def settings_for(store: TlsStore, **tls: str | Path) -> RedisSettings:
    return RedisSettings(
        url=store.url,
        connect_timeout_seconds=60,
        call_timeout_seconds=60,
        tls=StoreTls(**{"ca_file": store.authority.certificate, **tls}),  # type: ignore[arg-type]
    )


def client_certificate(directory: Path, name: str = "broker") -> dict[str, Path]:
    return {"cert_file": directory / f"{name}.crt", "key_file": directory / f"{name}.key"}


async def refusal(settings: RedisSettings) -> list[str]:
    """What a write says, and what the check at the start says."""
    store = RedisLogStore(settings)
    with pytest.raises(Undecided) as of_write:
        await store.observe([])
    with pytest.raises(Undecided) as of_check:
        await check_server(settings)
    await store.close()
    return [str(of_write.value), str(of_check.value)]


@pytest.mark.parametrize("kind", KINDS)
async def test_log_is_written_and_read_over_tls_with_a_client_certificate(
    kind: str, tmp_path: Path
) -> None:
    with (
        running_tls_store(kind, tmp_path, asks_for_client=True) as running,
        tempfile.TemporaryDirectory(prefix="ow-") as folder,
    ):
        settings = settings_for(running, **client_certificate(tmp_path))
        facts = await check_server(settings)
        assert judge(facts, Durability.LOCAL).refusals == ()
        store = RedisLogStore(settings)
        own = await writer(ServerWorld(Path(folder), running.server, None), store)
        await own.fence(TOPIC)
        assert await store.append([own.appending(TOPIC, b"small")]) == [Outcome.DONE]
        assert await store.append([own.appending(TOPIC, LARGE)]) == [Outcome.DONE]
        assert await store.commit(Durability.LOCAL)
        found = await store.read_blocks(TOPIC, EARLIEST, count=10)
        assert [block.payload for block in found if isinstance(block, Block)] == [b"small", LARGE]
        await store.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_missing_client_certificate_is_named(kind: str, tmp_path: Path) -> None:
    with running_tls_store(kind, tmp_path, asks_for_client=True) as running:
        for answer in await refusal(settings_for(running)):
            assert "requires a client certificate" in answer
            assert "redis_cert_file" in answer


@pytest.mark.parametrize("kind", KINDS)
async def test_unknown_authority_is_named(kind: str, tmp_path: Path) -> None:
    unauthorized = Authority(tmp_path / "other").certificate
    with running_tls_store(kind, tmp_path / "site") as running:
        for answer in await refusal(settings_for(running, ca_file=unauthorized)):
            assert f"no authority in redis_ca_file {unauthorized} signed" in answer
        for answer in await refusal(dataclasses.replace(settings_for(running), tls=StoreTls())):
            assert "set redis_ca_file" in answer


async def test_wrong_name_is_named_and_the_server_name_repairs_it(tmp_path: Path) -> None:
    with running_tls_store("proxy", tmp_path, hosts=("store.example",)) as running:
        for answer in await refusal(settings_for(running)):
            assert "not for '127.0.0.1'" in answer
            assert "redis_server_name" in answer
        await check_server(settings_for(running, server_name="store.example"))


async def test_expired_certificate_is_named(tmp_path: Path) -> None:
    with running_tls_store("proxy", tmp_path) as running:
        assert running.proxy is not None
        running.authority.server("store", ["127.0.0.1"], is_expired=True)
        running.proxy.use(serve_with(tmp_path, "store", asks_for=None))
        for answer in await refusal(settings_for(running)):
            assert "has expired" in answer


@pytest.mark.parametrize("kind", KINDS)
async def test_client_certificate_that_the_store_refuses_is_named(
    kind: str, tmp_path: Path
) -> None:
    strangers = tmp_path / "other"
    Authority(strangers).client("broker", "broker")
    with running_tls_store(kind, tmp_path / "site", asks_for_client=True) as running:
        for answer in await refusal(settings_for(running, **client_certificate(strangers))):
            assert str(strangers / "broker.crt") in answer


async def test_port_without_tls_is_named(tmp_path: Path) -> None:
    """Valkey waits for the rest of what it takes for a command, so nothing is answered."""
    with running_tls_store("proxy", tmp_path) as running:
        port = free_ports(1)
        assert running.server.command("CONFIG", "SET", "port", str(port))
        settings = dataclasses.replace(
            settings_for(running), url=f"rediss://127.0.0.1:{port}", connect_timeout_seconds=0.5
        )
        store = RedisLogStore(settings)
        with pytest.raises(Undecided, match="does not serve TLS"):
            await store.observe([])
        await store.close()


async def test_unusable_files_are_named(tmp_path: Path) -> None:
    with running_tls_store("proxy", tmp_path) as running:
        (tmp_path / "empty").write_bytes(b"")
        for file, reason in [("absent", "cannot be read"), ("empty", "no certificates in PEM")]:
            for answer in await refusal(settings_for(running, ca_file=tmp_path / file)):
                assert f"redis_ca_file {tmp_path / file}" in answer
                assert reason in answer
        pair = {"cert_file": tmp_path / "broker.crt", "key_file": tmp_path / "store.key"}
        for answer in await refusal(settings_for(running, **pair)):
            assert str(tmp_path / "store.key") in answer


@pytest.mark.parametrize(
    "settings",
    [
        RedisSettings(url="redis://store:6379", tls=StoreTls(ca_file=Path("ca.crt"))),
        RedisSettings(url="unix:///socket", tls=StoreTls(server_name="store")),
        RedisSettings(
            sentinels=("a:1",), tls=StoreTls(cert_file=Path("a.crt"), key_file=Path("a.key"))
        ),
        RedisSettings(sentinels=("redis://a:1",), tls=StoreTls(ca_file=Path("ca.crt"))),
    ],
)
async def test_tls_that_would_not_be_used_is_refused(settings: RedisSettings) -> None:
    store = RedisLogStore(settings)
    with pytest.raises(ConfigurationError, match="need a rediss:// URL"):
        await store.observe([])
    await store.close()


def test_certificate_without_its_key_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="go together"):
        StoreTls(cert_file=Path("a.crt"))


async def test_renewed_files_apply_to_the_next_connection(tmp_path: Path) -> None:
    site = tmp_path / "site"
    with running_tls_store("proxy", site, asks_for_client=True) as running:
        assert running.proxy is not None
        own = tmp_path / "mine"
        own.mkdir()

        def copy() -> None:
            for name in ("ca.crt", "broker.crt", "broker.key"):
                (own / name).write_bytes((site / name).read_bytes())

        copy()
        settings = settings_for(running, ca_file=own / "ca.crt", **client_certificate(own))
        store = RedisLogStore(settings)
        await store.observe([])
        renewed = Authority(site)
        renewed.server("store", ["127.0.0.1"])
        renewed.client("broker", "broker")
        running.proxy.use(serve_with(site, "store", asks_for=renewed.certificate))
        text = ""
        while "no authority" not in text:  # the first call may only find its connection cut
            with pytest.raises(Undecided) as refused:
                await store.observe([])
            text = str(refused.value)
        copy()
        await store.observe([])
        await store.close()


# ------------------------------------------------------------ Sentinels


def through(settings: RedisSettings, *ports: int) -> RedisSettings:
    """The same through Sentinels on these ports."""
    return dataclasses.replace(
        settings,
        url="",
        sentinels=tuple(f"rediss://{HOST}:{port}" for port in ports),
        sentinel_primary=SENTINEL_PRIMARY,
    )


async def test_sentinels_and_their_primary_are_reached_over_tls(tmp_path: Path) -> None:
    """The first Sentinel is down. All connections present the client certificate."""
    with (
        running_tls_store("proxy", tmp_path, asks_for_client=True) as store,
        running_tls_sentinel(store, tmp_path, asks_for_client=True) as sentinel,
    ):
        mine = settings_for(store, **client_certificate(tmp_path))
        settings = through(mine, free_ports(1), sentinel.port)
        assert judge(await check_server(settings), Durability.LOCAL).refusals == ()
        opened = RedisLogStore(settings)
        assert (await opened.observe([])).replid == store.server.replid()
        await opened.close()
        for said in await refusal(dataclasses.replace(settings, sentinel_primary="other")):
            assert "knows no 'other'" in said


@pytest.mark.skipif("redis7" not in KINDS, reason="Debian's Redis is not installed")
@pytest.mark.full  # test_sentinels_and_their_primary_are_reached_over_tls proves the same with Valkey
async def test_a_real_sentinel_with_tls_leads_to_its_primary(tmp_path: Path) -> None:
    with (
        running_tls_store("redis7", tmp_path, asks_for_client=True) as store,
        running_redis_sentinel(store, tmp_path) as port,
    ):
        settings = through(settings_for(store, **client_certificate(tmp_path)), port)
        opened = RedisLogStore(settings)
        found = await decided(lambda: opened.observe([]))
        assert found.replid == store.server.replid()
        await opened.close()


async def test_errors_distinguish_an_unverified_sentinel_from_an_unverified_primary(
    tmp_path: Path,
) -> None:
    with (
        running_tls_store("proxy", tmp_path / "site") as store,
        running_tls_sentinel(store, tmp_path / "site") as sentinel,
    ):
        assert store.proxy is not None
        unauthorized = Authority(tmp_path / "other")
        unauthorized.server("store", [HOST])
        settings = through(settings_for(store), sentinel.port)
        sentinel.use(serve_with(tmp_path / "other", "store", asks_for=None))
        for said in await refusal(settings):
            assert f"no Sentinel names the primary: {HOST}:{sentinel.port}" in said
            assert "no authority in redis_ca_file" in said
        sentinel.use(serve_with(tmp_path / "site", "store", asks_for=None))
        store.proxy.use(serve_with(tmp_path / "other", "store", asks_for=None))
        for said in await refusal(settings):
            assert f"no TLS connection to the store at {HOST}:{store.port}" in said
            assert "no authority in redis_ca_file" in said


async def test_the_server_name_applies_to_sentinels_and_their_primary(tmp_path: Path) -> None:
    with (
        running_tls_store("proxy", tmp_path, hosts=("store.example",)) as store,
        running_tls_sentinel(store, tmp_path) as sentinel,
    ):
        for said in await refusal(through(settings_for(store), sentinel.port)):
            assert "set redis_server_name" in said
        await check_server(through(settings_for(store, server_name="store.example"), sentinel.port))


async def test_without_rediss_sentinels_and_their_primary_are_reached_without_tls(
    tmp_path: Path,
) -> None:
    """A Sentinel that serves TLS does not understand it, so nothing is sent in the open by mistake."""
    with (
        running_tls_store("proxy", tmp_path) as store,
        running_tls_sentinel(store, tmp_path) as sentinel,
    ):
        plain = RedisSettings(
            sentinels=(f"{HOST}:{sentinel.port}",), sentinel_primary=SENTINEL_PRIMARY
        )
        for said in await refusal(plain):
            assert "no Sentinel names the primary" in said


@pytest.mark.parametrize(
    ("sentinels", "said"),
    [
        (("rediss://a:1", "b:2"), "at all Sentinels or at none"),
        (("rediss://a",), "write host:port, or rediss://host:port"),
        (("a:port",), "write host:port"),
        (("a:0",), "write host:port"),
        (("a:99999999999",), "write host:port"),
        ((":1",), "write host:port"),
        (("rediss://a:1/0",), "write host:port"),
        (("rediss://user:secret@a:1",), "write host:port"),
        (("valkey://a:1",), "write host:port"),
    ],
)
async def test_unusable_sentinels_are_refused(sentinels: tuple[str, ...], said: str) -> None:
    store = RedisLogStore(RedisSettings(sentinels=sentinels, sentinel_primary="shard"))
    with pytest.raises(ConfigurationError, match=said) as refused:
        await store.observe([])
    assert "secret" not in str(refused.value)
    await store.close()


async def test_renewed_files_apply_to_the_next_connection_to_a_sentinel(tmp_path: Path) -> None:
    site = tmp_path / "site"
    with (
        running_tls_store("proxy", site, asks_for_client=True) as store,
        running_tls_sentinel(store, site, asks_for_client=True) as sentinel,
    ):
        assert store.proxy is not None
        settings = through(settings_for(store, **client_certificate(site)), sentinel.port)
        opened = RedisLogStore(settings)
        await opened.observe([])
        renewed = Authority(site)
        renewed.server("store", [HOST])
        renewed.client("broker", "broker")
        for proxy in (store.proxy, sentinel):
            proxy.use(serve_with(site, "store", asks_for=renewed.certificate))
        seen = await decided(lambda: opened.observe([]))
        assert seen.replid == store.server.replid()
        await opened.close()
