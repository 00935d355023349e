"""Resends of producers with equal names: the name alone does not make an entry a resend."""

from __future__ import annotations

import json

from tests.stamps import fence_once, stamp_anew

from onewriter_broker.log.store.api import Append, Binding, Block, Fence, FencedLog, Outcome
from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_broker.topic.producers.resends import (
    POSITION_UNKNOWN,
    SNAPSHOT_FIELD,
    Resends,
    Run,
    Seen,
    end_of,
    lineage_from_log,
    read_snapshot,
    snapshot,
    stored_entries,
)
from onewriter_core.ids import Position, TopicName
from onewriter_core.log_format.chain import CHAIN_START, chain
from onewriter_core.log_format.field_names import TRIMMED
from onewriter_core.wire.messages import build_entry
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import Send
from onewriter_testing.fake_store.server import FakeServer
from onewriter_testing.fake_store.store import FakeLogStore

TOPIC = TopicName.parse("persistent://public/default/t")


def entry(sequence_id: int, published_ms: int, name: str = "writer") -> bytes:
    return build_entry(
        pb.MessageMetadata(producer_name=name, sequence_id=sequence_id, publish_time=published_ms),
        b"",
    )


async def log_with(*entries: bytes, ledger: int = 5) -> TopicLog:
    """A log of one ledger that another broker has written."""
    server = FakeServer()
    store = FakeLogStore(server.resolve, buckets=1)
    binding = Binding(0, server.primary.replid, 1, "broker~1", 1)
    assert await stamp_anew(store, binding) is Outcome.DONE
    await fence_once(store, Fence(binding, ledger, (FencedLog(TOPIC, True, {}, {}),), {}))
    position, payload = Position(ledger, 1), b"".join(entries)
    lengths = [len(each) for each in entries]
    block = Block(
        position, lengths, payload, None, 0, chain(CHAIN_START, position, lengths, payload)
    )
    (outcome,) = await store.append([Append(binding, TOPIC, binding.token(ledger), block)])
    assert outcome is Outcome.DONE
    log = TopicLog(TOPIC, store)
    log._committed = block.last
    return log


async def resends_from(log: TopicLog, epoch: int | None) -> Resends:
    runs, floor = await lineage_from_log(log, "writer", epoch)
    return Resends([known for run in runs for known in stored_entries(run)], floor)


def send(sequence_id: int) -> Send:
    return Send(producer_id=1, sequence_id=sequence_id)


async def test_a_returning_shared_producer_is_recognized_by_its_own_entries() -> None:
    log = await log_with(entry(0, 100), entry(1, 101))
    resends = await resends_from(log, None)
    assert resends.seen(send(1), memoryview(entry(1, 101))) == Position(5, 2)
    assert resends.seen(send(2), memoryview(entry(2, 102))) is Seen.NEW


async def test_a_restarted_namesake_is_not_confused_with_the_former_one() -> None:
    # Another broker granted it. It has no stored entries, and sends from 0 again.
    log = await log_with(entry(0, 100), entry(1, 101))
    resends = await resends_from(log, None)
    assert resends.seen(send(0), memoryview(entry(0, 900))) is Seen.NEW


async def test_of_two_namesakes_the_later_ones_entries_count() -> None:
    log = await log_with(entry(0, 100), entry(1, 101), entry(0, 900))
    resends = await resends_from(log, None)
    assert resends.seen(send(0), memoryview(entry(0, 900))) == Position(5, 3)
    assert resends.seen(send(1), memoryview(entry(1, 901))) is Seen.NEW


async def test_a_resend_older_than_all_remembered_entries_counts_as_stored() -> None:
    log = await log_with(entry(7, 107), entry(8, 108))
    log._state[TRIMMED] = str(Position(5, 1))
    resends = await resends_from(log, None)
    assert resends.seen(send(3), memoryview(entry(3, 103))) == POSITION_UNKNOWN
    assert resends.seen(send(3), memoryview(entry(3, 903))) is Seen.NEW


async def test_the_snapshot_of_an_earlier_epoch_does_not_count_for_a_later_one() -> None:
    log = await log_with(entry(0, 100, name="other"), ledger=9)
    log._state[SNAPSHOT_FIELD] = json.dumps({"writer": [5, 100, 101]})
    log._state[TRIMMED] = str(Position(9, 1))
    later = await resends_from(log, 9)
    assert later.seen(send(0), memoryview(entry(0, 900))) is Seen.NEW
    same = await resends_from(log, 5)
    assert same.seen(send(100), memoryview(entry(100, 101))) == POSITION_UNKNOWN
    assert same.seen(send(5), memoryview(entry(5, 900))) is Seen.NEW, "it counts anew"


async def test_where_nothing_was_trimmed_what_is_not_in_the_log_was_never_stored() -> None:
    log = await log_with(entry(7, 107), entry(8, 108))
    resends = await resends_from(log, None)
    assert resends.seen(send(3), memoryview(entry(3, 103))) is Seen.NEW


# --- chunks of one message share its number and its time


def chunk(number: int, sequence_id: int = 7) -> bytes:
    answer = pb.MessageMetadata(
        producer_name="writer",
        sequence_id=sequence_id,
        publish_time=107,
        uuid=f"message {sequence_id}",
        chunk_id=number,
        num_chunks_from_msg=9,
    )
    return build_entry(answer, b"part")


async def test_a_tail_that_begins_within_a_message_does_not_say_that_all_of_it_is_stored() -> None:
    """A broker dies in the middle of a message, which is longer than the part that the next broker reads."""
    log = await log_with(chunk(4), chunk(5))
    log._state[TRIMMED] = str(Position(5, 1))
    resends = await resends_from(log, None)
    assert resends.seen(send(7), memoryview(chunk(3))) == POSITION_UNKNOWN
    assert resends.seen(send(7), memoryview(chunk(4))) == Position(5, 1)
    assert resends.seen(send(7), memoryview(chunk(5))) == Position(5, 2)
    assert resends.seen(send(7), memoryview(chunk(6))) is Seen.NEW
    assert resends.seen(send(6), memoryview(chunk(8, 6))) == POSITION_UNKNOWN


def test_a_run_that_ends_within_a_message_is_no_floor_for_the_rest_of_it() -> None:
    run = Run(Position(5, 1), [(7, 1)], *end_of(memoryview(chunk(4))))
    resends = Resends([], run.floor)
    assert resends.seen(send(7), memoryview(chunk(4))) == POSITION_UNKNOWN
    assert resends.seen(send(7), memoryview(chunk(5))) is Seen.NEW
    kept = read_snapshot({SNAPSHOT_FIELD: snapshot({"writer": (5, run.floor)})})
    resends = Resends([], kept["writer"][1])
    assert resends.seen(send(7), memoryview(chunk(4))) is Seen.NEW, "twice at worst, never lost"
    assert resends.seen(send(6), memoryview(chunk(8, 6))) == POSITION_UNKNOWN
