"""A connection that is cut in mid-stream again and again leaves neither a hole nor a duplicate."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest
from pulsar import ProducerAccessMode as Mode
from tests.integration.conftest import ROUNDS, RawClients, StockClients
from tests.integration.cutting_proxy import PROXY_HOST, CuttingProxy
from tests.integration.forked_brokers import forked_brokers
from tests.integration.raw import EXCLUSIVE, contents_of, entries_of
from tests.servers import running_server

from onewriter_core.wire.messages import parse_metadata
from onewriter_testing.processes import LocalBrokers

CUTS = 6
MESSAGES = 1500
LARGE = 150_000
"""Bytes of a message that is sent in chunks of at most MESSAGE_BYTES_MAX."""
MESSAGE_BYTES_MAX = 64 * 1024

SHAPES: dict[str, dict[str, Any]] = {
    "unbatched": {"batching_enabled": False},
    "batched": {
        "batching_enabled": True,
        "batching_max_messages": 50,
        "batching_max_publish_delay_ms": 1,
        "batching_max_allowed_size_in_bytes": 16 * 1024,
    },
    "chunked": {"batching_enabled": False, "chunking_enabled": True},
}
CUT_STREAMS = [
    ("Exclusive", "unbatched"),
    # the death of a broker, below, has the same batches
    pytest.param("Shared", "batched", marks=pytest.mark.full),
    ("Exclusive", "chunked"),
]
MORTAL_STREAMS = [
    ("Exclusive", "unbatched"),
    ("Shared", "batched"),
    # a network that cuts, above, has the same chunks
    pytest.param("Exclusive", "chunked", marks=pytest.mark.full),
]
"""Each shape once, each mode with single messages or batches."""


@pytest.fixture(scope="module")
def proxied() -> Iterator[LocalBrokers]:
    """A broker whose look-ups lead through the proxy."""
    settings = {"advertised_host": PROXY_HOST, "message_bytes_max": MESSAGE_BYTES_MAX}
    with forked_brokers(settings=settings) as brokers:
        yield brokers


def content(number: int, shape: str) -> bytes:
    text = b"%d;" % number
    return text.ljust(LARGE if shape == "chunked" else 200, b".")


def publish_through_cuts(
    client: Any, topic: str, mode: Any, shape: str, count: int, *, pause: float = 0.0
) -> list[Any]:
    """Send without waiting; return the result of each send, in order of sending."""
    producer = client.create_producer(
        topic,
        access_mode=mode,
        block_if_queue_full=True,
        max_pending_messages=300,
        **SHAPES[shape],
    )
    results: list[Any] = [None] * count
    left = threading.Semaphore(0)

    def answered(number: int, result: Any) -> None:
        results[number] = result
        left.release()

    for number in range(count):
        producer.send_async(
            content(number, shape), lambda result, _id, number=number: answered(number, result)
        )
        if pause:
            time.sleep(pause)
    producer.flush()
    for _ in range(count):
        assert left.acquire(timeout=120)
    producer.close()
    return results


def stored_numbers(brokers: LocalBrokers, topic: str, shape: str) -> list[int]:
    """Return the messages' numbers as they are in the log. Chunks are assembled, once each."""
    if shape != "chunked":
        return [int(text.split(b";")[0]) for text in contents_of(brokers.address(), topic)]
    numbers = []
    open_chunks: list[int] = []
    for entry in entries_of(brokers.address(), topic):
        metadata = parse_metadata(entry)
        open_chunks.append(metadata.chunk_id)
        assert open_chunks == list(range(len(open_chunks))), "a chunk is missing or there twice"
        if len(open_chunks) == metadata.num_chunks_from_msg:
            numbers.append(metadata.sequence_id)
            open_chunks = []
    assert not open_chunks
    return numbers


@pytest.mark.parametrize(("mode", "shape"), CUT_STREAMS)
def test_a_stream_through_a_network_that_cuts(
    proxied: LocalBrokers, stock: StockClients, topic: str, mode: str, shape: str
) -> None:
    count = MESSAGES if shape != "chunked" else 40
    volume = count * len(content(0, shape))
    with CuttingProxy(proxied.address(), cuts=CUTS, bytes_between=volume // (2 * CUTS)) as proxy:
        results = publish_through_cuts(stock(proxy.url), topic, getattr(Mode, mode), shape, count)
        assert proxy.cuts_left <= 0, "nothing was cut"
    assert set(results) == {pulsar.Result.Ok}
    assert stored_numbers(proxied, topic, shape) == list(range(count))


@pytest.mark.parametrize(("mode", "shape"), MORTAL_STREAMS)
def test_a_stream_across_the_death_of_its_broker(
    stock: StockClients, topic: str, mode: str, shape: str, mortal: LocalBrokers
) -> None:
    """Messages that the dead broker had stored but not answered are resent to its successor."""
    count = MESSAGES if shape != "chunked" else 60
    client = stock(mortal.service_url)

    def die_and_come_back() -> None:
        mortal.kill()
        mortal.restart(0)

    killer = threading.Timer(0.25, die_and_come_back)
    killer.start()
    results = publish_through_cuts(
        client, topic, getattr(Mode, mode), shape, count, pause=0.4 / count
    )
    killer.join()
    assert set(results) == {pulsar.Result.Ok}
    assert stored_numbers(mortal, topic, shape) == list(range(count))


@pytest.fixture(scope="module")
def mortal() -> Iterator[LocalBrokers]:
    """A broker without a supervisor, to be killed and started as often as needed."""
    settings = {"message_bytes_max": MESSAGE_BYTES_MAX}
    with (
        running_server() as store,
        forked_brokers(redis_url=store.url, settings=settings) as brokers,
    ):
        yield brokers


@pytest.mark.campaign
@pytest.mark.timeout(360 + 10 * ROUNDS)
def test_a_resend_is_answered_with_the_original_position(
    broker: LocalBrokers, raw: RawClients, topic: str
) -> None:
    for number in range(ROUNDS):
        name = f"{topic}-{number}"
        first = raw(broker.address()).producer(name, EXCLUSIVE, name="writer")
        for sequence in range(100):
            first.send(b"%d" % sequence, sequence)
        first.receipt(number % 100)  # at least these are stored when it returns
        back = raw(broker.address()).producer(
            name, EXCLUSIVE, name="writer", epoch=first.epoch, reconnects=1
        )
        assert back.epoch == first.epoch
        first.closed_by_broker()
        positions = [back.publish(b"%d" % n, n).position for n in range(100)]
        positions += [back.publish(b"%d" % n, n).position for n in range(100, 110)]
        assert contents_of(broker.address(), name) == [b"%d" % n for n in range(110)]
        assert positions == sorted(set(positions))
