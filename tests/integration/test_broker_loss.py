"""Two brokers: look-ups, brokers that die or freeze, holders that return with their epoch."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import pytest
from pulsar import ProducerAccessMode as Mode
from tests.integration.conftest import SECONDS_MAX, RawClients, StockClients
from tests.integration.following import at_owner, follow, placed, topic_of
from tests.integration.forked_brokers import forked_brokers
from tests.integration.http_calls import Http
from tests.integration.raw import (
    EXCLUSIVE,
    WAIT,
    RawClient,
    RefusedByBroker,
    contents_of,
    eventually,
)
from tests.servers import running_server

from onewriter_core.errors import ServerError, Unavailable
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_testing.processes import LocalBrokers, running_brokers

RETURN_SECONDS = 300.0
"""Window for holders that must return before their waiters are promoted: a machine may be slow."""


@pytest.fixture
def bare(request: pytest.FixtureRequest) -> Iterator[LocalBrokers]:
    """Two brokers without a supervisor: one that dies stays dead, one that freezes stays frozen."""
    settings = {"resume_window_seconds": getattr(request, "param", RETURN_SECONDS)}
    with (
        running_server() as store,
        forked_brokers(brokers=2, redis_url=store.url, settings=settings) as brokers,
    ):
        yield brokers


@pytest.fixture(scope="module")
def supervised() -> Iterator[LocalBrokers]:
    """A broker that its supervisor restarts after its death, and kills when it is frozen."""
    with running_brokers(settings={"frozen_after_seconds": 3.0}) as brokers:
        yield brokers


def is_serving(brokers: LocalBrokers, topic: str, *, number: int) -> bool:
    """Whether that broker reports that it serves the topic."""
    try:
        return brokers.owner_of(topic, through=number) == number
    except (Unavailable, OSError):
        return False


def test_lookups_at_any_broker_lead_to_the_owner(pair: LocalBrokers, stock: StockClients) -> None:
    topics = [topic_of(pair, number, "found") for number in range(2)]
    placed(pair, *topics)
    for topic in topics:
        for url in pair.service_urls:
            producer = stock(url).create_producer(topic, access_mode=Mode.ExclusiveWithFencing)
            producer.send(url.encode())
        owner = pair.owner_of(topic)
        expected = [url.encode() for url in pair.service_urls]
        assert contents_of(pair.address(owner), topic) == expected


def test_a_producer_at_the_wrong_broker_is_sent_to_a_lookup(
    pair: LocalBrokers, raw: RawClients
) -> None:
    topic = topic_of(pair, 0, "elsewhere")
    placed(pair, topic)
    with pytest.raises(RefusedByBroker) as found:
        raw(pair.address(1)).producer(topic)
    assert found.value.code is ServerError.SERVICE_NOT_READY


def time_of(event: dict[str, object]) -> datetime:
    return datetime.fromisoformat(str(event["timestamp"]))


def test_the_owner_is_killed_and_its_holder_continues_at_the_other_broker(
    bare: LocalBrokers, stock: StockClients, raw: RawClients
) -> None:
    topic = topic_of(bare, 0, "killed")
    placed(bare, topic)
    holder = stock(bare.service_url).create_producer(topic, access_mode=Mode.Exclusive)
    holder.send(b"before")
    granted = bare.events("topic.transition")[-1]
    bare.kill(0)
    eventually(lambda: is_serving(bare, topic, number=1))
    holder.send(b"after")
    resumed = bare.wait_for_event("topic.transition", lambda e: e["kind"] == "resume")
    assert resumed["epoch"] == granted["epoch"]
    # As measured from the dead broker's last heartbeat, which may be an old one on a busy machine.
    age = time_of(resumed) - time_of(bare.events("broker.listening")[0])
    assert 0 < int(str(resumed["leaderless_ms"])) <= 1000 * age.total_seconds()
    assert contents_of(bare.address(1), topic) == [b"before", b"after"]
    with pytest.raises(RefusedByBroker):
        raw(bare.address(1)).producer(topic, EXCLUSIVE)


def test_a_stock_client_that_asks_for_a_topic_of_a_dead_broker_is_led_to_its_successor(
    bare: LocalBrokers, stock: StockClients
) -> None:
    """Its look-up waits while the heartbeat is late, well within the client's time limit of 30 s for an operation."""
    topic = topic_of(bare, 0, "asked")
    placed(bare, topic)
    client = stock(bare.service_urls[1])
    bare.kill(0)
    producer = client.create_producer(topic, access_mode=Mode.Exclusive)
    producer.send(b"after")
    assert contents_of(bare.address(1), topic) == [b"after"]


def test_the_holder_keeps_its_epoch_although_twenty_prioritised_waiters_were_quicker(
    bare: LocalBrokers, raw: RawClients
) -> None:
    topic = topic_of(bare, 0, "quick")
    placed(bare, topic)
    holder = at_owner(bare, raw, topic).producer(topic, EXCLUSIVE, name="holder")
    position = holder.publish(b"before").position
    bare.kill(0)
    waiters = {}
    for number in range(20):
        priority = {"onewriter.queue-priority": str(number % 7 + 1)}
        waiters[number] = follow(
            bare, raw, topic, WAIT, asked=1, waits=True, name=f"w{number}", properties=priority
        )
    back = follow(
        bare, raw, topic, EXCLUSIVE, asked=1, name="holder", epoch=holder.epoch, reconnects=1
    )
    assert back.epoch == holder.epoch
    assert back.publish(b"after", 1).position > position  # the ledger has risen, the epoch has not
    assert not any(waiter.is_ready for waiter in waiters.values())
    back.close()
    first = waiters[6].ready()  # priority 7, the earliest of two
    assert (first.epoch or 0) > (holder.epoch or 0)


@pytest.mark.parametrize("bare", [1.0], indirect=True)
def test_a_holder_that_does_not_return_loses_the_topic_to_the_first_waiter(
    bare: LocalBrokers, raw: RawClients
) -> None:
    topic = topic_of(bare, 0, "gone")
    placed(bare, topic)
    holder = at_owner(bare, raw, topic).producer(topic, EXCLUSIVE, name="holder")
    holder.publish(b"before")
    bare.kill(0)
    waiter = follow(bare, raw, topic, WAIT, asked=1, waits=None)
    waiter.publish(b"after")
    reconnects = itertools.count(1)

    def is_reported() -> bool:
        """Whether it knows of its loss; the broker may have to read the anchor about its buckets first."""
        with pytest.raises(RefusedByBroker) as found:
            raw(bare.address(1)).producer(
                topic, EXCLUSIVE, name="holder", epoch=holder.epoch, reconnects=next(reconnects)
            )
        assert found.value.code in {ServerError.PRODUCER_FENCED, ServerError.SERVICE_NOT_READY}
        return found.value.code is ServerError.PRODUCER_FENCED

    eventually(is_reported)


def test_a_broker_that_left_in_order_leaves_no_waiting(bare: LocalBrokers, raw: RawClients) -> None:
    """On a clean move waiters are asked to look the topic up again, and queue at the new owner."""
    topic = topic_of(bare, 0, "moves")
    placed(bare, topic)
    holder = at_owner(bare, raw, topic).producer(topic, EXCLUSIVE, name="holder")
    waiter = at_owner(bare, raw, topic).waiter(topic)
    os.kill(bare.pid(0), 15)
    with pytest.raises(RefusedByBroker) as found:
        waiter.ready()
    assert found.value.code is ServerError.SERVICE_NOT_READY
    holder.closed_by_broker()
    again = follow(bare, raw, topic, WAIT, asked=1, waits=True)
    back = follow(
        bare, raw, topic, EXCLUSIVE, asked=1, name="holder", epoch=holder.epoch, reconnects=1
    )
    assert back.epoch == holder.epoch
    resumed = bare.wait_for_event("topic.transition", lambda e: e["kind"] == "resume")
    assert resumed["leaderless_ms"] is not None
    back.close()
    again.ready()


def test_a_leaving_broker_fails_no_send_and_refuses_no_waiter(
    bare: LocalBrokers, stock: StockClients
) -> None:
    topic = topic_of(bare, 0, "leaves")
    placed(bare, topic)
    holder = stock(bare.service_url).create_producer(topic, access_mode=Mode.WaitForExclusive)
    sent = [holder.send(b"0")]
    with ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(
            stock(bare.service_url).create_producer, topic, access_mode=Mode.WaitForExclusive
        )
        status = f"/onewriter/v1/topics/public/default/{topic}"
        eventually(lambda: Http(bare.http_urls[0])("GET", status)[1]["waiters"])
        os.kill(bare.pid(0), signal.SIGTERM)
        while not is_serving(bare, topic, number=1):
            sent.append(holder.send(str(len(sent)).encode()))
        sent.append(holder.send(str(len(sent)).encode()))
        eventually(lambda: Http(bare.http_urls[1])("GET", status)[1]["waiters"])
        assert not waiter.done(), "it waits at the other broker"
        holder.close()
        waiter.result(SECONDS_MAX).send(b"its own")
    expected = [*(str(number).encode() for number in range(len(sent))), b"its own"]
    assert contents_of(bare.address(1), topic) == expected


def test_a_client_of_an_unserved_topic_retries_on_the_same_connection(
    bare: LocalBrokers, stock: StockClients
) -> None:
    """Without the anchor no broker can take over a dead broker's buckets."""
    orphan, other = topic_of(bare, 0, "orphan"), topic_of(bare, 1, "other")
    placed(bare, orphan, other)
    client = stock(bare.service_urls[1])
    leading = client.create_producer(other, access_mode=Mode.Exclusive)
    leading.send(b"before")
    anchor = bare.data_directory / "anchor"
    anchor.rename(bare.data_directory / "elsewhere")
    bare.kill(0)
    with ThreadPoolExecutor(1) as threads:
        asking = threads.submit(client.create_producer, orphan, access_mode=Mode.Exclusive)
        eventually(lambda: failed_lookup(bare, orphan), what="the look-up is not answered")
        assert not asking.done()
        leading.send(b"undisturbed")
        (bare.data_directory / "elsewhere").rename(anchor)
        asking.result(SECONDS_MAX).send(b"at last")
    assert [event["kind"] for event in bare.events("topic.transition")] == ["grant", "grant"]


def failed_lookup(brokers: LocalBrokers, topic: str) -> bool:
    """Whether broker 1 reports that no broker serves the topic, with an error that allows a retry."""
    with RawClient(brokers.address(1)) as client:
        answer = client.lookup(topic)
    failed = answer.response == pb.CommandLookupResponse.FAILED
    return failed and ServerError(answer.error) is ServerError.METADATA_ERROR


def test_a_killed_broker_is_started_again_and_holders_resume(
    supervised: LocalBrokers, stock: StockClients, topic: str
) -> None:
    producer = stock(supervised.service_url).create_producer(topic, access_mode=Mode.Exclusive)
    producer.send(b"before")
    first = supervised.kill()
    producer.send(b"after")
    supervised.wait_for_event(
        "topic.transition", lambda e: topic in str(e["topic"]) and e["kind"] == "resume"
    )
    assert supervised.pid() != first
    producer.send(b"and later")
    assert contents_of(supervised.address(), topic) == [b"before", b"after", b"and later"]


def test_a_frozen_broker_is_killed_by_its_supervisor(
    supervised: LocalBrokers, stock: StockClients, topic: str
) -> None:
    producer = stock(supervised.service_url).create_producer(
        topic, access_mode=Mode.Exclusive, send_timeout_millis=0
    )
    producer.send(b"before")
    frozen = supervised.freeze()
    supervised.wait_for_event("child.frozen", lambda e: e["process_id"] == frozen)
    supervised.wait_for_event("child.ended", lambda e: e["process_id"] == frozen)
    producer.send(b"after")
    assert supervised.pid() != frozen
