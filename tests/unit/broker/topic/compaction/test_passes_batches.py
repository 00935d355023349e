"""Small batches with large content: what compaction opens, and in which thread."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from tests.unit.broker.topic.compaction.test_passes import (
    batch,
    compacting,
    message,
    metadata_of,
    runs_of,
)
from tests.unit.broker.verify.histories import BUCKETS, TopicHistory, waiter

from onewriter_broker.dispatch.positions import last_compacted_id
from onewriter_broker.log.topic_log.batches import (
    BATCH_MESSAGES_MAX,
    CONTENT_BYTES_MAX,
    Closed,
    KeyedMessage,
    content_of,
    cost_of,
    key_hash,
    last_index,
)
from onewriter_broker.topic.compaction import passes as compaction
from onewriter_broker.topic.compaction.newest_messages import Newest
from onewriter_broker.topic.compaction.passes import TICK_BYTES, TICK_MESSAGES, Pace
from onewriter_core.ids import Position
from onewriter_core.topic.model import Purpose
from onewriter_core.wire.compression import compress
from onewriter_core.wire.messages import build_batch, build_entry, parse_metadata
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_testing.fake_store.server import FakeServer
from onewriter_testing.fake_store.store import FakeLogStore


@pytest.fixture
async def history() -> TopicHistory:
    begun = await TopicHistory.begin(FakeLogStore(FakeServer().resolve, buckets=BUCKETS))
    await begun.fence(Purpose.GRANT, waiter("alice"))
    return begun


def alike(count: int, content: bytes = b"", key: str = "a") -> bytes:
    """A compressed batch of ``count`` equal messages, which is far smaller than its content."""
    single = pb.SingleMessageMetadata(partition_key=key)
    whole = build_batch([(single, content)]) * count
    metadata = metadata_of(num_messages_in_batch=count, uncompressed_size=len(whole))
    metadata.compression = pb.MessageMetadata.ZSTD
    return build_entry(metadata, compress(metadata.compression, whole))


@pytest.mark.parametrize(
    "large",
    [
        alike(BATCH_MESSAGES_MAX + 1),
        alike(2**20 + 1, b"v"),
        alike(1, bytes(CONTENT_BYTES_MAX)),
    ],
    ids=["messages", "more than a number's bits", "bytes"],
)
async def test_a_small_entry_that_becomes_a_large_one_is_kept_closed(
    history: TopicHistory, large: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onewriter_broker.log.topic_log.batches.decompress", None)  # it would raise
    assert len(large) < TICK_BYTES
    assert isinstance(content_of(large), Closed)
    assert cost_of(large) == (len(large), 1)
    await history.publish(large, message("b", b"1"), message("b", b"2"))
    await compacting(history)
    entries = [entry for run in await runs_of(history) for entry in run.entries()]
    assert [str(entry.position) for entry in entries] == ["5-1", "5-3"]
    assert bytes(entries[0].payload) == large
    assert last_index(large, None) == parse_metadata(large).num_messages_in_batch - 1


@pytest.mark.parametrize(
    ("entry", "is_thread"),
    [
        (alike(TICK_MESSAGES, b"v"), False),
        (alike(TICK_MESSAGES + 1, b"v"), True),
        (alike(1, bytes(TICK_BYTES)), True),
        (message("a", bytes(TICK_BYTES)), True),
    ],
    ids=["small", "many messages", "large content", "large entry"],
)
async def test_an_entry_with_large_content_or_many_messages_is_decoded_in_a_thread(
    monkeypatch: pytest.MonkeyPatch, entry: bytes, is_thread: bool
) -> None:
    loop_thread, threads = threading.get_ident(), []
    for name in ("content_of", "without"):
        work = getattr(compaction, name)

        def noted(*given: object, work: Callable[..., object] = work) -> object:
            threads.append(threading.get_ident())
            return work(*given)

        monkeypatch.setattr(compaction, name, noted)
    pace = Pace()
    content = await pace.content(memoryview(entry))
    assert isinstance(content, tuple)
    if content[0].index >= 0:
        await pace.without(memoryview(entry), {0})
    assert {thread != loop_thread for thread in threads} == {is_thread}


def test_the_numbers_of_two_entries_never_meet() -> None:
    newest = Newest(10)
    last = KeyedMessage(BATCH_MESSAGES_MAX - 1, key_hash("a"), is_empty=False)
    first = KeyedMessage(0, key_hash("b"), is_empty=False)
    newest.add(0, (last,))
    newest.add(1, (first,))
    assert sorted(newest.numbers.values()) == list(newest.numbers.values())
    assert len(set(newest.numbers.values())) == 2
    largest = content_of(alike(BATCH_MESSAGES_MAX, b"v"))
    assert isinstance(largest, tuple)
    newest.add(2, largest)
    assert newest.kept(2, largest, set()) == {BATCH_MESSAGES_MAX - 1}
    assert newest.kept(3, largest, set()) == set()


async def test_the_last_message_is_found_without_opening_anything(
    history: TopicHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    await history.publish(message("z", b"1"), batch(("a", b"1"), ("b", b"1"), ("c", b"1")))
    await history.publish(message("c", b""))
    done = await compacting(history)
    monkeypatch.setattr("onewriter_broker.log.topic_log.batches.decompress", None)
    message_id, position = await last_compacted_id(history.log, done.view)
    assert (message_id.entry, message_id.batch_index) == (2, 1)
    assert position == Position(5, 2)
