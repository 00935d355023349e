"""The worlds of the log store's contract as fixtures: every contract test runs in each of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from tests.conformance.log_store_worlds import WORLD_KINDS, World, open_world

from onewriter_broker.log.store.api import LogStore


@pytest.fixture(params=WORLD_KINDS)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with open_world(request.param) as opened:
        yield opened


@pytest.fixture
async def store(world: World) -> AsyncIterator[LogStore]:
    opened = world.open()
    yield opened
    await opened.close()
