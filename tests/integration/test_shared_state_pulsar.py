"""SharedMap on Apache Pulsar: the contract, with an entry where onewriter would give a proof."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator

import pytest
from bench.pulsar_lab import PulsarStandalone
from tests.state.broker_world import BrokerWorld
from tests.state.map_contract import LIMITS, StockMapContract

from onewriter import Client
from onewriter.state import Checkpoints, SharedMap

pytestmark = [
    pytest.mark.full,  # needs Java and Apache Pulsar; test_shared_state.py runs the same contract
    pytest.mark.timeout(900),  # the first run downloads Pulsar for minutes
]

NEVER = Checkpoints(writes=10**9)

_topics = itertools.count(1)


@pytest.fixture
async def world(standalone: PulsarStandalone) -> AsyncIterator[BrokerWorld]:
    async with Client(standalone.service_url) as client:
        yield BrokerWorld(client, f"persistent://public/default/shared-{next(_topics)}")


class TestContract(StockMapContract):
    pass


async def test_opening_from_a_checkpoint(world: BrokerWorld) -> None:
    def opened() -> SharedMap[str, int]:
        return SharedMap(world.client, world.topic, str, int, limits=LIMITS, checkpoints=NEVER)

    async with opened() as shared:
        await shared.update_multiple(lambda _map: {str(n): n for n in range(1_000)})
        await shared.state.checkpoint()
        await shared.put("behind", 1)
    async with opened() as again:
        assert again.state._replica._is_from_beginning is False
        assert await again.size(latest=True) == 1_001
