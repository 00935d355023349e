"""The contract of blocks that are stored together: all of them or none, whatever was lost in transit."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
from tests.conformance.log_store_worlds import BUCKETS, World, Writer, topics_of_bucket, writer

from onewriter_broker.log.store.api import Append, BrokenKey, Guard, GuardKind, LogStore, Outcome
from onewriter_broker.log.store.keys import Keys
from onewriter_core.api.topic import Durability
from onewriter_core.ids import EARLIEST, Position, TopicName

ONE, TWO, THREE = topics_of_bucket(0, 3)
(ELSEWHERE,) = topics_of_bucket(1, 1)
DONE, HELD, REFENCE, FENCED = Outcome.DONE, Outcome.HELD, Outcome.REFENCE, Outcome.FENCED
FAR = "persistent://public/default/far"


@pytest.fixture
async def mine(world: World, store: LogStore) -> Writer:
    found = await writer(world, store)
    await found.fence(ONE, TWO)
    return found


def parts(mine: Writer, *topics: TopicName) -> list[Append]:
    return [mine.appending(topic, b"part", b"two", never_sent=True) for topic in topics]


def again(appends: Sequence[Append]) -> list[Append]:
    return [dataclasses.replace(append, never_sent=False) for append in appends]


def guarded(append: Append, number: int) -> Append:
    return dataclasses.replace(append, guard=Guard(GuardKind.FLOOR, FAR, number))


async def entries(store: LogStore, *topics: TopicName) -> list[int]:
    """Return the number of blocks of each log."""
    return [len(await store.read_blocks(topic, EARLIEST, count=100)) - 1 for topic in topics]


async def test_joint_append_stores_all_blocks_and_can_be_committed(mine: Writer) -> None:
    assert await mine.store.append_together(parts(mine, ONE, TWO)) == [DONE, DONE]
    assert await entries(mine.store, ONE, TWO) == [1, 1]
    assert await mine.store.commit(Durability.LOCAL, replid=mine.binding.replid)


async def test_a_repetition_finds_them_all(mine: Writer) -> None:
    appends = parts(mine, ONE, TWO)
    assert await mine.store.append_together(appends) == [DONE, DONE]
    assert await mine.store.append_together(again(appends)) == [DONE, DONE]
    assert await entries(mine.store, ONE, TWO) == [1, 1]


async def test_a_log_that_does_not_exist_keeps_all_out(mine: Writer) -> None:
    appends = parts(mine, ONE, THREE, TWO)
    assert await mine.store.append_together(appends) == [HELD, Outcome.LOST, HELD]
    assert await mine.store.append_together(again(appends)) == [REFENCE, Outcome.LOST, REFENCE]
    assert await entries(mine.store, ONE, TWO) == [0, 0]


async def test_a_log_with_a_newer_ledger_keeps_all_out(mine: Writer) -> None:
    appends = parts(mine, ONE, TWO)
    await Writer(mine.store, mine.binding, 6).fence(TWO)
    assert await mine.store.append_together(appends) == [HELD, FENCED]
    assert await mine.store.append_together(again(appends)) == [REFENCE, FENCED]
    assert await entries(mine.store, ONE) == [0]


async def test_foreign_block_at_a_position_keeps_all_blocks_out(mine: Writer) -> None:
    appends = parts(mine, ONE, TWO)
    await Writer(mine.store, mine.binding, 5).append(TWO, b"another")
    assert await mine.store.append_together(appends) == [HELD, FENCED]
    assert await entries(mine.store, ONE) == [0]


async def test_a_deposed_owner_stores_nothing(world: World, mine: Writer) -> None:
    appends = parts(mine, ONE, TWO)
    assert await mine.store.append_together(appends) == [DONE, DONE]
    fresh = parts(mine, ONE, TWO)
    await writer(world, mine.store, owner="broker-b", version=2)
    assert await mine.store.append_together(fresh) == [FENCED, FENCED]
    assert await mine.store.append_together(again(appends)) == [Outcome.UNKNOWN] * 2
    elsewhere = dataclasses.replace(mine.binding, replid="f" * 40)
    moved = [dataclasses.replace(append, binding=elsewhere) for append in fresh]
    assert await mine.store.append_together(moved) == [REFENCE, REFENCE]
    assert await entries(mine.store, ONE, TWO) == [1, 1]


async def test_a_guard_of_one_keeps_all_out(mine: Writer) -> None:
    first, second = parts(mine, ONE, TWO)
    assert await mine.store.append_together([guarded(first, 6), guarded(second, 6)]) == [DONE, DONE]
    following = parts(mine, ONE, TWO)
    appends = [following[0], guarded(following[1], 5)]
    assert await mine.store.append_together(appends) == [HELD, Outcome.STALE]
    assert await mine.store.append_together(again(appends)) == [REFENCE, REFENCE]
    assert await entries(mine.store, ONE, TWO) == [1, 1]
    appends = [guarded(following[0], 7), guarded(following[1], 8)]
    assert await mine.store.append_together(appends) == [DONE, DONE]
    floors = [(await mine.store.read_state(topic))[f"guard:{FAR}"] for topic in (ONE, TWO)]
    assert floors == ["7", "8"]


async def test_stored_blocks_count_although_a_guard_is_over(mine: Writer) -> None:
    first, second = parts(mine, ONE, TWO)
    appends = [first, guarded(second, 5)]
    assert await mine.store.append_together(appends) == [DONE, DONE]
    newer = guarded(mine.appending(TWO, b"newer"), 6)
    assert await mine.store.append([newer]) == [DONE]
    assert await mine.store.append_together(again(appends)) == [DONE, DONE]


async def test_a_broken_key_keeps_all_out(world: World, mine: Writer) -> None:
    appends = parts(mine, ONE, TWO)
    world.put_foreign_key(Keys(BUCKETS).log(TWO))
    held, broken = await mine.store.append_together(appends)
    assert held is HELD
    assert isinstance(broken, BrokenKey)
    assert await entries(mine.store, ONE) == [0]


async def test_a_log_whose_end_another_program_moved_refuses_all_producers(
    world: World, mine: Writer
) -> None:
    """Otherwise the first block would be stored before the second one is refused."""
    world.move_end(TWO, Position(7, 1))
    assert await mine.store.append_together(parts(mine, ONE, TWO)) == [HELD, FENCED]
    assert await entries(mine.store, ONE) == [0]


async def test_only_entries_that_fit_one_call_are_requested_together(
    world: World, mine: Writer
) -> None:
    other = await writer(world, mine.store, bucket=1)
    await other.fence(ELSEWHERE)
    with pytest.raises(ValueError, match="one bucket"):
        await mine.store.append_together([*parts(mine, ONE), *parts(other, ELSEWHERE)])
    with pytest.raises(ValueError, match="one block"):
        await mine.store.append_together(parts(mine, ONE, ONE))


async def test_a_torn_file_keeps_all_or_none(world: World, mine: Writer) -> None:
    """A restart that truncates the append-only file loses the blocks together, wherever the file was cut."""
    before = world.mark()
    assert await mine.store.append_together(parts(mine, ONE, TWO)) == [DONE, DONE]
    whole = world.mark()
    found = []
    for keep in sorted({before, (before + whole) // 2, whole - 1, whole}, reverse=True):
        world.restart(keep=min(keep, world.mark()))
        reader = world.open()
        found.append(await entries(reader, ONE, TWO))
        await reader.close()
    assert found[0] == [1, 1]
    assert found[-1] == [0, 0]
    assert all(each in ([0, 0], [1, 1]) for each in found)
