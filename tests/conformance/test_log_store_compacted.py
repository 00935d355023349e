"""The contract of CompactedStore; the fake server and real ones keep it alike."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
from tests.conformance.log_store_worlds import (
    WORLD_KINDS,
    PairWorld,
    World,
    Writer,
    open_pair_world,
    topics_of_bucket,
    writer,
)

from onewriter_broker.log.store.api import BrokenKey, LogStore, Outcome
from onewriter_broker.log.store.compacted import (
    DROP_BLOCKS_MAX,
    Attempt,
    CompactedBlock,
    Extent,
    View,
    chain,
)
from onewriter_broker.log.store.keys import Keys
from onewriter_core.ids import Position
from onewriter_core.log_format.chain import CHAIN_START
from onewriter_core.log_format.field_names import COMPACTED, COMPACTING

(TOPIC,) = topics_of_bucket(0, 1)
FIRST, SECOND = Attempt(0, "first"), Attempt(1, "second")


@pytest.fixture(params=WORLD_KINDS)
def pair(request: pytest.FixtureRequest) -> Iterator[PairWorld]:
    with open_pair_world(request.param) as opened:
        yield opened


def blocks(count: int) -> list[CompactedBlock]:
    """Return blocks of two entries with a hole between them. Every second block contains batches."""
    found: list[CompactedBlock] = []
    link = CHAIN_START
    for number in range(count):
        position = Position(3, 10 * number + 1)
        payload = b"%05d" % number * 2
        link = chain(link, position, [0, 4], [5, 5], payload)
        counts, masks = ([1, 40], {1: 2**39 + 5}) if number % 2 else (None, {})
        found.append(CompactedBlock(position, [0, 4], [5, 5], payload, counts, masks, link))
    return found


def view_of(attempt: Attempt, written: list[CompactedBlock]) -> View:
    last = written[-1]
    size = sum(len(block.payload) for block in written)
    return View(
        attempt.slot,
        Position(4, 0),
        len(written),
        2 * len(written),
        size,
        last.last,
        last.chain,
        1_700_000_000_000,
    )


async def write(
    author: Writer, attempt: Attempt, written: list[CompactedBlock], *, finishes: bool = True
) -> View:
    """Write a complete view. Fails if the store does not accept a call."""
    store, binding, token = author.store.compacted, author.binding, author.token
    assert await store.begin(binding, TOPIC, token, attempt) is Outcome.DONE
    while await store.drop(binding, TOPIC, token, attempt.slot) != 0:
        pass
    for number, block in enumerate(written):
        outcome = await store.write(binding, TOPIC, token, attempt, number, block)
        assert outcome is Outcome.DONE
    view = view_of(attempt, written)
    if finishes:
        assert await store.finish(binding, TOPIC, token, attempt, view) is Outcome.DONE
    return view


async def test_a_view_is_read_as_it_was_written(world: World, store: LogStore) -> None:
    author = await writer(world, store)
    await author.fence(TOPIC)
    written, compacted = blocks(5), store.compacted
    view = await write(author, FIRST, written)
    assert await compacted.read(TOPIC, 0, 0, 10) == written
    assert await compacted.read(TOPIC, 0, 3, 1, replid=world.replid()) == written[3:4]
    assert await compacted.places(TOPIC, 0, [0, 4]) == [Position(3, 1), Position(3, 41)]
    assert View.parse(await compacted.named(TOPIC)) == view
    extent = await compacted.extent(TOPIC, 0)
    assert extent == Extent(5, Position(3, 45), written[-1].chain)
    assert extent.is_whole(view)
    assert (await store.read_state(TOPIC))[COMPACTED] == view.encode()


async def test_log_without_compaction_has_no_view(world: World, store: LogStore) -> None:
    await (await writer(world, store)).fence(TOPIC)
    assert await store.compacted.named(TOPIC) == ""
    assert await store.compacted.extent(TOPIC, 1) == Extent(0)
    assert await store.compacted.read(TOPIC, 1, 0, 5) == []


async def test_readers_see_the_old_view_until_the_new_one_is_whole(
    world: World, store: LogStore
) -> None:
    author = await writer(world, store)
    await author.fence(TOPIC)
    old, new, compacted = blocks(2), blocks(7), store.compacted
    first = await write(author, FIRST, old)
    await write(author, SECOND, new, finishes=False)
    assert await compacted.named(TOPIC) == first.encode()
    assert await compacted.read(TOPIC, 0, 0, 9) == old
    second = view_of(SECOND, new)
    lacks_one = dataclasses.replace(second, blocks=8)
    finish = compacted.finish
    assert await finish(author.binding, TOPIC, author.token, SECOND, lacks_one) is Outcome.LOST
    assert await compacted.named(TOPIC) == first.encode()
    assert await finish(author.binding, TOPIC, author.token, SECOND, second) is Outcome.DONE
    assert await compacted.named(TOPIC) == second.encode()


async def test_the_view_that_counts_is_neither_written_nor_dropped(
    world: World, store: LogStore
) -> None:
    author = await writer(world, store)
    await author.fence(TOPIC)
    await write(author, FIRST, blocks(2))
    compacted, binding, token = store.compacted, author.binding, author.token
    another = Attempt(0, "another")
    assert await compacted.begin(binding, TOPIC, token, another) is Outcome.FENCED
    assert await compacted.drop(binding, TOPIC, token, 0) is Outcome.FENCED
    late = await compacted.write(binding, TOPIC, token, FIRST, 2, blocks(3)[2])
    assert late is Outcome.FENCED
    assert await compacted.read(TOPIC, 0, 0, 9) == blocks(2)


async def test_late_write_of_an_abandoned_attempt_is_rejected(
    world: World, store: LogStore
) -> None:
    author = await writer(world, store)
    await author.fence(TOPIC)
    compacted, binding, token = store.compacted, author.binding, author.token
    written = blocks(3)
    await write(author, FIRST, written, finishes=False)
    again = Attempt(0, "again")
    assert await compacted.begin(binding, TOPIC, token, again) is Outcome.DONE
    assert await compacted.drop(binding, TOPIC, token, 0) == 0
    late = await compacted.write(binding, TOPIC, token, FIRST, 0, written[0])
    assert late is Outcome.FENCED
    view = view_of(FIRST, written)
    assert await compacted.finish(binding, TOPIC, token, FIRST, view) is Outcome.FENCED
    assert await compacted.write(binding, TOPIC, token, again, 1, written[1]) is Outcome.FENCED
    assert await compacted.write(binding, TOPIC, token, again, 0, written[0]) is Outcome.DONE
    assert await compacted.write(binding, TOPIC, token, again, 0, written[0]) is Outcome.FENCED


async def test_a_deposed_compactor_changes_nothing(world: World, store: LogStore) -> None:
    zombie = await writer(world, store)
    await zombie.fence(TOPIC)
    await write(zombie, FIRST, blocks(2), finishes=False)
    successor = await writer(world, store, owner="broker-b", version=2, ledger=6)
    await successor.fence(TOPIC, create=False)
    compacted, binding, token = store.compacted, zombie.binding, zombie.token
    before = await store.read_state(TOPIC)
    for author in (zombie, Writer(store, successor.binding, 5)):  # the owner, or the token, is old
        binding, token = author.binding, author.token
        assert await compacted.begin(binding, TOPIC, token, SECOND) is Outcome.FENCED
        late = await compacted.write(binding, TOPIC, token, FIRST, 2, blocks(3)[2])
        assert late is Outcome.FENCED
        view = view_of(FIRST, blocks(2))
        assert await compacted.finish(binding, TOPIC, token, FIRST, view) is Outcome.FENCED
        assert await compacted.drop(binding, TOPIC, token, 0) is Outcome.FENCED
    assert await store.read_state(TOPIC) == before
    assert await compacted.read(TOPIC, 0, 0, 9) == blocks(2)


async def test_dropping_a_view_takes_bounded_steps(world: World, store: LogStore) -> None:
    author = await writer(world, store)
    await author.fence(TOPIC)
    many = blocks(DROP_BLOCKS_MAX + 30)
    await write(author, FIRST, many, finishes=False)
    compacted, binding, token = store.compacted, author.binding, author.token
    assert await compacted.drop(binding, TOPIC, token, 0) == 30
    assert await compacted.read(TOPIC, 0, 0, 99) == many[:30]
    assert await compacted.drop(binding, TOPIC, token, 0) == 0
    assert await compacted.extent(TOPIC, 0) == Extent(0)
    assert await compacted.drop(binding, TOPIC, token, 0) == 0


async def test_a_fence_stands_after_a_compaction(world: World, store: LogStore) -> None:
    """S12: compaction changes neither markers nor tokens nor epochs."""
    author = await writer(world, store)
    await author.fence(TOPIC)
    await author.append(TOPIC, b"one", b"two")
    before = await store.read_state(TOPIC)
    stored = await store.read_blocks(TOPIC, Position(0, 0), count=10)
    await write(author, FIRST, blocks(2))
    after = await store.read_state(TOPIC)
    assert {name: after[name] for name in before} == before
    assert after.keys() - before.keys() == {COMPACTED, COMPACTING}
    assert await store.read_blocks(TOPIC, Position(0, 0), count=10) == stored
    stale = author.appending(TOPIC, b"stale")
    successor = await writer(world, store, owner="broker-b", version=2, ledger=6)
    await successor.fence(TOPIC, create=False)
    assert await store.append([stale]) == [Outcome.FENCED]


async def test_an_overwritten_key_is_named(world: World, store: LogStore) -> None:
    author = await writer(world, store)
    await author.fence(TOPIC)
    key = Keys(4).compacted(TOPIC, 0)
    compacted, binding, token = store.compacted, author.binding, author.token
    assert await compacted.begin(binding, TOPIC, token, FIRST) is Outcome.DONE
    world.put_foreign_key(key)
    with pytest.raises(BrokenKey, match="compacted0"):
        await compacted.write(binding, TOPIC, token, FIRST, 0, blocks(1)[0])
    with pytest.raises(BrokenKey, match="compacted0"):
        await compacted.drop(binding, TOPIC, token, 0)
    with pytest.raises(BrokenKey, match="compacted0"):
        await compacted.read(TOPIC, 0, 0, 1)


async def test_a_lagging_replica_has_the_whole_old_view_or_reports_what_is_missing(
    pair: PairWorld,
) -> None:
    store = pair.open()
    try:
        author = await writer(pair, store)
        await author.fence(TOPIC)
        old = blocks(2)
        view = await write(author, FIRST, old)
        assert await store.compacted.extent(TOPIC, 0) == Extent(2, old[-1].last, old[-1].chain)
        pair.stop_replication()
        newer = await write(author, SECOND, blocks(9))
        assert await store.compacted.named(TOPIC) == newer.encode()
        pair.fail_over()
        await store.close()
        store = pair.open()
        assert await store.compacted.named(TOPIC) in {view.encode(), ""}
        assert not (await store.compacted.extent(TOPIC, 1)).is_whole(newer)
    finally:
        await store.close()
