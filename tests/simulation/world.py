"""A simulated world: brokers, a store with a replica, an anchor, clients; and one run of it.

The brokers are real: ``onewriter_broker.app.Broker`` with all its parts, on the fake store and the memory anchor,
with a network that loses connections and a clock that the test controls.
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
from tests.simulation.actors.client import Client
from tests.simulation.history import NEVER, History, Span
from tests.simulation.journal import Journal
from tests.simulation.loop import Process, VirtualLoop
from tests.simulation.network import Network
from tests.simulation.recording import Recorder
from tests.simulation.stores import Connection, RemoteAnchor, RemoteStore

from onewriter_broker.anchor.memory import MemoryAnchor
from onewriter_broker.app import Broker, BrokerLimits, Dependencies
from onewriter_broker.auth.authentication import Authenticated
from onewriter_broker.desired import Initial
from onewriter_broker.log.store.api import LogStore
from onewriter_broker.log.store.fake.server import FakeServer
from onewriter_broker.log.store.fake.store import FakeLogStore
from onewriter_broker.settings import Settings
from onewriter_core.api.manifests import DesiredState, combine, parse
from onewriter_core.ids import Identity

BUCKETS = 2
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
    """Accepts every subject: identities matter here, their proofs do not."""

    async def authenticate(self, method: str, data: bytes) -> Authenticated:
        del method
        return Authenticated(Identity(data.decode()))


class BrokerNode:
    """The place of one broker: a name and a port, under which processes start and end."""

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
        """Start a process in this place, unless one runs."""
        if self.is_up:
            return
        world = self._world
        self._starts += 1
        nonce = f"{self._starts:032x}"
        self.process = world.loop.add_process(f"{self.name}~{self._starts}")
        store_way = Connection(world.loop, world.random(f"{self.process.name}/store"))
        inner = FakeLogStore(
            world.server.resolve, buckets=BUCKETS, replicas=1, commit_timeout_seconds=0.2
        )
        self.store = RemoteStore(store_way, inner, world.recorder, self.process.name)
        anchor_way = Connection(world.loop, world.random(f"{self.process.name}/anchor"))
        self.anchor = RemoteAnchor(anchor_way, world.anchor)
        dependencies = Dependencies(
            settings=Settings(
                name=self.name,
                port=self.port,
                http_port=8080 + self.port - PORT,
                buckets=BUCKETS,
                roll_bytes=6_000,
                roll_seconds=20.0,
                tail_bytes_per_log=4_000,
            ),
            store=cast("LogStore", self.store),
            anchor=self.anchor,
            authenticator=SubjectAuthenticator(),
            desired=Initial(world.desired),
            single_node=False,
            limits=world.limits,
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
    """Everything in one run."""

    def __init__(
        self,
        loop: VirtualLoop,
        seed: int,
        *,
        brokers: int = 2,
        limits: BrokerLimits = BrokerLimits(),
    ) -> None:
        self.limits = limits
        self.seed = seed
        self.loop = loop
        self.recorder = Recorder(loop, seed)
        self.network = Network(loop, self.random("network"))
        self.server = FakeServer()
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
        """Return random numbers for one purpose, independent of changes elsewhere."""
        return random.Random(f"{self.seed}/{purpose}")

    def plain_store(self) -> FakeLogStore:
        """Return the store as an operator's tool reaches it."""
        return FakeLogStore(self.server.resolve, buckets=BUCKETS, replicas=1)

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
        """Add a client process that runs ``body``, from the start and again after each kill."""
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
        """End everything that still runs. Nothing of this is recorded."""
        self.recorder.close()
        for task in self.tasks:
            task.cancel()
        for process in self.loop.processes:
            process.is_frozen = process.is_dead = False
        mine = asyncio.current_task()
        for _ in range(20):
            running = [
                task
                for process in self.loop.processes
                for task in process.tasks
                if not task.done() and task is not mine
            ]
            if not running:
                return
            for task in running:
                task.cancel()
            await asyncio.sleep(1.0)


@contextmanager
def _logged_to(journal: Journal) -> Iterator[None]:
    """Send the brokers' log to the journal instead of the terminal."""
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
) -> History:
    """Run ``scenario`` in a world of its own and return what happened."""
    loop = VirtualLoop(random.Random(f"{seed}/scheduler"))
    world = World(loop, seed, brokers=brokers, limits=limits)
    journal = Journal(loop, world.recorder)
    # Tasks that end in the middle of their work report this when they are collected; here it is intended.
    loop.set_exception_handler(lambda _loop, context: journal.unhandled(context))

    async def main() -> None:
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
            gc.collect()  # tasks that were cut off report it here, not in the next run
    return world.history
