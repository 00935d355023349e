"""A Valkey Cluster, two brokers and writers that reach each other through a proxy, so that a test can part them."""

from __future__ import annotations

import contextlib
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import redis.exceptions
from tests.integration.brokers_of_two_users import BrokersOfTwoUsers
from tests.integration.cluster_links import Entrance, Links, Route, Sources
from tests.integration.forked_brokers import BUCKETS
from tests.servers import BROKER_USER, StoreServer
from tests.store_cluster import SHARDS, StoreCluster

from onewriter_broker.log.store.keys import Keys
from onewriter_core.cluster_views import SlotMap
from onewriter_core.ids import TopicName
from onewriter_testing.ports import free_ports

BROKERS = 2
NODES = 2 * SHARDS
NODE_TIMEOUT_MS = 1500
WRITER = "writer"
KEYS = Keys(BUCKETS)

_BUS = "cluster-announce-bus-port"


def node_name(number: int) -> str:
    return f"node-{number}"


def broker_name(number: int) -> str:
    return f"broker-{number}"


class LinkedCluster(StoreCluster):
    """Its nodes announce ports of the proxy. Their connections come from addresses of their own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, replicas=1, node_timeout_ms=NODE_TIMEOUT_MS)
        self.entrances: list[Entrance] = []
        self.addresses: dict[str, str] = {}
        for number, server in enumerate(self.servers):
            name, address = node_name(number), f"127.0.1.{number + 1}"
            real, bus, announced_bus = free_ports(1), free_ports(1), free_ports(1)
            self.addresses[address] = name
            self.entrances += [
                Entrance(server.port, ("127.0.0.1", real), name),
                Entrance(announced_bus, ("127.0.0.1", bus), name, bus=True),
            ]
            server.configure(
                port=str(real),
                cluster_port=str(bus),
                cluster_announce_ip="127.0.0.1",
                cluster_announce_port=str(server.port),
                cluster_announce_bus_port=str(announced_bus),
                replica_announce_ip="127.0.0.1",
                replica_announce_port=str(server.port),
                bind_source_addr=address,
            )

    def number_of(self, server: StoreServer) -> int:
        return self.servers.index(server)

    def bus_port(self, server: StoreServer) -> int:
        return int(server.command("CONFIG", "GET", _BUS)[1])

    def primary_of(self, topic: str) -> StoreServer:
        """The server that serves the topic."""
        return self.primary(KEYS.unit(KEYS.bucket(TopicName.parse(topic))))

    def serves(self, server: StoreServer) -> bool:
        """Whether the server is a primary with hash slots in its own view."""
        with contextlib.suppress(redis.exceptions.RedisError, OSError):
            view = self.view(server)
            return any(node.node_id == view.me and node.slots for node in view.nodes)
        return False

    def empty(self, server: StoreServer) -> None:
        """Remove all data of a dead server, as the start of a process does that finds no data."""
        server.kill()
        for path in server.folder.iterdir():
            if path.name != "server.log":
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def partner(self, server: StoreServer) -> StoreServer:
        """The other node of the server's shard."""
        return self.servers[(self.number_of(server) + SHARDS) % NODES]

    def _is_complete(self) -> bool:
        with contextlib.suppress(redis.exceptions.RedisError, OSError):
            self._join_all()
        return super()._is_complete()

    def _join_all(self) -> None:
        """Let each process that belongs to no shard copy its partner, as the supervisor of ``onewriter up`` does."""
        views = {server: self.view(server) for server in self.servers}
        found = SlotMap(views.values())
        for server, view in views.items():
            me, partner = found.nodes[view.me], self.partner(server)
            if me.slots or me.follows or not self.serves(partner):
                continue
            partner_id = views[partner].me
            if partner_id not in {node.node_id for node in view.nodes}:
                server.command("CLUSTER", "MEET", "127.0.0.1", partner.port, self.bus_port(partner))
                continue
            server.command("FLUSHALL")
            self._has_become_replica(server, partner_id)
        alive = {view.me for view in views.values()}
        for server, view in views.items():
            for node in view.nodes:
                if node.node_id not in alive and not node.slots:
                    with contextlib.suppress(redis.exceptions.ResponseError):
                        server.command("CLUSTER", "FORGET", node.node_id)


class LinkedBrokers(BrokersOfTwoUsers):
    """Brokers whose processes can be killed and frozen, and are healed together."""

    def heal(self) -> None:
        """Continue frozen brokers, start dead ones, and wait until all answer."""
        for number, process in enumerate(self._processes):
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
            else:
                self.restart(number, wait=False)
        self.wait_ready()


class World:
    """The cluster, its brokers and the network between all parts."""

    def __init__(self, cluster: LinkedCluster, brokers: LinkedBrokers, links: Links) -> None:
        self.cluster = cluster
        self.brokers = brokers
        self.links = links
        self.writer_ports: dict[int, int] = {}


def routes_to_store(broker: int) -> frozenset[Route]:
    """All connections of a broker to the nodes."""
    return frozenset(Route(broker_name(broker), node_name(number)) for number in range(NODES))


@contextlib.contextmanager
def running_world(manifests: str, settings: Mapping[str, object]) -> Iterator[World]:
    """Run three shards with a replica each, and two brokers."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ow-")))
        cluster = LinkedCluster(folder)
        brokers = LinkedBrokers(
            folder / "brokers",
            brokers=BROKERS,
            manifests=manifests,
            redis_url=cluster.url,
            supervised=False,
            settings={"buckets": BUCKETS} | dict(settings),
        )
        ports = {number: free_ports(1) for number in range(BROKERS)}
        to_brokers = [
            Entrance(port, brokers.address(number), broker_name(number), source=WRITER)
            for number, port in ports.items()
        ]
        sources = Sources(
            cluster.addresses,
            {BROKER_USER.encode(): broker_name(1)},
            broker_name(0),
        )
        links = stack.enter_context(Links([*cluster.entrances, *to_brokers], sources, folder))
        stack.callback(cluster.kill)
        cluster.form()
        stack.callback(brokers.stop)
        brokers.start()
        world = World(cluster, brokers, links)
        world.writer_ports = ports
        try:
            yield world
        except BaseException as error:
            error.add_note(f"the brokers' log ends with:\n{brokers.log_end()}")
            raise
