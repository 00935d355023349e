"""Brokers on a real Valkey Cluster: publishing, takeovers, and the loss of each kind of store process.

The time until topics are writable again is printed, and not asserted. The long tests are ``full``:
tests/conformance/test_log_store_cluster.py shows the same failovers without brokers in ``make test``.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import resource
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus

import pulsar
import pytest
from pulsar import ProducerAccessMode as Mode
from tests.integration.bare_brokers import declared, settle
from tests.integration.brokers_of_two_users import brokers_of_two_users
from tests.integration.conftest import StockClients
from tests.integration.continuous_writer import ContinuousWriter
from tests.integration.following import placed
from tests.integration.forked_brokers import BUCKETS, forked_brokers
from tests.integration.http_calls import OWN, Http
from tests.integration.raw import eventually
from tests.servers import BROKER_USER, StoreServer
from tests.store_cluster import StoreCluster, running_cluster

from onewriter_broker.log.store.keys import Keys
from onewriter_core.errors import Unavailable
from onewriter_core.ids import TopicName
from onewriter_testing.processes import LocalBrokers

pytestmark = pytest.mark.timeout(420)

KEYS = Keys(BUCKETS)
TOPICS = [f"cluster-{number}" for number in range(24)]

SLOW_SYNC_MICROSECONDS = 200_000
"""Time that a primary with a slow disk needs for each write to its file."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[StoreCluster]:
    with running_cluster(replicas=1) as running:
        yield running


@pytest.fixture
def brokers(cluster: StoreCluster) -> Iterator[LocalBrokers]:
    """One broker on an empty cluster."""
    cluster.wait_complete()
    cluster.flush_all()
    manifests = declared(*((topic, "Replicated") for topic in TOPICS))
    settings = {"redis_replicas": 1, "store_timeout_seconds": 2.0}
    with forked_brokers(redis_url=cluster.url, manifests=manifests, settings=settings) as running:
        yield running


def primary_of(cluster: StoreCluster, topic: str) -> StoreServer:
    return cluster.primary(KEYS.unit(KEYS.bucket(TopicName.parse(topic))))


def on_different_shards(cluster: StoreCluster) -> tuple[str, str]:
    """Two topics whose buckets two primaries serve."""
    first = TOPICS[0]
    here = primary_of(cluster, first)
    return first, next(topic for topic in TOPICS if primary_of(cluster, topic) is not here)


def local_beside(topic: str) -> str:
    """A topic of the same bucket with the durability Local."""
    bucket = KEYS.bucket(TopicName.parse(topic))
    names = (f"local-{number}" for number in itertools.count())
    return next(name for name in names if KEYS.bucket(TopicName.parse(name)) == bucket)


def is_served_by(brokers: LocalBrokers, topic: str, number: int) -> bool:
    """Whether a look-up names this broker."""
    with contextlib.suppress(Unavailable, OSError):
        return brokers.owner_of(topic) == number
    return False


@contextlib.contextmanager
def writing(brokers: LocalBrokers, *topics: str) -> Iterator[tuple[ContinuousWriter, ...]]:
    """A writer for each topic; each has a hundred acknowledgements before the test continues."""
    with contextlib.ExitStack() as stack:
        writers = tuple(stack.enter_context(ContinuousWriter(topic, brokers)) for topic in topics)
        for writer in writers:
            writer.has_acked(100)
        yield writers


def test_a_stock_client_publishes_waits_and_reads_on_every_shard(
    cluster: StoreCluster, brokers: LocalBrokers, stock: StockClients
) -> None:
    assert len({primary_of(cluster, topic).port for topic in TOPICS}) == 3
    leader, waiter = stock(brokers.service_url), stock(brokers.service_url)
    with ThreadPoolExecutor() as threads:
        for topic in TOPICS[:8]:
            first = leader.create_producer(topic, access_mode=Mode.Exclusive)
            first.send(b"of the first")
            second = threads.submit(
                waiter.create_producer, topic, access_mode=Mode.WaitForExclusive
            )
            first.close()
            second.result().send(b"of the second")
            reader = waiter.create_reader(topic, pulsar.MessageId.earliest)
            read = [reader.read_next().data() for _ in range(2)]
            assert read == [b"of the first", b"of the second"]


@pytest.mark.full
def test_a_lost_primary_delays_its_topics_alone_and_loses_nothing_acknowledged(
    cluster: StoreCluster, brokers: LocalBrokers
) -> None:
    """What needs a replica waits for it. What does not is written again as soon as the replica is promoted."""
    topic, other = on_different_shards(cluster)
    lost = primary_of(cluster, topic)
    with writing(brokers, topic, local_beside(topic), other) as (here, local, there):
        lost.kill()
        began = time.monotonic()
        there.has_stored(100)
        local.has_stored(1)
        print(f"writable again after {time.monotonic() - began:.1f} s")  # noqa: T201
        assert primary_of(cluster, topic) is not lost
        lost.start()
        cluster.wait_complete()
        here.has_stored(100)
        for writer in (here, there):
            assert settle(writer, [brokers], cluster.url) == 0
            assert len(writer.epochs) == 1, "a living owner keeps the epoch"
        settle(local, [brokers], cluster.url)


@pytest.mark.full
def test_nothing_of_a_frozen_primary_counts_when_it_wakes(
    cluster: StoreCluster, brokers: LocalBrokers
) -> None:
    topic, other = on_different_shards(cluster)
    frozen = primary_of(cluster, topic)
    with writing(brokers, topic, local_beside(topic), other) as (here, local, there):
        frozen.pause()
        try:
            began = time.monotonic()
            there.has_stored(50)
            local.has_stored(1)
            print(f"writable again after {time.monotonic() - began:.1f} s")  # noqa: T201
        finally:
            frozen.resume()
        here.has_stored(100)
        cluster.wait_complete()
        for writer in (here, there):
            assert settle(writer, [brokers], cluster.url) == 0
            assert len(writer.epochs) == 1
        settle(local, [brokers], cluster.url)


@pytest.mark.full
def test_topics_wait_for_their_replica_and_those_of_other_shards_do_not(
    cluster: StoreCluster, brokers: LocalBrokers
) -> None:
    topic, other = on_different_shards(cluster)
    replica = cluster.replica_of(primary_of(cluster, topic))
    with writing(brokers, topic, other) as (here, there):
        replica.kill()
        stopped_at = here.at_rest()
        there.has_stored(200)
        assert len(here.acked) == stopped_at, "acknowledged what no replica has"
        replica.start()
        here.has_stored(50)
        assert settle(here, [brokers], cluster.url) == 0


@pytest.mark.full
def test_a_full_volume_of_one_shard_ends_its_primary_and_loses_nothing(
    cluster: StoreCluster, brokers: LocalBrokers
) -> None:
    topic, other = on_different_shards(cluster)
    full = primary_of(cluster, topic)
    with writing(brokers, topic, local_beside(topic), other) as (here, local, there):
        full.limit(resource.RLIMIT_FSIZE, full.append_only_bytes())
        brokers.wait_for_event("store.failover")
        assert "AOF write error" in full.log_text()
        shown = Http(brokers.http_url)("GET", f"{OWN}/{topic}")[1]["shard"]
        assert shown["failovers"] >= 1
        assert not shown["primary"].endswith(f":{full.port}")
        local.has_stored(50)
        there.has_stored(50)
        full.kill()
        full.start()
        cluster.wait_complete()
        here.has_stored(50)
        for writer in (here, there):
            assert settle(writer, [brokers], cluster.url) == 0
            assert len(writer.epochs) == 1
        settle(local, [brokers], cluster.url)


@pytest.mark.full
def test_a_slow_disk_delays_the_topics_of_its_shard_and_is_shown(
    cluster: StoreCluster, brokers: LocalBrokers
) -> None:
    topic, other = on_different_shards(cluster)
    slow = primary_of(cluster, topic)

    def seconds() -> float:
        """Return the time that the slow primary spent on its file, as the broker shows it."""
        text = Http(brokers.http_url)("GET", "/metrics")[1]
        place = re.search(
            rf'onewriter_store_shard_up{{primary="[^"]*:{slow.port}",shard="(\d)"}}', text
        )
        assert place is not None
        name = f'onewriter_store_shard_sync_seconds_total{{shard="{place[1]}"}} '
        return float(text.partition(name)[2].split()[0])

    with writing(brokers, topic, other) as (here, there):
        before = seconds()
        slow.command("DEBUG", "AOF-FLUSH-SLEEP", SLOW_SYNC_MICROSECONDS)
        here.has_stored(50)
        there.has_stored(200)
        eventually(lambda: seconds() - before > 5 * SLOW_SYNC_MICROSECONDS / 1e6, 120)
        slow.command("DEBUG", "AOF-FLUSH-SLEEP", 0)
        for writer in (here, there):
            writer.has_stored(100)
            assert settle(writer, [brokers], cluster.url) == 0
            assert len(writer.epochs) == 1


@pytest.mark.full
def test_a_broker_that_loses_one_shard_loses_the_buckets_of_this_shard_only(
    cluster: StoreCluster,
) -> None:
    """The other broker takes them under the same epochs, and gives them back."""
    cluster.wait_complete()
    cluster.flush_all()
    manifests = declared(*((topic, "Replicated") for topic in TOPICS))
    settings = {"redis_replicas": 1, "resume_window_seconds": 300.0}
    with brokers_of_two_users(cluster.url, manifests, settings) as brokers:
        placed(brokers, *TOPICS)
        moving = [topic for topic in TOPICS if brokers.target_of(topic) == 1]
        lost = primary_of(cluster, moving[0])
        staying = next(topic for topic in moving if primary_of(cluster, topic) is not lost)
        with writing(brokers, moving[0], staying) as (here, there):
            nodes = (lost, cluster.replica_of(lost))
            for node in nodes:
                node.command("ACL", "SETUSER", BROKER_USER, "off")
                node.command("CLIENT", "KILL", "USER", BROKER_USER)
            eventually(
                lambda: is_served_by(brokers, moving[0], 0), 120, what="no broker took the bucket"
            )
            here.has_stored(50)
            there.has_stored(50)
            assert is_served_by(brokers, staying, 1)
            assert Http(brokers.http_urls[1])("GET", "/readyz")[0] == HTTPStatus.OK
            for node in nodes:
                node.command("ACL", "SETUSER", BROKER_USER, "on")
            eventually(lambda: is_served_by(brokers, moving[0], 1), 120, what="it did not return")
            for writer in (here, there):
                writer.has_stored(50)
                assert settle(writer, [brokers], cluster.url) == 0
                assert len(writer.epochs) == 1


@pytest.mark.full
def test_all_store_processes_restarted_at_once_continue_with_every_message(
    cluster: StoreCluster, brokers: LocalBrokers
) -> None:
    topic, other = on_different_shards(cluster)
    with writing(brokers, topic, other) as (here, there):
        cluster.kill()
        for server in cluster.servers:
            server.start()
        for writer in (here, there):
            writer.has_stored(100)
            assert settle(writer, [brokers], cluster.url) == 0
            assert len(writer.epochs) == 1


@pytest.mark.full
def test_a_broker_that_dies_is_replaced_by_another_on_every_shard(cluster: StoreCluster) -> None:
    cluster.wait_complete()
    cluster.flush_all()
    manifests = declared(*((topic, "Replicated") for topic in TOPICS))
    settings = {"redis_replicas": 1, "resume_window_seconds": 300.0}
    with forked_brokers(
        brokers=2, redis_url=cluster.url, manifests=manifests, settings=settings
    ) as brokers:
        placed(brokers, *TOPICS)
        moving = [topic for topic in TOPICS if brokers.target_of(topic) == 1]
        here = primary_of(cluster, moving[0])
        other = next(topic for topic in moving if primary_of(cluster, topic) is not here)
        with writing(brokers, moving[0], other) as (first, second):
            brokers.kill(1)
            for writer in (first, second):
                writer.has_stored(50)
                assert settle(writer, [brokers], cluster.url) == 0
