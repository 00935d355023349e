"""Records of ownerships that are dropped: who may go, what begins above them, and what failures leave."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.contents import stored_in
from tests.stamps import stamp_anew
from tests.unit.broker.resources.test_resource_bucket import (
    FIELD,
    ONE,
    TWO,
    End,
    World,
    lose_the_answer,
    world,
)

from onewriter_broker.log.store.api import Binding, Outcome, OwnedRecord
from onewriter_broker.ownership.acquisition import Holding
from onewriter_broker.resources.dependencies import WantedResource
from onewriter_core.errors import Unavailable, Undecided
from onewriter_core.ids import Identity
from onewriter_core.own.floors import GROUP_FLOORS_MAX
from onewriter_core.own.names import own_field
from onewriter_core.own.table import (
    GENERATION_ASKED_MAX,
    SERVE_SECONDS_MAX,
    Cause,
    Owner,
    OwnershipDenied,
    OwnershipGranted,
)
from onewriter_testing.fake_store.server import FakeNode

__all__ = ["world"]

TOPIC = own_field("group", "persistent://shop/default/orders")
DAY_MS = 86_400_000


def fields(count: int, *, start: int = 0) -> list[WantedResource]:
    return [WantedResource(own_field("group", f"resource-{start + n}"), 1) for n in range(count)]


async def left(
    world: World, wanted: list[WantedResource], *, days: float = 0, owner: Owner = ONE
) -> None:
    """Own every resource, and disconnect, the given number of days ago."""
    end = End()
    answers = await world.resource_bucket.own(owner, end, wanted)
    assert all(isinstance(answer, OwnershipGranted) for answer in answers)
    world.resource_bucket.left(end)
    await world.spawned[-1]
    for each in wanted:
        world.resource_bucket.entries[each.field].left_ms -= int(days * DAY_MS)
    world.now += SERVE_SECONDS_MAX


async def test_a_dropped_record_leaves_its_group_a_floor(world: World) -> None:
    for owner in (ONE, TWO, ONE):
        await left(world, [WantedResource(FIELD, 1)], owner=owner)
    assert await world.resource_bucket.drop([FIELD, own_field("group", "never owned")]) == [FIELD]
    assert FIELD not in world.resource_bucket.entries
    assert FIELD not in await world.store.read_owned(0)
    assert world.resource_bucket.floors.of("group") == 3
    answer = await world.own(TWO)
    assert isinstance(answer, OwnershipGranted)
    assert answer.after.generation == 4
    other = (
        await world.resource_bucket.own(TWO, End(), [WantedResource(own_field("group", "new"), 1)])
    )[0]
    assert isinstance(other, OwnershipGranted)
    assert other.after.generation == 4
    foreign = (
        await world.resource_bucket.own(
            TWO, End(), [WantedResource(own_field("another", "new"), 1)]
        )
    )[0]
    assert isinstance(foreign, OwnershipGranted)
    assert foreign.after.generation == 1


async def test_the_next_broker_knows_the_floor(world: World) -> None:
    await left(world, [WantedResource(FIELD, 1)])
    await world.resource_bucket.drop([FIELD])
    world.resource_bucket = world.another()
    answer = await world.own(TWO)
    assert isinstance(answer, OwnershipGranted)
    assert answer.after.generation == 2
    returning = await world.resource_bucket.own(
        ONE, End(), [WantedResource(FIELD, 1)], only_returns=True
    )
    assert isinstance(returning[0], OwnershipDenied)


async def test_owned_and_recently_left_records_stay(world: World) -> None:
    end = End()
    await world.own(end=end)
    world.now += 100
    assert await world.resource_bucket.drop([FIELD]) == []
    world.resource_bucket.left(end)
    assert (
        await world.resource_bucket.drop([FIELD]) == []
    )  # its owner may act for three seconds yet
    world.now += SERVE_SECONDS_MAX
    assert await world.resource_bucket.drop([FIELD]) == [FIELD]


async def test_a_full_bucket_drops_what_was_left_longest_ago(world: World) -> None:
    world.limit(records_per_bucket_max=6, records_per_write_max=1)
    await left(world, [WantedResource(TOPIC, 1)], days=99)
    await left(world, fields(2), days=40)
    await left(world, fields(1, start=2), days=50)
    await left(world, fields(2, start=3), days=20)
    (answer,) = await world.resource_bucket.own(TWO, End(), fields(1, start=10))
    assert isinstance(answer, OwnershipGranted)
    assert own_field("group", "resource-2") not in world.resource_bucket.entries
    assert len(world.resource_bucket.entries) == 6
    answers = await world.resource_bucket.own(TWO, End(), fields(3, start=11))
    assert [isinstance(each, OwnershipGranted) for each in answers] == [True, True, False]
    assert TOPIC in world.resource_bucket.entries, "only its group's owner reads it"
    assert own_field("group", "resource-3") in world.resource_bucket.entries, (
        "twenty days are not long"
    )
    (again,) = await world.resource_bucket.own(ONE, End(), fields(1, start=3))
    assert isinstance(again, OwnershipGranted)
    assert again.after.generation == 1


async def test_a_drop_whose_answer_is_lost_is_made_good(world: World) -> None:
    await left(world, [WantedResource(FIELD, 1)])
    world.store.faults.fail_after = 1
    with pytest.raises(Undecided):
        await world.resource_bucket.drop([FIELD])
    answer = await world.own(TWO)
    assert isinstance(answer, OwnershipGranted)
    assert answer.after.generation == 2
    assert world.resource_bucket.floors.of("group") == 1
    assert (await world.store.read_owned(0))[FIELD].generation == 2


async def test_a_dataset_that_has_forgotten_a_floor_has_it_again(world: World) -> None:
    await left(world, [WantedResource(FIELD, 1)])
    await world.resource_bucket.drop([FIELD])
    stored_in(world.server.primary).owned.clear()
    world.resource_bucket._is_unsure = True
    answer = await world.own(TWO)
    assert isinstance(answer, OwnershipGranted)
    assert answer.after.generation == 2
    assert (await world.store.read_owned(0))["\x1egroup"] == OwnedRecord(1, "")


async def fail_over(world: World, replica: FakeNode, known_since: int = 0) -> None:
    """The replica becomes the primary, and the broker lives on."""
    world.server.promote(replica)
    world.server.demote(world.server.nodes["node-0"], replica)
    await world.store.observe([0])  # it finds the new primary
    binding = Binding(0, replica.replid, 2, "broker-a", 2)
    assert await stamp_anew(world.store, binding) is Outcome.DONE
    world.buckets.current = Holding(binding, grants_known=False, known_since=known_since)


@pytest.mark.parametrize("known_since", [0, 2])
@pytest.mark.parametrize("asker", [ONE, TWO, Owner(Identity("three"), "", "nonce three")])
@pytest.mark.parametrize("chunk", [1, 100])
async def test_a_lagging_replica_restores_no_dropped_record(
    world: World, known_since: int, asker: Owner, chunk: int
) -> None:
    world.limit(records_per_write_max=chunk)
    replica = world.server.add_replica("node-1")
    other = own_field("group", "other")
    await left(world, [WantedResource(FIELD, 1), WantedResource(other, 1)])
    replica.holds_replication = True
    assert len(await world.resource_bucket.drop([FIELD, other])) == 2
    await left(world, [WantedResource(FIELD, 1)], owner=TWO)
    assert world.resource_bucket.entries[FIELD].ownership.generation == 2
    assert await world.resource_bucket.drop([FIELD]) == [FIELD]
    await fail_over(world, replica, known_since)
    await world.resource_bucket.bind()
    assert world.resource_bucket.entries == {}
    assert await world.store.read_owned(0) == {"\x1egroup": OwnedRecord(2, "")}
    dataset = stored_in(world.server.primary)
    assert dataset.units.settled(0) == 2, "so that guarded writes of former owners are over"
    answer = await world.own(asker)
    assert isinstance(answer, OwnershipGranted)
    assert answer.after.generation > 2
    assert answer.cause is Cause.VACANT


async def test_a_grant_that_was_not_answered_is_above_the_floor_and_stays(world: World) -> None:
    await left(world, [WantedResource(FIELD, 1)])
    await world.resource_bucket.drop([FIELD])
    await lose_the_answer(world, TWO, 1)
    answer = await world.own(TWO)
    assert isinstance(answer, OwnershipGranted)
    assert (answer.cause, answer.after.generation) == (Cause.RETURNED, 2)


async def test_records_named_by_the_request_are_not_dropped_for_space(world: World) -> None:
    world.limit(records_per_bucket_max=2)
    await left(world, fields(2), days=40)
    returning, new = await world.resource_bucket.own(ONE, End(), [*fields(1), *fields(1, start=9)])
    assert isinstance(returning, OwnershipGranted)
    assert (returning.cause, returning.after.generation) == (Cause.RETURNED, 1)
    assert isinstance(new, OwnershipGranted)
    assert own_field("group", "resource-1") not in world.resource_bucket.entries


async def test_a_returning_owner_drops_no_records(world: World) -> None:
    world.limit(records_per_bucket_max=2)
    await left(world, fields(2), days=40)
    await world.resource_bucket.own(TWO, End(), fields(1, start=9), only_returns=True)
    assert len(world.resource_bucket.entries) == 2


async def test_an_owner_that_was_lost_during_its_grant_counts_as_just_left(world: World) -> None:
    world.limit(records_per_bucket_max=1)
    world.resource_bucket._dependencies = replace(
        world.resource_bucket._dependencies, wall_ms=lambda: 20_000 * DAY_MS
    )
    end = End()
    end.is_gone = True
    await world.resource_bucket.own(ONE, end, [WantedResource(FIELD, 1)])
    assert await world.resource_bucket.drop([FIELD]) == []  # it may have been answered, and serve
    world.now += SERVE_SECONDS_MAX
    (answer,) = await world.resource_bucket.own(TWO, End(), fields(1))
    assert isinstance(answer, OwnershipDenied)
    assert FIELD in world.resource_bucket.entries


async def test_no_subject_keeps_the_records_of_others_for_ever(world: World) -> None:
    other, end = own_field("theirs", "resource"), End()
    for number in range(GROUP_FLOORS_MAX + 1):
        wanted = [WantedResource(own_field(f"mine-{number}", "resource"), 1)]
        await world.resource_bucket.own(ONE, end, wanted)
    highest = [WantedResource(own_field("mine-0", "resource"), GENERATION_ASKED_MAX)]
    (answer,) = await world.resource_bucket.own(TWO, end, highest)
    assert isinstance(answer, OwnershipGranted)
    (beyond,) = await world.resource_bucket.own(ONE, end, [replace(highest[0], generation=2**48)])
    assert isinstance(beyond, OwnershipDenied)
    world.resource_bucket.left(end)
    await world.spawned[-1]
    world.now += SERVE_SECONDS_MAX
    assert (
        len(await world.resource_bucket.drop(list(world.resource_bucket.entries)))
        == GROUP_FLOORS_MAX + 1
    )
    for _ in range(2):
        await left(world, [WantedResource(other, 1)])
        assert await world.resource_bucket.drop([other]) == [other]
    assert world.resource_bucket.floors.of("theirs") == GENERATION_ASKED_MAX + 2
    first, second = End(), End()
    await world.resource_bucket.own(ONE, first, [WantedResource(other, 1)])
    following = [WantedResource(other, GENERATION_ASKED_MAX + 4)]
    (taken,) = await world.resource_bucket.own(TWO, second, following)
    assert isinstance(taken, OwnershipGranted), "one above the present one may always be named"


async def test_nothing_is_dropped_while_a_broker_may_know_of_no_floors(world: World) -> None:
    world.limit(records_per_bucket_max=1)
    world.resource_bucket._dependencies = replace(
        world.resource_bucket._dependencies, may_drop=lambda: False
    )
    await left(world, [WantedResource(FIELD, 1)], days=40)
    with pytest.raises(Unavailable, match="version"):
        await world.resource_bucket.drop([FIELD])
    (answer,) = await world.resource_bucket.own(TWO, End(), fields(1))
    assert isinstance(answer, OwnershipDenied)
    assert FIELD in world.resource_bucket.entries
