"""Properties that only a real server can show: demotion, stalls, memory, ACL, Sentinel, scripts, the reader."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import re
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import redis.exceptions
from tests.conformance.log_store_worlds import (
    PATIENCE_SECONDS,
    ServerWorld,
    Writer,
    decided,
    topics_of_bucket,
    writer,
)
from tests.servers import (
    BROKER_PASSWORD,
    BROKER_USER,
    SERVER_PROGRAMS,
    StoreServer,
    running_pair,
    running_server,
)

from onewriter_broker.log.store.api import BrokenKey, LogStore, Observation, Outcome
from onewriter_broker.log.store.blocks import MalformedBlock
from onewriter_broker.log.store.redis.primary import RedisSettings, open_primary
from onewriter_broker.log.store.redis.script_calls import ALL_SCRIPTS
from onewriter_broker.log.store.redis.server_checks import check_server, judge
from onewriter_broker.log.store.redis.store import RedisLogStore
from onewriter_core.api.topic import Durability
from onewriter_core.errors import ConfigurationError, Undecided
from onewriter_core.ids import EARLIEST, Position, TopicName
from onewriter_core.store_rights import broker_acl_rules
from onewriter_testing.ports import free_ports

TOPIC, OTHER = topics_of_bucket(0, 2)
UNIT = "ow:{b0}:unit"
PASSWORD = "for these tests"  # noqa: S105 (servers that live for one test)
ROOT = Path(__file__).parents[2]


@pytest.fixture
def world(store_server: StoreServer, tmp_path: Path) -> Iterator[ServerWorld]:
    with tempfile.TemporaryDirectory(prefix="ow-") as folder:
        yield ServerWorld(Path(folder), store_server, None)


@pytest.fixture
async def store(world: ServerWorld) -> AsyncIterator[LogStore]:
    opened = world.open()
    yield opened
    await opened.close()


async def positions(store: LogStore) -> list[str]:
    return [str(b.position) for b in await store.read_blocks(TOPIC, EARLIEST, count=1000)]


async def test_a_stalled_server_is_undecided_and_its_late_work_overtakes_nothing(
    world: ServerWorld,
) -> None:
    settings = dataclasses.replace(
        world.settings(), call_timeout_seconds=0.5, connect_timeout_seconds=0.5
    )
    patient, store = world.open(), RedisLogStore(settings)
    own = await writer(world, patient)
    await own.fence(TOPIC)
    await patient.close()
    await decided(lambda: store.observe([]))
    world.primary.pause()
    append = own.appending(TOPIC, b"1")
    with pytest.raises(Undecided):
        await store.append([append])
    with pytest.raises(Undecided):
        await store.set_state(own.binding, TOPIC, own.token, {"cursor": "old"})
    with pytest.raises(Undecided):
        await store.set_catalog(own.binding, {"topic": "{}"})
    world.primary.resume()
    assert await decided(lambda: store.set_catalog(own.binding, {})) is Outcome.DONE
    catalog = await decided(lambda: store.read_catalog(0))  # the final contents, whatever they are
    fields = {"cursor": "new"}
    setting = decided(lambda: store.set_state(own.binding, TOPIC, own.token, fields))
    assert await setting is Outcome.DONE
    assert await decided(lambda: store.append([append])) == [Outcome.DONE]
    await asyncio.sleep(0.05)
    assert (await decided(lambda: store.read_state(TOPIC)))["cursor"] == "new"
    assert await decided(lambda: store.read_catalog(0)) == catalog
    assert await decided(lambda: positions(store)) == ["5-0", "5-1"]
    await store.close()


async def test_a_new_connection_has_the_server_forget_the_old_one_first(
    world: ServerWorld,
) -> None:
    # Data that the old connection still had in a socket then cannot run after the new one's writes.
    first = await open_primary(world.settings())
    beside = await open_primary(world.settings())
    second = await open_primary(world.settings(), replaces=first)
    await asyncio.wait_for(first.connection.wait_closed(), PATIENCE_SECONDS)
    assert beside.connection.is_open
    # Client ids of another server process have no meaning here.
    other = dataclasses.replace(beside, run_id="of another process")
    third = await open_primary(world.settings(), replaces=other)
    assert await beside.connection.submit(["CLIENT", "ID"]) == beside.client_id
    for primary in (beside, second, third):
        primary.connection.close()
        await primary.connection.wait_closed()


async def test_forgotten_scripts_are_loaded_again(world: ServerWorld, store: LogStore) -> None:
    own = await writer(world, store)
    await own.fence(TOPIC)
    world.primary.command("SCRIPT", "FLUSH")
    append = own.appending(TOPIC, b"1")
    with pytest.raises(Undecided, match="NOSCRIPT"):
        await store.append([append])
    assert await store.append([append]) == [Outcome.DONE]


async def test_a_full_server_refuses_whole_calls_and_takes_them_later(
    world: ServerWorld, store: LogStore
) -> None:
    own = await writer(world, store)
    await own.fence(TOPIC)
    append = own.appending(TOPIC, b"1")
    world.primary.command("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(Undecided, match="OOM"):
        await store.append([append])
    seen = await store.observe([])
    assert seen.memory_bytes_max == 1 < seen.memory_bytes_used
    world.primary.command("CONFIG", "SET", "maxmemory", "0")
    assert await store.append([append]) == [Outcome.DONE]


async def test_a_foreign_entry_in_a_log_is_named(world: ServerWorld, store: LogStore) -> None:
    own = await writer(world, store)
    await own.fence(TOPIC)
    key = f"ow:{{b0}}:log:{TOPIC}"
    world.primary.command("XADD", key, "5-1", "hello", "world")
    with pytest.raises(MalformedBlock, match="5-1"):
        await store.read_blocks(TOPIC, EARLIEST, count=10)
    # Another block than this one has the position.
    assert await store.append([own.appending(TOPIC, b"1")]) == [Outcome.FENCED]


@pytest.mark.parametrize(
    ("key", "field"),
    [(f"ow:{{b0}}:state:{TOPIC}", "ledger"), (UNIT, "gen"), (UNIT, "lastLedger")],
)
async def test_a_number_that_is_none_breaks_its_key(
    world: ServerWorld, store: LogStore, key: str, field: str
) -> None:
    own = await writer(world, store)
    await own.fence(TOPIC)
    world.primary.command("HSET", key, field, "many")
    with pytest.raises(BrokenKey, match=re.escape(f"{key}: {field}")):
        await Writer(store, own.binding, 6).fence(TOPIC)
    assert await positions(store) == ["5-0"]


@pytest.mark.parametrize("field", ["gen", "version"])
async def test_a_bucket_record_without_numbers_is_neither_seen_nor_stamped(
    world: ServerWorld, store: LogStore, field: str
) -> None:
    own = await writer(world, store)
    world.primary.command("HSET", UNIT, field, "many")
    with pytest.raises(BrokenKey, match=UNIT):
        await store.stamp(own.binding)
    with pytest.raises(BrokenKey, match=UNIT):
        await store.observe([0])


async def test_a_foreign_entry_after_the_end_can_be_removed(
    world: ServerWorld, store: LogStore
) -> None:
    own = await writer(world, store)
    await own.fence(TOPIC)
    await own.append(TOPIC, b"1")
    world.move_end(TOPIC, Position(10**12, 7))
    with pytest.raises(BrokenKey, match="never opened"):
        await Writer(store, own.binding, 6).fence(TOPIC)
    key = f"ow:{{b0}}:log:{TOPIC}"
    for entry_id, fields in world.primary.command("XRANGE", key, "-", "+"):
        words = [word for pair in fields.items() for word in pair]
        world.primary.command("XADD", "copy", entry_id, *words)
    world.primary.command("RENAME", "copy", key)
    assert await Writer(store, own.binding, 6).fence(TOPIC) is Outcome.DONE
    assert await positions(store) == ["5-0", "5-1", "6-0"]


async def test_a_stream_without_space_for_another_id_is_broken(
    world: ServerWorld, store: LogStore
) -> None:
    own = await writer(world, store)
    await own.fence(TOPIC, OTHER)
    world.primary.command("XADD", f"ow:{{b0}}:log:{TOPIC}", f"{2**64 - 1}-{2**64 - 1}", "a", "b")
    blocks = [own.appending(TOPIC, b"1"), own.appending(OTHER, b"1")]
    broken, done = await store.append(blocks)
    assert isinstance(broken, BrokenKey)
    assert done is Outcome.DONE


async def test_a_deleted_log_is_lost_and_stays_lost(world: ServerWorld, store: LogStore) -> None:
    own = await writer(world, store)
    await own.fence(TOPIC)
    world.primary.command("DEL", f"ow:{{b0}}:log:{TOPIC}")
    assert await store.append([own.appending(TOPIC, b"1")]) == [Outcome.LOST]
    assert world.primary.command("EXISTS", f"ow:{{b0}}:log:{TOPIC}") == 0
    end = Position(5, 0)
    assert await store.trim(own.binding, TOPIC, own.token, end, {}) is Outcome.LOST
    assert await Writer(store, own.binding, 6).fence(TOPIC, create=False) is Outcome.LOST


@pytest.mark.parametrize("lost", ["log", "state"])
async def test_rest_of_a_log_still_rejects_an_older_ledger(
    world: ServerWorld, store: LogStore, lost: str
) -> None:
    own = await writer(world, store, ledger=7)
    await own.fence(TOPIC)
    world.primary.command("DEL", f"ow:{{b0}}:{lost}:{TOPIC}")
    for ledger in (6, 7):
        late = Writer(store, own.binding, ledger)
        assert await late.fence(TOPIC, create=True) is Outcome.FENCED
    later = Writer(store, own.binding, 8)
    assert await later.fence(TOPIC, create=False) is Outcome.LOST
    assert await later.fence(TOPIC, create=True) is Outcome.DONE


async def test_the_token_alone_refuses_where_positions_would_not(
    world: ServerWorld, store: LogStore
) -> None:
    own = await writer(world, store)
    await own.fence(TOPIC)
    world.primary.command("HSET", f"ow:{{b0}}:state:{TOPIC}", "tok", "6:broker-b")
    late = dataclasses.replace(own.appending(TOPIC, b"1"), never_sent=True)
    assert await store.append([late]) == [Outcome.FENCED]
    assert await positions(store) == ["5-0"]


async def test_a_trimmed_log_survives_a_crash(world: ServerWorld, store: LogStore) -> None:
    own = await writer(world, store)
    await own.fence(TOPIC)
    for _ in range(150):
        await own.append(TOPIC, b"x" * 500)
    newer = Writer(store, own.binding, 6)
    await newer.fence(TOPIC)
    await store.trim(own.binding, TOPIC, newer.token, Position(6, 0), {})
    before = await positions(store)
    assert len(before) < 100
    world.primary.command("BGREWRITEAOF")
    world.restart()
    fresh = world.open()
    assert await positions(fresh) == before
    await fresh.close()


async def test_everysec_is_not_local_on_any_server(server_kind: str) -> None:
    """WAITAOF cannot provide it: it is answered before any sync, directly after the reply to a write."""
    with running_server(server_kind, appendfsync="everysec") as server:
        settings = RedisSettings(url=server.url, buckets=4, commit_timeout_seconds=2.0)
        facts = await check_server(settings)
        store = RedisLogStore(settings)
        with tempfile.TemporaryDirectory(prefix="ow-") as folder:
            own = await writer(ServerWorld(Path(folder), server, None), store)
        await own.fence(TOPIC)
        assert Durability.LOCAL not in judge(facts, Durability.NONE).promises
        assert not await store.commit(Durability.LOCAL)
        assert await store.commit(Durability.NONE)
        await store.close()


# --- start-up


async def test_the_embedded_default_passes_the_checks(world: ServerWorld) -> None:
    facts = await check_server(world.settings())
    verdict = judge(facts, Durability.LOCAL)
    assert verdict.refusals == ()
    assert verdict.strongest is Durability.LOCAL
    assert facts.product == ("valkey" if world.kind == "valkey" else "redis")
    assert facts.replid == world.replid()


async def test_the_broker_user_passes_the_checks_and_can_undo_no_fence(
    world: ServerWorld, store: LogStore
) -> None:
    facts = await check_server(world.settings())
    assert facts.user == BROKER_USER
    assert facts.allowed == ()
    assert judge(facts, Durability.LOCAL).refusals == ()
    own = await writer(world, store)
    await own.fence(TOPIC)
    await own.append(TOPIC, b"1")
    client = redis.Redis(
        unix_socket_path=str(world.primary.path), username=BROKER_USER, password=BROKER_PASSWORD
    )
    key = f"ow:{{b0}}:log:{TOPIC}"
    for words in (
        ("DEL", key),
        ("XSETID", key, "1-1"),
        ("EVAL", f"return redis.call('DEL', '{key}')", "0"),
        ("EVAL", f"return redis.call('XSETID', '{key}', '1-1')", "0"),
        ("XADD", key, "4-1", "late", "entry"),
        ("HSET", "elsewhere", "a", "b"),
        ("CONFIG", "SET", "maxmemory", "1"),
    ):
        with pytest.raises(redis.exceptions.ResponseError):
            client.execute_command(*words)  # type: ignore[no-untyped-call]
    client.close()
    assert await positions(store) == ["5-0", "5-1"]


def test_every_command_that_the_rules_do_not_name_is_denied(world: ServerWorld) -> None:
    """The server itself lists its commands and states which of them the user may run."""
    named = {rule[1:] for rule in broker_acl_rules().split() if rule.startswith("+")}
    listed = commands_of(world.primary)
    allowed = {name for name, words in listed.items() if may_run(world.primary, words)}
    assert named <= listed.keys()
    assert allowed - BEFORE_LOGIN == named


BEFORE_LOGIN = {"auth", "hello", "quit", "reset"}
"""Commands that every user may run, whatever its rules: they come before any login."""


def commands_of(server: StoreServer) -> dict[str, list[str]]:
    """Return all commands and subcommands, each with its minimum number of arguments."""
    client = redis.Redis(unix_socket_path=str(server.path), protocol=2)
    client.response_callbacks.clear()
    found: dict[str, list[str]] = {}
    for entry in client.execute_command("COMMAND"):  # type: ignore[no-untyped-call]
        for name, arity, *_ in entry[9] or [entry]:
            words = name.decode().split("|")
            found[name.decode()] = words + ["1"] * (abs(arity) - len(words))
    client.close()
    return found


def may_run(server: StoreServer, words: list[str]) -> bool:
    try:
        answer = server.command("ACL", "DRYRUN", BROKER_USER, *words)
    except redis.exceptions.ResponseError as error:
        answer = str(error).encode()
    return b"permissions to run" not in answer


async def test_an_acl_user_with_the_right_to_delete_is_detected(world: ServerWorld) -> None:
    world.primary.command("ACL", "SETUSER", "broad", "on", f">{PASSWORD}", "~*", "+@all")
    settings = dataclasses.replace(world.settings(), username="broad", password=PASSWORD)
    facts = await check_server(settings)
    assert facts.allowed == ("DEL", "XSETID")
    assert len(judge(facts, Durability.LOCAL).refusals) == 1


async def test_a_wrong_password_is_a_clear_answer(world: ServerWorld) -> None:
    settings = dataclasses.replace(world.settings(), username="broker", password=PASSWORD[1:])
    store = RedisLogStore(settings)
    with pytest.raises(Undecided, match="WRONGPASS"):
        await store.observe([])
    with pytest.raises(Undecided, match="cannot be checked"):
        await check_server(settings)
    await store.close()


@pytest.mark.parametrize(
    "url", ["", "http://x", "rediss://x:1/2", "redis://x:port", "redis://x/3", "redis://u:p@x:1/2"]
)
async def test_an_unusable_url_is_refused_with_the_valid_form(url: str) -> None:
    store = RedisLogStore(RedisSettings(url=url))
    with pytest.raises(ConfigurationError) as refusal:
        await store.observe([])
    assert "u:p" not in str(refusal.value)
    await store.close()


# --- failover


async def test_a_demoted_primary_is_left_for_the_new_one(server_kind: str) -> None:
    with (
        running_pair(server_kind) as (primary, replica),
        tempfile.TemporaryDirectory(prefix="ow-") as folder,
    ):
        pair = ServerWorld(Path(folder), primary, replica)
        store = pair.open()
        own = await writer(pair, store)
        await own.fence(TOPIC)
        while not await store.commit(Durability.REPLICATED):
            pass  # the bucket's record must have been replicated too
        replica.promote()
        primary.follow(replica)
        append = own.appending(TOPIC, b"1")
        assert await store.append([append]) == [Outcome.REFENCE]
        stale = dataclasses.replace(own.binding, replid=primary.replid())
        with pytest.raises(Undecided, match="READONLY"):
            await store.stamp(stale)
        with pytest.raises(Undecided, match="not a primary"):
            await store.observe([0])
        pair.fail_over()
        assert await store.append([append]) == [Outcome.REFENCE]
        assert (await store.observe([0])).previous_replid == own.binding.replid
        await store.close()


async def test_sentinel_leads_to_the_primary_of_the_moment(server_kind: str) -> None:
    with (
        running_pair(server_kind) as (first, second),
        tempfile.TemporaryDirectory(prefix="ow-") as folder,
    ):
        port = free_ports(1)
        sentinel = start_sentinel(server_kind, Path(folder), port, first)
        try:
            settings = RedisSettings(
                sentinels=(f"127.0.0.1:{free_ports(1)}", f"127.0.0.1:{port}"),
                sentinel_primary="shard",
                buckets=4,
            )
            store = RedisLogStore(settings)
            seen = await until_answered(store)
            assert seen.replid == first.replid()
            # Sentinel learns of the replica from the primary's INFO, which it reads at least every ten seconds.
            await until_sentinel_knows_the_replica(port)
            before = first.replid()
            first.kill()
            with contextlib.suppress(Undecided):  # unless there is a new primary already
                await store.observe([])
            seen = await until_answered(store)
            assert seen.replid == second.replid()
            assert seen.previous_replid == before
            await store.close()
            lost = dataclasses.replace(settings, sentinel_primary="other")
            with pytest.raises(Undecided, match="other"):
                await RedisLogStore(lost).observe([])
        finally:
            sentinel.kill()
            sentinel.wait()


def start_sentinel(
    kind: str, folder: Path, port: int, primary: StoreServer
) -> subprocess.Popen[bytes]:
    configuration = folder / "sentinel.conf"
    configuration.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {folder}\n"
        f"sentinel monitor shard 127.0.0.1 {primary.port} 1\n"
        "sentinel down-after-milliseconds shard 5000\n"
    )
    program = str(SERVER_PROGRAMS[kind])
    return subprocess.Popen([program, str(configuration), "--sentinel"], stdout=subprocess.DEVNULL)


async def until_answered(store: LogStore) -> Observation:
    return await decided(lambda: store.observe([]))


async def until_sentinel_knows_the_replica(port: int) -> None:
    client = redis.Redis(port=port, protocol=2)
    async with asyncio.timeout(4 * PATIENCE_SECONDS):
        while True:
            if client.execute_command("SENTINEL", "REPLICAS", "shard"):  # type: ignore[no-untyped-call]
                break
            await asyncio.sleep(0.05)
    client.close()


# --- the published format


@pytest.mark.parametrize("local", ["orders", "{orders}-audit", "orders-partition-3"])
async def test_the_reader_in_the_documentation_reads_a_log(
    store_server: StoreServer, local: str
) -> None:
    text = (ROOT / "docs" / "log-format.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    store = RedisLogStore(RedisSettings(url=store_server.url))
    topic = TopicName.parse(f"persistent://public/default/{local}")
    with tempfile.TemporaryDirectory(prefix="ow-") as folder:
        world = ServerWorld(Path(folder), store_server, None)
        own = await writer(world, store, bucket=zlib_bucket(topic))
    await own.fence(topic)
    for number in range(20):
        await own.append(topic, b"a%d" % number, b"", b"\x00\xff")
    await Writer(store, own.binding, 6).fence(topic)
    await store.close()
    printed = run_program(program, store_server.url, str(topic))
    expected = ["5-0 marker of broker-a"]
    for number in range(20):
        first = 1 + 3 * number
        expected += [
            f"5-{first} b'a{number}'",
            f"5-{first + 1} b''",
            f"5-{first + 2} b'\\x00\\xff'",
        ]
    assert printed == [*expected, "6-0 marker of broker-a"]


def run_program(source: str, *arguments: str) -> list[str]:
    words = [sys.executable, "-W", "error", "-c", source, *arguments]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()


def zlib_bucket(topic: TopicName) -> int:
    return RedisLogStore(RedisSettings())._keys.bucket(topic)


def test_every_script_documents_its_arguments_and_its_invariant() -> None:
    folder = ROOT / "broker" / "onewriter_broker" / "log" / "store" / "scripts"
    scripts = [
        path for path in folder.glob("*.lua") if path.stem not in {"guard", "publish", "blocks"}
    ]
    assert len(scripts) == len(ALL_SCRIPTS)
    for path in scripts:
        header = path.read_text().split("\n\n")[0]
        for heading in ("-- KEYS", "-- ARGV", "-- Reply", "-- Invariant:"):
            assert heading in header, f"{path.name} lacks {heading}"
