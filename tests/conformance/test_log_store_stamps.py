"""The contract of LogStore: inspecting a dataset, and stamping its buckets with their owner."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from tests.conformance.log_store_worlds import World, topics_of_bucket
from tests.stamps import stamp_anew

from onewriter_broker.log.store.api import Binding, LogStore, Outcome, Unit
from onewriter_core.log_format.limits import FORMAT_VERSION

(TOPIC,) = topics_of_bucket(0, 1)


async def test_a_new_store_is_an_unstamped_primary(world: World, store: LogStore) -> None:
    for bucket in (0, 3):
        seen = await store.observe([bucket])
        assert seen.is_primary
        assert seen.replid == world.replid(bucket)
        assert seen.previous_replid == ""
        assert seen.replicas == 0
        assert seen.units == {bucket: Unit()}


async def test_a_stamp_names_the_owner_and_may_be_repeated(world: World, store: LogStore) -> None:
    binding = Binding(0, world.replid(), 2, "broker-a", 7)
    assert await stamp_anew(store, binding) is Outcome.DONE
    assert await store.stamp(binding) is Outcome.DONE
    assert (await store.observe([0])).units[0] == Unit(2, "broker-a", 7, 0, format=FORMAT_VERSION)


async def test_a_stamp_brings_no_bucket_back_that_has_no_record(
    world: World, store: LogStore
) -> None:
    binding = Binding(0, world.replid(), 2, "broker-a", 7)
    assert await store.stamp(binding) is Outcome.LOST
    assert (await store.observe([0])).units[0] == Unit()


async def test_a_first_stamp_needs_the_stored_birthmark(world: World, store: LogStore) -> None:
    binding = Binding(0, world.replid(), 1, "broker-a", 7)
    await store.write_birthmark(0, "one")
    assert (await store.observe([0])).units[0] == Unit(birthmark="one")
    assert await store.stamp(binding, birthmark="another") is Outcome.LOST
    assert await store.stamp(binding) is Outcome.LOST
    assert await store.write_audit(binding, {"event": "early"}) is Outcome.LOST
    assert await store.stamp(binding, birthmark="one") is Outcome.DONE
    assert (await store.observe([0])).units[0] == Unit(1, "broker-a", 7, 0, format=FORMAT_VERSION)
    assert await store.stamp(binding, birthmark="one") is Outcome.DONE, "a repetition"


async def test_a_first_stamp_that_arrives_after_an_emptying_is_refused(
    world: World, store: LogStore
) -> None:
    await store.write_birthmark(0, "one")
    early = Binding(0, world.replid(), 1, "broker-b", 7)
    await store.stamp(Binding(0, world.replid(), 1, "broker-a", 8), birthmark="one")
    world.flush_all()
    assert await store.stamp(early, birthmark="one") is Outcome.LOST
    await store.write_birthmark(0, "two")  # also too late
    assert await store.stamp(early, birthmark="one") is Outcome.LOST
    assert (await store.observe([0])).units[0].generation == 0


async def test_a_dataset_notes_its_own_identity_alone(world: World, store: LogStore) -> None:
    await stamp_anew(store, Binding(0, world.replid(), 2, "broker-a", 7))
    assert await store.note_replid(0, "f" * 40, 2, 3) is Outcome.REFENCE
    assert (await store.observe([0])).units[0].note == ""
    assert await store.note_replid(0, world.replid(), 2, 3) is Outcome.DONE
    seen = (await store.observe([0])).units[0]
    noted = dataclasses.replace(seen, note="")
    assert noted == Unit(2, "broker-a", 7, 0, format=FORMAT_VERSION), "nothing else changed"
    assert seen.note == f"{world.replid()}/3"


async def test_a_dataset_that_is_not_the_newest_one_is_noted_with_its_registration(
    world: World, store: LogStore
) -> None:
    await stamp_anew(store, Binding(0, world.replid(), 2, "broker-a", 7))
    assert await store.note_replid(0, "f" * 40, 2, 3, lacks=True) is Outcome.REFENCE
    assert (await store.observe([0])).units[0].lacks == 0
    assert await store.note_replid(0, world.replid(), 2, 3, lacks=True) is Outcome.DONE
    assert await store.stamp(Binding(0, world.replid(), 3, "broker-b", 8)) is Outcome.DONE
    assert await store.note_replid(0, world.replid(), 3, 4) is Outcome.DONE
    seen = (await store.observe([0])).units[0]
    assert (seen.generation, seen.lacks) == (3, 3), "it stays until the next one"


async def test_an_identity_is_noted_only_where_the_observed_record_still_is(
    world: World, store: LogStore
) -> None:
    assert await store.note_replid(0, world.replid(), 0, 1) is Outcome.DONE
    assert (await store.observe([0])).units[0] == Unit(note=f"{world.replid()}/1")
    await stamp_anew(store, Binding(0, world.replid(), 2, "broker-a", 7))
    world.flush_all()
    assert await store.note_replid(0, world.replid(), 2, 3) is Outcome.REFENCE
    assert (await store.observe([0])).units[0] == Unit()


async def test_a_note_outlives_the_identity_that_it_names(world: World, store: LogStore) -> None:
    registered = world.replid()
    await stamp_anew(store, Binding(0, registered, 2, "broker-a", 7))
    await store.note_replid(0, registered, 2, 3)
    world.restart()
    fresh = world.open()
    seen = await fresh.observe([0])
    assert seen.replid != registered
    assert seen.previous_replid == ""
    assert seen.units[0].note == f"{registered}/3"
    await fresh.close()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"version": 6}, Outcome.FENCED),
        ({"owner": "broker-b"}, Outcome.FENCED),
        ({"generation": 1, "version": 8}, Outcome.REFENCE),
        ({"replid": "f" * 40, "version": 8}, Outcome.REFENCE),
    ],
    ids=["older version", "same version, other owner", "older generation", "other dataset"],
)
async def test_a_late_stamp_replaces_nothing(
    world: World, store: LogStore, change: dict[str, Any], expected: Any
) -> None:
    binding = Binding(0, world.replid(), 2, "broker-a", 7)
    await stamp_anew(store, binding)
    assert await store.stamp(dataclasses.replace(binding, **change)) is expected
    assert (await store.observe([0])).units[0] == Unit(2, "broker-a", 7, 0, format=FORMAT_VERSION)


async def test_a_binding_of_an_earlier_registration_writes_nothing(
    world: World, store: LogStore
) -> None:
    """A forced adoption starts a new registration, whose anchor may count versions from the beginning."""
    binding = Binding(0, world.replid(), 1, "broker-a", 7)
    await stamp_anew(store, binding)
    assert await store.write_audit(binding, {"event": "before"}) is Outcome.DONE
    later = dataclasses.replace(binding, generation=2)
    assert await store.stamp(later) is Outcome.DONE
    assert await store.write_audit(binding, {"event": "late"}) is Outcome.REFENCE
    assert await store.write_audit(later, {"event": "now"}) is Outcome.DONE
