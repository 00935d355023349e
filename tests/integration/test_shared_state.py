"""SharedState and SharedMap on real brokers: the contract, takeovers, checkpoints, retention."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.integration.conftest import ROUNDS, RawClients
from tests.integration.cutting_proxy import PROXY_HOST, CuttingProxy
from tests.integration.forked_brokers import forked_brokers
from tests.integration.raw import FENCING
from tests.state.broker_world import BrokerWorld
from tests.state.campaign import Campaign, fold
from tests.state.map_contract import LIMITS, MapContract
from tests.violation import require

from onewriter import Client, ConfigurationError, Refused
from onewriter.state import Checkpoints, SharedMap
from onewriter_testing.processes import LocalBrokers

NEVER = Checkpoints(writes=10**9)

CUT = """
apiVersion: onewriter.dev/v1alpha1
kind: ExclusiveTopic
metadata: {name: cut}
spec: {access: {requireClaim: false}, retention: {maxEntries: 3}}
---
apiVersion: onewriter.dev/v1alpha1
kind: ExclusiveTopic
metadata: {name: partitioned}
spec: {access: {requireClaim: false}, partitions: 2}
"""


@pytest.fixture
async def world(broker: LocalBrokers, topic: str) -> AsyncIterator[BrokerWorld]:
    async with Client(broker.service_url) as client:
        yield BrokerWorld(client, topic)


class TestContract(MapContract):
    pass


async def _campaign(
    clients: list[Client], topic: str, rounds: int, fault: Any, *, pause_seconds: float
) -> None:
    """Check that the map is linearizable per key during ``rounds`` faults, and equals the log's fold."""
    faults = 0
    over = asyncio.Event()
    async with AsyncExitStack() as stack:
        maps: list[SharedMap[str, int]] = [
            await stack.enter_async_context(
                SharedMap(client, topic, str, int, limits=LIMITS, checkpoints=NEVER)
            )
            for client in clients
        ]
        campaign = Campaign(maps, seed=rounds)

        async def trouble() -> None:
            nonlocal faults
            while faults < rounds:
                await asyncio.sleep(pause_seconds)
                await asyncio.to_thread(fault, faults)
                faults += 1
            over.set()

        async with asyncio.TaskGroup() as group:
            group.create_task(trouble())
            while not over.is_set():
                await campaign.play(100, _nothing)
        content = await maps[0].scan(dict, latest=True)
        assert await maps[-1].scan(dict, latest=True) == content
    broken = campaign.history.violations()
    require(not broken, "; ".join(broken))
    assert campaign.done > rounds
    world = BrokerWorld(clients[0], topic)
    stored = {k.decode(): int.from_bytes(v, "big") for k, v in fold(await world.log()).items()}
    assert stored == content


def _take_over(broker: LocalBrokers, raw: RawClients, topic: str) -> None:
    raw(broker.address()).producer(topic, FENCING).close()


async def _nothing() -> None:
    await asyncio.sleep(0.05)


@pytest.mark.campaign
@pytest.mark.timeout(360 + 5 * ROUNDS)
async def test_state_is_linearizable_while_writers_are_deposed(
    broker: LocalBrokers, raw: RawClients, topic: str
) -> None:
    def take_over(_number: int) -> None:
        _take_over(broker, raw, topic)

    async with Client(broker.service_url) as one, Client(broker.service_url) as other:
        await _campaign([one, other], topic, ROUNDS, take_over, pause_seconds=0.2)


@pytest.mark.campaign
@pytest.mark.timeout(360 + 5 * ROUNDS)
async def test_state_is_linearizable_while_connections_are_cut(topic: str) -> None:
    """All connections at once, with everything in transit."""
    with (
        forked_brokers(settings={"advertised_host": PROXY_HOST}) as brokers,
        CuttingProxy(brokers.address(), cuts=0, bytes_between=2) as proxy,
    ):

        def cut(_number: int) -> None:
            proxy.cut()

        async with Client(proxy.url) as one, Client(proxy.url) as other:
            await _campaign([one, other], topic, ROUNDS, cut, pause_seconds=0.2)


@pytest.mark.campaign
@pytest.mark.timeout(360 + 5 * ROUNDS)
async def test_two_clients_write_one_map_for_long_and_none_is_fenced(
    broker: LocalBrokers, topic: str
) -> None:
    """They repeatedly hand over to each other, and every write succeeds."""
    loop = asyncio.get_running_loop()
    until = loop.time() + ROUNDS
    async with Client(broker.service_url) as one, Client(broker.service_url) as other:
        turns: dict[str, int] = {}

        async def keep_writing(client: Client, key: str) -> tuple[int, int]:
            count = turns[key] = 0
            async with SharedMap(client, topic, str, int, checkpoints=NEVER) as shared:
                while loop.time() < until or min(turns.values()) <= ROUNDS:
                    count += 1
                    turns[key] = shared.state.grants
                    await shared.put(key, count)
                return count, shared.state.grants

        found = await asyncio.gather(keep_writing(one, "one"), keep_writing(other, "other"))
        async with SharedMap(one, topic, str, int, checkpoints=NEVER) as shared:
            assert await shared.scan(dict) == {"one": found[0][0], "other": found[1][0]}
    assert min(grants for _, grants in found) > ROUNDS
    changes = [e for e in broker.events("topic.transition") if str(e["topic"]).endswith(topic)]
    assert {str(change["cause"]) for change in changes} == {"Initial", "Released"}


@pytest.mark.campaign
@pytest.mark.timeout(360 + 5 * ROUNDS)
async def test_opening_in_mid_takeover_gives_the_fold_of_the_log(
    broker: LocalBrokers, raw: RawClients, topic: str
) -> None:
    """It opens from checkpoints that are written meanwhile, while writers are deposed."""
    policy = Checkpoints(writes=20, seconds_min=0.05)
    over = asyncio.Event()
    async with Client(broker.service_url) as one, Client(broker.service_url) as other:

        def opened(client: Client, checkpoints: Checkpoints) -> SharedMap[str, int]:
            return SharedMap(client, topic, str, int, limits=LIMITS, checkpoints=checkpoints)

        async def keep_writing(client: Client) -> None:
            async with opened(client, policy) as shared:
                number = 0
                while not over.is_set():
                    number += 1
                    await asyncio.gather(
                        *(shared.put(str(number * k % 50), number) for k in range(8))
                    )

        async def open_again_and_again() -> int:
            from_checkpoints = 0
            for number in itertools.count():
                if number >= ROUNDS and from_checkpoints:
                    break
                await asyncio.sleep(0.15)
                await asyncio.to_thread(_take_over, broker, raw, topic)
                async with opened(one, NEVER) as again:
                    content, version = again.state.present()
                    position = again.state._replica.fold.position
                    from_checkpoints += not again.state._replica._is_from_beginning
                    whole = await BrokerWorld(one, topic).log()
                    assert dict(content.items()) == fold(whole, position), version
            over.set()
            return from_checkpoints

        async with asyncio.TaskGroup() as group:
            group.create_task(keep_writing(one))
            group.create_task(keep_writing(other))
            opening = group.create_task(open_again_and_again())
    assert opening.result() > 0


@pytest.mark.campaign
@pytest.mark.timeout(360 + 20 * ROUNDS)
async def test_state_is_linearizable_while_brokers_are_killed(topic: str) -> None:
    rounds = max(2, ROUNDS // 4)
    with forked_brokers(brokers=2) as brokers:

        def kill(number: int) -> None:
            brokers.kill(number % 2)
            brokers.restart(number % 2)

        async with Client(brokers.service_url) as one, Client(brokers.service_url) as other:
            await _campaign([one, other], topic, rounds, kill, pause_seconds=1.0)


async def test_opening_from_a_checkpoint_reads_only_the_entries_after_it(
    broker: LocalBrokers, topic: str
) -> None:
    async with Client(broker.service_url) as client:
        async with SharedMap(client, topic, str, str, limits=LIMITS, checkpoints=NEVER) as shared:
            await shared.update_multiple(lambda _map: {str(n): "x" * 50 for n in range(20_000)})
            await shared.state.checkpoint()
            await shared.put("behind", "it")
            version = shared.state.version
        async with SharedMap(client, topic, str, str, limits=LIMITS, checkpoints=NEVER) as again:
            assert again.state.version == version
            assert again.state._replica._is_from_beginning is False
            assert await again.size() == 20_001
            assert await again.get("behind") == "it"


async def test_retention_never_passes_the_newest_checkpoint() -> None:
    with forked_brokers(manifests=CUT) as brokers:
        async with Client(brokers.service_url) as client:

            def opened() -> SharedMap[str, int]:
                return SharedMap(client, "cut", str, int, limits=LIMITS, checkpoints=NEVER)

            async with opened() as one, opened() as other:
                for number in range(40):  # each in a ledger of its own
                    await (one, other)[number % 2].put(str(number), number)
                await asyncio.sleep(12)  # at least one sweep
                assert brokers.events("retention.trimmed") == []
                await one.state.checkpoint()
                for number in range(40, 50):
                    await (one, other)[number % 2].put(str(number), number)
                await asyncio.to_thread(brokers.wait_for_event, "retention.trimmed", _any)
            await asyncio.to_thread(brokers.replace)  # and its memory
            await asyncio.to_thread(brokers.wait_ready)
            assert len(await BrokerWorld(client, "cut").log()) < 50
            async with opened() as again:
                assert await again.scan(dict) == {str(n): n for n in range(50)}
                await again.put("more", 1)


def _any(_event: object) -> bool:
    return True


async def test_a_partitioned_topic_is_refused() -> None:
    with forked_brokers(manifests=CUT) as brokers:
        async with Client(brokers.service_url) as client:
            with pytest.raises(Refused, match="partition"):
                async with SharedMap(client, "partitioned", str, int, checkpoints=NEVER):
                    pass
            with pytest.raises(ConfigurationError, match="partition"):
                SharedMap(client, "partitioned-partition-0", str, int)
