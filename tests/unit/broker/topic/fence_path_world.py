"""One topic with its runner, the appender and a store in memory: only the parts near the fence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.stamps import stamp_anew

from onewriter_broker.log.appender import Appender
from onewriter_broker.log.store.api import Binding, Block, BrokenKey, Outcome, StoredBlock
from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_broker.log.topic_log.losses import Loss, RangeAtRisk
from onewriter_broker.ownership.acquisition import Holding
from onewriter_broker.ownership.bucket_events import Refenced
from onewriter_broker.topic.dependencies import TopicDependencies
from onewriter_broker.topic.history.tenures import partition_of
from onewriter_broker.topic.limits import TopicLimits
from onewriter_broker.topic.producers.producer import Producer
from onewriter_broker.topic.runner import TopicRunner
from onewriter_core.api.topic import Durability
from onewriter_core.errors import ServerError, Unavailable
from onewriter_core.ids import EARLIEST, Identity, TopicName, bucket_of
from onewriter_core.topic.model import WHOLE, AccessMode, Request, Topic
from onewriter_core.wire.messages import build_entry
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import Send
from onewriter_testing.fake_store.server import FakeServer
from onewriter_testing.fake_store.store import FakeLogStore, Moment

ORDERS = TopicName.parse("persistent://shop/default/orders")
BUCKET = bucket_of(ORDERS, 64)


def entry(producer_name: str, sequence_id: int, published_at: int = 1) -> memoryview:
    """A producer's entry as a client creates it."""
    metadata = pb.MessageMetadata(
        producer_name=producer_name, sequence_id=sequence_id, publish_time=published_at
    )
    return memoryview(build_entry(metadata, b"content"))


@dataclass
class FakeChannel:
    """A producer's connection that records what the broker sends to it."""

    ready: list[int | None] = field(default_factory=list)
    waits: int = 0
    refusals: list[tuple[ServerError, str]] = field(default_factory=list)
    closed: int = 0
    receipts: int = 0
    frames: bytearray = field(default_factory=bytearray)
    answered_bytes: int = 0
    drops: list[str] = field(default_factory=list)
    client_version: str = "world"
    receives_queue_notices: bool = False
    last_inbound: float = 0.0
    waiting: list[int] = field(default_factory=list)
    guards_refused: list[Outcome] = field(default_factory=list)

    def producer_ready(self, producer: Producer, epoch: int | None) -> None:
        self.ready.append(epoch)

    def producer_waits(self, producer: Producer) -> None:
        self.waits += 1

    def producer_refused(self, producer: Producer, code: ServerError, message: str) -> None:
        self.refusals.append((code, message))

    def producer_closed(self, producer: Producer) -> None:
        self.closed += 1

    def send_answered(self, frames: bytes, size: int) -> None:
        self.frames += frames
        self.receipts += 1
        self.answered_bytes += size

    def send_dropped(self, size: int) -> None:
        self.answered_bytes += size

    def drop(self, reason: str) -> None:
        self.drops.append(reason)

    def probe(self) -> None: ...

    def guard_refused(self, producer: Producer, outcome: Outcome) -> None:
        self.guards_refused.append(outcome)

    def queue_changed(self, producer: Producer, waiting: int) -> None:
        self.waiting.append(waiting)


class Owner:
    """Bucket ownership of a broker that was stamped once. It never changes."""

    def __init__(self, binding: Binding) -> None:
        self.held: Holding | None = Holding(binding, grants_known=True, known_since=0)
        self.ledgers = 0
        self.unavailable = 0
        self.refenced: list[Outcome | None] = []
        self.anchor_answers = True
        self.recorded: list[int] = []
        self.noted: list[int] = []

    def holding(self, bucket: int) -> Holding | None:
        return self.held

    async def reserve_ledger(self, bucket: int) -> int:
        if self.unavailable:
            self.unavailable -= 1
            raise Unavailable("the anchor is away")
        self.ledgers += 1
        return self.ledgers

    async def record_grant(self, bucket: int, ledger: int) -> None:
        await self.confirm_record(bucket)
        self.recorded.append(ledger)

    def note_grant(self, bucket: int, ledger: int) -> None:
        self.noted.append(ledger)

    async def confirm_record(self, bucket: int) -> None:
        if not self.anchor_answers:
            raise Unavailable("the anchor is away")

    async def record_use(self, bucket: int, ledger: int) -> None: ...

    async def refence(
        self, bucket: int, failed: Binding, outcome: Outcome | None = None
    ) -> Refenced:
        self.refenced.append(outcome)
        return Refenced.KEPT


class Gates:
    """Holds back certain calls to the store until their gate is opened."""

    def __init__(self, store: FakeLogStore, *calls: str) -> None:
        self._reached = {call: asyncio.Event() for call in calls}
        self._open = {call: asyncio.Event() for call in calls}
        store.faults.hook = self._hook

    async def reached(self, call: str) -> None:
        """Wait for such a call."""
        await self._reached[call].wait()

    def open(self, call: str) -> None:
        self._open[call].set()

    async def _hook(self, call: str, moment: Moment) -> None:
        if call in self._open and moment == "before":
            self._reached[call].set()
            await self._open[call].wait()


class World:
    """A broker's fence path around one topic. ``load`` serves the topic, as often as a broker would."""

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        server: FakeServer,
        store: FakeLogStore,
        binding: Binding,
        limits: TopicLimits,
    ) -> None:
        self.limits = limits
        self.server = server
        self.store = store
        self.owner = Owner(binding)
        self.losses: list[Loss] = []
        self.at_risk: list[RangeAtRisk] = []
        self.failures: list[TopicName] = []
        self.failed: Callable[[TopicName], None] = self.failures.append
        self.deposed: list[Outcome] = []
        self.breaks: list[tuple[TopicName, BrokenKey]] = []
        self.broken: Callable[[TopicName], None] = lambda name: None
        self.wall_ms: Callable[[], int] = lambda: 1_000
        self.tasks = tasks
        clock = asyncio.get_running_loop().time
        self.appender = Appender(
            store,
            now=clock,
            wall_ms=self._told_time,
            deposed=lambda _, o: self.deposed.append(o),
            broken=self._met_broken_key,
            limits=limits.log,
        )
        self.dependencies = TopicDependencies(
            store=store,
            appender=self.appender,
            ownership=self.owner,
            spawn=self.spawn,
            now=clock,
            wall_ms=self._told_time,
            incarnation=binding.owner,
            failed=self._failed,
            broken=self._met_broken_key,
            lost=self.losses.append,
            left=lambda *_: None,
            moved=lambda *_: None,
            at_risk=self.at_risk.append,
            limits=limits,
        )
        self.appender_task = self.spawn(self.appender.run())
        self._registrations = 0

    def spawn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        return self.tasks.create_task(work)

    def _told_time(self) -> int:
        return self.wall_ms()  # tests replace it

    def _failed(self, name: TopicName) -> None:
        self.failed(name)

    def _met_broken_key(self, name: TopicName, error: BrokenKey) -> None:
        self.breaks.append((name, error))
        self.broken(name)

    async def load(
        self,
        *numbers: int,
        is_deduplicated: bool = False,
        durability: Durability = Durability.LOCAL,
    ) -> TopicRunner:
        """Serve the topic again, as after a restart of the broker."""
        logs: dict[int, TopicLog] = {}
        for partition in numbers or (WHOLE,):
            name = ORDERS if partition == WHOLE else ORDERS.with_partition(partition)
            logs[partition] = TopicLog(
                name, self.store, wanted_durability=durability, limits=self.limits.log
            )
            logs[partition]._state = await self.store.read_state(name)
            logs[partition]._exists = "ledger" in logs[partition].state
        partitions = tuple(
            partition_of(number, log.state, may_resume=True, reserved_until=None)
            for number, log in logs.items()
        )
        runner = TopicRunner(
            ORDERS,
            BUCKET,
            Topic(partitions),
            logs,
            self.dependencies,
            is_deduplicated=is_deduplicated,
        )
        opened = await runner.open(partitions)
        assert opened is not None
        runner.start(opened)
        return runner

    def ask(
        self,
        runner: TopicRunner,
        mode: AccessMode,
        name: str = "",
        *,
        partition: int = WHOLE,
        topic_epoch: int | None = None,
        reconnects: int = 0,
        connection: str = "",
        alone: bool | None = None,
        receives_queue_notices: bool = False,
        host: str = "",
        priority: int = 0,
        serve_seconds: float = 0.0,
    ) -> tuple[Producer, FakeChannel]:
        """A client creates a producer, on its own connection unless one is named."""
        self._registrations += 1
        channel = FakeChannel(receives_queue_notices=receives_queue_notices)
        request = Request(
            registration=f"r{self._registrations}",
            connection=connection or f"c{self._registrations}",
            producer_name=name or f"producer-{self._registrations}",
            name_given=bool(name),
            mode=mode,
            partition=partition,
            alone=partition == WHOLE if alone is None else alone,
            identity=Identity(),
            topic_epoch=topic_epoch,
            reconnects=reconnects,
            host=host,
            priority=priority,
            serve_seconds=serve_seconds,
        )
        producer = Producer(
            channel,
            1,
            1,
            request,
            runner.logs[partition],
            self.appender.append_soon,
            requested_priority=0,
        )
        runner.request(producer)
        return producer, channel

    async def granted(
        self, runner: TopicRunner, mode: AccessMode, name: str = "", **more: Any
    ) -> tuple[Producer, FakeChannel]:
        """Ask as ``ask`` does, and wait for the grant."""
        producer, channel = self.ask(runner, mode, name, **more)
        await until(lambda: channel.ready)
        return producer, channel

    def send(self, producer: Producer, sequence_id: int, *, published_at: int = 1) -> None:
        """Handle a SEND as a session does: it is ignored unless the producer is active."""
        if producer.is_active:
            producer.publish(Send(1, sequence_id), entry(producer.name, sequence_id, published_at))

    async def stored(self, name: TopicName = ORDERS) -> list[StoredBlock]:
        return await self.store.read_blocks(name, EARLIEST, count=10_000)

    async def entries_by_ledger(self, name: TopicName = ORDERS) -> dict[int, int]:
        """The number of entries in each ledger of the log."""
        found: dict[int, int] = {}
        for block in await self.stored(name):
            count = len(block.lengths) if isinstance(block, Block) else 0
            found[block.position.ledger] = found.get(block.position.ledger, 0) + count
        return found


async def until(condition: Callable[[], object], *, turns: int = 2_000) -> None:
    """Yield to other tasks until the condition holds."""
    for _ in range(turns):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it did not come about")


@asynccontextmanager
async def serving(
    *, commit_timeout_seconds: float = 1.0, limits: TopicLimits = TopicLimits()
) -> AsyncIterator[World]:
    """A store, a bucket stamped for this broker, and a running appender."""
    server = FakeServer()
    store = FakeLogStore(server.resolve, commit_timeout_seconds=commit_timeout_seconds)
    binding = Binding(BUCKET, server.primary.replid, 1, "broker-0~one", 1)
    assert await stamp_anew(store, binding) is Outcome.DONE
    try:
        async with asyncio.TaskGroup() as tasks:
            yield World(tasks, server, store, binding, limits)
            raise asyncio.CancelledError  # the appender never ends by itself
    except asyncio.CancelledError:
        pass
