"""One bucket's ownerships over a store in memory: bounds, what is audited, and writes that fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, NoReturn

import pytest
from tests.contents import stored_in
from tests.stamps import stamp_anew

from onewriter_broker.log.appender import Appender
from onewriter_broker.log.store.api import Binding, BrokenKey, Outcome, OwnedRecord, OwnWrite
from onewriter_broker.log.store.keys import Keys
from onewriter_broker.ownership.acquisition import Holding
from onewriter_broker.ownership.bucket_events import Refenced
from onewriter_broker.resources.dependencies import (
    ResourceDependencies,
    ResourceLimits,
    WantedResource,
)
from onewriter_broker.resources.records import OwnershipRecord, decode
from onewriter_broker.resources.resource_bucket import ResourceBucket
from onewriter_core.api.topic import Durability
from onewriter_core.errors import ServerError, Unavailable, Undecided
from onewriter_core.ids import Identity
from onewriter_core.own.names import own_field
from onewriter_core.own.table import LINEAGE_BITS, Cause, Owner, OwnershipDenied, OwnershipGranted
from onewriter_testing.fake_store.server import FakeServer
from onewriter_testing.fake_store.store import FakeLogStore

FIELD = own_field("group", "resource")
ONE, TWO = Owner(Identity("one"), "", "nonce one"), Owner(Identity("two"), "", "nonce two")


class End:
    """A connection that keeps what it is told."""

    def __init__(self) -> None:
        self.is_gone = False
        self.reported: list[tuple[str, int, int | None, bool]] = []

    def ownership_lost(
        self, field: str, generation: int, message: str, *, current: int | None, is_moving: bool
    ) -> None:
        self.reported.append((field, generation, current, is_moving))


class Buckets:
    """Bucket ownership as a room sees it; what a test says of it counts."""

    def __init__(self, holding: Holding) -> None:
        self.current: Holding | None = holding
        self.following: Holding | None = None
        self.ledger = 0
        self.recorded: list[int] = []
        self.refuses_notes = 0

    def holding(self, bucket: int) -> Holding | None:
        return self.current

    async def reserve_ledger(self, bucket: int) -> int:
        self.ledger += 1
        return self.ledger

    async def record_grant(self, bucket: int, ledger: int) -> None:
        if self.refuses_notes:
            self.refuses_notes -= 1
            raise Unavailable("the anchor is away")
        self.recorded.append(ledger)

    async def record_use(self, bucket: int, ledger: int) -> None:
        return

    async def refence(
        self, bucket: int, failed: Binding, outcome: Outcome | None = None
    ) -> Refenced:
        self.current = self.following
        return Refenced.LOST if self.current is None else Refenced.REBOUND


class World:
    """A room, its store, and the appender that writes for it."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self.tasks = tasks
        self.server = FakeServer()
        self.store = FakeLogStore(lambda: self.server.primary, buckets=4)
        self.binding = Binding(0, self.server.primary.replid, 1, "broker-a", 1)
        self.buckets = Buckets(Holding(self.binding, grants_known=True, known_since=0))
        self.appender = Appender(
            self.store,
            now=lambda: 0.0,
            wall_ms=lambda: 7,
            deposed=lambda _bucket, _outcome: None,
            broken=lambda _name, _error: None,
        )
        self.deposed: list[str] = []
        self.spawned: list[asyncio.Task[None]] = []
        self.now = 0.0
        self.limits = ResourceLimits()
        self.resource_bucket = self.another()

    def limit(self, **limits: Any) -> None:
        """Give the bucket, and later ones, smaller limits."""
        self.limits = self.resource_bucket._limits = replace(self.limits, **limits)

    def another(self) -> ResourceBucket:
        return ResourceBucket(
            0,
            ResourceDependencies(
                store=self.store,
                appender=self.appender,
                ownership=self.buckets,
                spawn=lambda work: self.spawned.append(self.tasks.create_task(work)),
                now=lambda: self.now,
                wall_ms=lambda: 7,
                incarnation="broker-a",
                promises=lambda: frozenset(Durability),
                reserved_until=lambda _bucket: 3.0,
                deposed=lambda _space, field: self.deposed.append(field),
                limits=self.limits,
            ),
        )

    async def own(
        self, owner: Owner = ONE, generation: int = 1, end: End | None = None
    ) -> OwnershipGranted | OwnershipDenied:
        (answer,) = await self.resource_bucket.own(
            owner, end or End(), [WantedResource(FIELD, generation)]
        )
        return answer


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with asyncio.TaskGroup() as tasks:
        made = World(tasks)
        assert await stamp_anew(made.store, made.binding) is Outcome.DONE
        run = tasks.create_task(made.appender.run())
        yield made
        run.cancel()


async def test_a_grant_is_stored_recorded_and_audited_before_its_answer(world: World) -> None:
    assert isinstance(await world.own(), OwnershipGranted)
    record = (await world.store.read_owned(0))[FIELD]
    assert record.generation == 1
    assert json.loads(record.owner)["owner"]["nonce"] == "nonce one"
    assert world.buckets.recorded == [1]
    assert (await world.store.observe([0])).units[0].last_ledger == 1
    end = End()
    (answer,) = await world.resource_bucket.own(
        TWO, end, [WantedResource(FIELD, 0, may_reset=True)]
    )
    assert isinstance(answer, OwnershipGranted)
    audited = [fields for _, fields in await world.store.read_audit(0, count=10)]
    assert [fields["cause"] for fields in audited] == ["vacant", "reset"]
    assert audited[1]["oldGeneration"] == "1"
    assert audited[1]["generation"] == "2"
    assert audited[1]["subject"] == "two"
    assert json.loads(audited[1]["former"])["subject"] == "one"
    assert "nonce" not in str(audited)


async def test_the_deposed_holder_is_notified_and_a_proof_writes_nothing(world: World) -> None:
    former = End()
    await world.own(ONE, end=former)
    await world.own(TWO, 2)
    assert former.reported == [(FIELD, 1, 2, False)]
    assert world.deposed == [FIELD, FIELD]
    before = len(world.server.primary.history)
    answer = await world.own(TWO, 2)
    assert isinstance(answer, OwnershipGranted)
    assert answer.cause is Cause.RETURNED
    assert len(world.server.primary.history) == before


async def test_a_disconnected_owner_is_recorded_and_the_resource_is_vacant(world: World) -> None:
    end = End()
    await world.own(ONE, end=end)
    end.is_gone = True
    world.resource_bucket.left(end)
    assert not world.resource_bucket.entries[FIELD].current(0.0).is_owned
    await asyncio.gather(*world.spawned)
    kept = (await world.store.read_owned(0))[FIELD]
    assert json.loads(kept.owner)["present"] is False
    found = decode(kept, known_since=0, reserved_until=3.0)
    assert not found.current(0.0).is_owned, "no broker waits for it"


async def test_a_grant_for_a_lost_connection_has_no_owner(world: World) -> None:
    end = End()
    end.is_gone = True
    await world.own(ONE, end=end)
    assert not world.resource_bucket.entries[FIELD].current(0.0).is_owned


async def test_the_next_broker_waits_for_an_owner_that_was_there(world: World) -> None:
    await world.own(ONE)
    world.resource_bucket = world.another()
    denied = await world.own(TWO)
    assert isinstance(denied, OwnershipDenied)
    assert denied.code is ServerError.PRODUCER_BUSY
    world.now = 3.5
    taken = await world.own(TWO)
    assert isinstance(taken, OwnershipGranted)
    assert taken.after.generation == 2


async def test_records_have_a_bound(world: World) -> None:
    world.limit(records_per_bucket_max=2)
    wanted = [WantedResource(own_field("", str(number)), 1) for number in range(3)]
    answers = await world.resource_bucket.own(ONE, End(), wanted)
    assert [isinstance(answer, OwnershipGranted) for answer in answers] == [True, True, False]
    assert isinstance(answers[2], OwnershipDenied)
    assert answers[2].code is ServerError.NOT_ALLOWED_ERROR
    again = await world.resource_bucket.own(ONE, End(), wanted[:2])
    assert all(isinstance(answer, OwnershipGranted) for answer in again)


async def test_many_records_go_out_in_several_writes(world: World) -> None:
    wanted = [WantedResource(own_field("", str(number)), 1) for number in range(250)]
    answers = await world.resource_bucket.own(ONE, End(), wanted)
    assert all(isinstance(answer, OwnershipGranted) for answer in answers)
    assert len(await world.store.read_owned(0)) == 250
    assert world.buckets.recorded == [1, 2, 3]


async def test_an_undecided_write_is_repeated_and_audited_once(world: World) -> None:
    await world.resource_bucket.loaded()
    world.store.faults.fail_after = 2
    assert isinstance(await world.own(), OwnershipGranted)
    assert len(await world.store.read_audit(0, count=10)) == 1


async def test_a_grant_waits_for_the_anchor(world: World) -> None:
    world.buckets.refuses_notes = 3
    assert isinstance(await world.own(), OwnershipGranted)
    assert world.buckets.recorded == [1]


async def test_a_bucket_that_is_lost_grants_nothing(world: World) -> None:
    await world.own(ONE)
    newer = replace(world.binding, owner="broker-b", version=2)
    assert await world.store.stamp(newer) is Outcome.DONE
    with pytest.raises(Unavailable):
        await world.own(TWO, 2)
    world.buckets.current = Holding(world.binding, grants_known=True, known_since=0)
    with pytest.raises(Unavailable):
        await world.own(ONE)  # not even a proof
    assert (await world.store.read_owned(0))[FIELD].generation == 1


async def test_a_dataset_that_lost_fields_gets_them_from_memory(
    world: World,
) -> None:
    end = End()
    await world.own(ONE, end=end)
    await world.own(ONE, 7, end=end)
    rebound = replace(world.binding, generation=2, version=2)
    stored_in(world.server.primary).owned[0][FIELD] = OwnedRecord(1, "{}")
    assert await world.store.stamp(rebound) is Outcome.DONE
    world.buckets.following = Holding(rebound, grants_known=False, known_since=2)
    answer = await world.own(ONE, 7, end=end)
    assert isinstance(answer, OwnershipGranted)
    assert answer.cause is Cause.RETURNED, "its proof led to the new binding"
    assert (await world.store.read_owned(0))[FIELD].generation == 7


async def test_a_broker_that_knows_nothing_of_a_lossy_dataset_jumps(
    world: World,
) -> None:
    await world.own(ONE)
    # Whoever was granted what the store forgot may still serve.
    world.limit(quiet_seconds=0.01)
    asyncio.get_running_loop().call_later(0.01, setattr, world, "now", 1.0)
    binding = replace(world.binding, owner="broker-b", generation=3, version=2)
    assert await world.store.stamp(binding) is Outcome.DONE
    world.buckets.current = Holding(binding, grants_known=False, known_since=3)
    world.resource_bucket = world.another()
    answer = await world.own(ONE, 1)
    assert isinstance(answer, OwnershipGranted)
    assert answer.cause is Cause.VACANT
    assert answer.after.generation == (3 << LINEAGE_BITS) + 1
    fresh = await world.resource_bucket.own(ONE, End(), [WantedResource(own_field("", "fresh"), 1)])
    assert isinstance(fresh[0], OwnershipGranted)
    assert fresh[0].after.generation == (3 << LINEAGE_BITS) + 1


async def test_owners_are_sent_on_when_the_bucket_leaves(world: World) -> None:
    end = End()
    await world.own(ONE, end=end)
    world.resource_bucket.close("moving")
    assert end.reported == [(FIELD, 1, None, True)]
    with pytest.raises(Unavailable):
        await world.own(TWO)


async def test_an_overwritten_key_is_reported(world: World) -> None:
    world.server.put_foreign_key(world.server.primary, Keys(4).own(0))
    with pytest.raises(BrokenKey):
        await world.own()


async def test_a_record_that_cannot_be_read_is_nobodys_and_keeps_its_number(world: World) -> None:
    write = OwnWrite(world.binding, 1, {FIELD: OwnedRecord(9, "not JSON")})
    assert await world.store.own(write) is Outcome.DONE
    answer = await world.own()
    assert isinstance(answer, OwnershipGranted)
    assert answer.after.generation == 10


async def test_a_successor_is_answered_when_its_predecessor_serves_no_more(world: World) -> None:
    await world.own(replace(ONE, serve_seconds=2.0))
    waiting = world.tasks.create_task(world.own(TWO, 2))
    while world.resource_bucket.entries[FIELD].ownership.generation < 2:  # noqa: ASYNC110 - tells nobody
        await asyncio.sleep(0)
    assert not waiting.done()
    record = (await world.store.read_owned(0))[FIELD]
    found = decode(record, known_since=0, reserved_until=3.0, now=10.0)
    assert found.answer_at == 12.0, "the next broker lets it wait as long"
    world.now = 2.0
    async with asyncio.timeout(60.0):
        assert isinstance(await waiting, OwnershipGranted)


async def test_a_release_does_not_delay_other_calls(world: World) -> None:
    end = End()
    await world.own(replace(ONE, serve_seconds=3.0), end=end)
    await world.resource_bucket.disown(end, [WantedResource(FIELD, 1)])
    async with asyncio.timeout(60.0):  # by a clock that stands still: it would wait for ever
        assert isinstance(await world.own(TWO), OwnershipGranted)


async def lose_the_answer(world: World, owner: Owner, generation: int) -> None:
    """This owner's grant is stored; the dataset changes at once, and cannot be read yet."""
    rebound = replace(world.binding, generation=2, version=2)

    async def fail(call: str, moment: str) -> None:
        if (call, moment) == ("own", "after"):
            world.buckets.current = Holding(rebound, grants_known=True, known_since=0)
        if call == "read_owned":
            raise Undecided("the store is away")

    hook, world.store.faults.hook = world.store.faults.hook, fail
    with pytest.raises(Undecided):
        await world.own(owner, generation)
    world.store.faults.hook = hook
    assert await world.store.stamp(rebound) is Outcome.DONE


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "new"])
async def test_an_owner_whose_stored_grant_was_not_answered_may_return(
    world: World, *, is_known: bool
) -> None:
    former = End()
    await world.resource_bucket.loaded()
    if is_known:
        await world.own(ONE, end=former)
    generation = 100 if is_known else 1
    await lose_the_answer(world, TWO, generation)
    recorded = len(world.buckets.recorded)
    answer = await world.own(TWO, generation)
    assert isinstance(answer, OwnershipGranted)
    assert (answer.cause, answer.after.generation) == (Cause.RETURNED, generation)
    assert former.reported == ([(FIELD, 1, 100, False)] if is_known else [])
    assert len(world.buckets.recorded) == recorded + 1, (
        "a dataset that forgets it would be recognised"
    )
    assert len(await world.store.read_audit(0, count=10)) == 1 + is_known


async def test_other_owners_get_a_generation_above_a_stored_unanswered_grant(world: World) -> None:
    await world.own(ONE)
    await lose_the_answer(world, TWO, 2)
    answer = await world.own(replace(ONE, nonce="another life"), 2)
    assert isinstance(answer, OwnershipGranted), "nobody owns it"
    assert answer.after.generation == 3, "the number was given to another"
    assert (await world.store.read_owned(0))[FIELD].generation == 3


async def test_a_cancelled_request_leaves_no_stale_number(world: World) -> None:
    await world.own(ONE)
    begun = asyncio.Event()

    async def hold(call: str, moment: str) -> None:
        if (call, moment) == ("own", "after"):
            begun.set()

    world.store.faults.hook = hold
    asking = world.tasks.create_task(world.own(TWO, 100))
    await begun.wait()
    asking.cancel()
    await asyncio.wait([asking])
    assert asking.cancelled()
    answer = await world.own(TWO, 100)
    assert isinstance(answer, OwnershipGranted)
    assert (answer.cause, answer.after.generation) == (Cause.RETURNED, 100)


class GuardedRecords(dict[str, OwnershipRecord]):
    """Records that nobody may go through."""

    def items(self) -> NoReturn:
        pytest.fail("all records were looked at")


async def test_a_lost_connection_is_not_looked_for_in_all_records(world: World) -> None:
    stays, goes = End(), End()
    fields = [own_field("", str(number)) for number in range(4)]
    await world.resource_bucket.own(ONE, stays, [WantedResource(field, 1) for field in fields[:2]])
    await world.resource_bucket.own(TWO, goes, [WantedResource(field, 1) for field in fields[2:]])
    await world.resource_bucket.disown(goes, [WantedResource(fields[2], 1)])
    await world.resource_bucket.own(TWO, goes, [WantedResource(fields[0], 2)])
    known, world.resource_bucket.entries = (
        world.resource_bucket.entries,
        GuardedRecords(world.resource_bucket.entries),
    )
    goes.is_gone = True
    world.resource_bucket.left(goes)
    world.resource_bucket.left(goes)
    world.resource_bucket.entries = known
    assert [field for field in fields if known[field].end is stays] == [fields[1]]
    assert [field for field in fields if known[field].end is None] == [fields[0], *fields[2:]]
    assert len(world.spawned) == 1
    world.resource_bucket.close("moving")
    assert stays.reported == [(fields[0], 1, 2, False), (fields[1], 1, None, True)]
    assert goes.reported == []
