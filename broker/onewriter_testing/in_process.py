"""A real broker in a test's process, with takeovers, partitions and failovers on demand.

The broker is the same as in a broker process (app.Broker). Its store and its anchor are in memory, and it
runs in a thread with its own event loop. Tests reach it through ``onewriter.testing``. All methods are for
other threads; they return when the order is done, within ORDER_SECONDS_MAX.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from typing import TypeVar

from onewriter_broker.app import Broker, BrokerLimits, Dependencies
from onewriter_broker.auth.authentication import AnonymousAuthenticator
from onewriter_broker.auth.authenticators import authenticator
from onewriter_broker.desired import Initial
from onewriter_broker.settings import Settings
from onewriter_broker.tls import certificate_of
from onewriter_broker.topic.runner import TopicRunner
from onewriter_core.api.manifests import combine, parse
from onewriter_core.errors import Unavailable
from onewriter_core.ids import TopicName
from onewriter_core.topic.events import Event, FenceRequested, HandoverRequested
from onewriter_testing.fake_store.server import FakeServer
from onewriter_testing.fake_store.store import FakeLogStore
from onewriter_testing.memory_anchor import MemoryAnchor
from onewriter_testing.network import Gate
from onewriter_testing.ports import free_ports

ORDER_SECONDS_MAX = 10.0
"""Time until an order is done."""

STOP_SECONDS_MAX = 10.0

POLL_SECONDS = 0.005

BUCKETS = 8

Result = TypeVar("Result")


class InProcessBroker:
    """Use ``start`` and ``stop``. ``manifests`` is YAML text; ``settings`` are the broker's settings, by
    name.
    """

    def __init__(
        self,
        *,
        manifests: str = "",
        settings: Mapping[str, object] | None = None,
        limits: BrokerLimits = BrokerLimits(),
    ) -> None:
        self._limits = limits
        port = free_ports(2)
        chosen: dict[str, object] = {
            "name": "in-process",
            "port": port,
            "http_port": port + 1,
            "buckets": BUCKETS,
        }
        self._settings = Settings.model_validate(chosen | dict(settings or {}))
        self._authenticator = authenticator(self._settings) or AnonymousAuthenticator()
        self._desired = combine(parse(manifests, "manifests", []))
        self._server = FakeServer()
        self._server.add_replica("replica-1")
        self._orders = itertools.count(1)
        self._gates: dict[Gate, None] = {}
        self._is_cut = False
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._broker: Broker
        self._started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="onewriter broker", daemon=True)

    @property
    def service_url(self) -> str:
        """The URL for Pulsar clients."""
        return f"pulsar://127.0.0.1:{self._settings.port}"

    @property
    def http_url(self) -> str:
        """The URL of the HTTP interface."""
        return f"http://127.0.0.1:{self._settings.http_port}"

    # ------------------------------------------------------------ its life

    def start(self) -> None:
        """Start the broker; returns when it serves. Raises the error that prevented it."""
        self._thread.start()
        self._started.result(ORDER_SECONDS_MAX)

    def stop(self) -> None:
        """Heal all partitions, stop in order, and wait for the thread."""
        if self._thread.is_alive():
            self.heal()
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(STOP_SECONDS_MAX)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        store = FakeLogStore(self._server.resolve, buckets=self._settings.buckets, replicas=1)
        self._broker = Broker(
            Dependencies(
                settings=self._settings,
                store=store,
                anchor=MemoryAnchor(),
                authenticator=self._authenticator,
                desired=Initial(self._desired),
                single_node=False,
                certificate=certificate_of(self._settings),
                limits=self._limits,
                through=lambda inner: Gate(inner, self._gates, lambda: self._is_cut),
            )
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._broker.run(self._stop))
            await self._broker.is_ready.wait()
            await self._until_held()
            self._started.set_result(None)

    async def _until_held(self) -> None:
        """Wait until every bucket is owned, in the present dataset."""
        replid = self._server.primary.replid
        while True:
            held = self._broker.ownership.held().values()
            served = sum(holding.binding.replid == replid for holding in held)
            if served == self._settings.buckets:
                return
            await asyncio.sleep(POLL_SECONDS)

    def _do(self, work: Coroutine[object, object, Result]) -> Result:
        async def bounded() -> Result:
            async with asyncio.timeout(ORDER_SECONDS_MAX):
                return await work

        if not self._thread.is_alive():
            work.close()
            raise Unavailable("the broker does not run")
        return asyncio.run_coroutine_threadsafe(bounded(), self._loop).result()

    # ------------------------------------------------------------ takeovers

    def fence(self, topic: str) -> int:
        """Fence the holder; the next waiter leads. Returns the epoch; no lower epoch can write any more."""
        return self._do(self._ordered(topic, lambda name: FenceRequested(name, None, self._now())))

    def hand_over(self, topic: str) -> int:
        """Give the topic to the first waiter, without a gap; returns its epoch. Raises Unavailable if there
        is none.
        """
        return self._do(self._ordered(topic, lambda name: HandoverRequested(name, "", self._now())))

    async def _ordered(self, topic: str, order: Callable[[str], Event]) -> int:
        """Retry the order while another transition is under way."""
        runner = await self._runner(topic)
        while True:
            name = f"in-process-{next(self._orders)}"
            answer = await runner.administer(order(name), name)
            if not answer.refusal:
                return answer.epoch
            if runner.topic.pending_fence is None:
                raise Unavailable(answer.refusal)
            await asyncio.sleep(POLL_SECONDS)

    def _now(self) -> float:
        return self._broker.now()

    # ------------------------------------------------------------ the network

    def partition(self, topic: str = "") -> None:
        """Cut the network to the holder and the waiters of a topic, or to all clients.

        Both sides consider their connections alive until they notice the silence: the broker after 2.5 s by
        default (then the next waiter leads), onewriter's SDK after 5 s. New connections for the topic are not
        cut; if all clients are cut off, new connections are cut, too.
        """
        self._do(self._cut(topic))

    async def _cut(self, topic: str) -> None:
        if not topic:
            self._is_cut = True
            peers = {gate.peer for gate in self._gates}
        else:
            runner = await self._runner(topic)
            peers = {producer.request.address for producer in runner.producers.values()}
            if not peers:
                raise Unavailable(f"no producer holds {topic} or waits for it")
        for gate in self._gates:
            if gate.peer in peers and not gate.line.is_cut:
                gate.line.cut()

    def heal(self) -> None:
        """End all partitions; data under way arrives."""
        self._do(self._heal())

    async def _heal(self) -> None:
        self._is_cut = False
        for gate in list(self._gates):
            if gate.line.is_cut:
                gate.line.heal()

    # ------------------------------------------------------------ the store

    def lag(self) -> None:
        """Stop replication to the store's replica: a failover then loses later writes."""
        self._do(self._lag())

    async def _lag(self) -> None:
        for replica in self._server.primary.replicas:
            replica.holds_replication = True

    def fail_over(self) -> None:
        """Promote the store's replica with the data that it has; returns when topics are served again.

        Epochs and holders stay, unless the replica lacks the grant itself.
        """
        self._do(self._fail_over())

    async def _fail_over(self) -> None:
        old = self._server.primary
        replica = old.replicas[0]
        self._server.promote(replica)
        replica.holds_replication = False
        self._server.demote(old, replica)
        await self._until_held()

    # ------------------------------------------------------------ inside

    async def _runner(self, topic: str) -> TopicRunner:
        return (await self._broker.topics.serve(TopicName.parse(topic).base)).runner


@contextlib.contextmanager
def in_process_broker(
    *,
    manifests: str = "",
    settings: Mapping[str, object] | None = None,
    limits: BrokerLimits = BrokerLimits(),
) -> Iterator[InProcessBroker]:
    """A started broker, which is stopped at the end."""
    broker = InProcessBroker(manifests=manifests, settings=settings, limits=limits)
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()
