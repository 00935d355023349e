"""Lose Redis' tail: real servers that fail over, tear, forget and stall under a publishing writer.

In each story a writer publishes all the time. Afterwards its acknowledged values are compared with
the log: each stands where it was acknowledged, or was reported lost with that very position; nothing
stands twice, no epoch went back, nothing was appended below a newer ledger.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.exceptions
from click.testing import CliRunner
from tests.integration.conftest import ROUNDS, RawClients
from tests.integration.continuous_writer import (
    ContinuousWriter,
    check,
    named_owner,
    reported_losses,
    story_of,
)
from tests.integration.following import follow
from tests.integration.raw import (
    EXCLUSIVE,
    RawClient,
    RefusedByBroker,
    contents_of,
    eventually,
)
from tests.servers import SERVER_PROGRAMS, StoreServer, running_pair, running_server

from onewriter_broker.testing import LocalBrokers, running_brokers
from onewriter_broker.verbs.adopt import adopt as adopt_command
from onewriter_core.errors import ServerError, Unavailable

pytestmark = pytest.mark.timeout(180 + 15 * ROUNDS)

SILENT_SECONDS = 30.0
"""No story here is about a silent writer; on a slow machine one may be held up for seconds."""

MEMORY_MAX = 24 * 1024 * 1024
"""Bytes of a store that is filled."""

_stories = itertools.count(1)

Damage = Callable[[], None]


@pytest.fixture
def topic() -> str:
    return f"tail-{next(_stories)}"


class Link:
    """An address of the store that can be made to lead elsewhere, as a Service's name does."""

    def __init__(self, folder: Path, name: str, server: StoreServer) -> None:
        self._path = folder / name
        self.lead_to(server)

    @property
    def url(self) -> str:
        return f"unix://{self._path}"

    def lead_to(self, server: StoreServer) -> None:
        fresh = self._path.with_suffix(".new")
        fresh.symlink_to(server.path)
        fresh.replace(self._path)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short enough for a unix socket's path."""
    with tempfile.TemporaryDirectory(prefix="ow-") as name:
        yield Path(name)


@contextlib.contextmanager
def bare_broker(url: str, **options: Any) -> Iterator[LocalBrokers]:
    """One broker on a store of ours, without a supervisor."""
    settings = {"store_timeout_seconds": 1.0, "silent_after_seconds": SILENT_SECONDS}
    options["settings"] = settings | options.get("settings", {})
    with running_brokers(redis_url=url, supervised=False, **options) as brokers:
        yield brokers


def drop_connections(server: StoreServer) -> None:
    server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


def settle(writer: ContinuousWriter, brokers: list[LocalBrokers], url: str) -> int:
    """Stop the writer and compare; how many values the brokers reported lost."""
    writer.stop()
    found = story_of(url, writer.topic)
    return check(writer, found, reported_losses(brokers, writer.topic))


# ---- A replica that lags is promoted --------------------------------------------------------------


@pytest.mark.campaign
def test_a_lagging_replica_is_promoted_under_a_writer(folder: Path, topic: str) -> None:
    """The holder keeps its epoch: its broker knows the grant, whatever the replica knows."""
    chance = random.Random(1)
    lost = 0
    with running_pair() as pair:
        servers = list(pair)
        link = Link(folder, "primary", servers[0])
        with bare_broker(link.url) as brokers, ContinuousWriter(topic, brokers) as writer:
            for _ in range(ROUNDS):
                writer.has_acked(50)
                # Cut off now and promoted later: the same as a replica that lags by so much.
                servers[1].promote()
                time.sleep(chance.uniform(0.0, 0.15))
                link.lead_to(servers[1])
                drop_connections(servers[0])
                writer.has_acked(50)
                servers[0].follow(servers[1])
                servers.reverse()
            lost = settle(writer, [brokers], link.url)
            assert len(writer.epochs) == 1, "the holder lost its turn"
            assert brokers.events("bucket.dataset_changed")
    assert lost > 0, "no promotion lost anything: the replicas did not lag"


@pytest.mark.campaign
def test_a_broker_that_stays_with_the_old_primary_appends_nothing(folder: Path, topic: str) -> None:
    """The old primary goes on taking writes, and a broker goes on sending them there.

    In every round the owner of the topic is left behind, and told later where the store is.
    """
    lost = 0
    with running_pair() as pair, contextlib.ExitStack() as stack:
        servers = list(pair)
        links = [Link(folder, name, servers[0]) for name in "ab"]
        first = stack.enter_context(bare_broker(links[0].url))
        settings = {
            "name": "broker-b",
            "data_dir": first.data_directory,
            "store_timeout_seconds": 1.0,
        }
        brokers = [first, stack.enter_context(bare_broker(links[1].url, settings=settings))]
        brokers[1].wait_for_event("buckets.held", lambda e: e["held"] != 0)
        for number in range(max(2, ROUNDS // 3)):
            lost += stale_broker_round(servers, links, brokers, f"{topic}-{number}")
            servers[0].follow(servers[1])
            servers.reverse()
    assert lost > 0, "the old primary took nothing"


def stale_broker_round(
    servers: list[StoreServer], links: list[Link], brokers: list[LocalBrokers], topic: str
) -> int:
    """One failover that one broker misses; how many acknowledged values it cost."""
    eventually(
        lambda: is_owner(brokers[0], topic) != is_owner(brokers[1], topic), what="no agreement"
    )
    stale = 0 if is_owner(brokers[0], topic) else 1
    with ContinuousWriter(topic, *brokers) as writer:
        writer.has_acked(50)
        servers[1].promote()
        links[1 - stale].lead_to(servers[1])
        # Both lose their connections; the stale one finds its way back to the old primary.
        drop_connections(servers[0])
        eventually(lambda: is_owner(brokers[1 - stale], topic), what="nobody took the topic over")
        eventually(
            lambda: brokers[stale].events("buckets.held")[-1]["held"] == 0,
            what="the stale broker went on for good",
        )
        writer.has_acked(50)
        links[stale].lead_to(servers[1])
        drop_connections(servers[0])
        writer.has_acked(50)
        writer.stop()
        eventually(lambda: accounted(writer, brokers, links[0].url), what="a silent loss")
        return settle(writer, brokers, links[0].url)


def is_owner(brokers: LocalBrokers, topic: str) -> bool:
    """Whether this broker says of itself that it serves the topic."""
    with contextlib.suppress(Unavailable, OSError):
        return named_owner(brokers, topic) == brokers.address()
    return False


def accounted(writer: ContinuousWriter, brokers: list[LocalBrokers], url: str) -> bool:
    """Whether every loss has been reported by now."""
    try:
        settle(writer, brokers, url)
    except AssertionError as error:
        if "silently" in str(error):
            return False
        raise
    return True


# ---- A single server comes back with less ---------------------------------------------------------


@pytest.mark.campaign
def test_a_file_is_torn_under_a_writer(topic: str) -> None:
    """The torn part may hold the broker's own stamp: that there is no other copy must be known."""
    chance = random.Random(2)
    settings = {"redis_is_alone": True, "store_timeout_seconds": 1.0}
    with (
        running_server() as server,
        bare_broker(server.url, settings=settings) as brokers,
        ContinuousWriter(topic, brokers) as writer,
    ):
        for _ in range(ROUNDS):
            writer.has_acked(50)
            mark = server.append_only_bytes()
            writer.has_acked(20)
            torn = chance.randrange(mark, server.append_only_bytes())
            server.restart(keep_bytes=torn)
            writer.has_acked(50)
        lost = settle(writer, [brokers], server.url)
        assert len(writer.epochs) == 1, "the holder lost its turn"
    assert lost > 0, "nothing was torn off"


@pytest.mark.campaign
@pytest.mark.parametrize("kind", list(SERVER_PROGRAMS))
def test_a_server_restarts_under_a_writer(kind: str, topic: str) -> None:
    """Another ``master_replid``, the same data: nothing is lost and nobody loses its turn."""
    with (
        running_server(kind) as server,
        bare_broker(server.url) as brokers,
        ContinuousWriter(topic, brokers) as writer,
    ):
        for _ in range(ROUNDS):
            writer.has_acked(50)
            before = server.replid()
            server.restart()
            assert server.replid() != before
            writer.has_acked(50)
        assert settle(writer, [brokers], server.url) == 0
        assert len(writer.epochs) == 1, "the holder lost its turn"
        assert not brokers.events("entries.lost")


def test_an_old_snapshot_is_restored(topic: str) -> None:
    """No append-only file at all: what the snapshot does not have is lost, and said to be."""
    settings = {"minimum_durability": "None", "store_timeout_seconds": 1.0}
    with (
        running_server(appendonly="no") as server,
        bare_broker(server.url, settings=settings) as brokers,
        ContinuousWriter(topic, brokers) as writer,
    ):
        writer.has_acked(50)
        server.command("SAVE")
        writer.has_acked(50)
        server.restart()
        writer.has_acked(50)
        assert settle(writer, [brokers], server.url) >= 50
        assert len(writer.epochs) == 1


@pytest.mark.campaign
def test_the_embedded_server_is_killed_under_a_writer(topic: str) -> None:
    """``onewriter up`` starts it again on the same data; holders keep writing, nothing is lost."""
    with running_brokers() as brokers, ContinuousWriter(topic, brokers) as writer:
        for number in range(max(3, ROUNDS // 3)):
            writer.has_acked(50)
            started = brokers.wait_for_event("embedded.started", count=number + 1)
            os.kill(int(str(started["process_id"])), signal.SIGKILL)
            writer.has_acked(50)
        writer.stop()
        assert len(writer.epochs) == 1
        assert not brokers.events("entries.lost")
        assert not writer.refusals, "a connection was dropped"
        contents = contents_of(brokers.address(), topic)
        assert set(writer.acked) <= set(contents)
        assert len(contents) == len(set(contents))


# ---- Emptied by mistake ---------------------------------------------------------------------------


def test_flushall_is_refused_until_a_person_decides(topic: str) -> None:
    with (
        running_server() as server,
        bare_broker(server.url) as brokers,
        ContinuousWriter(topic, brokers) as writer,
    ):
        writer.has_acked(50)
        before = writer.epochs[-1]
        server.command("FLUSHALL")
        brokers.wait_for_event("bucket.refused", lambda e: "holds nothing" in str(e["reason"]))
        brokers.wait_for_event("entries.in_doubt")
        acknowledged = writer.at_rest()
        time.sleep(1.0)
        assert len(writer.acked) == acknowledged, "something was acknowledged into the void"
        done = CliRunner().invoke(
            adopt_command,
            [
                *("--force", "--all", "--reason", "somebody flushed it"),
                *("--redis-url", server.url, "--data-dir", str(brokers.data_directory)),
            ],
        )
        assert done.exit_code == 0, done.output
        writer.has_acked(50)
        brokers.wait_for_event("entries.lost")
        assert settle(writer, [brokers], server.url) == acknowledged
        assert writer.epochs[-1] > before


def test_one_log_is_deleted_by_mistake(topic: str) -> None:
    """The bucket is there, one stream is not: its owner knows all that matters, and goes on."""
    with (
        running_server() as server,
        bare_broker(server.url) as brokers,
        ContinuousWriter(topic, brokers) as writer,
    ):
        writer.has_acked(50)
        (stream,) = [key for key in server.command("KEYS", "*:log:*") if topic.encode() in key]
        server.command("DEL", stream)
        writer.has_acked(50)
        assert settle(writer, [brokers], server.url) >= 50
        assert len(writer.epochs) == 1


# ---- Away, slow, full -----------------------------------------------------------------------------


def down(server: StoreServer) -> None:
    server.kill()
    time.sleep(5.0)
    server.start()


def frozen(server: StoreServer) -> None:
    server.pause()
    time.sleep(3.0)
    server.resume()


def slow(server: StoreServer) -> None:
    server.command("CLIENT", "PAUSE", 2000, "ALL")
    time.sleep(2.0)


def full(server: StoreServer) -> None:
    server.command("CONFIG", "SET", "maxmemory", "1")
    time.sleep(1.5)
    server.command("CONFIG", "SET", "maxmemory", "0")


def without_replicas(server: StoreServer) -> None:
    server.command("CONFIG", "SET", "min-replicas-to-write", "1")
    time.sleep(1.5)
    server.command("CONFIG", "SET", "min-replicas-to-write", "0")


def read_only(server: StoreServer) -> None:
    server.command("REPLICAOF", "127.0.0.1", "1")
    time.sleep(1.5)
    server.command("REPLICAOF", "NO", "ONE")


def busy(server: StoreServer) -> None:
    server.command("CONFIG", "SET", "lua-time-limit", "50")
    with contextlib.suppress(redis.exceptions.RedisError):
        endless = redis.Redis(unix_socket_path=str(server.path), socket_timeout=0.2, protocol=2)
        endless.execute_command("EVAL", "while true do end", 0)  # type: ignore[no-untyped-call]
    time.sleep(1.5)
    server.command("SCRIPT", "KILL")


@pytest.mark.parametrize(
    "trouble",
    [down, frozen, slow, full, without_replicas, read_only, busy],
    ids=lambda f: f.__name__,
)
def test_trouble_holds_the_writer_up_and_loses_nothing(
    trouble: Callable[[StoreServer], None], topic: str
) -> None:
    with (
        running_server() as server,
        bare_broker(server.url) as brokers,
        ContinuousWriter(topic, brokers) as writer,
    ):
        writer.has_acked(50)
        process_id = brokers.pid()
        trouble(server)
        writer.has_acked(200)
        assert settle(writer, [brokers], server.url) == 0
        assert len(writer.epochs) == 1, "the holder lost its turn"
        assert brokers.pid() == process_id
        assert not brokers.events("entries.lost")


# ---- What an acknowledgement promises -------------------------------------------------------------


def declared(*topics: tuple[str, str]) -> str:
    """Manifests of topics with their durability."""
    return "---\n".join(
        f"apiVersion: onewriter.dev/v1alpha1\nkind: ExclusiveTopic\nmetadata: {{name: {name}}}\n"
        f"spec: {{durability: {durability}, access: {{requireClaim: false}}}}\n"
        for name, durability in topics
    )


def test_replicated_waits_for_its_replica_and_nobody_else_does(topic: str) -> None:
    manifests = declared((topic, "Replicated"), (f"{topic}-local", "Local"))
    with (
        running_pair() as (primary, replica),
        bare_broker(primary.url, manifests=manifests) as brokers,
        ContinuousWriter(topic, brokers) as careful,
        ContinuousWriter(f"{topic}-local", brokers) as local,
    ):
        careful.has_acked(50)
        local.has_acked(50)
        replica.pause()
        stopped_at = careful.at_rest()
        local.has_acked(200)
        time.sleep(0.5)
        assert len(careful.acked) == stopped_at, "acknowledged what no replica has"
        replica.resume()
        careful.has_acked(50)
        assert settle(careful, [brokers], primary.url) == 0
        assert settle(local, [brokers], primary.url) == 0
        assert len(careful.epochs) == 1


def test_a_topic_that_wants_more_than_the_store_has_is_refused_alone(
    topic: str, raw: RawClients
) -> None:
    manifests = declared((topic, "Replicated"), (f"{topic}-local", "Local"))
    with running_server() as server, bare_broker(server.url, manifests=manifests) as brokers:
        client = raw(brokers.address())
        with pytest.raises(RefusedByBroker, match="Replicated") as refused:
            client.producer(topic, EXCLUSIVE)
        assert refused.value.code is ServerError.NOT_ALLOWED_ERROR
        client.producer(f"{topic}-local", EXCLUSIVE).publish(b"1")
        said = brokers.wait_for_event("topic.refused")
        assert str(said["topic"]).endswith(topic)
        assert "can promise Local at most" in str(said["reason"])


def test_a_topic_is_served_once_the_store_has_what_it_wants(topic: str, raw: RawClients) -> None:
    with (
        running_server(listens_on_tcp=True) as primary,
        running_server(listens_on_tcp=True) as replica,
        bare_broker(primary.url, manifests=declared((topic, "Replicated"))) as brokers,
    ):
        client = raw(brokers.address())
        with pytest.raises(RefusedByBroker, match="Replicated"):
            client.producer(topic, EXCLUSIVE)
        replica.follow(primary)  # the first one: the dataset has another identity from here on
        brokers.wait_for_event("store.promises")
        follow(brokers, raw, topic, EXCLUSIVE).publish(b"1")


def test_a_store_weaker_than_the_minimum_is_refused() -> None:
    settings = {"minimum_durability": "Replicated"}
    with running_server() as server, tempfile.TemporaryDirectory(prefix="ow-") as folder:
        brokers = LocalBrokers(
            Path(folder), redis_url=server.url, supervised=False, settings=settings
        )
        brokers.start(wait=False)
        assert brokers.wait_ended() == 2
        (said,) = brokers.events("broker.refused")
        assert "at most durability Local" in str(said["reason"])
        brokers.stop()


def test_a_store_near_its_limit_pushes_back_before_it_refuses(topic: str, raw: RawClients) -> None:
    with (
        running_server(maxmemory=str(MEMORY_MAX)) as server,
        bare_broker(server.url) as brokers,
        ContinuousWriter(topic, brokers) as writer,
    ):
        writer.has_acked(50)
        client = raw(brokers.address())
        filler = client.producer(f"{topic}-filler")
        filled = 0
        while not brokers.events("store.nearly_full"):
            # Slowly towards the end: the broker looks at the store now and then.
            is_filling = memory_used(server) < 0.8 * MEMORY_MAX
            filler.publish(bytes(100_000 if is_filling else 10_000))
            filled += 1
            assert filled < 2_000, "it never was nearly full"
        eventually(lambda: is_refused(client, f"{topic}-new"), what="a new producer was let in")
        time.sleep(2.0)
        assert memory_used(server) < MEMORY_MAX
        writer.has_acked(1)  # slowly, not never
        assert not brokers.events("append.undecided"), "the store had to refuse"
        server.command("CONFIG", "SET", "maxmemory", "0")
        brokers.wait_for_event("store.has_room")
        client.producer(f"{topic}-new")
        writer.has_acked(200)
        assert settle(writer, [brokers], server.url) == 0
        assert len(writer.epochs) == 1


def memory_used(server: StoreServer) -> int:
    return int(server.information("memory")["used_memory"])


def is_refused(client: RawClient, topic: str) -> bool:
    try:
        client.producer(topic).close()
    except RefusedByBroker as refused:
        return refused.code is ServerError.SERVICE_NOT_READY
    return False
