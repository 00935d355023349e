"""The worlds of the log store's contract as fixtures: every contract test runs in each of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from tests.conformance.log_store_worlds import (
    CLUSTER_KIND,
    WORLD_KINDS,
    ClusterWorld,
    World,
    open_world,
)
from tests.store_cluster import StoreCluster, running_cluster

from onewriter_broker.log.store.api import LogStore


@pytest.fixture(scope="session")
def store_cluster() -> Iterator[StoreCluster]:
    with running_cluster(replicas=0) as cluster:
        yield cluster


@pytest.fixture(params=[*WORLD_KINDS, CLUSTER_KIND])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    if request.param == "cluster":
        world = ClusterWorld(request.getfixturevalue("store_cluster"))
        world.flush_all()
        yield world
        return
    with open_world(request.param) as opened:
        yield opened


@pytest.fixture
async def store(world: World) -> AsyncIterator[LogStore]:
    opened = world.open()
    yield opened
    await opened.close()
