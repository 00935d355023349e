"""A topic to subscribe to: one log over the fake store, and channels that record deliveries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from tests.stamps import fence_once, stamp_anew

from onewriter_broker.dispatch.api import Receipt, SubscribeOptions, SubscriptionType
from onewriter_broker.dispatch.handle import ConsumerHandle
from onewriter_broker.dispatch.limits import Limits
from onewriter_broker.dispatch.readers import ReadBudget
from onewriter_broker.dispatch.subscriptions import Subscriptions
from onewriter_broker.log.store.api import Append, Binding, Fence, FencedLog, Marker, Outcome
from onewriter_broker.log.topic_log.entries import Entry, EntryRun, entries_of
from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_broker.log.topic_log.pending_blocks import PendingEntry
from onewriter_core.errors import OnewriterError
from onewriter_core.ids import Identity, Position, TopicName
from onewriter_core.wire.messages import build_batch, build_entry
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import Ack, MessageId, Send
from onewriter_testing.fake_store.server import FakeServer
from onewriter_testing.fake_store.store import FakeLogStore

NOON_MS = 1_700_000_000_000


class NoSender:
    """Publishes and does not care what becomes of it."""

    def stored(self, entries: Sequence[PendingEntry], first: Position, size: int) -> None: ...

    def unknown(self, size: int) -> None: ...

    def refused(self, size: int) -> None: ...


@dataclass(frozen=True)
class Delivered:
    """One delivery as a channel saw it."""

    consumer_id: int
    position: Position
    redelivery_count: int = 0
    ack_set: tuple[int, ...] = ()
    epoch: int | None = None


@dataclass
class Socket:
    """A channel that remembers what it got; ``space`` deliveries fit in before it is full."""

    space: int = 10**9
    peer_address: str = "203.0.113.5:4711"
    delivered: list[Delivered] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    active: list[tuple[int, bool]] = field(default_factory=list)
    closed: list[int] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)

    @property
    def has_space(self) -> bool:
        return len(self.delivered) < self.space

    def deliver_many(
        self, consumer_id: int, runs: Sequence[EntryRun], consumer_epoch: int | None
    ) -> None:
        assert runs
        for entry in entries_of(runs):
            self.payloads.append(bytes(entry.payload))
            self.delivered.append(Delivered(consumer_id, entry.position, epoch=consumer_epoch))

    def deliver(
        self,
        consumer_id: int,
        entry: Entry,
        *,
        redelivery_count: int,
        ack_set: tuple[int, ...],
        consumer_epoch: int | None,
    ) -> None:
        self.payloads.append(bytes(entry.payload))
        self.delivered.append(
            Delivered(consumer_id, entry.position, redelivery_count, ack_set, consumer_epoch)
        )

    identity = Identity()

    def active_consumer_changed(self, consumer_id: int, *, is_active: bool) -> None:
        self.active.append((consumer_id, is_active))

    def reached_end(self, consumer_id: int) -> None:
        self.ended.append(consumer_id)

    def consumer_closed(self, consumer_id: int) -> None:
        self.closed.append(consumer_id)

    def take(self) -> list[Position]:
        """The positions that came since the last look."""
        positions = [delivery.position for delivery in self.delivered]
        self.delivered.clear()
        return positions


class Receipts:
    """Collects the answers of acknowledgements."""

    def __init__(self) -> None:
        self.answers: list[OnewriterError | None] = []

    def __call__(self, error: OnewriterError | None) -> None:
        self.answers.append(error)


class World:
    """One topic on one broker. Time is the event loop's."""

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        *,
        topic: str = "orders",
        limits: Limits | None = None,
        tail_bytes_max: int = 4 * 1024 * 1024,
        block_entries: int = 10,
    ) -> None:
        self.tasks = tasks
        self.limits = limits or Limits()
        self.server = FakeServer()
        self.store = FakeLogStore(self.server.resolve)
        self.log = TopicLog(TopicName.parse(topic), self.store, tail_bytes_max=tail_bytes_max)
        self.block_entries = block_entries
        self.wall_ms = NOON_MS
        self.reads = 0
        self.started: list[asyncio.Task[None]] = []
        self.subscriptions: Subscriptions

    async def open(self, ledger: int = 5) -> None:
        """Fence the log onto ``ledger``."""
        binding = Binding(0, self.server.primary.replid, 1, "broker-a", 1)
        assert await stamp_anew(self.store, binding) is Outcome.DONE
        fenced = FencedLog(self.log.name, not self.log.exists, {}, {})
        fence = Fence(binding, ledger, (fenced,), {"what": "grant"})
        assert await fence_once(self.store, fence) is Outcome.DONE
        self.log.open(ledger, binding, 0.0)
        self.log._is_writable = True
        self.log.marker_committed(Marker(Position(ledger, 0), {}))

    def load(self, budget: ReadBudget | None = None) -> Subscriptions:
        """Dispatch for the log as it is."""
        loop = asyncio.get_running_loop()

        def spawn(work):  # type: ignore[no-untyped-def]  # as TaskGroup.create_task
            task = self.tasks.create_task(work)
            self.started.append(task)
            return task

        self.subscriptions = Subscriptions(
            self.log,
            spawn=spawn,
            clock=loop.time,
            wall_clock_ms=lambda: self.wall_ms,
            limits=self.limits,
            budget=budget,
        )
        return self.subscriptions

    async def reload(self) -> Subscriptions:
        """Another broker takes the log over: all memory is gone, the store stays."""
        state = await self.store.read_state(self.log.name)
        end, ledger = self.log.committed, self.log.ledger
        self.log = TopicLog(self.log.name, self.store)
        self.log._exists, self.log._state, self.log._committed = True, state, end
        await self.open(ledger + 2)
        return self.load()

    async def publish(
        self, count: int = 1, *, messages: int = 1, payload: bytes = b"", commit: bool = True
    ) -> list[Position]:
        """Store entries in blocks of at most ``block_entries``."""
        positions: list[Position] = []
        while count > 0:
            number = min(count, self.block_entries)
            count -= number
            for _ in range(number):
                entry = payload or entry_of(self.wall_ms, messages)
                self.log.accept((NoSender(), Send(0, 0, messages), memoryview(entry)))
            pending = self.log.next_block(self.wall_ms)
            assert pending is not None
            assert self.log.binding is not None
            append = Append(self.log.binding, self.log.name, pending.token, pending.block)
            assert await self.store.append([append]) == [Outcome.DONE]
            self.log.block_committed(pending)
            first = pending.block.position
            positions += [Position(first.ledger, first.entry + i) for i in range(number)]
        return positions

    async def subscribe(
        self,
        socket: Socket,
        name: str = "audit",
        *,
        kind: SubscriptionType = SubscriptionType.EXCLUSIVE,
        permits: int = 1000,
        consumer_id: int = 1,
        consumer_name: str = "anna",
        from_earliest: bool = True,
        durable: bool = True,
        start: MessageId | None = None,
        priority_level: int = 0,
        rollback_seconds: int = 0,
        consumer_epoch: int | None = None,
        read_compacted: bool = False,
    ) -> ConsumerHandle:
        """A consumer that is connected, started and has permits; the store was read to the end."""
        handle = await self.subscriptions.subscribe(
            SubscribeOptions(
                name,
                kind,
                consumer_id,
                consumer_name,
                priority_level=priority_level,
                durable=durable,
                start=start,
                from_earliest=from_earliest,
                rollback_seconds=rollback_seconds,
                consumer_epoch=consumer_epoch,
                read_compacted=read_compacted,
            ),
            socket,
        )
        handle.start()
        handle.flow(permits)
        await self.settle()
        return handle

    async def settle(self) -> None:
        """Let everything that can happen without time passing happen."""
        for _ in range(50):
            await asyncio.sleep(0)

    async def until(self, delivered: int, *sockets: Socket) -> None:
        """Run as many turns of the event loop as it takes for so many deliveries."""
        for _ in range(10_000):
            if sum(len(socket.delivered) for socket in sockets) >= delivered:
                return
            await asyncio.sleep(0)
        raise AssertionError(f"{delivered} entries never came")


@asynccontextmanager
async def world(
    *,
    topic: str = "orders",
    limits: Limits | None = None,
    tail_bytes_max: int = 4 * 1024 * 1024,
    block_entries: int = 10,
) -> AsyncIterator[World]:
    """An open topic without subscriptions; afterwards its dispatch must leave nothing running."""
    async with asyncio.TaskGroup() as tasks:
        made = World(
            tasks,
            topic=topic,
            limits=limits,
            tail_bytes_max=tail_bytes_max,
            block_entries=block_entries,
        )
        await made.open()
        made.load()
        yield made
        await made.subscriptions.close("the test is over")
        for task in made.started:
            with suppress(asyncio.CancelledError):
                await task


def ids(positions: Iterable[Position]) -> tuple[MessageId, ...]:
    """Message ids of whole entries."""
    return tuple(MessageId(*position) for position in positions)


def ack(handle: ConsumerHandle, *positions: Position, receipt: Receipt | None = None) -> None:
    """Acknowledge entries one by one."""
    handle.acknowledge(Ack(handle.consumer.id, 0, ids(positions), request_id=7), receipt)


def ack_until(handle: ConsumerHandle, position: Position, receipt: Receipt | None = None) -> None:
    """Acknowledge cumulatively."""
    handle.acknowledge(Ack(handle.consumer.id, 1, ids([position]), request_id=7), receipt)


def entry_of(publish_time_ms: int, messages: int = 1) -> bytes:
    """A SEND's payload as a client writes it; a batch if ``messages`` is not 1."""
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=publish_time_ms)
    if messages == 1:
        return build_entry(metadata, b"hello")
    metadata.num_messages_in_batch = messages
    batch = build_batch((pb.SingleMessageMetadata(payload_size=1), b"x") for _ in range(messages))
    return build_entry(metadata, batch)
