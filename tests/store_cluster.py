"""A real Valkey Cluster for tests: servers of tests.servers that form a cluster of primaries and replicas."""

from __future__ import annotations

import contextlib
import functools
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import redis.exceptions
from tests.servers import START_SECONDS_MAX, StoreServer

from onewriter_core.cluster_views import ClusterView, SlotMap, first_slot, parse_view, slot_of
from onewriter_testing.ports import free_ports

SHARDS = 3


class StoreCluster:
    """Three shards, or ``shards``. Server ``n`` and, with replicas, ``n + shards`` begin as primary and replica of shard ``n``."""

    def __init__(
        self, folder: Path, *, replicas: int, node_timeout_ms: int, shards: int = SHARDS
    ) -> None:
        self.servers = []
        for number in range(shards * (1 + replicas)):
            home = folder / f"node-{number}"
            home.mkdir()
            server = StoreServer(
                folder=home,
                listens_on_tcp=True,
                cluster_enabled="yes",
                cluster_port=str(free_ports(1)),
                cluster_node_timeout=str(node_timeout_ms),
                cluster_require_full_coverage="no",
                cluster_allow_replica_migration="no",
                enable_debug_command="yes",
            )
            self.servers.append(server)
        self._replicas = replicas
        self._shards = shards

    @property
    def places(self) -> str:
        """The addresses of the servers for a URL."""
        return ",".join(f"127.0.0.1:{server.port}" for server in self.servers)

    @property
    def url(self) -> str:
        return f"redis+cluster://{self.places}"

    def bus_port(self, server: StoreServer) -> int:
        """The port of the server's bus for the other nodes."""
        return int(server.command("CONFIG", "GET", "cluster-port")[1])

    def form(self) -> None:
        """Start all servers and form the cluster."""
        for server in self.servers:
            server.start()
        first = self.servers[0]
        bus_port = self.bus_port(first)
        for shard in range(self._shards):
            low, end = first_slot(shard, self._shards), first_slot(shard + 1, self._shards)
            self.servers[shard].command("CLUSTER", "ADDSLOTSRANGE", low, end - 1)
        for number, server in enumerate(self.servers):
            server.command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for server in self.servers[1:]:
            server.command("CLUSTER", "MEET", "127.0.0.1", first.port, bus_port)
        wait_until(lambda: all(len(self.view(s).nodes) == len(self.servers) for s in self.servers))
        for number, server in enumerate(self.servers[self._shards :]):
            primary_id = self.view(self.servers[number % self._shards]).me
            wait_until(functools.partial(self._has_become_replica, server, primary_id))
        self.wait_complete()

    def wait_complete(self) -> None:
        """Wait until every server sees all slots served, and every replica has copied its primary."""
        wait_until(self._is_complete)

    def view(self, server: StoreServer) -> ClusterView:
        nodes = server.execute("CLUSTER", "NODES")
        return parse_view(nodes.decode(), ("127.0.0.1", server.port))

    def map(self) -> SlotMap:
        """The present map, of all servers that answer."""
        views = []
        for server in self.servers:
            with contextlib.suppress(redis.exceptions.RedisError, OSError):
                views.append(self.view(server))
        return SlotMap(views)

    def primary(self, key: str) -> StoreServer:
        """The server that serves the key's slot."""
        found = self.map().primary_of(slot_of(key))
        assert found is not None
        return next(server for server in self.servers if server.port == found.port)

    def replica_of(self, primary: StoreServer) -> StoreServer:
        """A replica of this primary."""
        found = self.map()
        (shard,) = [each for each in found.shards() if each.primary.port == primary.port]
        return next(s for s in self.servers if s.port == shard.replicas[0].port)

    def flush_all(self) -> None:
        for server in self.servers:
            with contextlib.suppress(redis.exceptions.ReadOnlyError):
                server.command("FLUSHALL")

    def kill(self) -> None:
        for server in self.servers:
            server.kill()

    def _has_become_replica(self, server: StoreServer, primary_id: str) -> bool:
        with contextlib.suppress(redis.exceptions.ResponseError):
            server.command("CLUSTER", "REPLICATE", primary_id)
            return True
        return False

    def _is_complete(self) -> bool:
        try:
            for server in self.servers:
                state = server.execute("CLUSTER", "INFO").decode()
                if "cluster_state:ok" not in state:
                    return False
                replication = server.information("replication")
                if replication["role"] == "slave" and replication["master_link_status"] != "up":
                    return False
            found = self.map()
            replicas = [len(shard.replicas) for shard in found.shards()]
            return found.is_complete and replicas == [self._replicas] * self._shards
        except (redis.exceptions.RedisError, OSError):
            return False


def wait_until(is_true: Callable[[], bool]) -> None:
    """Wait for a state; fail after a long time."""
    deadline = time.monotonic() + START_SECONDS_MAX
    while not is_true():
        if time.monotonic() > deadline:
            raise RuntimeError("the cluster did not reach the state")
        time.sleep(0.02)


@contextlib.contextmanager
def running_cluster(
    *, replicas: int = 1, node_timeout_ms: int = 2000, shards: int = SHARDS
) -> Iterator[StoreCluster]:
    """Run a cluster of three shards, or of ``shards``; at the end it is killed and its folders removed."""
    with tempfile.TemporaryDirectory(prefix="ow-") as folder:
        cluster = StoreCluster(
            Path(folder), replicas=replicas, node_timeout_ms=node_timeout_ms, shards=shards
        )
        try:
            cluster.form()
            yield cluster
        finally:
            cluster.kill()
