"""Whole logs over HTTP: segments, blocks, audit, and trim."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from tests.integration.conftest import RawClients
from tests.integration.following import placed, topic_of
from tests.integration.forked_brokers import BUCKETS, forked_brokers
from tests.integration.http_calls import OWN, PERSISTENT, Http, epoch_of
from tests.integration.raw import EXCLUSIVE, FENCING, RawProducer, eventually, full
from tests.integration.test_http_own_api import guarded, token
from tests.servers import StoreServer, running_server

from onewriter_broker.http.onewriter.blocks import STREAMS_MAX
from onewriter_broker.log.store.keys import Keys
from onewriter_core.ids import Position, TopicName
from onewriter_core.wire.messages import entry_payload
from onewriter_pipeline.brokers.broker import Broker
from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.brokers.frames import BlockFrame, Chunk
from onewriter_pipeline.errors import (
    Conflict,
    Damaged,
    Invalid,
    LogEnds,
    NotAllowed,
    NotFound,
    Trimmed,
)
from onewriter_testing.processes import LocalBrokers, running_brokers

__all__ = ["guarded"]

LARGE = 200_000
"""Bytes of an entry, so that a topic of a hundred entries exceeds the sockets' buffers."""

KEYS = Keys(BUCKETS)


def fill(producer: RawProducer, contents: list[bytes]) -> None:
    """Publish these, and return when the last one is stored."""
    for start in range(0, len(contents), 100):
        part = contents[start : start + 100]
        for content in part[:-1]:
            producer.send(content)
        producer.publish(part[-1])


def contents(chunks: Iterator[Chunk] | list[Chunk]) -> list[bytes]:
    """Return the published contents of the entries."""
    found = []
    for chunk in chunks:
        view = memoryview(chunk.payload)
        for index in range(len(chunk)):
            entry = view[chunk.offsets[index] : chunk.offsets[index + 1]]
            found.append(bytes(entry_payload(entry)))
    return found


# ---------------------------------------------------------------- reading


def test_a_topic_of_several_writers_is_read_completely_with_its_segments(
    broker: LocalBrokers, topic: str, raw: RawClients, pipeline: Broker
) -> None:
    published: list[bytes] = []
    epochs = []
    for name in ("ada", "bea", "cleo"):
        producer = raw(broker.address()).producer(topic, FENCING, name=name)
        epochs.append(epoch_of(producer))
        own = [b"%s %d" % (name.encode(), number) for number in range(700)]
        fill(producer, own)
        published += own
    found = pipeline.segments(topic)
    assert contents(pipeline.read(topic)) == published
    assert contents(pipeline.read(topic, found.first, found.end)) == published
    written = [each for each in found.segments if each.entries]
    assert [each.producer for each in written] == ["ada", "bea", "cleo"]
    assert [each.epoch for each in written] == epochs
    assert [each.entries for each in written] == [700] * 3
    assert [each.is_open for each in written] == [False, False, True]
    for segment in written:
        assert segment.first is not None
        chunks = list(pipeline.read(topic, segment.first, segment.end))
        assert sum(map(len, chunks)) == segment.messages == 700
        assert sum(int(chunk.offsets[-1]) for chunk in chunks) == segment.bytes
        assert sum(each.entries for each in segment.block_runs) == 700
        blocks = [
            frame
            for frame in pipeline.frames(topic, segment.first, segment.end)
            if isinstance(frame, BlockFrame)
        ]
        assert (blocks[-1].chain.hex(), len(blocks)) == (segment.chain, segment.blocks)
    middle = Position(written[1].ledger, 300)
    assert contents(pipeline.read(topic, middle, Position(middle.ledger, 302))) == [
        b"bea 299",
        b"bea 300",
    ]


def test_entries_published_during_a_read_are_in_the_next_one(
    broker: LocalBrokers, topic: str, raw: RawClients, pipeline: Broker
) -> None:
    producer = raw(broker.address()).producer(topic, EXCLUSIVE, name="ada")
    fill(producer, [b"one", b"two"])
    before = pipeline.segments(topic)
    fill(producer, [b"three", b"four"])
    assert contents(pipeline.read(topic, before.end)) == [b"three", b"four"]
    after = pipeline.segments(topic)
    assert (before.segments[-1].entries, after.segments[-1].entries) == (2, 4)
    assert list(pipeline.read(topic, after.end, after.end)) == []


def test_partitions_are_read_by_name(broker: LocalBrokers, topic: str, pipeline: Broker) -> None:
    http = Http(broker.http_url)
    assert http("PUT", f"{PERSISTENT}/{topic}/partitions", 2)[0] == 204
    with pytest.raises(Invalid, match=f"{topic}-partition-0"):
        pipeline.segments(topic)
    for log in pipeline.logs(topic):
        assert pipeline.segments(log).log == log
    with pytest.raises(NotFound):
        pipeline.segments(f"{topic}-partition-2")


def test_invalid_requests_are_refused_with_a_sentence(
    broker: LocalBrokers, topic: str, raw: RawClients, pipeline: Broker
) -> None:
    raw(broker.address()).producer(topic, EXCLUSIVE).publish(b"x")
    http, end = Http(broker.http_url), pipeline.segments(topic).end
    blocks = f"{OWN}/{topic}/blocks"
    for query in ("from=1", "from=1:x", "to=-1:1", "from=1:99999999999999999", "from=5:1&to=5:0"):
        status, answer = http("GET", f"{blocks}?{query}")
        assert (status, bool(answer["reason"])) == (400, True)
    assert http("GET", f"{OWN}/{topic}/segments?after=earliest")[0] == 400
    assert http("GET", f"{OWN}/{topic}-nobody-has/blocks")[0] == 404
    assert http("GET", "/onewriter/v1/topics/no/where/x/segments")[0] == 404
    for bucket in ("x", "-1", str(broker.buckets), "9" * 40):
        assert http("GET", f"/onewriter/v1/audit/{bucket}")[0] == 404
    assert http("GET", "/onewriter/v1/audit/0?after=first")[0] == 400
    with pytest.raises(LogEnds):
        list(pipeline.read(topic, end, Position(end.ledger, end.entry + 7)))


def test_the_audit_of_a_bucket_has_the_fences_of_all_its_topics(
    broker: LocalBrokers, topic: str, raw: RawClients, pipeline: Broker
) -> None:
    producer = raw(broker.address()).producer(topic, EXCLUSIVE, name="ada")
    bucket = int(pipeline.topic(topic)["bucket"])
    records = list(pipeline.audit(bucket))
    own = [each for each in records if each.get("topic") == full(topic)]
    assert [each["epoch"] for each in own if each["kind"] == "grant"] == [producer.epoch]
    assert all(each["timeMs"] > 1_600_000_000_000 for each in own)
    http, after = Http(broker.http_url), ""
    pages: list[dict[str, Any]] = []
    while not pages or not pages[-1]["complete"]:
        pages.append(http("GET", f"/onewriter/v1/audit/{bucket}?limit=1&after={after}")[1])
        after = pages[-1]["next"]
    assert [each["id"] for page in pages for each in page["records"]] == [
        each["id"] for each in records
    ]


# ---------------------------------------------------------------- trimming


def test_reads_of_trimmed_entries_report_the_trim(
    broker: LocalBrokers, topic: str, raw: RawClients, pipeline: Broker
) -> None:
    producer = raw(broker.address()).producer(topic, EXCLUSIVE, name="ada")
    fill(producer, [b"%d" % number for number in range(1000)])
    read = pipeline.segments(topic)
    with pytest.raises(Conflict, match=f"is {producer.epoch}, not 1"):
        pipeline.trim(topic, read.end, epoch=1)
    assert pipeline.trim(topic, read.end, epoch=epoch_of(producer)).limited_by == "ledger"
    successor = raw(broker.address()).producer(topic, FENCING, name="bea")
    fill(successor, [b"new"])
    ledger = pipeline.segments(topic).ledger
    with pytest.raises(Conflict, match="ledger"):
        pipeline.trim(topic, read.end, epoch=epoch_of(successor), ledger=ledger + 1)
    done = pipeline.trim(topic, read.end, epoch=epoch_of(successor), ledger=ledger)
    assert (done.before, done.limited_by) == (read.end, None)
    kept = pipeline.segments(topic)
    assert kept.first == done.first > read.first
    assert sum(each.entries for each in kept.segments) == len(
        contents(pipeline.read(topic, kept.first))
    )
    assert contents(pipeline.read(topic, read.end)) == [
        b"new"
    ]  # nothing was trimmed before it was read
    assert (kept.segments[0].producer, kept.segments[0].is_whole) == ("ada", False)
    with pytest.raises(Trimmed) as raised:
        list(pipeline.read(topic, read.first))
    assert (raised.value.first, raised.value.trimmed) == (done.first, read.end)


def test_entries_that_a_durable_subscription_lacks_are_not_trimmed(
    broker: LocalBrokers, topic: str, raw: RawClients, pipeline: Broker
) -> None:
    consumer = raw(broker.address()).subscribe(topic, "slow")
    producer = raw(broker.address()).producer(topic, EXCLUSIVE)
    fill(producer, [b"x"] * 10)
    successor = raw(broker.address()).producer(topic, FENCING)
    done = pipeline.trim(topic, pipeline.segments(topic).end, epoch=epoch_of(successor))
    assert (done.limited_by, done.name) == ("subscription", "slow")
    assert len(contents(pipeline.read(topic))) == 10
    assert consumer.contents(10) == [b"x"] * 10


def test_an_index_that_begins_after_a_trimmed_marker_reads_the_audit(raw: RawClients) -> None:
    """Another broker process does not know what was trimmed before its start."""
    with forked_brokers() as brokers, Broker(Access(brokers.http_url)) as pipeline:
        producer = raw(brokers.address()).producer("aged", EXCLUSIVE, name="ada")
        for number in range(20):
            producer.publish(b"%d" % number)
        successor = raw(brokers.address()).producer("aged", FENCING, name="bea")
        (old, *_) = [each for each in pipeline.segments("aged").segments if each.entries]
        pipeline.trim("aged", Position(old.ledger, 15), epoch=epoch_of(successor))
        brokers.kill()
        brokers.restart(0)
        (rest, *_) = pipeline.segments("aged").segments
        assert (rest.epoch, rest.producer, rest.is_whole) == (producer.epoch, "ada", False)
        assert rest.entries == 6


# ---------------------------------------------------------------- access


def test_reading_needs_a_token_and_trimming_an_administrators(
    guarded: LocalBrokers, raw: RawClients
) -> None:
    raw(guarded.address(), token=token("writer")).subscribe("plain", "any")
    for wrong in ("", token("reader")[:-3] + "abc"):
        with Broker(Access(guarded.http_url, token=wrong)) as client:
            for ask in (
                lambda: client.segments("plain"),
                lambda: list(client.read("plain")),
                lambda: list(client.audit(0)),
            ):
                with pytest.raises(NotAllowed):
                    ask()
    with Broker(Access(guarded.http_url, token=token("reader"))) as client:
        found = client.segments("plain")
        assert list(client.read("plain")) == []
        with pytest.raises(NotAllowed, match="lacks the right trim"):
            client.trim("plain", found.end, epoch=0)
    with Broker(Access(guarded.http_url, token=token("boss"))) as client:
        assert client.trim("plain", found.end, epoch=found.epoch).before <= found.end
        assert client.buckets() == guarded.buckets


def test_a_stream_ends_with_its_token_and_continues_with_the_next(
    guarded: LocalBrokers, raw: RawClients, tmp_path_factory: pytest.TempPathFactory
) -> None:
    producer = raw(guarded.address(), token=token("writer")).producer("long", EXCLUSIVE)
    fill(producer, [bytes(LARGE)] * 150)
    file = tmp_path_factory.mktemp("tokens") / "token"
    with Broker(Access(guarded.http_url, token_file=str(file))) as client:
        for seconds in (2, 10, 50):  # long enough for this machine to begin in time
            until = int(time.time()) + seconds  # noqa: TID251 - a token's time
            file.write_text(token("reader", exp=until))
            frames = client.frames("long")
            with contextlib.suppress(NotAllowed):
                found = [next(frames)]
                break
        eventually(lambda: time.time() > until + 0.1)  # noqa: TID251 - a token's time
        file.write_text(token("reader"))
        found += frames
    assert sum(len(each.lengths) for each in found if isinstance(each, BlockFrame)) == 150


# ---------------------------------------------------------------- faults


def stalled_reader(broker: LocalBrokers, topic: str) -> socket.socket:
    """Request a topic's blocks and read only the head of the answer."""
    address = urlsplit(broker.http_url)
    reader = socket.create_connection((str(address.hostname), int(address.port or 0)))
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.sendall(f"GET {OWN}/{topic}/blocks HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    assert reader.recv(12) == b"HTTP/1.1 200"
    return reader


def metrics(broker: LocalBrokers) -> str:
    return str(Http(broker.http_url)("GET", "/metrics")[1])


def test_stopped_readers_do_not_slow_others_and_are_bounded(
    broker: LocalBrokers, topic: str, raw: RawClients, pipeline: Broker
) -> None:
    producer = raw(broker.address()).producer(topic, EXCLUSIVE)
    fill(producer, [bytes(LARGE)] * 100)
    stalled = [stalled_reader(broker, topic) for _ in range(STREAMS_MAX - 1)]
    try:
        for number in range(50):
            producer.publish(b"%d" % number)
        assert len(contents(pipeline.read(topic))) == 150
        # The stream that has just ended may still be counted.
        eventually(lambda: f"onewriter_block_streams {STREAMS_MAX - 1}.0" in metrics(broker))
        stalled.append(stalled_reader(broker, topic))
        status, answer = Http(broker.http_url)("GET", f"{OWN}/{topic}/blocks")
        assert status == 429
        assert "retry later" in answer["reason"]
        assert f"onewriter_block_streams {STREAMS_MAX}.0" in metrics(broker)
        assert sum(each.entries for each in pipeline.segments(topic).segments) == 150
    finally:
        for reader in stalled:
            reader.close()
    assert len(contents(pipeline.read(topic))) == 150  # it waits until one has ended


def test_a_topic_that_moves_during_a_read_is_read_at_its_new_broker(raw: RawClients) -> None:
    with (
        running_server() as store,
        forked_brokers(brokers=2, redis_url=store.url) as brokers,
    ):
        topic = topic_of(brokers, 0, "moving")
        placed(brokers, topic)
        other = Http(brokers.http_urls[1])
        producer = raw(brokers.address(0)).producer(topic, EXCLUSIVE)
        published = [b"%d " % number + bytes(LARGE) for number in range(150)]
        fill(producer, published)
        assert other("GET", f"{OWN}/{topic}/segments")[0] == 307
        assert urlsplit(other.location).port == urlsplit(brokers.http_urls[0]).port
        with Broker(Access(",".join(reversed(brokers.http_urls)))) as client:
            chunks = client.read(topic)
            found = [next(chunks)]
            unload = f"{PERSISTENT}/{topic}/unload"
            assert Http(brokers.http_urls[0])("PUT", unload)[0] == 204
            found.append(next(chunks))
            brokers.kill(0)
            found += chunks
            assert contents(found) == published
            assert client.segments(topic).segments[-1].is_open


def test_a_damaged_block_is_named_and_the_blocks_before_it_are_returned(
    valkey: StoreServer, raw: RawClients
) -> None:
    with (
        forked_brokers(redis_url=valkey.url, settings={"tail_bytes_per_log": 1}) as brokers,
        Broker(Access(brokers.http_url)) as client,
    ):
        producer = raw(brokers.address()).producer("damaged", EXCLUSIVE)
        for number in range(5):
            producer.publish(b"%d" % number)
        ledger = client.segments("damaged").segments[-1].ledger
        key = KEYS.of(TopicName.parse("damaged"))[0]
        with redis.Redis.from_url(valkey.url, protocol=2) as direct:
            direct.xadd(key, {"who": "somebody"}, id=f"{ledger}-6")
        raw(brokers.address()).producer("damaged", FENCING).publish(b"later")
        with pytest.raises(Damaged, match=f"{ledger}-6"):
            client.segments("damaged")
        seen: list[Position] = []
        with pytest.raises(Damaged, match=rf"behind {ledger}:6.*{ledger}-6"):
            seen.extend(
                each.first for each in client.frames("damaged") if isinstance(each, BlockFrame)
            )
        assert seen[-5:] == [Position(ledger, number) for number in range(1, 6)]


def test_a_store_that_is_away_for_a_moment_is_waited_for(raw: RawClients) -> None:
    with running_brokers(settings={"tail_bytes_per_log": 1}) as brokers:
        producer = raw(brokers.address()).producer("waiting", EXCLUSIVE)
        fill(producer, [bytes(LARGE)] * 150)
        store = int(str(brokers.events("embedded.started")[-1]["process_id"]))
        with Broker(Access(brokers.http_url)) as client:
            chunks = client.read("waiting")
            found = [next(chunks)]
            os.kill(store, signal.SIGSTOP)
            http = Http(brokers.http_url)
            eventually(lambda: not http("GET", "/readyz")[1]["store"]["reachable"])
            brokers.thaw(store)
            found += chunks
        assert len(contents(found)) == 150


def test_a_broker_that_stops_waits_for_no_reader(raw: RawClients) -> None:
    with forked_brokers() as brokers:
        producer = raw(brokers.address()).producer("stopping", EXCLUSIVE)
        fill(producer, [bytes(LARGE)] * 100)
        reader = stalled_reader(brokers, "stopping")
        assert brokers.stop() == 0
        reader.close()


def test_answers_are_as_documented(broker: LocalBrokers, topic: str, raw: RawClients) -> None:
    """Scripts read these by name (docs/http.md)."""
    raw(broker.address()).producer(topic, EXCLUSIVE, name="ada").publish(b"x")
    http = Http(broker.http_url)
    answer = http("GET", f"{OWN}/{topic}/segments")[1]
    names = "topic epoch ledger first last segments complete storedBlocks next"
    assert list(answer) == names.split()
    remembered = http("GET", f"{OWN}/{topic}/segments?state=true")[1]["state"]
    assert list(remembered) == ["epoch", "ledger", "bucketLedger", "trimmed", "published"]
    assert remembered["epoch"] == answer["epoch"]
    assert remembered["bucketLedger"] >= remembered["ledger"] == answer["ledger"]
    names = (
        "ledger epoch producer subject cause mode open whole first last entries messages bytes blocks"
        " oldestMs newestMs chain stretches publishers morePublishers"
    )
    assert list(answer["segments"][-1]) == names.split()
    assert list(answer["segments"][-1]["stretches"][0]) == [
        "first",
        "entries",
        "messages",
        "bytes",
        "newestMs",
    ]
    assert answer["epoch"] == http("GET", f"{OWN}/{topic}")[1]["epoch"]
    body = {"before": answer["first"], "epoch": answer["epoch"]}
    trimmed = http("POST", f"{OWN}/{topic}/trim", body)[1]
    assert list(trimmed) == ["topic", "asked", "trimmedBefore", "first", "limitedBy"]
    for wrong in ({}, {"before": "1:1"}, body | {"epoch": "1"}, body | {"ledger": -1}):
        assert http("POST", f"{OWN}/{topic}/trim", wrong)[0] == 400
    assert json.dumps(trimmed["limitedBy"]) == "null"
