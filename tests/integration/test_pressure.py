"""Slow readers, fast writers, and a store that is slow, unavailable, full or read-only: memory stays bounded,
answers are clear, and other clients are not affected.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from tests.integration.conftest import RawClients
from tests.integration.following import follow
from tests.integration.forked_brokers import forked_brokers
from tests.integration.raw import (
    EXCLUSIVE,
    WAIT,
    RawClient,
    RawProducer,
    RefusedByBroker,
    contents_of,
    eventually,
)
from tests.servers import StoreServer, running_server

from onewriter_core.errors import ServerError
from onewriter_core.wire.encoding import encode_send_header
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import Delivery, SendReceipt
from onewriter_testing.processes import LocalBrokers

MEGABYTE = 1024 * 1024
PENDING_MAX = 2 * MEGABYTE
"""Unanswered bytes after which the broker stops reading a connection, in these tests."""

SENT_SECONDS_MAX = 240.0
"""Time limit for sending 64 MB to a store that syncs each write."""

GROWTH_MAX = 48 * MEGABYTE
"""The memory that a broker may use while a test sends it far more than that."""


@pytest.fixture(scope="module")
def store() -> Iterator[StoreServer]:
    with running_server() as server:
        yield server


@pytest.fixture(scope="module")
def pressed(store: StoreServer) -> Iterator[LocalBrokers]:
    settings = {
        "pending_bytes_per_connection_max": PENDING_MAX,
        "store_timeout_seconds": 1.0,
        # A test limits the store's memory for a moment. A share of the limit just read would refuse the next one.
        "undeclared_store_share": 0,
    }
    with forked_brokers(redis_url=store.url, settings=settings) as brokers:
        yield brokers


@pytest.fixture(autouse=True)
def nobody_died(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check that the broker survives every test without an unexpected exception."""
    brokers: LocalBrokers = request.getfixturevalue("pressed")
    process_id = brokers.pid()
    yield
    assert brokers.pid() == process_id
    assert "Traceback" not in brokers.log()
    assert "topic.failed" not in brokers.log()


class Pusher:
    """Sends as fast as the broker reads, in parallel with the test. ``sent`` counts the messages sent."""

    def __init__(self, producer: RawProducer, size: int, bytes_max: int) -> None:
        self.sent = 0
        self._producer = producer
        self._size = size
        self._bytes_max = bytes_max
        self._thread = threading.Thread(target=self._push, daemon=True)
        self._thread.start()

    def _push(self) -> None:
        while self.sent * self._size < self._bytes_max:
            try:
                self._producer.send(b"%d;" % self.sent + bytes(self._size), self.sent)
            except OSError:
                return
            self.sent += 1

    @property
    def is_stuck(self) -> bool:
        """Whether it could send nothing for a while, although it has more."""
        before = self.sent
        time.sleep(1.0)
        return self._thread.is_alive() and self.sent == before

    def join(self) -> None:
        self._thread.join(SENT_SECONDS_MAX)
        assert not self._thread.is_alive()


def receipts(client: RawClient) -> list[int]:
    return [
        command.sequence_id for command, _ in client.received if isinstance(command, SendReceipt)
    ]


def test_a_producer_faster_than_the_store_is_held_back_alone(
    pressed: LocalBrokers, store: StoreServer, raw: RawClients, topic: str
) -> None:
    """While the store is frozen, the broker does not read the pusher's connection, but all others."""
    producer = follow(pressed, raw, topic, EXCLUSIVE)
    before = pressed.resident_bytes()
    other = raw(pressed.address())
    store.pause()
    try:
        pusher = Pusher(producer, 100_000, 64 * MEGABYTE)
        eventually(lambda: pusher.is_stuck)
        assert pusher.sent * 100_000 < PENDING_MAX + 32 * MEGABYTE  # the rest is in sockets
        assert pressed.resident_bytes() - before < GROWTH_MAX
        other.ping()
        other.lookup(topic)
    finally:
        store.resume()
    pusher.join()
    eventually(lambda: len(receipts(producer.client)) == pusher.sent)
    assert receipts(producer.client) == list(range(pusher.sent))
    producer.close()


def test_the_end_of_an_unread_holder_is_detected_immediately(
    pressed: LocalBrokers, store: StoreServer, raw: RawClients, topic: str
) -> None:
    """The store is frozen all the time: nothing makes the broker read from the connection again."""
    producer = follow(pressed, raw, topic, EXCLUSIVE)
    waiter = raw(pressed.address()).waiter(topic)
    seen = len(pressed.events("connection.gone"))
    store.pause()
    try:
        pusher = Pusher(producer, 100_000, 64 * MEGABYTE)
        eventually(lambda: pusher.is_stuck)
        producer.client.close()
        eventually(lambda: len(pressed.events("connection.gone")) > seen)
        pusher.join()
    finally:
        store.resume()
    waiter.ready().publish(b"after")


def test_a_slow_reader_is_not_buffered_for(
    pressed: LocalBrokers, raw: RawClients, topic: str
) -> None:
    count, size = 1500, 40_000
    slow = raw(pressed.address(), window=4096)
    consumer = slow.subscribe(topic, "slow", permits=0)
    slow.freeze()
    consumer.flow(100_000)
    before = pressed.resident_bytes()
    producer = follow(pressed, raw, topic, EXCLUSIVE)
    pusher = Pusher(producer, size, count * size)
    pusher.join()
    eventually(lambda: len(receipts(producer.client)) == pusher.sent)
    assert pressed.resident_bytes() - before < GROWTH_MAX
    quick = raw(pressed.address()).subscribe(topic, "quick", permits=pusher.sent)
    for _ in range(pusher.sent):
        quick.receive()
    slow.thaw()
    eventually(lambda: sum(isinstance(c, Delivery) for c, _ in slow.received) == pusher.sent)


def test_a_consumer_that_never_acknowledges_gets_only_its_permits(
    pressed: LocalBrokers, raw: RawClients, topic: str
) -> None:
    producer = follow(pressed, raw, topic, EXCLUSIVE)
    consumer = raw(pressed.address()).subscribe(
        topic, "never", pb.CommandSubscribe.SHARED, permits=10
    )
    for number in range(100):
        producer.send(b"%d" % number, number)
    assert consumer.contents(10) == [b"%d" % n for n in range(10)]
    producer.publish(b"100", 100)
    consumer.client.ping()
    assert not consumer.client.has_received(Delivery)
    consumer.client.close()
    again = raw(pressed.address()).subscribe(topic, "never", pb.CommandSubscribe.SHARED)
    assert again.contents(101) == [b"%d" % n for n in range(101)]


def test_a_killed_and_restarted_store_loses_nothing(
    pressed: LocalBrokers, store: StoreServer, raw: RawClients, topic: str
) -> None:
    """Undecided calls are retried with the same positions. The holder keeps its epoch."""
    producer = follow(pressed, raw, topic, EXCLUSIVE)
    pusher = Pusher(producer, 2_000, 4 * MEGABYTE)
    eventually(lambda: len(receipts(producer.client)) > 50)
    store.kill()
    time.sleep(0.5)
    assert not producer.client.is_closed
    store.start()
    pusher.join()
    eventually(lambda: len(receipts(producer.client)) == pusher.sent)
    stored = [int(text.split(b";")[0]) for text in contents_of(pressed.address(), topic)]
    assert stored == list(range(pusher.sent))
    producer.publish(b"0;the same producer goes on", pusher.sent)
    assert not pressed.events("entries.lost")


def test_a_store_that_is_away_gives_clear_answers(
    pressed: LocalBrokers, store: StoreServer, raw: RawClients, topic: str
) -> None:
    holder = follow(pressed, raw, topic, EXCLUSIVE)
    holder.publish(b"before", 0)
    client = raw(pressed.address())
    store.pause()
    try:
        client.ping()
        client.lookup(topic)
        with pytest.raises(RefusedByBroker) as found:  # from memory, without the store
            client.producer(topic, EXCLUSIVE)
        assert found.value.code is ServerError.PRODUCER_FENCED
        waiter = client.waiter(topic)
        with pytest.raises(RefusedByBroker) as found:
            client.producer(f"{topic}-unknown-until-now", EXCLUSIVE)
        assert found.value.code is ServerError.SERVICE_NOT_READY
        during = holder.send(b"during", 1)
        client.ping()
    finally:
        store.resume()
    holder.receipt(during)
    holder.close()
    waiter.ready().publish(b"after")
    assert contents_of(pressed.address(), topic) == [b"before", b"during", b"after"]


def test_a_full_store_delays_producers_until_there_is_space(
    pressed: LocalBrokers, store: StoreServer, raw: RawClients, topic: str
) -> None:
    producer = follow(pressed, raw, topic, EXCLUSIVE)
    producer.publish(b"0;before", 0)
    store.command("CONFIG", "SET", "maxmemory", store.information("memory")["used_memory"] + 10)
    try:
        for number in range(1, 50):
            producer.send(b"%d;" % number + bytes(1000), number)
        reader = raw(pressed.address()).subscribe(topic, "reader", durable=False)
        assert reader.contents(1) == [b"0;before"]  # readers continue
        time.sleep(1.0)
        assert not producer.client.is_closed
    finally:
        store.command("CONFIG", "SET", "maxmemory", 0)
    producer.receipt(49)
    stored = [int(text.split(b";")[0]) for text in contents_of(pressed.address(), topic)]
    assert stored == list(range(50))
    producer.close()


def test_a_store_that_turned_read_only_is_not_written_to_and_nothing_is_lost(
    pressed: LocalBrokers, store: StoreServer, raw: RawClients, topic: str
) -> None:
    """As a replica it answers READONLY. Promoted again, it has another dataset identity.

    Topics without writes are bound to the new dataset too: a topic that is only read, and one that was not
    opened yet.
    """
    quiet = raw(pressed.address()).subscribe(f"{topic}-quiet", "durable")
    writes_once = follow(pressed, raw, f"{topic}-quiet", EXCLUSIVE)
    writes_once.publish(b"once")
    read = quiet.receive()[0].message_id
    writes_once.close()
    producer = follow(pressed, raw, topic, EXCLUSIVE)
    producer.publish(b"0", 0)
    waiter = raw(pressed.address()).waiter(topic)
    with running_server(listens_on_tcp=True) as elsewhere:
        elsewhere.pause()  # so that it sends no data
        store.command("REPLICAOF", "127.0.0.1", elsewhere.port)
        producer.send(b"1", 1)
        time.sleep(1.0)
        assert not producer.client.has_received(SendReceipt)
        store.promote()
    producer.receipt(1)
    producer.publish(b"2", 2)
    assert contents_of(pressed.address(), topic) == [b"0", b"1", b"2"]
    assert not waiter.is_ready
    producer.close()
    assert (waiter.ready().epoch or 0) > (producer.epoch or 0)
    quiet.acknowledge(read)
    quiet.close()
    again = raw(pressed.address()).subscribe(f"{topic}-quiet", "durable")
    again.client.ping()
    assert not again.client.has_received(Delivery)
    follow(pressed, raw, f"{topic}-unopened", EXCLUSIVE).publish(b"fine")


def test_ten_thousand_requests_on_one_connection_are_all_answered(
    pressed: LocalBrokers, raw: RawClients, topic: str
) -> None:
    client = raw(pressed.address())
    holder = follow(pressed, raw, topic, WAIT)
    waiting = [client.ask_producer(topic, WAIT) for _ in range(2_000)]
    for number in range(8_000):
        client.say(pb.CommandLookup(topic=f"persistent://public/default/l-{number}", request_id=0))
    for producer in waiting:
        producer.waits()
    eventually(
        lambda: sum(isinstance(c, pb.CommandLookupResponse) for c, _ in client.received) == 8_000
    )
    client.close()
    holder.close()
    last = raw(pressed.address()).ask_producer(topic, WAIT).ready_at_last()
    last.publish(b"nobody of them is left in the way")


def test_an_announced_frame_that_never_arrives_costs_little_memory(
    pressed: LocalBrokers, raw: RawClients
) -> None:
    before = pressed.resident_bytes()
    clients = [raw(pressed.address()) for _ in range(200)]
    announced = encode_send_header(1, 0, 5_000_000)
    for client in clients:
        client.write(announced)
    raw(pressed.address()).ping()
    assert pressed.resident_bytes() - before < GROWTH_MAX
