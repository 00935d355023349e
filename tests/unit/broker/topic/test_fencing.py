"""Fences of one topic while the store and the bucket ownership change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.stamps import stamp_anew

from onewriter_broker.log.appender import Appender
from onewriter_broker.log.store.api import Binding, Marker, Outcome
from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_broker.log.topic_log.losses import Loss, losses
from onewriter_broker.log.topic_log.pending_blocks import PendingEntry
from onewriter_broker.ownership.acquisition import Holding
from onewriter_broker.ownership.bucket_events import Refenced
from onewriter_broker.topic.dependencies import TopicDependencies
from onewriter_broker.topic.fencing import Fencing
from onewriter_broker.topic.history.background import SAVES_MAX
from onewriter_core.api.topic import Durability
from onewriter_core.ids import EARLIEST, Identity, Position, TopicName
from onewriter_core.topic.effects import NEW_EPOCH, Fence
from onewriter_core.topic.model import WHOLE, Partition, Purpose, Tenure, TransitionCause
from onewriter_core.wire.values import Send
from onewriter_testing.fake_store.server import FakeServer
from onewriter_testing.fake_store.store import FakeLogStore, Moment

TOPIC = TopicName.parse("orders")
PARTITION = Partition(WHOLE)


class Client:
    """A sender that records its answers."""

    def __init__(self) -> None:
        self.stored_at: list[Position] = []
        self.refusals = 0
        self.unknowns = 0

    def stored(self, entries: Sequence[PendingEntry], first: Position, size: int) -> None:
        self.stored_at += [Position(first.ledger, first.entry + n) for n in range(len(entries))]

    def unknown(self, size: int) -> None:
        self.unknowns += 1

    def refused(self, size: int) -> None:
        self.refusals += 1


class Owner:
    """Bucket ownership that a test controls."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.held: Holding | None = None
        self.recorded: list[int] = []
        self._version = 0
        self._ledger = 4

    async def bind(self) -> None:
        """Hold the bucket again, on the present dataset."""
        self._version += 1
        binding = Binding(
            0, self.world.server.primary.replid, self._version, "broker-a", self._version
        )
        assert await stamp_anew(self.world.store, binding) is Outcome.DONE
        self.held = Holding(binding, True, 1)

    def holding(self, bucket: int) -> Holding | None:
        return self.held

    async def reserve_ledger(self, bucket: int) -> int:
        self._ledger += 1
        return self._ledger

    async def record_grant(self, bucket: int, ledger: int) -> None:
        self.recorded.append(ledger)

    def note_grant(self, bucket: int, ledger: int) -> None:
        self.recorded.append(ledger)

    async def confirm_record(self, bucket: int) -> None: ...

    async def record_use(self, bucket: int, ledger: int) -> None:
        self.recorded.append(ledger)

    async def refence(
        self, bucket: int, failed: Binding, outcome: Outcome | None = None
    ) -> Refenced:
        if self.held is None:
            return Refenced.LOST
        if self.held.binding != failed:
            return Refenced.REBOUND
        if failed.replid != self.world.server.primary.replid:
            await self.bind()
            return Refenced.REBOUND
        return Refenced.KEPT


class World:
    """One log on one broker, with a server in memory."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self.server = FakeServer()
        self.store = FakeLogStore(self.server.resolve, commit_timeout_seconds=0.0)
        self.log = TopicLog(TOPIC, self.store)
        self.lost: list[Loss] = []
        self.audits: list[dict[str, str]] = []
        self.audit_answers: list[Outcome | Exception] = []
        self.deposed: list[Outcome] = []
        self.client = Client()
        loop = asyncio.get_running_loop()
        self.appender = Appender(
            self.store,
            now=loop.time,
            wall_ms=lambda: 1,
            deposed=lambda bucket, outcome: self.deposed.append(outcome),
            broken=lambda name, error: None,
        )
        self.owner = Owner(self)

        def spawn(work: Coroutine[object, object, None]) -> asyncio.Task[None]:
            return tasks.create_task(work)

        self.dependencies = TopicDependencies(
            store=self.store,
            appender=self.appender,
            ownership=self.owner,
            spawn=spawn,
            now=loop.time,
            wall_ms=lambda: 1,
            incarnation="broker-a",
            failed=lambda name: None,
            broken=lambda name, error: None,
            lost=self.lost.append,
            left=lambda name, binding, ends: None,
            moved=lambda name, record: None,
        )
        self.fencing = Fencing(
            TOPIC,
            0,
            {WHOLE: self.log},
            self.dependencies,
            self.write_audit,
            lambda partition: {},
        )

    async def write_audit(self, binding: Binding, record: dict[str, str]) -> Outcome:
        if self.audit_answers:
            answer = self.audit_answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            if answer is not Outcome.DONE:
                return answer
        outcome = await self.store.write_audit(binding, record)
        if outcome is Outcome.DONE:
            self.audits.append(record)
        return outcome

    async def fence(self, purpose: Purpose = Purpose.GRANT) -> int | None:
        tenure = Tenure(NEW_EPOCH if purpose is Purpose.GRANT else 5, "writer", Identity("", ""))
        effect = Fence(
            1,
            purpose,
            (WHOLE,),
            None,
            TransitionCause.NONE,
            (),
            ((WHOLE, tenure),),
            ((WHOLE, ()),),
            None,
        )
        ledger = await self.owner.reserve_ledger(0)
        flush = purpose is not Purpose.GRANT
        return await self.fencing.write_markers(effect, {WHOLE: PARTITION}, ledger, flush=flush)

    async def publish(self, count: int = 1, *, waits: bool = True) -> None:
        goal = len(self.client.stored_at) + count
        for number in range(count):
            send = Send(1, number, 1)
            self.log.accept((self.client, send, memoryview(b"x")))
            self.appender.append_soon(self.log)
        async with asyncio.timeout(60):
            while waits and len(self.client.stored_at) < goal:  # noqa: ASYNC110 - the log reports it
                await asyncio.sleep(0)

    def broke(self) -> None:
        """Do what the runner does after a failover of the store."""
        self.log._is_writable = False
        self.log._needs_comparison = True

    async def positions(self) -> list[str]:
        blocks = await self.store.read_blocks(TOPIC, EARLIEST, count=100)
        return [str(block.position) for block in blocks]


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    async with asyncio.TaskGroup() as tasks:
        made = World(tasks)
        await made.owner.bind()
        running = tasks.create_task(made.appender.run())
        yield made
        running.cancel()


async def test_a_fence_answered_for_a_replaced_binding_does_not_count() -> None:
    """The marker is in a dataset that was replaced while the answer was on its way."""
    failed_over = asyncio.Event()
    async with world() as broker:

        async def fail_over(call: str, moment: Moment) -> None:
            if (call, moment) == ("fence", "after"):
                broker.store.faults.hook = quiet
                broker.server.renew_identity(broker.server.primary)
                # This bypasses the store, in which the answer to the fence is still on its way.
                held = broker.owner.held
                assert held is not None
                replid = broker.server.primary.replid
                broker.owner.held = Holding(Binding(0, replid, 2, "broker-a", 2), True, 1)
                failed_over.set()

        async def quiet(call: str, moment: Moment) -> None:
            return

        broker.store.faults.hook = fail_over
        granting = asyncio.gather(broker.fence())
        await asyncio.sleep(0)
        await failed_over.wait()
        assert broker.owner.held is not None
        assert await broker.store.stamp(broker.owner.held.binding) is Outcome.DONE
        (ledger,) = await granting
        assert await broker.positions() == ["5-0", "6-0"]
        assert ledger == 6
        assert broker.log.binding == broker.owner.held.binding
        assert broker.owner.recorded == [5, 6], "what is answered was recorded before"


async def test_a_log_that_is_closed_gets_no_marker_any_more() -> None:
    """By then the bucket may be held and the topic loaded again: two runners of one log."""
    async with world() as broker:
        granting = asyncio.gather(broker.fence())
        await asyncio.sleep(0)
        broker.log.close()
        (ledger,) = await granting
        assert ledger is None
        assert await broker.positions() == []
        assert broker.log.binding is None


async def test_a_closed_log_is_not_opened_by_a_fence_that_was_under_way() -> None:
    async with world() as broker:

        async def close(call: str, moment: Moment) -> None:
            if (call, moment) == ("fence", "after"):
                broker.log.close()

        broker.store.faults.hook = close
        assert await broker.fence() is None
        assert broker.log.binding is None
        assert not broker.log.is_writable


async def test_acknowledged_entries_after_a_torn_tail_are_counted_by_ledger() -> None:
    """Entries before a marker that was lost with them count, too, as after a roll."""
    async with world() as broker:
        await broker.fence()
        await broker.publish(3)
        keep = len(broker.server.primary.history)
        await broker.publish(2)
        await broker.fence(Purpose.ROLL)
        await broker.publish(1)
        await broker.fence(Purpose.ROLL)
        assert broker.log.committed == Position(7, 0)
        broker.server.restart(broker.server.primary, keep=keep)
        broker.broke()
        assert await broker.fence(Purpose.REFENCE) is not None
        assert broker.lost == [
            Loss(TOPIC, Position(5, 3), Position(5, 5)),
            Loss(TOPIC, Position(6, 0), Position(6, 1)),
        ]
        assert [record["entries"] for record in broker.audits] == ["2", "1"]
        assert all(isinstance(block, Marker) or block.last <= (5, 3) for block in broker.log.tail)


async def test_a_marker_of_a_failed_attempt_hides_no_loss() -> None:
    async with world() as broker:
        await broker.fence()
        await broker.publish(3)
        keep = len(broker.server.primary.history)
        await broker.publish(2)
        broker.server.restart(broker.server.primary, keep=keep)
        broker.broke()

        async def again(call: str, moment: Moment) -> None:
            if (call, moment) == ("fence", "after"):
                broker.store.faults.hook = quiet
                broker.server.renew_identity(broker.server.primary)

        async def quiet(call: str, moment: Moment) -> None:
            return

        broker.store.faults.hook = again
        assert await broker.fence(Purpose.REFENCE) is not None
        assert broker.lost == [Loss(TOPIC, Position(5, 3), Position(5, 5))]


async def test_undecided_blocks_that_are_there_are_confirmed() -> None:
    """A stored block must not be appended again."""
    async with world() as broker:
        broker.log._wanted_durability = Durability.REPLICATED  # no write is ever durable enough
        broker.server.add_replica("node-1")
        await broker.fence()
        broker.server.nodes["node-1"].holds_replication = True
        await broker.publish(1, waits=False)
        while len(await broker.positions()) < 2:  # noqa: ASYNC110 - the store reports it
            await asyncio.sleep(0)
        broker.server.renew_identity(broker.server.primary)
        broker.broke()
        broker.log._wanted_durability = broker.log._durability = Durability.LOCAL
        assert await broker.fence(Purpose.REFENCE) is not None
        assert broker.client.stored_at == [Position(5, 1)]
        assert len([text for text in await broker.positions() if not text.endswith("-0")]) == 1


async def save_behind_others(broker: World, fields: dict[str, str]) -> asyncio.Event:
    """Queue a record of presence. It is saved after the returned event is set."""
    may_save = asyncio.Event()

    async def wait(work: Coroutine[object, object, None]) -> None:
        await may_save.wait()
        await work

    async def save(work: Coroutine[object, object, None]) -> None:
        await work

    presence = broker.dependencies.presence
    for number in range(SAVES_MAX):
        other = TopicLog(TopicName.parse(f"other-{number}"), broker.store)
        presence.save(0, other, {"present": "0"}, wait)
    await asyncio.sleep(0)
    presence.save(0, broker.log, fields, save)
    return may_save


async def presence_saved(broker: World) -> dict[str, str]:
    """The stored state of the log after all queued records of presence were saved."""
    async with asyncio.timeout(60):
        while broker.dependencies.presence._buckets:  # noqa: ASYNC110 - the queue reports it
            await asyncio.sleep(0)
    return dict(await broker.store.read_state(TOPIC))


async def test_a_record_of_the_former_holder_s_presence_does_not_replace_a_grant() -> None:
    """The record waits while another producer gets the grant. Then the store still shows a holder that may resume."""
    async with world() as broker:
        await broker.fence()
        may_save = await save_behind_others(broker, {"present": "0", "absentSince": "1"})
        assert await broker.fence() is not None
        may_save.set()
        state = await presence_saved(broker)
        assert (state["present"], state["absentSince"]) == ("1", "")


async def test_a_fence_that_grants_nothing_saves_a_waiting_record_of_presence() -> None:
    async with world() as broker:
        await broker.fence()
        may_save = await save_behind_others(broker, {"present": "0", "absentSince": "1"})
        assert await broker.fence(Purpose.ROLL) is not None
        state = dict(await broker.store.read_state(TOPIC))
        assert (state["present"], state["absentSince"]) == ("0", "1")
        may_save.set()
        assert await presence_saved(broker) == state


@pytest.mark.parametrize(
    ("survived", "expected"),
    [
        (Position(7, 0), []),
        (Position(6, 2), [(Position(6, 2), Position(6, 4))]),
        (EARLIEST, [(Position(5, 0), Position(5, 9)), (Position(6, 0), Position(6, 4))]),
    ],
)
def test_losses_are_reported_by_ledger(
    survived: Position, expected: list[tuple[Position, Position]]
) -> None:
    ends = [Position(5, 9), Position(6, 4)]
    found: list[Any] = [(loss.after, loss.last) for loss in losses(TOPIC, ends, survived)]
    assert found == expected
