"""Loss of Redis' tail: real servers that fail over, are truncated and lose data under a publishing writer.

In each case a writer publishes all the time. Afterwards its acknowledged values are compared with the log:
each is at its acknowledged position, or was reported lost with that position. Nothing is stored twice, no
epoch decreased, and nothing was appended below a newer ledger.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.integration.bare_brokers import bare_broker, settle
from tests.integration.conftest import ROUNDS
from tests.integration.continuous_writer import ContinuousWriter, named_owner
from tests.integration.http_calls import Http
from tests.integration.raw import contents_of, eventually
from tests.integration.store_links import StoreLink, drop_connections
from tests.servers import SERVER_KINDS, StoreServer, running_pair, running_server

from onewriter_broker.verbs.adopt import adopt as adopt_command
from onewriter_core.errors import Unavailable
from onewriter_testing.processes import LocalBrokers, running_brokers

pytestmark = pytest.mark.timeout(360 + 15 * ROUNDS)


# ---- A replica that lags is promoted --------------------------------------------------------------


@pytest.mark.campaign
def test_a_lagging_replica_is_promoted_under_a_writer(socket_folder: Path, topic: str) -> None:
    """The holder keeps its epoch: its broker knows the grant, even if the replica does not."""
    chance = random.Random(1)
    lost = 0
    with running_pair() as pair:
        servers = list(pair)
        link = StoreLink(socket_folder, "primary", servers[0])
        with bare_broker(link.url) as brokers, ContinuousWriter(topic, brokers) as writer:
            for number in range(ROUNDS):
                writer.has_acked(50)
                # Cut off now and promoted later: the same as a replica that lags by this much.
                servers[1].promote()
                if number % 2:
                    writer.has_stored(1)
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
def test_a_broker_that_stays_with_the_old_primary_appends_nothing(
    socket_folder: Path, topic: str
) -> None:
    """The old primary continues to accept writes, and a broker continues to send them there.

    In every round the topic's owner stays with the old primary and learns the store's new address later.
    """
    lost = 0
    with running_pair() as pair, contextlib.ExitStack() as stack:
        servers = list(pair)
        links = [StoreLink(socket_folder, name, servers[0]) for name in "ab"]
        first = stack.enter_context(bare_broker(links[0].url))
        settings = {
            "name": "broker-b",
            "data_dir": first.data_directory,
            "store_timeout_seconds": 1.0,
        }
        brokers = [first, stack.enter_context(bare_broker(links[1].url, settings=settings))]
        brokers[1].wait_for_event("buckets.held", lambda e: e["held"] != 0)
        for number in range(max(1, ROUNDS // 3)):
            lost += stale_broker_round(servers, links, brokers, f"{topic}-{number}")
            servers[0].follow(servers[1])
            servers.reverse()
    assert lost > 0, "the old primary took nothing"


def stale_broker_round(
    servers: list[StoreServer], links: list[StoreLink], brokers: list[LocalBrokers], topic: str
) -> int:
    """Run one failover that one broker misses; return the number of acknowledged values that it lost."""
    eventually(
        lambda: is_owner(brokers[0], topic) != is_owner(brokers[1], topic), what="no agreement"
    )
    stale = 0 if is_owner(brokers[0], topic) else 1
    with ContinuousWriter(topic, *brokers) as writer:
        writer.has_acked(50)
        servers[1].promote()
        writer.has_stored(1)
        links[1 - stale].lead_to(servers[1])
        # Both lose their connections. The stale one reconnects to the old primary.
        drop_connections(servers[0])
        eventually(
            lambda: is_owner(brokers[1 - stale], topic), what="no broker took the topic over"
        )
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
    """Whether this broker reports that it serves the topic."""
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


# ---- A single server returns with less data -------------------------------------------------------


@pytest.mark.campaign
def test_a_file_is_torn_under_a_writer(topic: str) -> None:
    """The lost part may contain the broker's own stamp; the broker must know that no other copy exists."""
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
            writer.has_stored(20)
            torn = chance.randrange(mark, server.append_only_bytes())
            writer.has_stored(1)  # so that an acknowledged value is torn off
            server.restart(keep_bytes=torn)
            writer.has_acked(50)
        lost = settle(writer, [brokers], server.url)
        assert len(writer.epochs) == 1, "the holder lost its turn"
    assert lost > 0, "nothing was torn off"


@pytest.mark.campaign
@pytest.mark.parametrize("kind", SERVER_KINDS)
def test_a_server_restarts_under_a_writer(kind: str, topic: str) -> None:
    """Another ``master_replid``, the same data: nothing is lost and every holder keeps its topic."""
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
    """Without an append-only file: data that the snapshot lacks is lost and reported."""
    settings = {"minimum_durability": "None", "store_timeout_seconds": 1.0}
    with (
        running_server(appendonly="no") as server,
        bare_broker(server.url, settings=settings) as brokers,
        ContinuousWriter(topic, brokers) as writer,
    ):
        writer.has_acked(50)
        server.command("SAVE")
        writer.has_stored(50)
        server.restart()
        writer.has_acked(50)
        assert settle(writer, [brokers], server.url) >= 50
        assert len(writer.epochs) == 1


@pytest.mark.campaign
def test_the_embedded_server_is_killed_under_a_writer(topic: str) -> None:
    """``onewriter up`` restarts it on the same data. Holders keep writing, and nothing is lost."""
    with running_brokers() as brokers, ContinuousWriter(topic, brokers) as writer:
        for number in range(max(2, ROUNDS // 3)):
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


ADOPTED = {"buckets": 64}
"""The number of buckets that ``onewriter adopt`` assumes."""


def test_flushall_is_refused_until_a_person_decides(topic: str) -> None:
    with (
        running_server() as server,
        bare_broker(server.url, settings=ADOPTED) as brokers,
        ContinuousWriter(topic, brokers) as writer,
    ):
        writer.has_acked(50)
        before = writer.epochs[-1]
        server.command("FLUSHALL")
        brokers.wait_for_event("bucket.refused", lambda e: "holds nothing" in str(e["reason"]))
        brokers.wait_for_event("entries.in_doubt")
        acknowledged = writer.at_rest()
        time.sleep(1.0)
        assert len(writer.acked) == acknowledged, (
            "a message was acknowledged although the store was empty"
        )
        status, answer = Http(brokers.http_url)("GET", "/readyz")
        assert "holds nothing" in " ".join(answer["buckets"]["waiting"].values())
        assert status == 200, "buckets that had granted nothing are served"
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


def test_a_log_deleted_by_mistake_is_detected(topic: str) -> None:
    """The bucket exists, one stream does not: its owner knows all that matters, and continues."""
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
