"""The contract of LogStore for ownership records; the fake server and real ones keep it alike."""

from __future__ import annotations

import dataclasses

import pytest
from tests.conformance.log_store_worlds import World
from tests.stamps import stamp_anew

from onewriter_broker.log.store.api import (
    Binding,
    BrokenKey,
    LogStore,
    Outcome,
    OwnedRecord,
    OwnWrite,
)
from onewriter_broker.log.store.keys import Keys
from onewriter_core.api.topic import Durability
from onewriter_core.own.names import own_field

FIELD, OTHER = own_field("group", "resource"), own_field("", "any text, é too")
AUDIT = {"kind": "own", "resource": "resource"}


async def bound(world: World, store: LogStore) -> Binding:
    binding = Binding(0, world.replid(), 1, "broker-a", 1)
    assert await stamp_anew(store, binding) is Outcome.DONE
    return binding


async def test_records_are_set_together_with_ledger_and_audit(
    world: World, store: LogStore
) -> None:
    binding = await bound(world, store)
    records = {FIELD: OwnedRecord(1, '{"a":1}'), OTHER: OwnedRecord(2**53 - 1, "{}")}
    assert await store.own(OwnWrite(binding, 7, records, (AUDIT,))) is Outcome.DONE
    assert await store.read_owned(0) == records
    assert (await store.observe([0])).units[0].last_ledger == 7
    assert [record for _, record in await store.read_audit(0, count=10)] == [AUDIT]
    assert await store.commit(Durability.LOCAL, replid=world.replid())
    assert await store.read_owned(1) == {}


async def test_a_repeated_write_audits_once(world: World, store: LogStore) -> None:
    write = OwnWrite(await bound(world, store), 7, {FIELD: OwnedRecord(1, "{}")}, (AUDIT, AUDIT))
    assert await store.own(write) is Outcome.DONE
    assert await store.own(write) is Outcome.DONE
    assert len(await store.read_audit(0, count=10)) == 2
    again = dataclasses.replace(write, records={FIELD: OwnedRecord(2, "{}")})
    assert await store.own(again) is Outcome.DONE
    assert len(await store.read_audit(0, count=10)) == 4


async def test_a_lower_generation_is_refused_and_nothing_is_written(
    world: World, store: LogStore
) -> None:
    binding = await bound(world, store)
    await store.own(OwnWrite(binding, 1, {FIELD: OwnedRecord(5, "five")}))
    lower = {OTHER: OwnedRecord(1, "{}"), FIELD: OwnedRecord(4, "four")}
    with pytest.raises(BrokenKey, match="5"):
        await store.own(OwnWrite(binding, 2, lower, (AUDIT,)))
    assert await store.read_owned(0) == {FIELD: OwnedRecord(5, "five")}
    assert await store.read_audit(0, count=10) == []
    same = {FIELD: OwnedRecord(5, "somebody else's")}
    assert await store.own(OwnWrite(binding, 2, same)) is Outcome.DONE
    assert await store.read_owned(0) == same


async def test_the_ledger_that_counts_as_opened_never_falls(world: World, store: LogStore) -> None:
    binding = await bound(world, store)
    for ledger in (7, 3, 0):
        write = OwnWrite(binding, ledger, {FIELD: OwnedRecord(8 - ledger, "{}")})
        assert await store.own(write) is Outcome.DONE
    assert (await store.observe([0])).units[0].last_ledger == 7


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"replid": "0" * 40}, Outcome.REFENCE),
        ({"generation": 0}, Outcome.REFENCE),
        ({"owner": "broker-b"}, Outcome.FENCED),
        ({"version": 2}, Outcome.REFENCE),
        ({"bucket": 1}, Outcome.LOST),
    ],
)
async def test_only_the_bound_owner_changes_ownership_records(
    world: World, store: LogStore, change: dict[str, object], expected: Outcome
) -> None:
    binding = await bound(world, store)
    other = dataclasses.replace(binding, **change)  # type: ignore[arg-type]  # fields by name
    if other.bucket != binding.bucket:  # in a cluster, another dataset
        other = dataclasses.replace(other, replid=world.replid(other.bucket))
    for write in (OwnWrite(other, 1, {FIELD: OwnedRecord(1, "{}")}, (AUDIT,)), OwnWrite(other)):
        assert await store.own(write) is expected
    assert await store.read_owned(0) == await store.read_owned(1) == {}
    assert await store.own(OwnWrite(binding)) is Outcome.DONE, "a proof, and nothing more"


@pytest.mark.parametrize("key", [Keys.own, Keys.owners, Keys.audit])
async def test_an_overwritten_key_is_reported_and_nothing_is_written(
    world: World, store: LogStore, key: object
) -> None:
    assert callable(key)
    binding = await bound(world, store)
    world.put_foreign_key(key(Keys(4), 0))
    with pytest.raises(BrokenKey):
        await store.own(OwnWrite(binding, 1, {FIELD: OwnedRecord(1, "{}")}, (AUDIT,)))
    assert (await store.observe([0])).units[0].last_ledger == 0
    if key is not Keys.audit:
        with pytest.raises(BrokenKey):
            await store.read_owned(0)


FLOOR = "\x1egroup"
DROPPED = {"kind": "ownDropped", "records": "1"}


async def test_a_record_is_dropped_in_the_step_that_keeps_its_floor(
    world: World, store: LogStore
) -> None:
    binding = await bound(world, store)
    records = {FIELD: OwnedRecord(5, "{}"), OTHER: OwnedRecord(2, "{}")}
    await store.own(OwnWrite(binding, 1, records))
    drop = OwnWrite(binding, audits=(DROPPED,), dropped={FIELD: 5}, floors={FLOOR: 5})
    assert await store.own(drop) is Outcome.DONE
    left = {OTHER: records[OTHER], FLOOR: OwnedRecord(5, "")}
    assert await store.read_owned(0) == left
    assert await store.own(drop) is Outcome.DONE, "an attempt whose answer was lost"
    assert await store.read_owned(0) == left
    assert [record for _, record in await store.read_audit(0, count=10)] == [DROPPED]
    assert await store.commit(Durability.LOCAL, replid=world.replid())
    lower = dataclasses.replace(drop, dropped={OTHER: 2}, floors={FLOOR: 3})
    assert await store.own(lower) is Outcome.DONE
    assert await store.read_owned(0) == {FLOOR: OwnedRecord(5, "")}, "a floor never falls"
    fold = OwnWrite(
        binding, audits=(DROPPED,), floors={"\x1e\x1e": 5}, floors_removed=(FLOOR, "\x1enone")
    )
    assert await store.own(fold) is Outcome.DONE
    assert await store.read_owned(0) == {"\x1e\x1e": OwnedRecord(5, "")}


async def test_a_record_that_was_granted_since_is_not_dropped(
    world: World, store: LogStore
) -> None:
    binding = await bound(world, store)
    await store.own(OwnWrite(binding, 1, {FIELD: OwnedRecord(6, "{}")}))
    drop = OwnWrite(binding, audits=(DROPPED,), dropped={OTHER: 1, FIELD: 5}, floors={FLOOR: 5})
    with pytest.raises(BrokenKey, match="6"):
        await store.own(drop)
    others = (
        dataclasses.replace(binding, owner="broker-b"),
        dataclasses.replace(binding, version=2),
        dataclasses.replace(binding, replid="0" * 40),
    )
    for other in others:
        zombie = dataclasses.replace(drop, binding=other, dropped={FIELD: 6}, floors={FLOOR: 6})
        assert await store.own(zombie) in {Outcome.FENCED, Outcome.REFENCE}
    assert await store.read_owned(0) == {FIELD: OwnedRecord(6, "{}")}
    assert await store.read_audit(0, count=10) == []
    world.put_foreign_key(Keys(4).audit(0))
    with pytest.raises(BrokenKey):
        await store.own(dataclasses.replace(drop, dropped={FIELD: 6}))
    assert await store.read_owned(0) == {FIELD: OwnedRecord(6, "{}")}
