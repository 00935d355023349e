"""The contract of atomic publishes: many blocks of one log, of which all count or none.

This module covers every point at which a publish can be cut short, the effect of the next fence on it, and every
answer to a call whose earlier attempt may have been executed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
import redis
from tests.conformance.log_store_worlds import (
    BUCKETS,
    ServerWorld,
    World,
    Writer,
    positions,
    topics_of_bucket,
    writer,
)

from onewriter_broker.log.store.api import Append, Block, LogStore, Marker, Outcome
from onewriter_broker.log.store.keys import Keys
from onewriter_core.ids import EARLIEST, Position
from onewriter_core.log_format.field_names import OPEN_PUBLISH, OWNER_PREFIX, VERSION_PREFIX

TOPIC, OTHER = topics_of_bucket(0, 2)
DONE, STALE, HELD = Outcome.DONE, Outcome.STALE, Outcome.HELD
REFENCE, FENCED = Outcome.REFENCE, Outcome.FENCED
APP = "query-1"
FIELD = f"{VERSION_PREFIX}{APP}"
OWNER = f"{OWNER_PREFIX}{APP}"


@pytest.fixture
async def mine(world: World, store: LogStore) -> Writer:
    found = await writer(world, store)
    await found.fence(TOPIC, OTHER)
    return found


def publish(
    mine: Writer, blocks: int = 3, *, version: int = 7, app: str = APP, owner: str = ""
) -> list[Append]:
    """Return the blocks of one publish, with two entries in each."""
    appends = [mine.appending(TOPIC, b"a", b"b", never_sent=True) for _ in range(blocks)]
    opens = [append.block.position for append in appends]
    return [
        dataclasses.replace(
            append,
            block=dataclasses.replace(
                append.block, publish=f"{app}/{version}", commits=append is appends[-1]
            ),
            opens=opens if append is appends[0] else (),
            owner=owner,
        )
        for append in appends
    ]


def again(appends: Sequence[Append]) -> list[Append]:
    return [dataclasses.replace(append, never_sent=False) for append in appends]


async def test_the_last_block_commits(mine: Writer) -> None:
    first, middle, last = publish(mine)
    assert await mine.store.append([first]) == [DONE]
    state = await mine.store.read_state(TOPIC)
    assert state[OPEN_PUBLISH] == f"{APP}/7 5 1 3 5"
    assert FIELD not in state
    assert await mine.store.append([middle, last]) == [DONE, DONE]
    state = await mine.store.read_state(TOPIC)
    assert OPEN_PUBLISH not in state
    assert state[FIELD] == "7"
    await mine.append(TOPIC, b"behind")
    stored = await mine.store.read_blocks(TOPIC, EARLIEST, count=10)
    reported = [(block.publish, block.commits) for block in stored if isinstance(block, Block)]
    assert reported == [(f"{APP}/7", False), (f"{APP}/7", False), (f"{APP}/7", True), ("", False)]


async def test_one_block_can_be_a_whole_publish(mine: Writer) -> None:
    assert await mine.store.append(publish(mine, 1)) == [DONE]
    state = await mine.store.read_state(TOPIC)
    assert (state[FIELD], OPEN_PUBLISH in state) == ("7", False)


async def test_other_blocks_do_not_enter_between_blocks_of_a_publish(mine: Writer) -> None:
    first, _, _ = publish(mine)
    assert await mine.store.append([first]) == [DONE]
    between = Writer(mine.store, mine.binding, 5)
    between.block(TOPIC, b"a", b"b")
    other = dataclasses.replace(between.appending(TOPIC, b"x"), never_sent=True)
    assert await mine.store.append([other]) == [REFENCE]
    foreign = dataclasses.replace(other.block, publish="another/1")
    assert await mine.store.append([dataclasses.replace(other, block=foreign)]) == [REFENCE]
    single = dataclasses.replace(foreign, commits=True)
    opening = dataclasses.replace(other, block=single, opens=[single.position])
    assert await mine.store.append([opening]) == [REFENCE]
    elsewhere = mine.appending(OTHER, b"y", never_sent=True)
    assert await mine.store.append_together([other, elsewhere]) == [REFENCE, HELD]
    assert await positions(mine.store, TOPIC) == ["5-0", "5-1"]


@pytest.mark.parametrize("left_out", [0, 1], ids=["the first", "the first and the second"])
async def test_a_part_is_refused_without_the_parts_before_it(mine: Writer, left_out: int) -> None:
    rest = publish(mine)[left_out + 1 :]
    assert await mine.store.append(rest) == [REFENCE] * len(rest)
    assert await positions(mine.store, TOPIC) == ["5-0"]
    assert FIELD not in await mine.store.read_state(TOPIC)


@pytest.mark.parametrize("version", [7, 6], ids=["the same version", "an older one"])
async def test_a_version_is_published_once(mine: Writer, version: int) -> None:
    assert await mine.store.append(publish(mine)) == [DONE] * 3
    elsewhere = mine.appending(OTHER, b"other log", never_sent=True)
    refused = publish(Writer(mine.store, mine.binding, 5), version=version)
    assert await mine.store.append([*refused, elsewhere]) == [STALE, HELD, HELD, DONE]
    assert await positions(mine.store, TOPIC) == ["5-0", "5-1", "5-3", "5-5"]
    assert await mine.store.append(publish(mine, version=8)) == [DONE] * 3
    assert (await mine.store.read_state(TOPIC))[FIELD] == "8"


async def test_apps_do_not_know_each_other(mine: Writer) -> None:
    assert await mine.store.append(publish(mine, version=7)) == [DONE] * 3
    assert await mine.store.append(publish(mine, version=2, app="query:2")) == [DONE] * 3
    state = await mine.store.read_state(TOPIC)
    assert (state[FIELD], state[f"{VERSION_PREFIX}query:2"]) == ("7", "2")


async def test_the_last_block_binds_the_app_to_its_owner(mine: Writer) -> None:
    first, middle, last = publish(mine, owner="alice")
    assert await mine.store.append([first, middle]) == [DONE] * 2
    assert OWNER not in await mine.store.read_state(TOPIC)
    assert await mine.store.append([last]) == [DONE]
    assert (await mine.store.read_state(TOPIC))[OWNER] == "alice"
    assert await mine.store.append(again([last])) == [DONE]
    refused = publish(Writer(mine.store, mine.binding, 5), version=99, owner="mallory")
    elsewhere = mine.appending(OTHER, b"other log", never_sent=True)
    assert await mine.store.append([*refused, elsewhere]) == [STALE, HELD, HELD, DONE]
    assert await positions(mine.store, TOPIC) == ["5-0", "5-1", "5-3", "5-5"]
    assert await mine.store.append(publish(mine, version=8, owner="alice")) == [DONE] * 3


async def test_each_block_names_its_publisher(mine: Writer) -> None:
    by = '{"subject":"alice"}'
    named = [
        dataclasses.replace(each, block=dataclasses.replace(each.block, by=by))
        for each in publish(mine)
    ]
    assert await mine.store.append(named) == [DONE] * 3
    assert await mine.store.append(publish(mine, version=8)) == [DONE] * 3
    stored = await mine.store.read_blocks(TOPIC, EARLIEST, count=10)
    assert [each.by for each in stored if isinstance(each, Block)] == [by] * 3 + [""] * 3


async def test_an_app_without_an_owner_is_bound_by_the_first_who_is_named(mine: Writer) -> None:
    assert await mine.store.append(publish(mine)) == [DONE] * 3
    assert OWNER not in await mine.store.read_state(TOPIC)
    assert await mine.store.append(publish(mine, version=8, owner="alice")) == [DONE] * 3
    assert await mine.store.append(publish(mine, version=9)) == [DONE] * 3
    state = await mine.store.read_state(TOPIC)
    assert (state[OWNER], state[FIELD]) == ("alice", "9")


@pytest.mark.parametrize("calls", [[1, 2], [2, 1], [3], [1, 1, 1]], ids=str)
async def test_a_repetition_changes_nothing(mine: Writer, calls: list[int]) -> None:
    parts = publish(mine)
    for count in calls:
        call, parts = parts[:count], parts[count:]
        assert await mine.store.append(call) == [DONE] * count
        before = await mine.store.read_state(TOPIC)
        assert await mine.store.append(again(call)) == [DONE] * count
        assert await mine.store.read_state(TOPIC) == before
    assert await mine.store.append(publish(mine, version=8)) == [DONE] * 3


async def test_a_repeated_part_of_a_publish_changes_nothing(mine: Writer) -> None:
    earlier = dataclasses.replace(mine.appending(TOPIC, b"in front"), never_sent=True)
    parts = publish(mine)
    call = [earlier, parts[0], parts[1]]
    assert await mine.store.append(call) == [DONE] * 3
    assert await mine.store.append(again(call)) == [DONE] * 3
    assert (await mine.store.read_state(TOPIC))[OPEN_PUBLISH] == f"{APP}/7 5 2 4 6"
    assert await mine.store.append(parts[2:]) == [DONE]
    assert OPEN_PUBLISH not in await mine.store.read_state(TOPIC)


@pytest.mark.parametrize("stored", [1, 2], ids=["its first block", "all but the last"])
@pytest.mark.parametrize("owner", ["broker-a", "broker-b"])
async def test_the_next_fence_drops_what_was_not_committed(
    world: World, mine: Writer, stored: int, owner: str
) -> None:
    await mine.append(TOPIC, b"before")
    parts = publish(mine)
    assert await mine.store.append(parts[:stored]) == [DONE] * stored
    version = 1 if owner == "broker-a" else 2
    successor = await writer(world, mine.store, owner=owner, version=version, ledger=6)
    assert await successor.fence(TOPIC, create=False) is DONE
    assert await positions(mine.store, TOPIC) == ["5-0", "5-1", "6-0"]
    state = await mine.store.read_state(TOPIC)
    assert OPEN_PUBLISH not in state
    assert FIELD not in state
    marker = (await mine.store.read_blocks(TOPIC, Position(6, 0), count=1))[0]
    assert isinstance(marker, Marker)
    assert marker.fields["aborted"] == f"{APP}/7"
    # The remaining blocks arrive too late, and the earlier ones have certainly been removed.
    late = await mine.store.append(parts[stored:])
    assert late == [FENCED] * (3 - stored)
    assert await mine.store.append(again(parts[:stored])) == [FENCED] * stored
    # Publish the same version again.
    assert await mine.store.append(publish(successor)) == [DONE] * 3
    assert await positions(mine.store, TOPIC) == ["5-0", "5-1", "6-0", "6-1", "6-3", "6-5"]


async def test_a_fence_keeps_what_was_committed(world: World, mine: Writer) -> None:
    assert await mine.store.append(publish(mine)) == [DONE] * 3
    successor = await writer(world, mine.store, owner="broker-b", version=2, ledger=6)
    assert await successor.fence(TOPIC, create=False) is DONE
    assert await positions(mine.store, TOPIC) == ["5-0", "5-1", "5-3", "5-5", "6-0"]
    marker = (await mine.store.read_blocks(TOPIC, Position(6, 0), count=1))[0]
    assert isinstance(marker, Marker)
    assert "aborted" not in marker.fields
    assert await mine.store.append(publish(successor)) == [STALE, HELD, HELD]


async def test_a_repeated_fence_drops_no_later_entry(mine: Writer) -> None:
    mine = Writer(mine.store, mine.binding, 6)
    assert await mine.fence(TOPIC, create=False) is DONE
    parts = publish(mine)
    assert await mine.store.append(parts[:2]) == [DONE] * 2
    assert await mine.fence(TOPIC, create=False) is DONE
    assert await mine.store.append(parts[2:]) == [DONE]
    assert await positions(mine.store, TOPIC) == ["5-0", "6-0", "6-1", "6-3", "6-5"]


@pytest.mark.parametrize("kept", [0, 1, 2, 3])
async def test_torn_file_keeps_all_of_a_joint_append_or_nothing(
    world: World, mine: Writer, kept: int
) -> None:
    marks = [world.mark()]
    for part in publish(mine):
        assert await mine.store.append([part]) == [DONE]
        marks.append(world.mark())
    world.restart(keep=marks[kept])
    fresh = world.open()
    successor = await writer(world, fresh, version=2, generation=2, ledger=6)
    assert await successor.fence(TOPIC, create=False) is DONE
    is_whole = kept == 3
    blocks = ["5-1", "5-3", "5-5"] if is_whole else []
    assert await positions(fresh, TOPIC) == ["5-0", *blocks, "6-0"]
    answers = await fresh.append(publish(successor))
    assert answers == ([STALE, HELD, HELD] if is_whole else [DONE] * 3)
    await fresh.close()


async def test_a_version_never_falls_but_can_be_forgotten(mine: Writer) -> None:
    assert await mine.store.append(publish(mine)) == [DONE] * 3
    binding, token = mine.binding, mine.token
    assert await mine.store.set_state(binding, TOPIC, token, {FIELD: "3"}) is DONE
    assert (await mine.store.read_state(TOPIC))[FIELD] == "7"
    assert await mine.store.set_state(binding, TOPIC, token, {}, [FIELD]) is DONE
    assert await mine.store.append(publish(mine, version=1)) == [DONE] * 3


@pytest.mark.parametrize(
    "name", ["", "app", "app/", "/1", "app/-1", "app/01", "a b/1", f"{'a' * 201}/1", "app/1/2"]
)
async def test_a_name_that_is_none_is_not_sent(mine: Writer, name: str) -> None:
    append = mine.appending(TOPIC, b"a")
    block = dataclasses.replace(append.block, publish=name, commits=True)
    opening = dataclasses.replace(append, block=block, opens=[block.position])
    with pytest.raises(ValueError, match="5-1"):
        await mine.store.append([opening])


async def test_blocks_that_no_reader_could_put_together_are_not_sent(mine: Writer) -> None:
    first, middle, _ = publish(mine)
    wrong = [
        dataclasses.replace(first, opens=[Position(5, 3), Position(5, 5)]),
        dataclasses.replace(first, opens=[Position(5, 1), Position(6, 3)]),
        dataclasses.replace(first, opens=[Position(5, 1)]),
        dataclasses.replace(middle, block=dataclasses.replace(middle.block, publish="")),
    ]
    wrong[-1] = dataclasses.replace(
        wrong[-1], block=dataclasses.replace(wrong[-1].block, commits=True)
    )
    for append in wrong:
        with pytest.raises(ValueError, match="5-"):
            await mine.store.append([append])
    with pytest.raises(ValueError, match="together"):
        await mine.store.append_together([first])


@pytest.mark.parametrize("cut", range(8))
async def test_a_log_can_be_trimmed_anywhere_around_what_was_dropped_and_stays_loadable(
    world: World, mine: Writer, cut: int
) -> None:
    # Small blocks: all of them share a node of the stream, in which dropped blocks leave gaps.
    for _ in range(2):
        await mine.append(TOPIC, b"before")
    assert await mine.store.append(publish(mine, 5)[:4]) == [DONE] * 4
    later = Writer(mine.store, mine.binding, 6)
    assert await later.fence(TOPIC, create=False) is DONE
    await later.append(TOPIC, b"behind")
    last = Writer(mine.store, mine.binding, 7)
    assert await last.fence(TOPIC, create=False) is DONE
    await last.append(TOPIC, b"end")
    all_of_it = ["5-0", "5-1", "5-2", "6-0", "6-1", "7-0", "7-1"]
    assert await positions(mine.store, TOPIC) == all_of_it
    before = [*map(Position.parse, all_of_it), Position(5, 4)][cut]
    token = mine.binding.token(7)
    assert await mine.store.trim(mine.binding, TOPIC, token, before, {}) is DONE
    kept = await positions(mine.store, TOPIC)
    assert kept == all_of_it[-len(kept) :]
    if isinstance(world, ServerWorld):
        key = Keys(BUCKETS).log(TOPIC)
        with redis.Redis(unix_socket_path=str(world.primary.path), protocol=2) as client:
            dumped = client.dump(key)
            assert isinstance(dumped, bytes)
            client.restore("copy", 0, dumped)
            assert client.xlen("copy") == len(kept)
    world.restart()
    fresh = world.open()
    assert await positions(fresh, TOPIC) == kept
    await fresh.close()
