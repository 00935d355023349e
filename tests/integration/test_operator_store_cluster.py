"""The operator forms and repairs a cluster of real processes, which run with the start script and the settings of pods."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.integration.raw import eventually
from tests.integration.store_pods import ODD_PASSWORD, World

pytestmark = [pytest.mark.timeout(900), pytest.mark.full]


@asynccontextmanager
async def formed(directory: Path) -> AsyncIterator[World]:
    world = World(directory)
    try:
        for pod in world.pods:
            pod.start()
        await world.complete()
        assert world.words() >= {"ADDSLOTSRANGE", "MEET", "REPLICATE"}
        assert len({pod.node for pod in world.primaries()}) == 3
        world.write()
        await world.check()
        world.plans.clear()
        yield world
    finally:
        await world.operator.close()
        world.stop_all()


async def test_a_pod_that_loses_its_volume_returns_as_a_replica_twice_in_a_row(
    tmp_path: Path,
) -> None:
    async with formed(tmp_path) as world:
        for _ in range(2):
            lost = next(pod for pod in world.primaries() if pod.shard == 0)
            lost.lose_volume()
            await world.complete()
            assert lost not in world.primaries()
            await world.check()
        assert "ADDSLOTSRANGE" not in world.words()
        assert world.words() >= {"MEET", "REPLICATE", "FORGET"}
        await world.spread()
        await world.check()


async def test_a_primary_hands_over_before_its_pod_stops_also_after_a_change_of_the_password(
    tmp_path: Path,
) -> None:
    async with formed(tmp_path) as world:
        world.write_cluster_password("changed", previous=ODD_PASSWORD)
        await asyncio.to_thread(eventually, lambda: world.all_accept("changed"))
        assert world.all_accept(ODD_PASSWORD)
        world.write_cluster_password("changed")
        await asyncio.to_thread(
            eventually, lambda: not any(pod.accepts(ODD_PASSWORD) for pod in world.pods)
        )
        leaving = next(pod for pod in world.primaries() if pod.shard == 0)
        await asyncio.to_thread(leaving.leave)
        await asyncio.to_thread(eventually, lambda: leaving not in world.primaries())
        await world.complete()  # the former primary copies its successor
        await world.check()
        await asyncio.to_thread(leaving.leave)  # a replica has nothing to hand over
        assert len(world.primaries()) == 3


async def test_all_pods_that_restart_at_once_with_other_addresses_find_each_other(
    tmp_path: Path,
) -> None:
    async with formed(tmp_path) as world:
        for pod in world.pods:
            pod.kill()
        for pod in world.pods:
            pod.start()
        await world.complete()
        await world.check()
        assert "ADDSLOTSRANGE" not in world.words()
