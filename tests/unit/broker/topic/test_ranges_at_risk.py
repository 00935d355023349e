"""After a failover of the store, the audit names what was lost or may be lost, before the log gets an entry."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.stamps import stamp_anew
from tests.unit.broker.topic.fence_path_world import BUCKET, ORDERS, Gates, World, serving, until

from onewriter_broker.log.store.api import Binding, Block, Outcome
from onewriter_broker.log.topic_log.losses import (
    LatestReports,
    Loss,
    LossReports,
    RangeAtRisk,
    keeps_acknowledged,
)
from onewriter_broker.ownership.acquisition import Holding
from onewriter_broker.topic.limits import TopicLimits
from onewriter_broker.topic.runner import TopicRunner
from onewriter_core.api.topic import Durability
from onewriter_core.errors import Unavailable
from onewriter_core.ids import EARLIEST, Position
from onewriter_core.log_format.field_names import SETTLED
from onewriter_core.topic.model import WHOLE, AccessMode

BEFORE = 500
"""The highest ledger reserved before the dataset was replaced, in these tests."""


async def change_dataset(
    world: World,
    *,
    keep: int | None = None,
    owner: str = "",
    incomplete_since: int | None = None,
    lacking_since: int = 0,
) -> None:
    """The store shows another dataset, without the writes after ``keep``; the bucket is registered with it.

    ``incomplete_since``: the newest registration in which entries may be lost; None: this one. ``lacking_since``: the
    newest one that was restored or forced.
    """
    if keep is None:
        world.server.renew_identity(world.server.primary)
    else:
        world.server.restart(world.server.primary, keep=keep)
    held = world.owner.held
    assert held is not None
    before = held.binding
    number = before.version + 1
    binding = Binding(
        BUCKET,
        world.server.primary.replid,
        before.generation + 1,
        owner or before.owner,
        number,
    )
    assert await stamp_anew(world.store, binding) is Outcome.DONE
    world.owner.held = Holding(
        binding,
        grants_known=True,
        known_since=0,
        incomplete_since=binding.generation if incomplete_since is None else incomplete_since,
        lacking_since=lacking_since,
        ledgers_before=BEFORE,
    )
    world.owner.ledgers = max(world.owner.ledgers, BEFORE)


async def reports(world: World) -> list[dict[str, str]]:
    """The losses and ranges in the audit, oldest first."""
    records = await world.store.read_audit(BUCKET, count=1_000)
    return [fields for _, fields in records if fields["kind"] in {"loss", "risk"}]


async def written(world: World, count: int) -> TopicRunner:
    """Load the topic, and append this number of entries."""
    runner = await world.load()
    producer, channel = await world.granted(runner, AccessMode.EXCLUSIVE, "writer")
    for number in range(count):
        world.send(producer, number)
    await until(lambda: channel.receipts and len(runner.logs[WHOLE].undecided) == 0)
    return runner


async def settled(world: World) -> str:
    return (await world.store.read_state(ORDERS)).get(SETTLED, "")


async def settled_in(world: World, generation: str) -> None:
    """Wait until the log's state has the note."""
    while await settled(world) != generation:  # noqa: ASYNC110 - the store reports it
        await asyncio.sleep(0)


async def test_a_takeover_in_a_replaced_dataset_states_the_range_at_risk() -> None:
    async with serving() as world:
        runner = await written(world, 3)
        last = runner.logs[WHOLE].committed
        runner.unload("moved")
        await change_dataset(world, owner="broker-1~one")
        await world.load()
        expected = RangeAtRisk(ORDERS, last, BEFORE, 2, Durability.LOCAL)
        assert world.at_risk == [expected]
        (record,) = await reports(world)
        assert (
            record.items()
            >= {
                "kind": "risk",
                "log": str(ORDERS),
                "after": str(last),
                "ledger": str(BEFORE),
                "generation": "2",
                "durability": "Local",
                "topic": str(ORDERS),
            }.items()
        )


async def test_a_range_is_stated_once_in_a_registration() -> None:
    async with serving() as world:
        (await written(world, 1)).unload("moved")
        await change_dataset(world)
        runner = await world.load()
        await settled_in(world, "2")
        runner.unload("moved")
        await world.load()
        assert len(await reports(world)) == 1


async def test_an_entry_of_the_registration_proves_that_the_log_was_compared() -> None:
    async with serving() as world:
        (await written(world, 1)).unload("moved")
        await change_dataset(world)
        runner = await written(world, 1)
        held = world.owner.held
        assert held is not None
        log = runner.logs[WHOLE]
        await settled_in(world, "2")
        token = held.binding.token(log.ledger)
        await world.store.set_state(held.binding, ORDERS, token, {}, [SETTLED])
        for _ in range(6):  # later ledgers have no entries, so the proof is in an older marker
            runner.unload("moved")
            runner = await world.load()
        assert len(await reports(world)) == 1


async def test_a_range_begins_after_the_last_entry_also_before_many_markers() -> None:
    async with serving() as world:
        runner = await written(world, 2)
        last = runner.logs[WHOLE].committed
        for _ in range(20):
            runner.unload("moved")
            runner = await world.load()
        runner.unload("moved")
        await change_dataset(world)
        await world.load()
        assert [each.after for each in world.at_risk] == [last]


async def test_a_last_entry_that_is_too_far_back_puts_the_whole_log_at_risk() -> None:
    async with serving(limits=TopicLimits(last_entry_blocks_max=32)) as world:
        runner = await written(world, 2)
        for _ in range(40):
            runner.unload("moved")
            runner = await world.load()
        runner.unload("moved")
        await change_dataset(world)
        runner = await world.load()
        assert [(each.after, each.ledger) for each in world.at_risk] == [(EARLIEST, BEFORE)]
        await settled_in(world, "2")
        runner.unload("moved")
        await world.load()
        assert len(await reports(world)) == 1, "once in a registration"


async def test_a_log_that_was_not_loaded_before_a_complete_restart_still_has_its_range() -> None:
    """An administrator forced the adoption of another dataset, and the single process restarted since."""
    async with serving() as world:
        runner = await written(world, 2)
        last = runner.logs[WHOLE].committed
        runner.unload("moved")
        await change_dataset(world)
        await change_dataset(world, incomplete_since=2)
        runner = await world.load()
        assert [(each.after, each.generation) for each in world.at_risk] == [(last, 3)]
        await settled_in(world, "3")
        runner.unload("moved")
        await change_dataset(world, incomplete_since=2)
        await world.load()
        assert len(await reports(world)) == 1, "it was settled after the registration that counts"


async def test_an_entry_after_the_registration_that_counts_proves_that_the_log_was_compared() -> (
    None
):
    async with serving() as world:
        (await written(world, 1)).unload("moved")
        await change_dataset(world)
        runner = await written(world, 1)
        await settled_in(world, "2")
        held = world.owner.held
        assert held is not None
        token = held.binding.token(runner.logs[WHOLE].ledger)
        await world.store.set_state(held.binding, ORDERS, token, {}, [SETTLED])
        runner.unload("moved")
        for _ in range(2):
            await change_dataset(world, incomplete_since=2)
            (await world.load()).unload("moved")
        assert len(await reports(world)) == 1


@pytest.mark.parametrize("durability", [Durability.REPLICATED, Durability.LOCAL])
async def test_a_restored_or_forced_dataset_may_lack_entries_of_any_durability(
    durability: Durability,
) -> None:
    async with serving() as world:
        runner = await written(world, 2)
        last = runner.logs[WHOLE].committed
        runner.unload("moved")
        for _ in range(2):  # the second one is a promotion, before the log is loaded
            await change_dataset(world, lacking_since=2)
        world.server.add_replica("node-1")
        world.dependencies = replace(world.dependencies, replicas=1)
        runner = await world.load(durability=durability)
        assert [(each.after, each.durability) for each in world.at_risk] == [(last, durability)]
        await settled_in(world, "3")
        runner.unload("moved")
        await world.load(durability=durability)
        assert len(await reports(world)) == 1, "it was settled"


async def test_a_broker_that_dies_before_its_report_leaves_it_to_the_next_one() -> None:
    async with serving() as world:
        (await written(world, 1)).unload("moved")
        await change_dataset(world)
        held = world.owner.held
        assert held is not None

        async def refuse(binding: Binding, record: dict[str, str]) -> Outcome:
            return Outcome.FENCED

        genuine = world.store.write_audit
        world.store.write_audit = refuse  # type: ignore[method-assign, assignment]
        with pytest.raises(Unavailable, match="could not be recorded"):
            await world.load()
        world.store.write_audit = genuine  # type: ignore[method-assign]
        assert await reports(world) == []
        await world.load()
        assert len(await reports(world)) == 1


async def test_a_loss_free_profile_has_no_range_at_risk() -> None:
    async with serving() as world:
        (await written(world, 1)).unload("moved")
        await change_dataset(world)
        world.server.add_replica("node-1")
        for replicas, ranges in ((1, 0), (2, 1)):
            world.dependencies = replace(world.dependencies, replicas=replicas)
            runner = await world.load(durability=Durability.REPLICATED)
            runner.unload("moved")
            assert len(world.at_risk) == ranges


@pytest.mark.parametrize(
    ("durability", "replicas", "expected"),
    [
        (Durability.LOCAL, 1, False),
        (Durability.REPLICATED, 0, False),
        (Durability.REPLICATED, 1, True),
        (Durability.REPLICATED, 2, False),
        (Durability.ALL_REPLICAS, 2, True),
    ],
)
def test_which_profiles_keep_what_was_acknowledged(
    durability: Durability, replicas: int, expected: bool
) -> None:
    assert keeps_acknowledged(durability, replicas) is expected


async def test_a_complete_dataset_and_a_new_log_have_no_range_at_risk() -> None:
    async with serving() as world:
        (await written(world, 1)).unload("moved")
        await world.load()  # the bucket was never registered again
        assert world.at_risk == []
    async with serving() as world:
        await change_dataset(world)
        runner = await world.load()  # the log is new
        assert await settled(world) == "2"
        runner.unload("moved")
        await world.load()
        assert world.at_risk == []


async def test_a_loss_is_in_the_audit_before_the_next_entry_of_the_log() -> None:
    """Replication keeps the order, so a replica with that entry has the report, too."""
    async with serving() as world:
        runner = await written(world, 2)
        keep = len(world.server.primary.history)
        producer = next(iter(runner.producers.values()))
        world.send(producer, 2)
        await until(lambda: runner.logs[WHOLE].committed.entry == 3)
        lost = runner.logs[WHOLE].committed
        runner.logs[WHOLE].stop_writes(compare=True)
        await change_dataset(world, keep=keep)
        gates = Gates(world.store, "write_audit")
        runner.dataset_changed()
        world.send(producer, 3)
        await gates.reached("write_audit")
        newest = await world.stored()
        assert all(
            each.position.ledger <= lost.ledger for each in newest if isinstance(each, Block)
        )
        gates.open("write_audit")
        await until(lambda: runner.logs[WHOLE].committed.entry == 1)
        assert world.losses == [Loss(ORDERS, lost.previous, lost)]
        (record,) = await reports(world)
        assert (record["after"], record["last"]) == (str(lost.previous), str(lost))


async def test_an_owner_repeats_its_reports_if_the_dataset_changes_again() -> None:
    """The audit may be cut, too."""
    async with serving() as world:
        runner = await written(world, 2)
        keep = len(world.server.primary.history)
        producer = next(iter(runner.producers.values()))
        world.send(producer, 2)
        await until(lambda: runner.logs[WHOLE].committed.entry == 3)
        for generation in ("2", "3"):
            runner.logs[WHOLE].stop_writes(compare=True)
            await change_dataset(world, keep=keep)
            runner.dataset_changed()
            await until(lambda: runner.logs[WHOLE].is_writable)
            (record,) = await reports(world)
            assert (record["kind"], record["generation"]) == ("loss", generation)
        assert len(world.losses) == 1, "it is counted once"


async def test_an_idle_log_that_lost_nothing_is_noted_as_settled() -> None:
    """Otherwise its next owner would have to state a range at risk."""
    async with serving() as world:
        runner = await written(world, 2)
        runner.logs[WHOLE].stop_writes(compare=True)
        await change_dataset(world)
        runner.dataset_changed()
        await settled_in(world, "2")
        runner.unload("moved")
        await world.load()
        assert await reports(world) == []


def test_reports_are_repeated_only_in_a_newer_registration() -> None:
    first, second = (Loss(ORDERS, EARLIEST, Position(1, number)) for number in (1, 2))
    kept = LossReports([first])
    kept.bind(2)
    kept.wrote(first)
    kept.pending.append(second)
    kept.bind(2)
    assert kept.pending == [second]
    kept.bind(3)
    assert kept.pending == [first, second]


def test_latest_reports_are_found_by_topic_and_bounded() -> None:
    """Reports of partitions belong to their topic."""
    reports = LatestReports[Loss](3)
    first, second = ORDERS.with_partition(0), ORDERS.with_partition(1)
    other = replace(ORDERS, local="other")
    added = [
        Loss(each, Position(2, 1), Position(2, number))
        for number, each in enumerate((first, other, second, first), start=2)
    ]
    for loss in added[:3]:
        reports.add(loss)
    assert list(reports) == added[:3]
    assert list(reports.of(ORDERS)) == [added[0], added[2]]
    reports.add(added[3])
    assert list(reports) == added[1:]
    assert list(reports.of(ORDERS)) == [added[2], added[3]]
    for _ in range(3):
        reports.add(added[3])
    assert list(reports.of(other)) == []
