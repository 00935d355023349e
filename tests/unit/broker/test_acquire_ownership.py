"""Taking, keeping, losing and giving back buckets: brokers over one anchor and one store in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from onewriter_broker.anchor.api import Addresses, Record, Versioned
from onewriter_broker.anchor.memory import MemoryAnchor
from onewriter_broker.log.api import Binding, Fence, FencedLog, Outcome
from onewriter_broker.log.memory import MemoryLogStore
from onewriter_broker.log.memory_server import MemoryServer
from onewriter_broker.ownership import buckets as buckets_module
from onewriter_broker.ownership.adoption import LEDGERS_PER_BLOCK, Reason
from onewriter_broker.ownership.bucket_events import LostReason, Refenced
from onewriter_broker.ownership.buckets import BucketOwnership
from onewriter_broker.ownership.claims import (
    CLAIM_ATTEMPTS_MAX,
    BucketRefused,
    Forced,
    Holding,
    adopt_force,
)
from onewriter_broker.ownership.leaving import NOTICE_SECONDS, STAY_SECONDS_MAX, leave
from onewriter_broker.ownership.membership import Membership
from onewriter_broker.ownership.placement import LiveView
from onewriter_core.errors import Unavailable, Undecided
from onewriter_core.ids import NUMBER_MAX, TopicName, bucket_of

BUCKETS = 8
TOPIC = next(
    name for n in range(1000) if bucket_of(name := TopicName.parse(f"topic-{n}"), BUCKETS) == 0
)

pytestmark = pytest.mark.looptime


class Events:
    """What an application was told, in order; its topics come to rest at once unless held up."""

    def __init__(self) -> None:
        self.story: list[tuple[str, int]] = []
        self.holdings: dict[int, Holding] = {}
        self.reasons: list[LostReason] = []
        self.drain_seconds = 0.0

    def bucket_acquired(self, bucket: int, holding: Holding) -> None:
        self.story.append(("acquired", bucket))
        self.holdings[bucket] = holding

    def bucket_lost(self, bucket: int, reason: LostReason) -> None:
        self.story.append(("lost", bucket))
        self.reasons.append(reason)
        del self.holdings[bucket]

    def dataset_changed(self, bucket: int, holding: Holding) -> None:
        self.story.append(("changed", bucket))
        self.holdings[bucket] = holding

    async def drain(self, bucket: int) -> None:
        await asyncio.sleep(self.drain_seconds)
        self.story.append(("drained", bucket))


@dataclass
class World:
    """One anchor, one store, any number of brokers."""

    anchor: MemoryAnchor = field(default_factory=MemoryAnchor)
    server: MemoryServer = field(default_factory=MemoryServer)
    view: LiveView | None = field(default_factory=lambda: LiveView(complete=True))
    stores: dict[str, MemoryLogStore] = field(default_factory=dict)
    events: dict[str, Events] = field(default_factory=dict)

    def broker(
        self,
        me: str = "broker-0~a",
        *,
        single_node: bool = True,
        live_view: Callable[[], LiveView | None] | None = None,
        wake: asyncio.Event | None = None,
        heard_ms: Callable[[str], int | None] = lambda _: None,
    ) -> BucketOwnership:
        self.stores[me] = MemoryLogStore(self.server.resolve, buckets=BUCKETS)
        self.events[me] = Events()
        return BucketOwnership(
            me=me,
            addresses=addresses(me),
            buckets=BUCKETS,
            anchor=self.anchor,
            store=self.stores[me],
            events=self.events[me],
            single_node=single_node,
            live_view=live_view or (lambda: self.view),
            wake=wake,
            heard_ms=heard_ms,
            randomness=random.Random(1),
        )

    async def record(self, bucket: int = 0) -> Record:
        return (await self.anchor.read(bucket)).record

    async def change(self, change: Callable[[Record], Record], bucket: int = 0) -> None:
        """Somebody else changes the record."""
        current = await self.anchor.read(bucket)
        assert await self.anchor.compare_and_set(bucket, current.version, change(current.record))

    async def grant(self, broker: BucketOwnership, me: str = "broker-0~a") -> int:
        """Fence a topic of bucket 0 and record use and grant, as who serves it does."""
        holding = broker.holding(0)
        assert holding is not None
        ledger = await broker.reserve_ledger(0)
        logs = (FencedLog(TOPIC, create=True, marker={"n": "x"}, state={}),)
        outcome = await self.stores[me].fence(Fence(holding.binding, ledger, logs, {"kind": "g"}))
        assert outcome is Outcome.DONE
        await broker.record_use(0, ledger)
        await broker.record_grant(0, ledger)
        return ledger


def addresses(me: str) -> Addresses:
    return Addresses(f"pulsar://{me}", f"http://{me}")


@pytest.fixture
def world() -> World:
    return World()


@asynccontextmanager
async def running(*work: Coroutine[Any, Any, None]) -> AsyncIterator[list[asyncio.Task[None]]]:
    async with asyncio.TaskGroup() as tasks:
        started = [tasks.create_task(one) for one in work]
        try:
            yield started
        finally:
            for task in started:
                task.cancel()


# Acquire.


async def test_a_new_bucket_is_registered_stamped_and_announced(world: World) -> None:
    broker = world.broker()
    holding = await broker.acquire(0)
    assert holding is not None
    assert await world.record() == Record(
        generation=1,
        replid=world.server.primary.replid,
        owner="broker-0~a",
        addresses=addresses("broker-0~a"),
        ledger_high_water=LEDGERS_PER_BLOCK,
    )
    unit = world.server.primary.dataset.units[0]
    assert (unit.owner, unit.generation, unit.version) == ("broker-0~a", 1, 1)
    assert holding.grants_known
    assert holding.may_resume(1)
    assert world.events["broker-0~a"].story == [("acquired", 0)]
    assert broker.held() == {0: holding}
    assert await broker.acquire(0) == holding, "asking again changes nothing"


async def test_the_anchor_is_read_before_the_store_and_written_before_the_stamp(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    broker = world.broker()
    store = world.stores["broker-0~a"]

    def note(owner: object, name: str) -> None:
        original = getattr(owner, name)

        async def noted(*arguments: object, **options: object) -> object:
            steps.append(name)
            return await original(*arguments, **options)

        monkeypatch.setattr(owner, name, noted)

    note(world.anchor, "read")
    note(world.anchor, "compare_and_set")
    note(store, "observe")
    note(store, "bear")
    note(store, "stamp")
    await broker.acquire(0)
    assert steps == ["read", "observe", "bear", "observe", "compare_and_set", "stamp"]
    await broker.give_back(0)
    steps.clear()
    await broker.acquire(0)
    assert steps == ["read", "observe", "compare_and_set", "stamp"], "it has its record"


async def test_a_live_broker_s_bucket_is_not_taken(world: World) -> None:
    await world.broker("broker-1~x").acquire(0)
    world.view = LiveView(alive=frozenset({"broker-1"}), complete=True)
    broker = world.broker()
    assert await broker.acquire(0) is None
    assert broker.held() == {}
    assert (await world.record()).owner == "broker-1~x"


async def test_while_the_store_is_away_nothing_is_taken(world: World) -> None:
    world.view = None
    with pytest.raises(Unavailable, match="store is away"):
        await world.broker().acquire(0)


async def test_of_brokers_that_race_for_a_bucket_one_gets_it(world: World) -> None:
    brokers = [world.broker(f"broker-{n}~x") for n in range(5)]
    world.view = LiveView(alive=frozenset(f"broker-{n}" for n in range(5)), complete=True)
    holdings = await asyncio.gather(*(broker.acquire(0) for broker in brokers))
    winners = [n for n, holding in enumerate(holdings) if holding is not None]
    assert len(winners) == 1
    assert world.server.primary.dataset.units[0].owner == f"broker-{winners[0]}~x"


async def test_a_lost_compare_and_set_starts_over_from_the_anchor(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, races = world.anchor.compare_and_set, [1, 2]

    async def raced(bucket: int, version: int, record: Record) -> int | None:
        if races:
            races.pop()
            await original(bucket, version, Record(owner="", ledger_high_water=100 * version + 100))
        return await original(bucket, version, record)

    monkeypatch.setattr(world.anchor, "compare_and_set", raced)
    broker = world.broker()
    assert await broker.acquire(0) is not None
    assert await broker.reserve_ledger(0) == 201, "above what the others reserved"


async def test_a_race_lost_again_and_again_is_put_off(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(bucket: int, version: int, record: Record) -> int | None:
        return None

    monkeypatch.setattr(world.anchor, "compare_and_set", lost)
    with pytest.raises(Unavailable, match="could not be taken yet"):
        await world.broker().acquire(0)


async def test_a_takeover_that_broke_off_before_the_stamp_is_finished_by_the_next(
    world: World,
) -> None:
    broker = world.broker()
    store = world.stores["broker-0~a"]

    async def break_off(call: str, moment: str) -> None:
        if call == "stamp":
            store.faults.is_cut_off = True

    store.faults.hook = break_off
    with pytest.raises(Undecided):
        await broker.acquire(0)
    assert broker.held() == {}
    assert (await world.record()).owner == "broker-0~a"

    other = world.broker("broker-1~x")
    assert await other.acquire(0) is not None
    assert await other.reserve_ledger(0) == LEDGERS_PER_BLOCK + 1, "the lost block is thrown away"


async def test_a_stamp_without_an_answer_is_repeated(world: World) -> None:
    broker = world.broker()
    store = world.stores["broker-0~a"]
    stamps = []

    async def fail_once(call: str, moment: str) -> None:
        if call == "stamp" and moment == "after":
            stamps.append(call)
            if len(stamps) == 1:
                raise Undecided("no answer")

    store.faults.hook = fail_once
    assert await broker.acquire(0) is not None
    assert len(stamps) == 2
    assert (await world.record()).ledger_high_water == LEDGERS_PER_BLOCK, "one claim, one block"


async def test_a_store_that_changes_during_the_takeover_is_looked_at_again(world: World) -> None:
    broker = world.broker()
    restarts = [1]

    async def restart_before_stamp(call: str, moment: str) -> None:
        if call == "stamp" and moment == "before" and restarts:
            restarts.pop()
            world.server.renew_identity(world.server.primary)

    world.stores["broker-0~a"].faults.hook = restart_before_stamp
    holding = await broker.acquire(0)
    assert holding is not None
    assert holding.binding.replid == world.server.primary.replid
    assert holding.binding.generation == 2


# Ledgers.


async def test_ledgers_rise_without_a_gap_and_blocks_are_refilled(world: World) -> None:
    broker = world.broker()
    await broker.acquire(0)
    taken = [await broker.reserve_ledger(0) for _ in range(3 * LEDGERS_PER_BLOCK)]
    assert taken == list(range(1, 3 * LEDGERS_PER_BLOCK + 1))


async def test_a_block_is_refilled_at_half_in_the_background(world: World) -> None:
    broker = world.broker()
    async with running(broker.run()):
        await asyncio.sleep(1)
        for _ in range(LEDGERS_PER_BLOCK // 2 + 1):
            await broker.reserve_ledger(0)
        await asyncio.sleep(0.5)
        assert (await world.record()).ledger_high_water == 2 * LEDGERS_PER_BLOCK


async def test_a_claim_knows_when_the_former_owner_was_heard_of_last(world: World) -> None:
    await world.broker().acquire(0)
    heard = {"broker-0~a": 5_000}
    holding = await world.broker("broker-1~x", heard_ms=heard.get).acquire(0)
    assert holding is not None
    assert holding.heard_ms == 5_000


async def test_with_the_anchor_away_the_reserved_block_still_serves(world: World) -> None:
    broker = world.broker()
    await broker.acquire(0)
    world.anchor.reachable = False
    for _ in range(LEDGERS_PER_BLOCK):
        await broker.reserve_ledger(0)
    with pytest.raises(Unavailable):
        await broker.reserve_ledger(0)
    world.anchor.reachable = True
    assert await broker.reserve_ledger(0) == LEDGERS_PER_BLOCK + 1


async def test_what_is_left_of_a_block_ends_with_the_ownership(world: World) -> None:
    broker = world.broker()
    await broker.acquire(0)
    await broker.reserve_ledger(0)
    await broker.give_back(0)
    await broker.acquire(0)
    assert await broker.reserve_ledger(0) == LEDGERS_PER_BLOCK + 1


async def test_a_bucket_that_is_not_held_has_no_ledgers(world: World) -> None:
    with pytest.raises(Unavailable, match="not served here"):
        await world.broker().reserve_ledger(0)


async def test_used_up_numbers_are_refused_not_reused(world: World) -> None:
    broker = world.broker()
    await world.change(lambda record: replace(record, ledger_high_water=NUMBER_MAX - 70))
    await broker.acquire(0)
    for _ in range(LEDGERS_PER_BLOCK):
        assert await broker.reserve_ledger(0) <= NUMBER_MAX
    with pytest.raises(Unavailable, match="used up"):
        await broker.reserve_ledger(0)


async def test_the_newest_ledger_is_known(world: World) -> None:
    broker = world.broker()
    await broker.acquire(0)
    first = await broker.reserve_ledger(0)
    assert broker.is_newest_ledger(0, first)
    await broker.reserve_ledger(0)
    assert not broker.is_newest_ledger(0, first)
    assert not broker.is_newest_ledger(1, first)


# Grants.


async def test_a_grant_is_recorded_before_it_may_be_answered(world: World) -> None:
    broker = world.broker()
    await broker.acquire(0)
    ledger = await world.grant(broker)
    assert (await world.record()).last_ledger == ledger


async def test_grants_that_come_together_share_a_write(world: World) -> None:
    broker = world.broker()
    await broker.acquire(0)
    before = (await world.anchor.read(0)).version
    await asyncio.gather(*(broker.record_grant(0, ledger) for ledger in range(1, 21)))
    after = await world.anchor.read(0)
    assert after.record.last_ledger == 20
    assert after.version <= before + 2


async def test_a_grant_that_cannot_be_recorded_is_not_answered(world: World) -> None:
    broker = world.broker()
    await broker.acquire(0)
    world.anchor.reachable = False
    with pytest.raises(Unavailable):
        await broker.record_grant(0, 1)
    world.anchor.reachable = True
    await broker.record_grant(0, 1)
    assert (await world.record()).last_ledger == 1


async def test_whether_a_grant_can_be_recorded_is_asked_only_in_doubt(world: World) -> None:
    broker = await acquired(world)
    before = (await world.anchor.read(0)).version
    await broker.confirm_record(0)
    assert (await world.anchor.read(0)).version == before
    world.anchor.reachable = False
    await broker.confirm_record(0)  # nobody has noticed yet
    async with asyncio.TaskGroup() as tasks:
        await broker.place_once(tasks)
    with pytest.raises(Unavailable):
        await broker.confirm_record(0)
    world.anchor.reachable = True
    await broker.confirm_record(0)
    world.anchor.reachable = False
    await broker.confirm_record(0)


async def test_who_records_no_grants_has_no_doubts(world: World) -> None:
    world.anchor = MemoryAnchor(records_every_grant=False)
    broker = await acquired(world)
    world.anchor.reachable = False
    async with asyncio.TaskGroup() as tasks:
        await broker.place_once(tasks)
    await broker.confirm_record(0)


async def test_an_anchor_that_wants_no_grants_is_left_alone(world: World) -> None:
    world.anchor = MemoryAnchor(records_every_grant=False)
    broker = world.broker()
    await broker.acquire(0)
    await broker.record_grant(0, 7)
    assert (await world.record()).last_ledger == 0
    await broker.give_back(0)
    record = await world.record()
    assert (record.last_ledger, record.clean) == (7, True)


async def test_an_owner_learns_from_its_grant_that_the_bucket_was_taken(world: World) -> None:
    broker = world.broker()
    await broker.acquire(0)
    await world.broker("broker-1~x").acquire(0)
    with pytest.raises(Unavailable, match="taken by 'broker-1~x'"):
        await broker.record_grant(0, 1)
    assert broker.held() == {}
    assert world.events["broker-0~a"].reasons == [LostReason.TAKEN]


async def test_a_write_that_happened_without_an_answer_is_found_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = world.broker()
    await broker.acquire(0)
    original, failures = world.anchor.compare_and_set, [1]

    async def unanswered(bucket: int, version: int, record: Record) -> int | None:
        answer = await original(bucket, version, record)
        if failures:
            failures.pop()
            raise Unavailable("no answer")
        return answer

    monkeypatch.setattr(world.anchor, "compare_and_set", unanswered)
    with pytest.raises(Unavailable, match="no answer"):
        await broker.record_grant(0, 1)
    await broker.record_grant(0, 2)
    assert (await world.record()).last_ledger == 2
    assert 0 in broker.held()


# A changed dataset.


async def test_after_a_restart_that_kept_everything_holders_may_resume(world: World) -> None:
    await world.grant(await acquired(world))
    world.server.restart(world.server.primary)
    holding = await world.broker("broker-0~b").acquire(0)
    assert holding is not None
    assert holding.grants_known
    assert holding.may_resume(1)
    assert holding.binding.generation == 2


async def test_after_a_torn_restart_nobody_resumes_under_any_later_owner(world: World) -> None:
    await world.grant(await acquired(world))
    node = world.server.primary
    world.server.restart(node, keep=len(node.history) - 1)
    torn = await world.broker("broker-0~b").acquire(0)
    assert torn is not None
    assert not torn.grants_known
    assert not torn.may_resume(1)
    assert torn.may_resume(2)

    later = await world.broker("broker-0~c").acquire(0)
    assert later is not None
    assert later.grants_known, "nothing more was lost"
    assert not later.may_resume(1), "but what was lost stays lost"

    world.server.restart(node)
    restarted = await world.broker("broker-0~d").acquire(0)
    assert restarted is not None
    assert not restarted.may_resume(1)
    assert restarted.may_resume(2)


async def test_without_recorded_grants_only_a_clean_release_lets_holders_resume(
    world: World,
) -> None:
    world.anchor = MemoryAnchor(records_every_grant=False)
    first = await acquired(world)
    await world.grant(first)
    await first.give_back(0)
    world.server.restart(world.server.primary)
    second = world.broker("broker-0~b")
    holding = await second.acquire(0)
    assert holding is not None
    assert holding.may_resume(1)

    world.server.restart(world.server.primary)  # the second owner crashed: no clean release
    holding = await world.broker("broker-0~c").acquire(0)
    assert holding is not None
    assert not holding.may_resume(2)


async def test_a_lagging_replica_s_promotion_is_adopted_and_its_loss_known(world: World) -> None:
    replica = world.server.add_replica("node-1")
    broker = world.broker(single_node=False)
    await broker.acquire(0)
    replica.holds_replication = True
    await world.grant(broker)
    world.server.promote(replica)
    holding = await world.broker("broker-1~x", single_node=False).acquire(0)
    assert holding is not None
    assert not holding.grants_known


async def acquired(world: World, *, single_node: bool = True) -> BucketOwnership:
    broker = world.broker(single_node=single_node)
    assert await broker.acquire(0) is not None
    return broker


async def test_a_foreign_dataset_is_refused_until_it_is_forced(world: World) -> None:
    await world.grant(await acquired(world, single_node=False))
    stranger = world.server.add_primary("stranger")
    world.server.primary = stranger
    successor = world.broker("broker-1~x", single_node=False)
    with pytest.raises(BucketRefused) as refused:
        await successor.acquire(0)
    assert refused.value.verdict.reason is Reason.EMPTY_DATASET

    assert await force(world) == Forced(0, 2, stranger.replid)
    assert (await world.record()).owner == ""
    holding = await successor.acquire(0)
    assert holding is not None
    assert not holding.may_resume(1)
    store = world.stores["broker-1~x"]
    ((_, audit),) = await store.read_audit(0, count=10)
    assert audit == {
        "kind": "adopt",
        "reason": "the disk is gone",
        "by": "operator",
        "verdict": "empty-dataset",
        "generation": "2",
        "replid": stranger.replid,
        "previous_replid": world.server.nodes["node-0"].replid,
        "time": "1700000000000",
    }


async def force(world: World, *, single_node: bool = False) -> Forced:
    return await adopt_force(
        0,
        anchor=world.anchor,
        store=MemoryLogStore(world.server.resolve, buckets=BUCKETS),
        operator="operator",
        reason="the disk is gone",
        time_ms=1_700_000_000_000,
        single_node=single_node,
    )


async def test_force_does_nothing_to_a_bucket_that_is_well(world: World) -> None:
    broker = await acquired(world)
    before = await world.anchor.read(0)
    assert "nothing to force" in (await force(world)).problem
    assert await world.anchor.read(0) == before
    await world.grant(broker)


async def test_force_that_loses_a_race_says_so(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.grant(await acquired(world))
    world.server.flush_all(world.server.primary)

    async def lost(bucket: int, version: int, record: Record) -> int | None:
        return None

    monkeypatch.setattr(world.anchor, "compare_and_set", lost)
    assert "somebody else" in (await force(world)).problem


async def test_a_store_of_another_anchor_is_not_registered(world: World) -> None:
    await acquired(world)
    world.anchor = MemoryAnchor()
    with pytest.raises(BucketRefused, match="an anchor that is not this one"):
        await world.broker("broker-0~b").acquire(0)


async def test_force_binds_a_store_to_a_new_anchor(world: World) -> None:
    broker = await acquired(world)
    for _ in range(5):
        await world.grant(broker)
    lost_anchor, world.anchor = world.anchor, MemoryAnchor()
    assert (await force(world)).problem == ""
    successor = world.broker("broker-0~b")
    holding = await successor.acquire(0)
    assert holding is not None
    assert holding.binding.version < (await lost_anchor.read(0)).version
    assert await successor.reserve_ledger(0) == 6, "above what the store has seen"
    assert not holding.may_resume(1)


async def test_an_anchor_restored_from_a_backup_is_put_off_then_named(world: World) -> None:
    await acquired(world)
    world.server.renew_identity(world.server.primary)
    backup = await world.record()
    await world.broker("broker-0~b").acquire(0)
    await world.change(lambda _: backup)
    with pytest.raises(Unavailable, match="restored from a backup"):
        await world.broker("broker-0~c").acquire(0)


# Refused writes and reconnects.


async def test_after_a_mere_reconnect_the_owner_goes_on_without_the_anchor(world: World) -> None:
    broker = await acquired(world)
    world.anchor.reachable = False
    world.server.primary.drop_connections()
    assert await broker.refence(0, binding(broker)) is Refenced.KEPT


async def test_a_refused_write_on_an_unchanged_dataset_keeps_the_binding(world: World) -> None:
    broker = await acquired(world)
    before = await world.anchor.read(0)
    assert await broker.refence(0, binding(broker), Outcome.REFENCE) is Refenced.KEPT
    assert await world.anchor.read(0) == before, "no write to the anchor"


async def test_a_changed_dataset_is_adopted_in_place(world: World) -> None:
    broker = await acquired(world)
    old = binding(broker)
    await world.grant(broker)
    world.server.renew_identity(world.server.primary)
    assert await broker.refence(0, old, Outcome.REFENCE) is Refenced.REBOUND
    events = world.events["broker-0~a"]
    assert events.story == [("acquired", 0), ("changed", 0)]
    assert events.holdings[0] == broker.holding(0)
    assert events.holdings[0].may_resume(1)
    assert await broker.reserve_ledger(0) == LEDGERS_PER_BLOCK + 1
    assert await broker.refence(0, old, Outcome.REFENCE) is Refenced.REBOUND, "told once more"
    assert events.story == [("acquired", 0), ("changed", 0)]


async def test_the_continuing_owner_s_memory_tells_whether_grants_were_lost(world: World) -> None:
    world.anchor = MemoryAnchor(records_every_grant=False)
    broker = await acquired(world)
    await world.grant(broker)
    node = world.server.primary
    world.server.restart(node)
    await settled(broker)
    kept = broker.holding(0)
    assert kept is not None
    assert kept.grants_known
    await world.grant(broker)
    world.server.restart(node, keep=len(node.history) - 1)
    await settled(broker)
    torn = broker.holding(0)
    assert torn is not None
    assert not torn.grants_known


async def settled(broker: BucketOwnership) -> None:
    assert await broker.refence(0, binding(broker), Outcome.REFENCE) is Refenced.REBOUND


async def test_a_bucket_that_was_taken_is_lost(world: World) -> None:
    broker = await acquired(world)
    old = binding(broker)
    await world.broker("broker-1~x").acquire(0)
    assert await broker.refence(0, old, Outcome.FENCED) is Refenced.LOST
    assert world.events["broker-0~a"].reasons == [LostReason.TAKEN]
    assert await broker.refence(0, old, Outcome.FENCED) is Refenced.LOST


@pytest.mark.parametrize("every_grant", [True, False])
async def test_a_first_owner_that_ended_before_its_first_stamp_is_in_nobodys_way(
    world: World, monkeypatch: pytest.MonkeyPatch, *, every_grant: bool
) -> None:
    world.anchor = MemoryAnchor(records_every_grant=every_grant)

    async def unanswered(*_: object, **__: object) -> Outcome:
        raise Undecided("no answer")

    first = world.broker()
    monkeypatch.setattr(world.stores["broker-0~a"], "stamp", unanswered)
    with pytest.raises(Undecided):
        await first.acquire(0)
    assert (await world.record()).owner == "broker-0~a"
    assert await world.broker("broker-0~b").acquire(0) is not None


async def test_a_bucket_in_use_that_was_emptied_is_refused_on_every_anchor(world: World) -> None:
    world.anchor = MemoryAnchor(records_every_grant=False)
    await world.grant(await acquired(world))
    world.server.flush_all(world.server.primary)
    with pytest.raises(BucketRefused):
        await world.broker("broker-0~b").acquire(0)


async def test_a_registration_under_way_is_not_taken_for_a_takeover(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record names the next generation from the compare-and-set on, the holding from the stamp."""
    broker = await acquired(world)
    ledger = await world.grant(broker)
    old = binding(broker)
    world.server.restart(world.server.primary)
    store = world.stores["broker-0~a"]
    stamp, may_stamp = store.stamp, asyncio.Event()

    async def slow(given: Binding, *, birthmark: str = "") -> Outcome:
        await may_stamp.wait()
        return await stamp(given, birthmark=birthmark)

    monkeypatch.setattr(store, "stamp", slow)
    world.view = None  # the loop reads, but plans nothing
    async with asyncio.TaskGroup() as tasks:
        refencing = tasks.create_task(broker.refence(0, old))
        await asyncio.sleep(1)
        assert (await world.record()).generation == old.generation + 1
        await broker.place_once(tasks)
        with pytest.raises(Unavailable, match="registered anew"):
            await broker.record_grant(0, ledger + 1)
        assert 0 in broker.held()
        may_stamp.set()
    assert refencing.result() is Refenced.REBOUND
    assert binding(broker).generation == old.generation + 1
    assert world.events["broker-0~a"].reasons == []


async def test_a_registration_that_broke_off_is_taken_up_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await acquired(world)
    await world.grant(broker)
    old = binding(broker)
    world.server.restart(world.server.primary)
    store = world.stores["broker-0~a"]
    stamp, left = store.stamp, [2 * CLAIM_ATTEMPTS_MAX]

    async def mostly_unanswered(given: Binding, *, birthmark: str = "") -> Outcome:
        left[0] -= 1
        if left[0] > 0:
            raise Undecided("no answer")
        return await stamp(given, birthmark=birthmark)

    monkeypatch.setattr(store, "stamp", mostly_unanswered)
    assert await broker.refence(0, old) is Refenced.REBOUND
    assert world.events["broker-0~a"].reasons == []


async def test_a_dataset_that_was_left_is_not_gone_back_to(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record names the promoted replica, though its stamp never arrived; the old primary is back."""
    old, replica = world.server.primary, world.server.add_replica("node-1")
    broker = await acquired(world, single_node=False)
    await world.grant(broker)
    before = binding(broker)
    world.server.promote(replica)
    old.drop_connections()

    async def unanswered(*_: object, **__: object) -> Outcome:
        world.server.primary = old
        replica.drop_connections()
        raise Undecided("no answer")

    monkeypatch.setattr(world.stores["broker-0~a"], "stamp", unanswered)
    assert await broker.refence(0, before) is Refenced.LOST
    assert (await world.record()).generation == before.generation + 1
    assert world.events["broker-0~a"].reasons == [LostReason.DATASET_REFUSED]
    assert "an earlier dataset" in broker.waiting_reason(0)


async def test_a_bucket_that_is_given_back_is_not_taken_by_anybody(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All records are read when its release is written, and before its broker hears of that."""
    broker = await acquired(world)
    write = world.anchor.compare_and_set

    async def and_look(bucket: int, version: int, record: Record) -> int | None:
        written = await write(bucket, version, record)
        async with asyncio.TaskGroup() as tasks:
            await broker.place_once(tasks)
        return written

    monkeypatch.setattr(world.anchor, "compare_and_set", and_look)
    await broker.give_back(0)
    assert world.events["broker-0~a"].reasons == [LostReason.GIVEN_BACK]


async def test_after_flushall_the_bucket_is_lost_loudly(world: World) -> None:
    broker = await acquired(world)
    await world.grant(broker)
    world.server.flush_all(world.server.primary)
    assert await broker.refence(0, binding(broker), Outcome.LOST) is Refenced.LOST
    assert world.events["broker-0~a"].reasons == [LostReason.DATASET_REFUSED]
    assert "holds nothing of bucket 0" in broker.waiting_reason(0)


async def test_after_flushall_a_bucket_that_granted_nothing_is_stamped_again(world: World) -> None:
    broker = await acquired(world)
    world.server.flush_all(world.server.primary)
    assert await broker.refence(0, binding(broker), Outcome.LOST) is Refenced.REBOUND
    assert world.server.primary.dataset.units[0].owner == "broker-0~a"


async def test_a_fenced_owner_asks_the_anchor_and_waits_visibly_while_it_is_away(
    world: World,
) -> None:
    broker = await acquired(world)
    world.anchor.reachable = False
    async with asyncio.TaskGroup() as tasks:
        answer = tasks.create_task(broker.refence(0, binding(broker), Outcome.FENCED))
        await asyncio.sleep(10)
        assert not answer.done()
        assert "anchor cannot be reached" in broker.waiting_reason(0)
        world.anchor.reachable = True
    assert answer.result() is Refenced.KEPT
    assert broker.waiting_reason(0) == ""


async def test_with_the_anchor_away_a_changed_dataset_waits(world: World) -> None:
    broker = await acquired(world)
    world.anchor.reachable = False
    world.server.renew_identity(world.server.primary)
    async with asyncio.TaskGroup() as tasks:
        answer = tasks.create_task(broker.refence(0, binding(broker), Outcome.REFENCE))
        await asyncio.sleep(10)
        assert not answer.done()
        world.anchor.reachable = True
    assert answer.result() is Refenced.REBOUND


async def test_topics_that_are_refused_together_share_one_answer(world: World) -> None:
    broker = await acquired(world)
    old = binding(broker)
    world.server.renew_identity(world.server.primary)
    answers = await asyncio.gather(*(broker.refence(0, old, Outcome.REFENCE) for _ in range(20)))
    assert answers == [Refenced.REBOUND] * 20
    assert world.events["broker-0~a"].story == [("acquired", 0), ("changed", 0)]


async def test_when_the_one_that_asks_is_cancelled_another_takes_over(world: World) -> None:
    broker = await acquired(world)
    world.anchor.reachable = False
    async with asyncio.TaskGroup() as tasks:
        first, second = (
            tasks.create_task(broker.refence(0, binding(broker), Outcome.FENCED)) for _ in range(2)
        )
        await asyncio.sleep(1)
        first.cancel()
        await asyncio.sleep(1)
        world.anchor.reachable = True
    assert second.result() is Refenced.KEPT


def binding(broker: BucketOwnership) -> Any:
    holding = broker.holding(0)
    assert holding is not None
    return holding.binding


# Giving back.


async def test_giving_back_drains_first_and_leaves_the_bucket_free(world: World) -> None:
    broker = await acquired(world)
    ledger = await world.grant(broker)
    await broker.give_back(0)
    record = await world.record()
    assert (record.owner, record.clean, record.last_ledger) == ("", True, ledger)
    assert record.addresses == Addresses()
    events = world.events["broker-0~a"]
    assert events.story == [("acquired", 0), ("drained", 0), ("lost", 0)]
    assert events.reasons == [LostReason.GIVEN_BACK]
    world.view = LiveView(alive=frozenset({"broker-0"}), complete=True)
    assert await world.broker("broker-1~x").acquire(0) is not None


async def test_while_it_drains_no_more_ledgers_are_handed_out(world: World) -> None:
    broker = await acquired(world)
    world.events["broker-0~a"].drain_seconds = 1
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(broker.give_back(0))
        await asyncio.sleep(0.5)
        with pytest.raises(Unavailable, match="not served here"):
            await broker.reserve_ledger(0)


async def test_topics_that_do_not_come_to_rest_do_not_hold_the_bucket_for_ever(
    world: World,
) -> None:
    broker = await acquired(world)
    world.events["broker-0~a"].drain_seconds = 3600
    await broker.give_back(0)
    record = await world.record()
    assert (record.owner, record.clean) == ("", False)


async def test_a_bucket_that_cannot_be_released_is_released_later(world: World) -> None:
    broker = world.broker()
    await asyncio.gather(*(broker.acquire(bucket) for bucket in range(BUCKETS)))
    world.anchor.reachable = False
    await broker.give_back(0)
    assert 0 not in broker.held()
    world.anchor.reachable = True
    assert (await world.record()).owner == "broker-0~a"
    newcomers = frozenset(f"broker-{n}" for n in range(1, 50))
    world.view = LiveView(alive=newcomers, settled=newcomers, complete=True)
    async with asyncio.TaskGroup() as tasks:
        await broker.place_once(tasks)
    assert (await world.record()).owner == ""


# The loop.


async def test_alone_a_broker_serves_every_bucket(world: World) -> None:
    broker = world.broker()
    async with running(broker.run()):
        await asyncio.sleep(0.5)
        assert set(broker.held()) == set(range(BUCKETS))
        assert all(broker.owner_of(bucket) == addresses("broker-0~a") for bucket in range(BUCKETS))


@dataclass
class Process:
    """A broker with membership, as the application runs it."""

    world: World
    me: str

    def __post_init__(self) -> None:
        self.is_prepared = True
        store = MemoryLogStore(self.world.server.resolve, buckets=BUCKETS)
        self.membership = Membership(
            store, self.me, addresses(self.me), is_prepared=lambda: self.is_prepared
        )
        self.broker = self.world.broker(
            self.me, live_view=self.membership.view, wake=self.membership.changed
        )

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.membership.run())
            tasks.create_task(self.broker.run())


async def test_a_newcomer_gets_its_share_and_lookups_follow(world: World) -> None:
    first, second = Process(world, "broker-0~a"), Process(world, "broker-1~x")
    async with running(first.run(), second.run()):
        await asyncio.sleep(10)
        shares = set(first.broker.held()), set(second.broker.held())
        assert shares[0] | shares[1] == set(range(BUCKETS))
        assert shares[0] & shares[1] == set()
        assert all(shares)
        for bucket in range(BUCKETS):
            owner = "broker-0~a" if bucket in shares[0] else "broker-1~x"
            assert first.broker.owner_of(bucket) == addresses(owner)
            assert second.broker.owner_of(bucket) == addresses(owner)


async def test_a_dead_broker_s_buckets_are_taken_within_three_seconds(world: World) -> None:
    first, second = Process(world, "broker-0~a"), Process(world, "broker-1~x")
    async with running(first.run(), second.run()) as (first_task, _):
        await asyncio.sleep(10)
        lost = set(first.broker.held())
        first_task.cancel()
        await asyncio.sleep(1)
        assert all(second.broker.owner_of(b) == addresses("broker-0~a") for b in lost)
        await asyncio.sleep(2)
        assert set(second.broker.held()) == set(range(BUCKETS))


async def test_a_broker_that_stops_cleanly_is_replaced_at_once(world: World) -> None:
    first, second = Process(world, "broker-0~a"), Process(world, "broker-1~x")
    async with running(first.run(), second.run()):
        await asyncio.sleep(10)
        await first.membership.announce_leaving()
        await asyncio.sleep(1)
        await first.broker.give_back_all()
        assert first.broker.held() == {}
        await asyncio.sleep(0.3)
        assert set(second.broker.held()) == set(range(BUCKETS))


async def test_who_leaves_serves_until_others_know_and_stays_until_they_have_its_buckets(
    world: World,
) -> None:
    first, second = Process(world, "broker-0~a"), Process(world, "broker-1~x")
    now = asyncio.get_running_loop().time
    async with running(first.run(), second.run()), asyncio.TaskGroup() as tasks:
        await asyncio.sleep(10)
        (moving, *_) = first.broker.held()
        began = now()
        leaving = tasks.create_task(leave(first.membership, first.broker))
        given_at = taken_at = 0.0
        while not leaving.done():
            told = first.broker.owner_of(moving)
            if moving in first.broker.held():
                assert told in {addresses("broker-0~a"), None}
            else:
                given_at = given_at or now()
                assert told in {addresses("broker-1~x"), None}, "nobody is led back"
            if moving in second.broker.held():
                taken_at = taken_at or now()
            await asyncio.sleep(0.01)
        await leaving
        assert given_at - began >= NOTICE_SECONDS
        assert taken_at - given_at < 2 * buckets_module.EXPECTING_SECONDS, "it was waited for"
        assert taken_at < now() < taken_at + 2 * buckets_module.EXPECTING_SECONDS
        assert first.broker.owner_of(moving) == addresses("broker-1~x")


async def test_the_last_broker_just_leaves_and_so_do_all_at_once(world: World) -> None:
    first, second = Process(world, "broker-0~a"), Process(world, "broker-1~x")
    now = asyncio.get_running_loop().time
    async with running(first.run()):
        await asyncio.sleep(10)
        async with running(second.run()):
            await asyncio.sleep(10)
            began = now()
            async with asyncio.TaskGroup() as tasks:
                for each in (first, second):
                    tasks.create_task(leave(each.membership, each.broker))
            assert now() - began <= NOTICE_SECONDS + 0.1, "nobody waits for one that goes too"
    third = Process(world, "broker-2~z")
    async with running(third.run()):
        await asyncio.sleep(10)
        assert len(third.broker.held()) == BUCKETS
        began = now()
        await leave(third.membership, third.broker)
        assert now() == began


async def test_who_leaves_waits_only_so_long_for_a_successor_that_takes_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Process(world, "broker-0~a"), Process(world, "broker-1~x")
    now = asyncio.get_running_loop().time
    async with running(first.run(), second.run()):
        await asyncio.sleep(10)

        async def refuse(bucket: int) -> None:
            raise Unavailable(f"{bucket} is not taken")

        monkeypatch.setattr(second.broker, "acquire", refuse)
        began = now()
        await leave(first.membership, first.broker)
        assert NOTICE_SECONDS + STAY_SECONDS_MAX <= now() - began < NOTICE_SECONDS + 3.5


async def test_one_that_cannot_serve_yet_is_given_nothing(world: World) -> None:
    first, second = Process(world, "broker-0~a"), Process(world, "broker-1~x")
    second.is_prepared = False
    async with running(first.run()):
        await asyncio.sleep(5)
        async with running(second.run()):
            await asyncio.sleep(20)
            assert len(first.broker.held()) == BUCKETS
            second.is_prepared = True
            await asyncio.sleep(5)
            assert second.broker.held(), "it gets its share"
            assert len(first.broker.held()) + len(second.broker.held()) == BUCKETS


async def test_a_zombie_broker_learns_what_it_lost(world: World) -> None:
    zombie = Process(world, "broker-0~a")
    async with running(zombie.run()):
        await asyncio.sleep(1)
    assert len(zombie.broker.held()) == BUCKETS, "frozen, it still believes"
    other = Process(world, "broker-1~x")
    async with running(other.run()):
        await asyncio.sleep(5)
        assert len(other.broker.held()) == BUCKETS
        async with running(zombie.broker.run()):
            await asyncio.sleep(0.5)
            assert zombie.broker.held() == {}
    assert set(world.events["broker-0~a"].reasons) == {LostReason.TAKEN}


async def test_a_restarted_broker_takes_its_own_back_at_once(world: World) -> None:
    async with running(Process(world, "broker-0~a").run()):
        await asyncio.sleep(1)
    again = Process(world, "broker-0~b")
    async with running(again.run()):
        await asyncio.sleep(0.3)
        assert len(again.broker.held()) == BUCKETS


async def test_with_the_anchor_away_takeovers_wait_visibly_and_owners_go_on(world: World) -> None:
    first = Process(world, "broker-0~a")
    async with running(first.run()):
        await asyncio.sleep(5)
        world.anchor.reachable = False
        second = Process(world, "broker-1~x")
        async with running(second.run()):
            await asyncio.sleep(10)
            assert len(first.broker.held()) == BUCKETS
            assert first.broker.waiting_reason(0) == ""
            assert "anchor cannot be reached" in second.broker.waiting_reason(0)
            assert second.broker.owner_of(0) is None
            world.anchor.reachable = True
            await asyncio.sleep(15)
            assert second.broker.held()
            assert second.broker.waiting_reason(0) == ""


async def test_with_the_store_away_lookups_follow_the_records_of_others(world: World) -> None:
    owners = {0: "broker-1~x", 1: "broker-0~earlier", 2: ""}
    for bucket, owner in owners.items():
        taken = Record(generation=1, owner=owner, addresses=addresses(owner))
        assert await world.anchor.compare_and_set(bucket, 0, taken) is not None
    broker = world.broker()
    world.view = None
    async with running(broker.run()):
        await asyncio.sleep(0.5)
        assert [broker.owner_of(bucket) for bucket in owners] == [
            addresses("broker-1~x"),
            None,
            None,
        ]
        world.view = LiveView(complete=True)  # back, and broker-1 is found dead
        assert broker.owner_of(0) is None


async def test_a_reading_older_than_the_claim_does_not_end_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.change(lambda record: replace(record, owner=""))
    broker = world.broker()
    original = world.anchor.read
    world.view = None  # the loop reads, but plans nothing

    async def slow(bucket: int) -> Versioned:
        answer = await original(bucket)
        await asyncio.sleep(1)
        return answer

    async with running(broker.run()):
        monkeypatch.setattr(world.anchor, "read", slow)
        await asyncio.sleep(0.5)
        monkeypatch.setattr(world.anchor, "read", original)
        world.view = LiveView(complete=True)
        assert await broker.acquire(0) is not None
        await asyncio.sleep(1)
        assert 0 in broker.held()
        assert world.events["broker-0~a"].reasons == []


async def test_a_refused_bucket_is_tried_again_and_served_once_it_is_forced(
    world: World,
) -> None:
    await world.grant(await acquired(world))
    world.server.flush_all(world.server.primary)
    broker = world.broker("broker-0~b")
    async with running(broker.run()):
        await asyncio.sleep(60)
        assert "holds nothing of bucket 0" in broker.waiting_reason(0)
        assert set(broker.held()) == set(range(1, BUCKETS))
        assert (await force(world, single_node=True)).problem == ""
        await asyncio.sleep(buckets_module.PLACEMENT_SECONDS + 6)
        assert set(broker.held()) == set(range(BUCKETS))


async def test_a_leaving_broker_takes_nothing_more(world: World) -> None:
    broker = world.broker()
    async with running(broker.run()):
        await asyncio.sleep(1)
        await broker.give_back_all()
        await asyncio.sleep(5)
        assert broker.held() == {}
