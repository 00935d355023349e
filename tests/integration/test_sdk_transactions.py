"""Transactions among other sends of the same producers, against a real broker."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest
from tests.integration.forked_brokers import forked_brokers
from tests.integration.patience import SECONDS
from tests.integration.raw import entries_of
from tests.integration.test_guards import beside
from tests.integration.test_sdk_guarded import leading

from onewriter import Batching, Leadership, OutcomeUnknown, Producer, ProducerOptions
from onewriter_core.wire.messages import entry_payload, iterate_batch, parse_metadata
from onewriter_testing.processes import LocalBrokers

TRANSACTIONS = 500
PENDING_MAX = 50

Stored = list[tuple[int, bytes]]
"""Number and content of a log's messages, in their order."""


async def stored(broker: LocalBrokers, topic: str) -> Stored:
    def read() -> Stored:
        found: Stored = []
        for entry in entries_of(broker.address(), topic):
            metadata = parse_metadata(entry)
            content = entry_payload(entry)
            if metadata.HasField("num_messages_in_batch"):
                batch = iterate_batch(content, metadata.num_messages_in_batch)
                found += [(single.sequence_id, bytes(part)) for single, part in batch]
            else:
                found.append((metadata.sequence_id, bytes(content)))
        return found

    return await asyncio.to_thread(read)


async def stream(producer: Producer, stop: asyncio.Event) -> list[bytes]:
    """Send without a pause; return the messages sent, all of them stored."""
    sent, receipts = [], []
    for number in count():
        if stop.is_set():
            break
        sent.append(b"plain %d" % number)
        receipts.append(await producer.submit(sent[-1]))
        await asyncio.sleep(0)
    await asyncio.gather(*receipts)
    return sent


async def commit(leadership: Leadership, audit: str, number: int) -> bool:
    """Commit a transaction of one message here and two there; False: its result is unknown."""
    transaction = leadership.transaction(announce=False)
    transaction.send(b"whole %d" % number)
    transaction.send(b"whole %d a" % number, topic=audit)
    transaction.send(b"whole %d b" % number, topic=audit)
    try:
        await transaction.commit()
    except OutcomeUnknown:
        return False
    return True


def check_log(log: Stored, plain: list[bytes]) -> list[bytes]:
    """Check that all is in its producer's order; return the messages that came by transactions."""
    ids = [number for number, _ in log]
    assert ids == sorted(set(ids)), "not in the order of the numbers, or twice"
    contents = [content for _, content in log]
    assert len(set(contents)) == len(contents)
    assert [content for content in contents if content.startswith(b"plain")] == plain
    return [content for content in contents if content.startswith(b"whole")]


@pytest.mark.parametrize(
    ("is_batched", "kills"),
    [(False, 0), (True, 0), (False, 3)],
    ids=["unbatched", "batched", "through a dying broker"],
)
async def test_each_is_whole_and_in_its_place_among_a_stream_of_sends(
    topic: str, *, is_batched: bool, kills: int
) -> None:
    """Although the broker dies, and several are committed at a time."""
    options = ProducerOptions(
        pending_messages_max=PENDING_MAX,
        batching=Batching() if is_batched else None,
        send_timeout_seconds=SECONDS,
    )
    audit = beside(topic)
    certain = []
    with forked_brokers() as brokers:
        async with leading(brokers, topic, options) as leadership:
            producer = await leadership.guarded(audit, options).producer()
            stop = asyncio.Event()
            streams = [
                asyncio.ensure_future(stream(each, stop))  # noqa: TID251 - awaited below
                for each in (leadership.producer, producer)
            ]
            for first in range(0, TRANSACTIONS, 5):
                if kills and first % (TRANSACTIONS // kills) == 50:
                    asyncio.get_running_loop().call_later(0.002, brokers.replace)
                numbers = range(first, first + 5)
                done = await asyncio.gather(*(commit(leadership, audit, n) for n in numbers))
                certain += [n for n, is_stored in zip(numbers, done, strict=True) if is_stored]
            stop.set()
            plain = [await each for each in streams]
        own = check_log(await stored(brokers, topic), plain[0])
        others = check_log(await stored(brokers, audit), plain[1])
    assert len(certain) == TRANSACTIONS or kills
    found = [int(content.split()[1]) for content in own]
    assert found == sorted(found) or kills, "only what is asked for again is not in its order"
    assert set(certain) <= set(found)
    assert others == [b"whole %d %c" % (n, c) for n in found for c in b"ab"]
