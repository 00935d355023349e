"""Whose data it is: restarts, failovers, foreign and restored stores, and a person's force."""

from __future__ import annotations

import pytest
import structlog
from tests.unit.broker.ownership.ownership_world import World, acquired, force

from onewriter_broker.anchor.api import Record
from onewriter_broker.log.store.api import Outcome
from onewriter_broker.ownership.acquisition import (
    BucketRefused,
    Forced,
    adopt_force,
    adopt_restored,
    is_served,
)
from onewriter_broker.ownership.adoption import Reason
from onewriter_broker.ownership.placement import LiveView
from onewriter_core.errors import Unavailable, Undecided
from onewriter_testing.fake_store.store import FakeLogStore, Hook
from onewriter_testing.memory_anchor import MemoryAnchor

pytestmark = pytest.mark.looptime


@pytest.fixture
def world() -> World:
    return World()


def changing(world: World, replids: list[str]) -> Hook:
    """Give the primary another identity before its first stamp, and note the former one in ``replids``."""

    async def change(call: str, moment: str) -> None:
        if call == "stamp" and moment == "before" and not replids:
            replids.append(world.server.primary.replid)
            world.server.renew_identity(world.server.primary)

    return change


def change_before_stamp(world: World, me: str) -> list[str]:
    replids: list[str] = []
    world.stores[me].faults.hook = changing(world, replids)
    return replids


async def test_after_a_restart_that_kept_everything_holders_may_resume(world: World) -> None:
    await world.grant(await acquired(world))
    world.server.restart(world.server.primary)
    with structlog.testing.capture_logs() as lines:
        holding = await world.broker("broker-0~b").acquire(0)
    assert holding is not None
    assert holding.grants_known
    assert holding.may_resume(1)
    assert [line for line in lines if line["log_level"] == "warning"] == []
    assert holding.binding.generation == 2


async def test_after_a_torn_restart_no_holder_resumes_under_any_later_owner(world: World) -> None:
    await world.grant(await acquired(world))
    node = world.server.primary
    world.server.restart(node, keep=len(node.history) - 1)
    with structlog.testing.capture_logs() as lines:
        torn = await world.broker("broker-0~b").acquire(0)
    warnings = [line["event"] for line in lines if line["log_level"] == "warning"]
    assert "bucket.acquired" in warnings
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


@pytest.mark.parametrize("is_torn", [False, True])
async def test_a_restored_copy_is_noted_in_the_dataset_and_stays_known(
    world: World, *, is_torn: bool
) -> None:
    await world.grant(await acquired(world))
    node = world.server.primary
    store = world.stores["broker-0~a"]
    assert await is_served(store, 0)
    noted = await adopt_restored(0, anchor=world.anchor)
    again = await adopt_restored(0, anchor=world.anchor)
    assert noted == again
    assert not noted.problem
    world.server.restart(node, keep=len(node.history) - 1 if is_torn else None)
    copy = await world.broker("broker-0~b").acquire(0)
    assert copy is not None
    assert (copy.lacking_since, copy.binding.generation) == (2, 2)
    assert not copy.may_resume(1)
    world.server.restart(node)
    later = await world.broker("broker-0~c").acquire(0)
    assert later is not None
    assert (later.lacking_since, later.binding.generation) == (2, 3)


async def test_a_dataset_that_is_adopted_by_force_may_lack_entries_of_any_durability(
    world: World,
) -> None:
    await world.grant(await acquired(world))
    world.server.flush_all(world.server.primary)
    await force(world)
    holding = await world.broker("broker-0~b").acquire(0)
    assert holding is not None
    assert holding.lacking_since == holding.binding.generation == 2


async def test_a_bucket_that_was_never_used_is_not_restored(world: World) -> None:
    assert (await adopt_restored(0, anchor=world.anchor)).is_unnecessary


@pytest.mark.parametrize("is_seen", [True, False])
async def test_a_grant_that_was_not_recorded_in_time_is_recorded_by_the_next_owner(
    world: World, is_seen: bool
) -> None:
    first = await acquired(world)
    await world.grant(first)
    node = world.server.primary
    before = len(node.history)
    await world.fence(first)  # a grant; its owner is killed before it records it
    if is_seen:
        assert await world.broker("broker-0~b").acquire(0) is not None
    world.server.restart(node, keep=before)
    holding = await world.broker("broker-0~c").acquire(0)
    assert holding is not None
    assert holding.may_resume(1) is not is_seen


async def test_holders_may_resume_if_only_the_marker_of_a_load_is_lost(world: World) -> None:
    await world.grant(await acquired(world))
    second = world.broker("broker-0~b")
    assert await second.acquire(0) is not None
    node = world.server.primary
    before = len(node.history)
    await world.fence(second, "broker-0~b")  # a load: not recorded, because it grants nothing
    world.server.restart(node, keep=before)
    holding = await world.broker("broker-0~c").acquire(0)
    assert holding is not None
    assert holding.may_resume(1)


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


async def test_a_primary_that_gets_another_id_with_its_first_replica_is_registered_under_that_id(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker waits for replicas before it registers a dataset that restarted. The id that it saw before may be gone then."""
    await world.grant(await acquired(world))
    world.server.restart(world.server.primary)
    broker = world.broker("broker-0~b", single_node=False)
    changes: list[int] = []

    async def replicate(self: FakeLogStore, bucket: int) -> bool:
        if not changes:
            changes.append(bucket)
            world.server.restart(world.server.primary)
        return True

    monkeypatch.setattr(FakeLogStore, "is_sharded", True)
    monkeypatch.setattr(FakeLogStore, "replicate", replicate)
    holding = await broker.acquire(0)
    assert changes == [0]
    assert holding is not None
    assert holding.binding.replid == world.server.primary.replid
    assert holding.binding.generation == 2


@pytest.mark.parametrize("is_first", [False, True], ids=["a restarted dataset", "a new bucket"])
async def test_an_identity_that_changes_between_registration_and_stamp_is_recognised_by_its_note(
    world: World, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    """The broker waited for the replicas in vain, and the first one connects after the compare-and-set."""
    if not is_first:
        await world.grant(await acquired(world))
        world.server.restart(world.server.primary)
    monkeypatch.setattr(FakeLogStore, "is_sharded", True)
    broker = world.broker("broker-0~b", single_node=False)
    replids = change_before_stamp(world, "broker-0~b")
    holding = await broker.acquire(0)
    assert holding is not None
    assert (await world.record()).past_replids[-1:] == tuple(replids)
    assert holding.binding.replid == world.server.primary.replid
    assert holding.binding.generation == (2 if is_first else 3)


async def test_a_broker_that_dies_before_its_stamp_leaves_a_dataset_that_another_one_recognises(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.grant(await acquired(world))
    world.server.restart(world.server.primary)
    dying = world.broker("broker-0~b", single_node=False)

    async def unanswered(*_: object, **__: object) -> Outcome:
        raise Undecided("the process died")

    monkeypatch.setattr(world.stores["broker-0~b"], "stamp", unanswered)
    with pytest.raises(Undecided):
        await dying.acquire(0)
    assert (await world.record()).replid == world.server.primary.replid
    world.server.renew_identity(world.server.primary)
    world.view = LiveView(complete=True)
    holding = await world.broker("broker-1~c", single_node=False).acquire(0)
    assert holding is not None
    assert holding.binding.replid == world.server.primary.replid


async def test_a_forced_dataset_that_changes_its_identity_before_the_stamp_is_not_refused_again(
    world: World,
) -> None:
    await world.grant(await acquired(world, single_node=False))
    world.server.primary = world.server.add_primary("stranger")
    store = FakeLogStore(world.server.resolve, buckets=8)
    store.faults.hook = changing(world, [])
    done = await adopt_force(
        0,
        anchor=world.anchor,
        store=store,
        operator="operator",
        reason="the disk is gone",
        time_ms=1_700_000_000_000,
        single_node=False,
    )
    assert "adopted, but" in done.problem
    holding = await world.broker("broker-0~b", single_node=False).acquire(0)
    assert holding is not None
    assert holding.binding.generation == done.generation + 1


async def test_a_primary_that_restarted_as_a_stale_branch_is_refused_despite_its_note(
    world: World,
) -> None:
    """Its note names what it was when it was registered. The replica that was promoted is registered since."""
    await world.grant(await acquired(world, single_node=False))
    stale = world.server.primary
    world.server.promote(world.server.add_replica("node-1"))
    await world.grant(await acquired(world, single_node=False))
    world.server.restart(stale)
    world.server.primary = stale
    with pytest.raises(BucketRefused) as refused:
        await world.broker("broker-0~c", single_node=False).acquire(0)
    assert refused.value.verdict.reason is Reason.FOREIGN_DATASET


async def test_a_foreign_dataset_is_refused_until_it_is_forced(world: World) -> None:
    await world.grant(await acquired(world, single_node=False))
    unauthorized = world.server.add_primary("stranger")
    world.server.primary = unauthorized
    successor = world.broker("broker-1~x", single_node=False)
    with pytest.raises(BucketRefused) as refused:
        await successor.acquire(0)
    assert refused.value.verdict.reason is Reason.EMPTY_DATASET

    assert await force(world) == Forced(0, 2, unauthorized.replid)
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
        "replid": unauthorized.replid,
        "previous_replid": world.server.nodes["node-0"].replid,
        "time": "1700000000000",
    }


async def test_force_does_nothing_to_a_bucket_that_is_well(world: World) -> None:
    broker = await acquired(world)
    before = await world.anchor.read(0)
    assert "nothing to force" in (await force(world)).problem
    assert await world.anchor.read(0) == before
    await world.grant(broker)


async def test_a_forced_adoption_that_loses_a_race_reports_that(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.grant(await acquired(world))
    world.server.flush_all(world.server.primary)

    async def lost(bucket: int, version: int, record: Record) -> int | None:
        return None

    monkeypatch.setattr(world.anchor, "compare_and_set", lost)
    assert "other processes keep changing the record" in (await force(world)).problem


async def test_force_judges_again_after_the_record_changed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.grant(await acquired(world))
    world.server.primary = world.server.add_primary("stranger")
    compare_and_set = world.anchor.compare_and_set

    async def first_lost(bucket: int, version: int, record: Record) -> int | None:
        """Another operator is first."""
        monkeypatch.setattr(world.anchor, "compare_and_set", compare_and_set)
        assert (await force(world)).problem == ""
        return await compare_and_set(bucket, version, record)

    monkeypatch.setattr(world.anchor, "compare_and_set", first_lost)
    assert "nothing to force" in (await force(world)).problem


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
