"""The simulation of many brokers: its clock, its anchor, and what it says about failures of a small installation."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from bench import scale_simulation
from bench.simulated_brokers import (
    Costs,
    Crowd,
    Layout,
    Overloaded,
    Processors,
    SimulatedAnchor,
    assignment,
    loads_at_rest,
    moved,
    run_virtually,
    spread,
)

from onewriter_broker.anchor.api import Record
from onewriter_broker.ownership.buckets import ACQUISITIONS_MAX
from onewriter_broker.ownership.member_observer import BEAT_SECONDS, DEAD_SECONDS, MEMBERS_MAX
from onewriter_broker.ownership.placement import Targets, rendezvous

SMALL = Layout(brokers=8, buckets=64, shards=3, topics=640, api_cores=4)


def test_the_clock_skips_the_time_for_which_tasks_wait() -> None:
    async def waiting() -> float:
        await asyncio.sleep(100_000.0)
        return asyncio.get_running_loop().time()

    assert run_virtually(waiting()) == pytest.approx(100_000.0)


def test_work_waits_for_a_free_core() -> None:
    async def working() -> tuple[float, float]:
        cores = Processors(2)
        await asyncio.gather(*(cores.work(1.0) for _ in range(5)))
        return asyncio.get_running_loop().time(), cores.longest_wait

    assert run_virtually(working()) == (3.0, 2.0)


def test_assigned_are_the_brokers_that_the_placement_names() -> None:
    names = SMALL.names
    assigned = assignment(SMALL, names, Targets())
    assert assigned == {bucket: rendezvous(bucket, names) for bucket in range(SMALL.buckets)}
    counts = spread(assigned, names)
    assert (sum(counts), counts) == (SMALL.buckets, sorted(counts))


def test_only_buckets_of_a_broker_that_leaves_move() -> None:
    targets = Targets()
    before = assignment(SMALL, SMALL.names, targets)
    after = assignment(SMALL, SMALL.names[1:], targets)
    assert moved(before, after) == spread(before, SMALL.names[:1])[0]


async def _written_twice(anchor: SimulatedAnchor) -> tuple[int | None, int | None]:
    version, _ = await anchor.read(0)
    change = {0: Record(owner="a~1")}
    return await anchor.write(0, version, change), await anchor.write(0, version, change)


def test_an_object_that_changed_since_it_was_read_is_not_replaced() -> None:
    anchor = SimulatedAnchor(SMALL, dict.fromkeys(range(SMALL.buckets), ""))
    assert run_virtually(_written_twice(anchor)) == (2, None)
    assert anchor.requests == {"reads": 1, "writes": 1, "refused writes": 1}


async def test_a_request_that_would_wait_too_long_has_no_answer() -> None:
    layout = replace(SMALL, costs=Costs(read=60.0))

    async def reading() -> None:
        await SimulatedAnchor(layout, dict.fromkeys(range(SMALL.buckets), "")).read(0)

    with pytest.raises(Overloaded):
        await asyncio.to_thread(lambda: run_virtually(reading()))


def test_the_buckets_of_lost_brokers_are_served_after_they_are_found_dead() -> None:
    crowd = Crowd(SMALL)
    found = run_virtually(crowd.lose_brokers(2, seconds_max=60.0))
    lost = set(crowd.assigned.values()) - set(crowd.server_of.values())
    assert len(lost) == 2
    assert crowd.server_of == assignment(SMALL, set(SMALL.names) - lost, Targets())
    assert DEAD_SECONDS - BEAT_SECONDS <= found.detected_first <= found.detected_last
    assert found.detected_first < found.served_all <= found.loaded_all < 60.0
    assert (found.unserved, found.wrongly_dead) == (0, 0)
    assert found.requests["writes"] >= 1


def test_a_broker_takes_a_limited_number_of_buckets_at_a_time() -> None:
    few = replace(SMALL, brokers=2, buckets=6 * ACQUISITIONS_MAX, topics=0)
    found = run_virtually(Crowd(few).lose_brokers(1, seconds_max=60.0))
    batches = -(-found.lost_buckets // ACQUISITIONS_MAX)
    assert found.requests["writes"] - found.requests.get("refused writes", 0) == batches > 1


def test_a_lost_broker_without_buckets_delays_nothing() -> None:
    few = replace(SMALL, brokers=8, buckets=1)
    outcomes = [
        run_virtually(Crowd(few, seed=seed).lose_brokers(1, seconds_max=60.0)) for seed in range(4)
    ]
    found = min(outcomes, key=lambda outcome: outcome.lost_buckets)
    assert (found.lost_buckets, found.served_all, found.unserved) == (0, 0.0, 0)


def test_the_same_seed_leads_to_the_same_outcome() -> None:
    one, other = (run_virtually(Crowd(SMALL).lose_brokers(1, seconds_max=60.0)) for _ in range(2))
    assert one == other


def test_records_in_objects_of_their_own_refuse_no_write() -> None:
    fine = replace(SMALL, buckets_per_object=1, reads_own=True)
    together = run_virtually(Crowd(SMALL).lose_brokers(2, seconds_max=60.0))
    apart = run_virtually(Crowd(fine).lose_brokers(2, seconds_max=60.0))
    assert together.requests["refused writes"] > 0
    assert "refused writes" not in apart.requests
    assert apart.requests["writes"] == apart.lost_buckets


def test_the_buckets_of_a_lost_shard_are_served_again_by_their_owners() -> None:
    crowd = Crowd(SMALL)
    found = run_virtually(crowd.lose_shard(promoted_after=2.5, noticed_after=0.5, seconds_max=60.0))
    assert crowd.server_of == crowd.assigned
    assert sorted(crowd.served_at) == list(range(0, SMALL.buckets, SMALL.shards))
    assert found.served_half > 2.5
    assert found.unserved == 0


def test_buckets_that_are_not_served_in_time_are_counted() -> None:
    slow = replace(SMALL, costs=Costs(write=30.0))
    found = run_virtually(Crowd(slow).lose_brokers(2, seconds_max=10.0))
    assert found.unserved == found.lost_buckets > 0
    assert "buckets not served" in scale_simulation.outcome_line("lost", found)


def test_reads_of_the_anchor_are_the_first_bottleneck_of_many_brokers() -> None:
    full = Layout(brokers=1_000, buckets=10_000, shards=32, topics=1_000_000)
    (first, load), *_ = loads_at_rest(full).by_weight()
    assert first == "CPU of the API servers: reads of the anchor"
    assert load > 1
    assert loads_at_rest(replace(full, reads_own=True)).api_server == 0


def test_an_overloaded_installation_is_reported_without_failures(
    capsys: pytest.CaptureFixture[str],
) -> None:
    scale_simulation.report([replace(SMALL, api_cores=1, costs=Costs(read=1.0))], seed=1)
    printed = capsys.readouterr().out
    assert "overloaded at rest" in printed
    assert "lost" not in printed


def test_a_small_installation_is_reported_with_all_failures(
    capsys: pytest.CaptureFixture[str],
) -> None:
    scale_simulation.report([replace(SMALL, brokers=10)], seed=1)
    printed = capsys.readouterr().out
    for word in (
        "1 broker lost",
        "10% of",
        "30% of",
        "1 shard lost",
        "heartbeats: 20/s",
        "when one leaves",
    ):
        assert word in printed


def test_more_brokers_than_the_limit_are_marked(capsys: pytest.CaptureFixture[str]) -> None:
    many = replace(SMALL, brokers=MEMBERS_MAX + 1, api_cores=1)
    scale_simulation.report([many], seed=1)
    assert f"MEMBERS_MAX = {MEMBERS_MAX}" in capsys.readouterr().out
