"""The worlds in which the log store's contract is tested: fake servers and real ones.

A world opens stores and causes the server faults that the contract covers. The tests use only this interface.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import zlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import pytest
from tests.servers import (
    BROKER_PASSWORD,
    BROKER_USER,
    SERVER_KINDS,
    StoreServer,
    running_pair,
    running_server,
)
from tests.stamps import fence_once, stamp_anew
from tests.store_cluster import StoreCluster

from onewriter_broker.log.store.api import (
    Append,
    Binding,
    Block,
    BrokenKey,
    Fence,
    FencedLog,
    LogStore,
    Outcome,
)
from onewriter_broker.log.store.keys import Keys
from onewriter_broker.log.store.redis.primary import RedisSettings
from onewriter_broker.log.store.redis.store import RedisLogStore
from onewriter_core.errors import Undecided
from onewriter_core.ids import EARLIEST, Position, TopicName
from onewriter_core.log_format.chain import CHAIN_START, chain
from onewriter_testing.fake_store.server import FakeNode, FakeServer
from onewriter_testing.fake_store.store import FakeLogStore

BUCKETS = 4
PATIENCE_SECONDS = 30.0
"""Time limit for the answer of a running server. On a busy machine its disk, or this process, may be slow."""
WORLD_KINDS = ["fake", *SERVER_KINDS]
CLUSTER_KIND = pytest.param("cluster", marks=pytest.mark.full)
"""The kind of a cluster as a parameter; test_log_store_cluster.py keeps the proof in ``make test``."""

Answer = TypeVar("Answer")


class World(Protocol):
    """Servers, and stores that connect to the server that discovery names as the primary."""

    kind: str

    def open(self) -> LogStore: ...

    def replid(self, bucket: int = 0) -> str:
        """The dataset of the node that discovery names; in a cluster, of the one that serves the bucket."""

    def flush_all(self) -> None: ...

    def drop_connections(self) -> None: ...

    def mark(self) -> int:
        """Return a point in the append-only file, for ``restart``."""

    def restart(self, keep: int | None = None) -> None: ...

    def go_away(self) -> None: ...

    def come_back(self) -> None: ...

    def put_foreign_key(self, key: str) -> None:
        """Let another process replace a key by a string."""

    def delete_key(self, key: str) -> None: ...

    def move_end(self, topic: TopicName, end: Position) -> None:
        """Let another process add an entry there to a topic's stream and delete it again."""


class PairWorld(World, Protocol):
    """A world with a primary and a replica."""

    def stop_replication(self) -> None:
        """Stop the replication: the replica receives no more writes."""

    def pause_replica(self) -> None:
        """Pause the replica: it stays connected and applies no writes until ``resume_replica``."""

    def resume_replica(self) -> None: ...

    def fail_over(self) -> None:
        """Let discovery name the replica. The old primary stays and accepts writes."""


class FakeWorld:
    kind = "fake"

    def __init__(self, *, with_replica: bool) -> None:
        self.server = FakeServer()
        self.replica: FakeNode | None = None
        if with_replica:
            self.replica = self.server.add_replica("node-1")

    def open(self) -> LogStore:
        return FakeLogStore(
            self.server.resolve, buckets=BUCKETS, replicas=1, commit_timeout_seconds=0.05
        )

    def replid(self, bucket: int = 0) -> str:
        return self.server.primary.replid

    def flush_all(self) -> None:
        self.server.flush_all(self.server.primary)

    def drop_connections(self) -> None:
        self.server.primary.drop_connections()

    def mark(self) -> int:
        return len(self.server.primary.history)

    def restart(self, keep: int | None = None) -> None:
        self.server.restart(self.server.primary, keep=keep)

    def go_away(self) -> None:
        self.server.primary.is_reachable = False

    def come_back(self) -> None:
        self.server.primary.is_reachable = True

    def put_foreign_key(self, key: str) -> None:
        self.server.put_foreign_key(self.server.primary, key)

    def delete_key(self, key: str) -> None:
        self.server.delete_key(self.server.primary, key)

    def move_end(self, topic: TopicName, end: Position) -> None:
        self.server.primary.run("XSETID", Keys(BUCKETS).log(topic), str(end))

    def stop_replication(self) -> None:
        assert self.replica is not None
        self.replica.holds_replication = True

    def pause_replica(self) -> None:
        self.stop_replication()

    def resume_replica(self) -> None:
        assert self.replica is not None
        self.replica.holds_replication = False
        self.replica.follow()

    def fail_over(self) -> None:
        assert self.replica is not None
        self.server.promote(self.replica)


class ServerWorld:
    """Real servers. The stores connect through a link that takes the place of discovery.

    The stores connect as a user that has the rights of a broker and no others.
    """

    def __init__(self, folder: Path, primary: StoreServer, replica: StoreServer | None) -> None:
        self.kind = primary.kind
        self.primary = primary
        self.replica = replica
        self._link = folder / "primary"
        self._point_to(primary)

    def open(self) -> LogStore:
        return RedisLogStore(self.settings())

    def settings(self) -> RedisSettings:
        return RedisSettings(
            url=f"unix://{self._link}",
            username=BROKER_USER,
            password=BROKER_PASSWORD,
            buckets=BUCKETS,
            replicas=1,
            connect_timeout_seconds=PATIENCE_SECONDS,
            call_timeout_seconds=PATIENCE_SECONDS,
            commit_timeout_seconds=0.2,
        )

    def replid(self, bucket: int = 0) -> str:
        return self.primary.replid()

    def flush_all(self) -> None:
        self.primary.command("FLUSHALL")

    def drop_connections(self) -> None:
        self.primary.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    def mark(self) -> int:
        return self.primary.append_only_bytes()

    def restart(self, keep: int | None = None) -> None:
        self.primary.restart(keep_bytes=keep)

    def go_away(self) -> None:
        self.primary.kill()

    def come_back(self) -> None:
        self.primary.start()

    def put_foreign_key(self, key: str) -> None:
        self.primary.command("SET", key, "written by somebody else")

    def delete_key(self, key: str) -> None:
        self.primary.command("DEL", key)

    def move_end(self, topic: TopicName, end: Position) -> None:
        key = Keys(BUCKETS).log(topic)
        self.primary.command("XADD", key, str(end), "hello", "world")
        self.primary.command("XDEL", key, str(end))

    def stop_replication(self) -> None:
        # A replica that is cut off now and promoted later has the same data as one promoted now.
        assert self.replica is not None
        self.replica.promote()

    def pause_replica(self) -> None:
        assert self.replica is not None
        self.replica.pause()

    def resume_replica(self) -> None:
        assert self.replica is not None
        self.replica.resume()

    def fail_over(self) -> None:
        assert self.replica is not None
        self.primary = self.replica
        self._point_to(self.replica)

    def _point_to(self, server: StoreServer) -> None:
        fresh = self._link.with_suffix(".new")
        fresh.symlink_to(server.path)
        fresh.replace(self._link)


class ClusterWorld:
    """A cluster of three primaries. Faults concern the primary of bucket 0, which the tests use most."""

    kind = "cluster"

    def __init__(self, cluster: StoreCluster) -> None:
        self.cluster = cluster
        self._keys = Keys(BUCKETS)

    @property
    def primary(self) -> StoreServer:
        return self.cluster.primary(self._keys.unit(0))

    def open(self) -> LogStore:
        return RedisLogStore(self.settings())

    def settings(self) -> RedisSettings:
        return RedisSettings(
            url=self.cluster.url,
            username=BROKER_USER,
            password=BROKER_PASSWORD,
            buckets=BUCKETS,
            connect_timeout_seconds=PATIENCE_SECONDS,
            call_timeout_seconds=PATIENCE_SECONDS,
            commit_timeout_seconds=0.2,
        )

    def replid(self, bucket: int = 0) -> str:
        return self.cluster.primary(self._keys.unit(bucket)).replid()

    def flush_all(self) -> None:
        self.cluster.flush_all()

    def drop_connections(self) -> None:
        for server in self.cluster.servers:
            server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    def mark(self) -> int:
        return self.primary.append_only_bytes()

    def restart(self, keep: int | None = None) -> None:
        self.primary.restart(keep_bytes=keep)
        self.cluster.wait_complete()  # a restarted primary refuses calls for two seconds

    def go_away(self) -> None:
        self._away = self.primary
        self._away.kill()

    def come_back(self) -> None:
        self._away.start()
        self.cluster.wait_complete()

    def put_foreign_key(self, key: str) -> None:
        self.cluster.primary(key).command("SET", key, "written by somebody else")

    def delete_key(self, key: str) -> None:
        self.cluster.primary(key).command("DEL", key)

    def move_end(self, topic: TopicName, end: Position) -> None:
        key = self._keys.log(topic)
        self.cluster.primary(key).command("XADD", key, str(end), "hello", "world")
        self.cluster.primary(key).command("XDEL", key, str(end))


async def append_all(store: LogStore, appends: Sequence[Append]) -> list[Outcome | BrokenKey]:
    """Append blocks of several buckets: in one call, or in a cluster in one call for each bucket."""
    if not store.is_sharded:
        return await store.append(appends)
    answers: dict[int, Outcome | BrokenKey] = {}
    for bucket in {each.binding.bucket for each in appends}:
        indexes = [i for i, each in enumerate(appends) if each.binding.bucket == bucket]
        found = await store.append([appends[index] for index in indexes])
        answers.update(zip(indexes, found, strict=True))
    return [answers[index] for index in range(len(appends))]


@contextlib.contextmanager
def open_world(kind: str) -> Iterator[World]:
    if kind == "fake":
        yield FakeWorld(with_replica=False)
        return
    with tempfile.TemporaryDirectory(prefix="ow-") as folder, running_server(kind) as server:
        yield ServerWorld(Path(folder), server, None)


@contextlib.contextmanager
def open_pair_world(kind: str) -> Iterator[PairWorld]:
    if kind == "fake":
        yield FakeWorld(with_replica=True)
        return
    with (
        tempfile.TemporaryDirectory(prefix="ow-") as folder,
        running_pair(kind) as (primary, replica),
    ):
        yield ServerWorld(Path(folder), primary, replica)


def topics_of_bucket(bucket: int, count: int) -> list[TopicName]:
    """Return different topics that hash into one bucket."""
    found: list[TopicName] = []
    number = 0
    while len(found) < count:
        topic = TopicName.parse(f"topic-{number}")
        if zlib.crc32(str(topic).encode()) % BUCKETS == bucket:
            found.append(topic)
        number += 1
    return found


class Writer:
    """A minimal broker: one bucket, one ledger, and the blocks that it sends."""

    def __init__(self, store: LogStore, binding: Binding, ledger: int) -> None:
        self.store = store
        self.binding = binding
        self.ledger = ledger
        self.token = binding.token(ledger)
        self._next: dict[TopicName, int] = {}
        self._chain: dict[TopicName, bytes] = {}

    async def fence(self, *topics: TopicName, create: bool = True) -> Outcome:
        logs = tuple(
            FencedLog(topic, create, {"epoch": str(self.ledger)}, {"holder": self.binding.owner})
            for topic in topics
        )
        audit = {"event": "fence", "ledger": str(self.ledger)}
        return await fence_once(self.store, Fence(self.binding, self.ledger, logs, audit))

    def block(self, topic: TopicName, *entries: bytes, counts: list[int] | None = None) -> Block:
        """Return the next block of the topic."""
        first = self._next.get(topic, 1)
        position = Position(self.ledger, first)
        lengths = [len(entry) for entry in entries]
        payload = b"".join(entries)
        link = chain(self._chain.get(topic, CHAIN_START), position, lengths, payload)
        self._next[topic] = first + len(entries)
        self._chain[topic] = link
        return Block(position, lengths, payload, counts, 1_700_000_000_000 + first, link)

    def appending(self, topic: TopicName, *entries: bytes, never_sent: bool = False) -> Append:
        block = self.block(topic, *entries)
        return Append(self.binding, topic, self.token, block, never_sent=never_sent)

    async def append(self, topic: TopicName, *entries: bytes) -> Append:
        """Append one block. Fails if the store does not accept it."""
        append = self.appending(topic, *entries)
        assert await self.store.append([append]) == [Outcome.DONE]
        return append


async def writer(
    world: World,
    store: LogStore,
    *,
    bucket: int = 0,
    owner: str = "broker-a",
    version: int = 1,
    generation: int = 1,
    ledger: int = 5,
) -> Writer:
    """Return a writer whose binding is stamped on the present dataset."""
    binding = Binding(bucket, world.replid(bucket), generation, owner, version)
    assert await stamp_anew(store, binding) is Outcome.DONE
    return Writer(store, binding, ledger)


async def positions(store: LogStore, topic: TopicName) -> list[str]:
    """Return the positions of the blocks and markers of a log."""
    stored = await store.read_blocks(topic, EARLIEST, count=1000)
    return [str(block.position) for block in stored]


async def decided(call: Callable[[], Awaitable[Answer]]) -> Answer:
    """Repeat a call while it is undecided, and return its answer."""
    async with asyncio.timeout(4 * PATIENCE_SECONDS):
        while True:
            try:
                return await call()
            except Undecided:
                await asyncio.sleep(0.05)
