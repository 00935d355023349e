"""A simulated world (brokers, clients, a network, a store with a replica, an anchor), and one run in it.

The brokers are real: ``onewriter_broker.app.Broker`` with all its parts. They use the fake store, the memory anchor,
the simulated network and the virtual clock.
"""

from __future__ import annotations

import asyncio
import gc
import random
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import structlog
from tests.contents import Contents, stored_in
from tests.simulation.actors.client import Client
from tests.simulation.history import NEVER, History, Span
from tests.simulation.journal import Journal
from tests.simulation.loop import Process, VirtualLoop
from tests.simulation.network import Network
from tests.simulation.recording import Recorder
from tests.simulation.stores import Connection, RemoteAnchor, RemoteStore

from onewriter_broker.anchor.api import Addresses
from onewriter_broker.app import Broker, BrokerLimits, Dependencies
from onewriter_broker.auth.authentication import Authenticated
from onewriter_broker.desired import Initial
from onewriter_broker.log.store.api import LogStore
from onewriter_broker.settings import Settings
from onewriter_core.api.manifests import DesiredState, combine, parse
from onewriter_core.ids import Identity
from onewriter_testing.fake_store.cluster import FakeCluster, FakeClusterStore
from onewriter_testing.fake_store.server import FakeServer
from onewriter_testing.fake_store.store import FakeLogStore
from onewriter_testing.memory_anchor import MemoryAnchor

BUCKETS = 2

TICK_SECONDS = 0.1
"""Interval in which the nodes of a cluster exchange their views."""

PORT = 6650

LOCAL_TOPIC = "persistent://public/default/plain-0"
REPLICATED_TOPIC = "persistent://public/default/copied-0"

MANIFESTS = """
apiVersion: onewriter.dev/v1alpha1
kind: ExclusiveTopic
metadata: {name: copied, namespace: default}
spec:
  topic: persistent://public/default/copied-0
  access:
    modes: [Shared, Exclusive, WaitForExclusive, ExclusiveWithFencing]
    requireClaim: false
  promotion: {policy: Balanced}
  durability: Replicated
"""

REPLICATED = frozenset({REPLICATED_TOPIC})


class SubjectAuthenticator:
    """Accepts every subject without proof. Brokers only compare identities here."""

    async def authenticate(self, method: str, data: bytes) -> Authenticated:
        del method
        return Authenticated(Identity(data.decode()))


async def no_answer(_other: Addresses) -> None:
    """Stands for the answer of another broker over HTTP. The simulation has no HTTP."""


class BrokerNode:
    """A name and a port under which broker processes start and end, one after the other."""

    def __init__(self, world: World, number: int) -> None:
        self.name = f"broker-{number}"
        self.port = PORT + number
        self.process: Process
        self.broker: Broker
        self.store: RemoteStore
        self.anchor: RemoteAnchor
        self.is_up = False
        self._world = world
        self._stop: asyncio.Event
        self._task: asyncio.Task[None]
        self._starts = 0

    def start(self) -> None:
        """Start a broker process, unless one runs."""
        if self.is_up:
            return
        world = self._world
        self._starts += 1
        nonce = f"{self._starts:032x}"
        self.process = world.loop.add_process(f"{self.name}~{self._starts}")
        store_connection = Connection(world.loop, world.random(f"{self.process.name}/store"))
        inner = world.plain_store(commit_timeout_seconds=0.1 if world.cluster else 0.2)
        self.store = RemoteStore(store_connection, inner, world.recorder, self.process.name)
        anchor_connection = Connection(world.loop, world.random(f"{self.process.name}/anchor"))
        self.anchor = RemoteAnchor(anchor_connection, world.anchor)
        dependencies = Dependencies(
            settings=Settings(
                name=self.name,
                port=self.port,
                http_port=8080 + self.port - PORT,
                buckets=BUCKETS,
                roll_bytes=6_000,
                roll_seconds=20.0,
                tail_bytes_per_log=4_000,
                unused_topic_seconds=2.0,
            ),
            store=cast("LogStore", self.store),
            anchor=self.anchor,
            authenticator=SubjectAuthenticator(),
            desired=Initial(world.desired),
            single_node=False,
            limits=world.limits,
            reaches_store=no_answer,
        )
        self._task = world.loop.spawn(self.process, self._run(dependencies, nonce))
        self.is_up = True

    async def _run(self, dependencies: Dependencies, nonce: str) -> None:
        world = self._world
        self._stop = asyncio.Event()
        self.broker = Broker(
            dependencies,
            now=world.loop.time,
            wall_ms=world.wall_ms,
            nonce=nonce,
            randomness=world.random(f"{self.process.name}/broker"),
        )
        try:
            await self.broker.run(self._stop)
        except Exception as error:
            world.recorder.anomaly(f"{self.process.name} ended: {error!r}")
            raise

    def kill(self) -> None:
        """SIGKILL."""
        if self.is_up:
            self.is_up = False
            self.process.is_dead = True
            self._world.network.kill(self.process)

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL if the process does not end."""
        if not self.is_up:
            return
        self._world.loop.call(self.process, self._stop.set)
        await asyncio.wait([self._task], timeout=15.0)
        self.kill()

    def freeze(self) -> Callable[[], None]:
        """SIGSTOP. Call the returned function to send SIGCONT."""
        process = self.process
        process.is_frozen = True

        def thaw() -> None:
            process.is_frozen = False

        return thaw


class World:
    """Everything that exists in one run."""

    def __init__(
        self,
        loop: VirtualLoop,
        seed: int,
        *,
        brokers: int = 2,
        limits: BrokerLimits = BrokerLimits(),
        cluster: FakeCluster | None = None,
    ) -> None:
        self.limits = limits
        self.cluster = cluster
        self.seed = seed
        self.loop = loop
        self.recorder = Recorder(loop, seed)
        self.network = Network(loop, self.random("network"))
        self.server = FakeServer()  # not used by a world with a cluster
        self.server.add_replica("node-1")
        self.anchor = MemoryAnchor()
        self.desired: DesiredState = combine(parse(MANIFESTS, "simulation", []))
        self.nodes = [BrokerNode(self, number) for number in range(brokers)]
        self.clients: dict[str, Client] = {}
        self.bodies: dict[str, Callable[[Client], Awaitable[None]]] = {}
        self.tasks: list[asyncio.Task[Any]] = []
        self.buckets = BUCKETS
        self.was_flushed = False
        self._starts: dict[str, int] = {}

    def random(self, purpose: str) -> random.Random:
        """Return random numbers for one purpose. Draws for another purpose do not change them."""
        return random.Random(f"{self.seed}/{purpose}")

    def plain_store(self, commit_timeout_seconds: float = 1.0) -> FakeLogStore:
        """Return the store without delays and faults, as an operator's tool reaches it."""
        if self.cluster is not None:
            return FakeClusterStore(
                self.cluster,
                buckets=BUCKETS,
                replicas=1,
                commit_timeout_seconds=commit_timeout_seconds,
            )
        return FakeLogStore(
            self.server.resolve,
            buckets=BUCKETS,
            replicas=1,
            commit_timeout_seconds=commit_timeout_seconds,
        )

    def contents_of(self, bucket: int) -> Contents:
        """Return the contents of the primary that serves a bucket."""
        if self.cluster is None:
            return stored_in(self.server.primary)
        return stored_in(self.cluster.primary_of(bucket, BUCKETS))

    async def run_bus(self, cluster: FakeCluster) -> None:
        """Let the nodes of the cluster exchange their views and vote, until cancelled."""
        while True:
            cluster.tick(self.loop.time())
            await asyncio.sleep(TICK_SECONDS)

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + int(self.loop.time() * 1000)

    @property
    def history(self) -> History:
        return self.recorder.history

    def background(self, work: Any) -> asyncio.Task[Any]:
        """Run a coroutine in the world's process."""
        task = self.loop.spawn(self.loop.world, work)
        self.tasks.append(task)
        return task

    # ------------------------------------------------------------ clients

    def add_client(
        self, name: str, body: Callable[[Client], Awaitable[None]], subject: str = ""
    ) -> None:
        """Add a client process that runs ``body``. After a kill, a new process runs it from its beginning."""
        self.bodies[name] = body
        self._start_client(name, subject)

    def _start_client(self, name: str, subject: str) -> None:
        self._starts[name] = self._starts.get(name, 0) + 1
        start = self._starts[name]
        client = Client(
            self.loop,
            self.network,
            self.recorder,
            [node.port for node in self.nodes],
            f"{name}~{start}",
            self.random(f"client {name} {start}"),
            subject,
        )
        self.clients[name] = client
        self.loop.spawn(client.process, self._run_client(client, self.bodies[name]))

    async def _run_client(self, client: Client, body: Callable[[Client], Awaitable[None]]) -> None:
        try:
            await body(client)
        except Exception as error:
            self.recorder.anomaly(f"{client.process.name} failed: {error!r}")
            raise

    def kill_client(self, name: str) -> None:
        client = self.clients[name]
        if client.process.is_dead:
            return
        client.process.is_dead = True
        self.recorder.process_ended(client.process.name)
        self.history.absences.append(Span(client.process.name, self.loop.time(), float(NEVER)))
        self.network.kill(client.process)

    def restart_client(self, name: str) -> None:
        if self.clients[name].process.is_dead:
            self._start_client(name, self.clients[name].subject)

    def freeze_client(self, name: str) -> Callable[[], None]:
        process = self.clients[name].process
        process.is_frozen = True
        since = self.loop.time()

        def thaw() -> None:
            process.is_frozen = False
            if not self.recorder.is_closed:
                self.history.absences.append(Span(process.name, since, self.loop.time()))

        return thaw

    # ------------------------------------------------------------ the end

    async def tear_down(self) -> None:
        """End everything that still runs, without recording it."""
        self.recorder.close()
        for task in self.tasks:
            task.cancel()
        for process in self.loop.processes:
            process.is_frozen = process.is_dead = False
        own = asyncio.current_task()
        for _ in range(20):
            running = [
                task
                for process in self.loop.processes
                for task in process.tasks
                if not task.done() and task is not own
            ]
            if not running:
                return
            for task in running:
                task.cancel()
            await asyncio.sleep(1.0)


@contextmanager
def _logged_to(journal: Journal) -> Iterator[None]:
    """Send the brokers' log lines to the journal instead of the terminal."""
    structlog.reset_defaults()
    structlog.configure(processors=[journal], cache_logger_on_first_use=False)
    try:
        yield
    finally:
        structlog.reset_defaults()


def run(
    seed: int,
    scenario: Callable[[World], Awaitable[None]],
    *,
    brokers: int = 2,
    limits: BrokerLimits = BrokerLimits(),
    cluster: FakeCluster | None = None,
) -> History:
    """Run ``scenario`` in a new world and return the history."""
    loop = VirtualLoop(random.Random(f"{seed}/scheduler"))
    world = World(loop, seed, brokers=brokers, limits=limits, cluster=cluster)
    journal = Journal(loop, world.recorder)
    # Tasks that were cut off are reported when they are collected. The journal ignores reports of the teardown.
    loop.set_exception_handler(lambda _loop, context: journal.unhandled(context))

    async def main() -> None:
        if cluster is not None:
            world.background(world.run_bus(cluster))
        for node in world.nodes:
            node.start()
        try:
            await scenario(world)
        finally:
            await world.tear_down()

    with warnings.catch_warnings(), _logged_to(journal):
        warnings.simplefilter("always")
        warnings.showwarning = journal.warned  # type: ignore[assignment]  # with fewer arguments
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(loop.spawn(loop.world, main()))
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.wait(left))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            loop.close()
            gc.collect()  # tasks that were cut off are reported here, not in the next run
    return world.history
