"""A primary of `onewriter up --shards` whose directory was emptied comes back as a replica, with real processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from onewriter_broker.local.cluster import ClusterNode, ClusterSettings, EmbeddedCluster
from onewriter_broker.local.embedded import EmbeddedSettings
from onewriter_broker.log.store.redis.connection import Reply
from onewriter_core.cluster_views import SlotMap
from onewriter_core.errors import Undecided
from onewriter_testing.ports import free_ports

pytestmark = [pytest.mark.timeout(600), pytest.mark.full]

POLL_SECONDS = 0.1
SHARD = 0


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[EmbeddedCluster]:
    """Three shards with a replica each, supervised."""
    settings = ClusterSettings(
        EmbeddedSettings(folder / "valkey-cluster"), 3, 1, free_ports(12), node_timeout_ms=1500
    )
    cluster = EmbeddedCluster(settings)
    await cluster.start()
    try:
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(cluster.watch())
            yield cluster
            watching.cancel()
    finally:
        await cluster.stop()


async def primary_of(cluster: EmbeddedCluster) -> tuple[ClusterNode, str] | None:
    """The process that serves the first hash slot according to the votes, and its node id."""
    views = []
    for node in cluster.nodes:
        with contextlib.suppress(Undecided):
            views.append((node, await node.view()))
    found = SlotMap([view for _, view in views]).primary_of(SHARD)
    return next(
        ((node, view.me) for node, view in views if found is not None and view.me == found.node_id),
        None,
    )


async def key_of(cluster: EmbeddedCluster, node: ClusterNode) -> str:
    """A key in one of the hash slots of the first shard."""
    for number in range(1_000):
        slot = await node.ask("CLUSTER", "KEYSLOT", f"key-{number}")
        if isinstance(slot, int) and slot < 16_384 // 3:
            return f"key-{number}"
    raise AssertionError("no key found")


async def successor(cluster: EmbeddedCluster, node_id: str) -> tuple[ClusterNode, str]:
    """The process that serves the shard after the one with this node id, and its node id."""
    while True:
        found = await primary_of(cluster)
        if found is not None and found[1] != node_id:
            return found
        await asyncio.sleep(POLL_SECONDS)


async def value_of(node: ClusterNode, key: str) -> Reply:
    """The value of a key, as soon as the process serves it."""
    while True:
        with contextlib.suppress(Undecided):
            return await node.ask("GET", key)
        await asyncio.sleep(POLL_SECONDS)


async def has_replica(primary: ClusterNode, replica: ClusterNode) -> bool:
    """Whether a replica of the primary is connected, and the other process has copied its data."""
    with contextlib.suppress(Undecided):
        seen = await primary.ask("INFO", "replication")
        is_online = isinstance(seen, bytes) and b"state=online" in seen
        return is_online and await replica.has_copied()
    return False


async def empty(node: ClusterNode) -> None:
    """Delete the data of a running process, and kill it: it is restarted at once."""
    information = await node.ask("INFO", "server")
    assert isinstance(information, bytes)
    pid = next(
        int(line.split(b":")[1])
        for line in information.splitlines()
        if line.startswith(b"process_id:")
    )
    shutil.rmtree(node.directory / "appendonlydir")
    os.kill(pid, signal.SIGKILL)


async def test_an_emptied_primary_returns_as_a_replica_twice_in_a_row(tmp_path: Path) -> None:
    """Its replica is promoted with the data, and the next loss promotes the process that was emptied first."""
    async with running(tmp_path) as cluster:
        serving = await primary_of(cluster)
        assert serving is not None
        key = await key_of(cluster, serving[0])
        for number in range(2):
            node, node_id = serving
            assert await node.ask("SET", key, f"value-{number}") == b"OK"
            assert await node.ask("WAIT", 1, 60_000) == 1
            await empty(node)
            found = await successor(cluster, node_id)
            assert found[0] is not node, "a process without data serves"
            assert await value_of(found[0], key) == f"value-{number}".encode()
            while not await has_replica(found[0], node):  # noqa: ASYNC110 - the processes report it
                await asyncio.sleep(POLL_SECONDS)
            serving = found
