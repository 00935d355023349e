"""Compaction of one log: what stays, what failures leave, and that no fence is forgotten."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterable

import pytest
from tests.contents import stored_in
from tests.unit.broker.verify.histories import BUCKETS, TOPIC, TopicHistory, no_subscription, waiter

from onewriter_broker.log.store.compacted import Attempt, Piece, view_of
from onewriter_broker.log.topic_log.batches import (
    Closed,
    content_of,
    key_hash,
    last_index,
    without,
)
from onewriter_broker.log.topic_log.entries import EntryRun
from onewriter_broker.topic.compaction.newest_messages import (
    OPEN_CHUNKS_MAX,
    CompactionRefused,
    InsufficientSpace,
    Newest,
)
from onewriter_broker.topic.compaction.passes import Compacted, ViewWriter, compact, drop_unused
from onewriter_broker.topic.retention.retention import Retention
from onewriter_broker.verify.reader import verify
from onewriter_core.api.topic import Retention as Policy
from onewriter_core.errors import Unavailable, Undecided
from onewriter_core.ids import EARLIEST, Position
from onewriter_core.log_format.field_names import COMPACTED, COMPACTING
from onewriter_core.topic.model import Purpose
from onewriter_core.wire.compression import compress
from onewriter_core.wire.messages import (
    build_batch,
    build_entry,
    entry_payload,
    iterate_batch,
    parse_metadata,
)
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_testing.fake_store.server import FakeServer
from onewriter_testing.fake_store.store import FakeLogStore, Faults

_sequence_ids = itertools.count()
_COMPRESSIONS = (
    pb.MessageMetadata.NONE,
    pb.MessageMetadata.LZ4,
    pb.MessageMetadata.ZLIB,
    pb.MessageMetadata.ZSTD,
    pb.MessageMetadata.SNAPPY,
)


def message(key: str | None, content: bytes = b"value", **fields: object) -> bytes:
    """An entry with one message."""
    metadata = metadata_of(**fields)
    if key is not None:
        metadata.partition_key = key
    return build_entry(metadata, content)


def batch(*messages: tuple[str | None, bytes], compression: int = 0, **fields: object) -> bytes:
    """An entry with several messages, each a key and a content."""
    content = build_batch(
        (
            pb.SingleMessageMetadata()
            if key is None
            else pb.SingleMessageMetadata(partition_key=key),
            value,
        )
        for key, value in messages
    )
    metadata = metadata_of(**fields)
    metadata.num_messages_in_batch = len(messages)
    metadata.uncompressed_size = len(content)
    metadata.compression = _COMPRESSIONS[compression]
    return build_entry(metadata, compress(compression, content))


def metadata_of(**fields: object) -> pb.MessageMetadata:
    metadata = pb.MessageMetadata(
        producer_name="alice", sequence_id=next(_sequence_ids), publish_time=1_700_000_000_000
    )
    for name, value in fields.items():
        setattr(metadata, name, value)
    return metadata


async def compacting(history: TopicHistory, *, keys_max: int = 1_000) -> Compacted:
    return await compact(
        history.log, keys_max=keys_max, wall_ms=lambda: history.clock_ms, check=lambda: None
    )


async def runs_of(
    history: TopicHistory, after: Position = EARLIEST, *, each: int = 100
) -> list[EntryRun]:
    """The view's entries as dispatch reads them, ``each`` entries at a time."""
    reading = await history.log.compacted.begin(after)
    assert reading is not None
    found: list[EntryRun] = []
    while runs := await history.log.compacted.read(reading, after, each, 1_000_000):
        found += runs
        after = runs[-1].last
    history.log.compacted.end(reading)
    assert runs == []
    return found


async def kept(history: TopicHistory) -> list[tuple[str, bytes]]:
    """Positions and contents of the single messages in the view."""
    return [
        (str(entry.position), bytes(entry_payload(entry.payload)))
        for run in await runs_of(history)
        for entry in run.entries()
    ]


# -- what stays ---------------------------------------------------------------------------------


async def test_the_newest_message_of_each_key_stays_at_its_position(history: TopicHistory) -> None:
    await history.publish(message("a", b"1"), message("b", b"1"), message(None), message("c", b"1"))
    await history.fence(Purpose.ROLL)
    await history.publish(message("a", b"2"), message("b", b""), message("d", b"1"))
    done = await compacting(history)
    assert await kept(history) == [("5-4", b"1"), ("6-1", b"2"), ("6-3", b"1")]
    assert done.removed == 4
    assert done.view.horizon == Position(6, 3)
    assert done.view.entries == 3


async def test_the_next_compaction_reads_the_former_view_and_later_entries(
    history: TopicHistory, server: FakeServer
) -> None:
    await history.publish(message("a", b"1"), message("b", b"1"), message("c", b"1"))
    await compacting(history)
    await history.fence(Purpose.ROLL)
    await history.publish(message("b", b"2"), message("c", b"", null_value=True))
    await compacting(history)
    await Retention().sweep(history.log, Policy(max_entries=2), no_subscription, history.clock_ms)
    assert str(stored_in(server.primary).logs[TOPIC].blocks[0].position) == "6-0"
    await history.publish(message("c", b"3"))
    done = await compacting(history)
    assert await kept(history) == [("5-1", b"1"), ("6-1", b"2"), ("6-3", b"3")]
    assert done.former is not None
    assert (done.former.slot, done.view.slot) == (1, 0)


@pytest.mark.parametrize("compression", range(5))
async def test_a_batch_keeps_its_indexes(history: TopicHistory, compression: int) -> None:
    await history.publish(
        batch(("a", b"1"), ("b", b"1"), ("a", b"2"), (None, b"x"), compression=compression),
        batch(("b", b"2"), ("c", b"1"), compression=compression),
        batch(("d", b"1"), compression=compression),
    )
    await history.publish(message("d", b""))
    await compacting(history)
    runs = await runs_of(history)
    entries = [entry for run in runs for entry in run.entries()]
    assert [str(entry.position) for entry in entries] == ["5-1", "5-2"]
    pieces = [run.block for run in runs]
    assert [piece.masks for piece in pieces if isinstance(piece, Piece)] == [{0: 0b100}]
    assert last_index(entries[0].payload, 0b100) == 2
    assert last_index(entries[1].payload, None) == 1
    assert content_of(entries[1].payload) == content_of(
        batch(("b", b"2"), ("c", b"1"), compression=compression)
    )
    await history.publish(message("c", b"2"))
    await compacting(history)
    pieces = [run.block for run in await runs_of(history)]
    masks = [piece.masks for piece in pieces if isinstance(piece, Piece)]
    assert masks == [{0: 0b100, 1: 0b01}, {}]


async def test_a_message_in_chunks_stays_whole_or_goes_whole(history: TopicHistory) -> None:
    def chunks(name: str, key: str) -> list[bytes]:
        return [
            message(key, b"part", uuid=name, chunk_id=number, num_chunks_from_msg=3)
            for number in range(3)
        ]

    await history.publish(*chunks("first", "a"), *chunks("second", "b"))
    begun = chunks("third", "b")
    await history.publish(message("a", b"small"), begun[0])
    await compacting(history)
    positions = [position for position, _ in await kept(history)]
    assert positions == ["5-4", "5-5", "5-6", "5-7", "5-8"]  # the third may be completed
    await history.publish(*begun[1:])
    await compacting(history)
    assert [position for position, _ in await kept(history)] == ["5-7", "5-8", "5-9", "5-10"]


async def test_a_message_with_missing_chunks_is_dropped(history: TopicHistory) -> None:
    lost = message("a", b"part", uuid="lost", chunk_id=0, num_chunks_from_msg=2)
    await history.publish(lost)
    await compacting(history)
    assert len(await kept(history)) == 1
    await history.publish(message("b"))
    await compacting(history)
    assert [position for position, _ in await kept(history)] == ["5-2"]


def test_chunks_under_way_are_bounded() -> None:
    newest = Newest(10)
    for number in range(OPEN_CHUNKS_MAX + 5):
        chunk = message("a", b"part", uuid=f"{number}", chunk_id=0, num_chunks_from_msg=2)
        newest.add(number, content_of(chunk))
    assert newest.chunks(0) == set(range(5, OPEN_CHUNKS_MAX + 5))


@pytest.mark.parametrize(
    "closed",
    [
        b"not an entry at all",
        build_entry(metadata_of(num_messages_in_batch=3, uncompressed_size=5), b"short"),
        build_entry(metadata_of(num_messages_in_batch=3, uncompressed_size=2**31), b"large"),
    ],
)
async def test_entries_that_cannot_be_decoded_are_kept(
    history: TopicHistory, closed: bytes
) -> None:
    await history.publish(closed, message("a", b"1"), message("a", b"2"))
    await compacting(history)
    entries = [entry for run in await runs_of(history) for entry in run.entries()]
    assert [bytes(entry.payload) for entry in entries][:1] == [closed]
    assert len(entries) == 2


def test_an_encrypted_batch_is_closed_and_a_message_is_not() -> None:
    key = pb.EncryptionKeys(key="k", value=b"v")
    metadata = metadata_of(partition_key="a")
    metadata.encryption_keys.append(key)
    (single,) = _messages(build_entry(metadata, b"secret"))
    assert single == (-1, key_hash("a"), False)
    metadata.num_messages_in_batch = 2
    assert last_index(build_entry(metadata, b"secret"), None) == 1
    assert isinstance(content_of(build_entry(metadata, b"secret")), Closed)


def _messages(entry: bytes) -> Iterable[tuple[int, bytes | None, bool]]:
    content = content_of(entry)
    assert isinstance(content, tuple)
    return [(each.index, each.key, each.is_empty) for each in content]


def test_a_compacted_batch_keeps_what_pulsar_keeps() -> None:
    found = without(batch(("a", b"1"), ("b", b"2"), ("c", b"3")), {1})
    metadata = parse_metadata(found)
    singles = list(iterate_batch(entry_payload(found), metadata.num_messages_in_batch))
    assert [single.compacted_out for single, _ in singles] == [True, False, True]
    assert [bytes(content) for _, content in singles] == [b"", b"2", b""]
    assert [index for index, _, _ in _messages(found)] == [1]


async def test_a_view_is_read_from_anywhere(history: TopicHistory) -> None:
    for _ in range(4):
        for number in range(150):
            await history.publish(message(f"key-{history.ledger}-{number}", bytes(9_000)))
        await history.fence(Purpose.ROLL)
    done = await compacting(history)
    assert done.view.blocks >= 20
    everything = [run.last for run in await runs_of(history, each=7)]
    assert everything[-1] == Position(8, 150)
    assert len([entry for run in await runs_of(history) for entry in run.entries()]) == 600
    for after in (Position(5, 75), Position(6, 0), Position(7, 149), Position(8, 149)):
        (first, *_) = await runs_of(history, after)
        assert first.position == Position(after.ledger, after.entry + 1)


# -- what failures leave ------------------------------------------------------------------------


async def test_too_many_keys_are_refused_and_the_view_before_stays(history: TopicHistory) -> None:
    await history.publish(message("a", b"1"))
    await compacting(history, keys_max=2)
    await history.publish(message("b"), message("c"))
    with pytest.raises(CompactionRefused, match="compaction_keys_max"):
        await compacting(history, keys_max=2)
    assert await kept(history) == [("5-1", b"1")]
    assert not history.log.compacted.is_running


async def test_a_view_that_weighs_more_than_it_seemed_to_stops_at_its_bound(
    history: TopicHistory,
) -> None:
    entries = [message(f"key-{number}", bytes(1_000)) for number in range(10)]
    await history.publish(*entries)
    writer = ViewWriter(history.log, Attempt(0, "attempt"), lambda: None, free_bytes=12_000)
    for number, entry in enumerate(entries):
        await writer.add(Position(5, number + 1), entry, 1, None)
    with pytest.raises(InsufficientSpace) as refused:
        await writer.finish()
    assert 12_000 < refused.value.needed_bytes < 20_000
    assert writer.blocks == 0


def test_the_size_of_the_newest_messages_counts_only_what_stays() -> None:
    newest = Newest(10)

    def add(ordinal: int, entry: bytes) -> int:
        newest.add(ordinal, content_of(entry), len(entry))
        return len(entry)

    add(0, message("a", bytes(500)))
    kept = add(1, message("a", bytes(900)))
    assert newest.size == kept
    kept += add(2, b"not an entry at all")
    kept += add(3, message("b", bytes(100), uuid="u", chunk_id=0, num_chunks_from_msg=2))
    kept += add(4, message("b", bytes(100), uuid="u", chunk_id=1, num_chunks_from_msg=2))
    assert newest.size == kept
    assert newest.footprint > kept
    add(5, message("b", b"whole"))
    assert newest.size < kept
    kept = newest.size
    add(6, message("b", b""))
    add(7, message("a", b""))
    assert newest.size == len(b"not an entry at all") < kept


@pytest.mark.parametrize("calls", range(12))
@pytest.mark.parametrize("when", ["fail_before", "fail_after"])
async def test_an_attempt_that_is_cut_off_leaves_a_whole_view(
    server: FakeServer, history: TopicHistory, calls: int, when: str
) -> None:
    """If any call of an attempt has no answer, readers have the old view or the new one."""
    await history.publish(message("a", b"1"), message("b", b"1"))
    await compacting(history)
    await history.publish(message("a", b"2"))
    counted = 0

    async def cut(_call: str, moment: str) -> None:
        nonlocal counted
        counted += moment == ("before" if when == "fail_before" else "after")
        if counted == calls + 1:
            counted += 1
            raise Undecided("the store did not answer")

    store = history.store
    assert isinstance(store, FakeLogStore)
    store.faults = Faults(hook=cut)
    with contextlib.suppress(Undecided):
        await compacting(history)
    store.faults = Faults()
    state = stored_in(server.primary).states[TOPIC]
    history.log._state[COMPACTED] = state[COMPACTED]
    assert await kept(history) in ([("5-1", b"1"), ("5-2", b"1")], [("5-2", b"1"), ("5-3", b"2")])
    await compacting(history)
    assert await kept(history) == [("5-2", b"1"), ("5-3", b"2")]
    await drop_unused(history.log)
    view = view_of(stored_in(server.primary).states[TOPIC])
    assert view is not None
    held = {slot for (_, slot), blocks in stored_in(server.primary).compacted.items() if blocks}
    assert held == {view.slot}
    assert COMPACTING not in stored_in(server.primary).states[TOPIC]


async def test_a_log_that_rolls_during_a_compaction_is_compacted(history: TopicHistory) -> None:
    await history.publish(message("a", b"1"), message("b", b"1"))
    store, rolled = history.store, False
    assert isinstance(store, FakeLogStore)

    async def roll(call: str, moment: str) -> None:
        nonlocal rolled
        if call == "compact_begin" and moment == "after" and not rolled:
            rolled = True
            history.log._ledger -= 1  # a fence of this log is in progress
            history.log._ledger += 1

    store.faults = Faults(hook=roll)
    await compacting(history)
    assert rolled
    assert len(await kept(history)) == 2


async def test_a_deposed_compactor_changes_nothing(
    server: FakeServer, history: TopicHistory
) -> None:
    await history.publish(message("a", b"1"))
    await compacting(history)
    successor = await TopicHistory.begin(
        FakeLogStore(server.resolve, buckets=BUCKETS), owner="broker-b", version=2, ledger=5
    )
    successor.log._exists = True
    await successor.fence(Purpose.GRANT, waiter("bob"))
    await successor.publish(message("a", b"2"))
    before = dict(stored_in(server.primary).states[TOPIC])
    with pytest.raises(Unavailable):
        await compacting(history)
    assert stored_in(server.primary).states[TOPIC] == before


async def test_a_view_that_a_failover_forgot_is_not_believed(
    server: FakeServer, history: TopicHistory
) -> None:
    await history.publish(message("a", b"1"))
    first = await compacting(history)
    await history.publish(message("a", b"2"))
    lost = await compacting(history)
    dataset = stored_in(server.primary)
    dataset.states[TOPIC][COMPACTED] = first.view.encode()  # as on a lagging replica
    del dataset.compacted[TOPIC, lost.view.slot]
    history.log.compacted._checked = None
    assert await history.log.compacted.view() == first.view
    dataset.compacted[TOPIC, first.view.slot].clear()  # another process emptied this slot
    history.log.compacted._checked = None
    assert await history.log.compacted.view() is None
    await compacting(history)
    assert await kept(history) == [("5-2", b"2")]


# -- S12 ----------------------------------------------------------------------------------------


async def held(history: TopicHistory) -> list[str]:
    (report,) = await verify(history.store, [TOPIC], BUCKETS, lambda _log, _entries: None)
    return [violation.predicate for violation in report.findings.violations]


async def test_no_fence_is_forgotten(server: FakeServer, history: TopicHistory) -> None:
    await history.publish(message("a", b"1"), message("a", b"2"))
    await history.fence(Purpose.GRANT, waiter("bob"))
    state = dict(stored_in(server.primary).states[TOPIC])
    blocks = list(stored_in(server.primary).logs[TOPIC].blocks)
    await compacting(history)
    await drop_unused(history.log)
    after = dict(stored_in(server.primary).states[TOPIC])
    assert after.pop(COMPACTED)
    assert after == state
    assert stored_in(server.primary).logs[TOPIC].blocks == blocks
    assert await held(history) == []


async def test_a_compaction_that_forgot_one_would_be_found(
    server: FakeServer, history: TopicHistory
) -> None:
    """Mutant M7: the write of the current view replaces the log's whole state."""
    await history.fence(Purpose.GRANT, waiter("bob"))
    await history.publish(message("a", b"1"))
    await compacting(history)
    state = stored_in(server.primary).states[TOPIC]
    stored_in(server.primary).states[TOPIC] = {
        name: state[name] for name in (COMPACTED, "tok", "ledger")
    }
    assert "S12" in await held(history)


async def test_a_view_is_compared_with_the_log(server: FakeServer, history: TopicHistory) -> None:
    for compression in range(5):
        await history.publish(
            batch(("a", b"1"), ("b", b"1"), (None, b"x"), compression=compression),
            message(f"c{compression}"),
            message("d", b"part", uuid="u", chunk_id=0, num_chunks_from_msg=2),
        )
        await history.publish(message("b", b""), b"closed")
        await compacting(history)
    assert await held(history) == []
    view = view_of(history.log.state)
    assert view is not None
    stored = stored_in(server.primary).compacted[TOPIC, view.slot]
    block = stored[0]
    for damaged in (
        dataclasses.replace(block, payload=b"x" + block.payload[1:]),
        dataclasses.replace(block, offsets=[offset + 1 for offset in block.offsets]),
    ):
        stored[0] = damaged
        assert await held(history) == ["S7"]
    del stored[0]
    assert await held(history) == ["S7"]


async def test_a_view_that_lacks_a_key_is_found(server: FakeServer, history: TopicHistory) -> None:
    await history.publish(message("a", b"1"))
    await compacting(history)
    state = stored_in(server.primary).states[TOPIC]
    await history.publish(message("b", b"1"))
    view = view_of(state)
    assert view is not None
    state[COMPACTED] = dataclasses.replace(view, horizon=Position(5, 2)).encode()
    assert await held(history) == ["S7"]
    state[COMPACTED] = "nonsense"
    assert await held(history) == ["S7"]
