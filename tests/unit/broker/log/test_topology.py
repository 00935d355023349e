"""How the slot map of a cluster is read from its nodes."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.core.cluster_views import PORTS, THIRDS, A, B, C, R, line, whole

from onewriter_broker.log.store.redis.primary import Endpoint, RedisSettings
from onewriter_broker.log.store.redis.topology import Topology
from onewriter_core.errors import ConfigurationError, Undecided


class Nodes:
    """The answers of nodes to CLUSTER NODES, by their ports in the tests."""

    def __init__(self) -> None:
        self.lines = whole()
        self.away: set[str] = set()
        self.frozen: set[str] = set()
        self.requests: list[str] = []

    async def read(self, endpoint: Endpoint) -> str:
        me = next(i for i, port in PORTS.items() if endpoint.host == f"10.0.0.{port}")
        self.requests.append(me)
        if me in self.away:
            raise ConnectionRefusedError
        if me in self.frozen:
            await asyncio.Event().wait()
        return "\n".join(
            each.replace("master", "myself,master", 1).replace("slave", "myself,slave", 1)
            if each.startswith(me)
            else each
            for each in self.lines
        )

    def topology(self, url: str = "redis+cluster://10.0.0.1:7000") -> Topology:
        return Topology(RedisSettings(url=url), read_view=self.read)


async def test_the_seeds_name_the_other_nodes() -> None:
    nodes = Nodes()
    topology = nodes.topology()
    assert await topology.primary_of(16_383) == ("10.0.0.3", 7000)
    assert sorted(nodes.requests) == [A, B, C, R]


async def test_a_map_is_read_again_only_for_a_slot_that_was_not_served() -> None:
    nodes = Nodes()
    topology = nodes.topology()
    await topology.primary_of(0)
    nodes.requests.clear()
    await topology.primary_of(0)
    topology.suspect(0)
    await topology.primary_of(16_383)
    assert nodes.requests == []
    nodes.lines[0] = line(A, "master,fail")
    nodes.lines[3] = line(R, epoch=9, slots=THIRDS[A])
    nodes.away.add(A)
    assert await topology.primary_of(0) == ("10.0.0.4", 7000)


async def test_a_frozen_node_does_not_delay_a_map_of_the_majority() -> None:
    nodes = Nodes()
    topology = nodes.topology("redis+cluster://10.0.0.2:7000")
    nodes.frozen.add(A)
    nodes.lines[0] = line(A, "master,fail")
    nodes.lines[3] = line(R, epoch=9, slots=THIRDS[A])
    assert (await topology.refreshed()).is_by_majority
    assert await topology.primary_of(0) == ("10.0.0.4", 7000)


async def test_a_minority_is_enough_to_send_a_call_but_not_to_judge_a_dataset() -> None:
    nodes = Nodes()
    topology = nodes.topology()
    nodes.away = {B, C}
    assert await topology.primary_of(0) == ("10.0.0.1", 7000)
    with pytest.raises(Undecided, match="less than half"):
        await topology.refreshed()


async def test_callers_share_a_reading_that_began_after_they_asked() -> None:
    nodes = Nodes()
    topology = nodes.topology()
    await topology.read()
    nodes.requests.clear()
    await asyncio.gather(*(topology.read() for _ in range(50)))
    assert nodes.requests.count(A) == 1


async def test_no_node_that_answers_is_undecided_and_the_seeds_are_tried_again() -> None:
    nodes = Nodes()
    topology = nodes.topology()
    nodes.away = {A, B, C, R}
    with pytest.raises(Undecided, match=r"10\.0\.0\.1:7000"):
        await topology.primary_of(0)
    nodes.away = set()
    assert await topology.primary_of(0) == ("10.0.0.1", 7000)


async def test_a_slot_without_a_primary_is_undecided() -> None:
    nodes = Nodes()
    nodes.lines[2] = line(C)
    with pytest.raises(Undecided, match="hash slot 16383"):
        await nodes.topology().primary_of(16_383)


@pytest.mark.parametrize(
    "url",
    ["redis+cluster://", "redis+cluster://a:1,", "redis+cluster://a:1/3", "redis+cluster://a:x"],
)
async def test_an_unusable_url_of_a_cluster_is_named(url: str) -> None:
    with pytest.raises(ConfigurationError, match="store URL"):
        Nodes().topology(url).endpoint_of(("host", 1))


def test_the_credentials_of_the_url_apply_to_every_node() -> None:
    topology = Topology(RedisSettings(url="rediss+cluster://me:secret@a:1,b:2/0"))
    found = topology.endpoint_of(("host", 7))
    assert (found.host, found.port, found.username, found.password) == ("host", 7, "me", "secret")
    assert found.tls is not None
