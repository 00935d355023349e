"""How a broker reaches the store and the anchor: with delays and lost answers. Appends and fences enter the history.

The world's process executes the calls, not the broker's. So a call that a broker sent before it froze or died is still
executed. A frozen broker receives the answer when it is thawed; a dead one never receives it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from tests.simulation.history import Kind, Operation, Outcome
from tests.simulation.loop import VirtualLoop
from tests.simulation.recording import Recorder, value_of

from onewriter_broker.anchor.api import Record, Versioned
from onewriter_broker.log.store import api
from onewriter_broker.log.topic_log.log import payloads
from onewriter_core.errors import Unavailable, Undecided
from onewriter_core.ids import Position
from onewriter_testing.fake_store.store import FakeLogStore, Faults, Moment
from onewriter_testing.memory_anchor import MemoryAnchor

DELAY_SECONDS = (0.0002, 0.002)
SLOW_SECONDS = (0.05, 0.8)

DEFINITE_REFUSALS = {
    api.Outcome.FENCED,
    api.Outcome.STALE,
    api.Outcome.AHEAD,
    api.Outcome.HELD,
}

_Result = TypeVar("_Result")


class Connection:
    """The connection of one broker to one server, with its current faults."""

    def __init__(self, loop: VirtualLoop, randomness: random.Random) -> None:
        self.is_slow = False
        self.is_flaky = False
        self._loop = loop
        self._randomness = randomness

    async def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Execute a call in the world's process. It continues if the caller ends."""
        task = self._loop.spawn(self._loop.world, work)
        task.add_done_callback(_retrieve)
        return await asyncio.shield(task)

    async def travel(self) -> None:
        low, high = SLOW_SECONDS if self.is_slow else DELAY_SECONDS
        await asyncio.sleep(self._randomness.uniform(low, high))

    def is_lost(self) -> bool:
        """Return whether this request or answer is lost."""
        return self.is_flaky and self._randomness.random() < 0.25


def _retrieve(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


class RemoteStore:
    """The LogStore as one broker reaches it. BrokerNode casts it to the protocol."""

    def __init__(
        self, connection: Connection, inner: FakeLogStore, recorder: Recorder, broker: str
    ) -> None:
        self.connection = connection
        self.faults = Faults(hook=self._travel)
        inner.faults = self.faults
        self._inner = inner
        self._recorder = recorder
        self._broker = broker

    async def _travel(self, call: str, moment: Moment) -> None:
        await self.connection.travel()
        if self.connection.is_lost():
            raise Undecided(f"{call}: lost {moment} execution")

    def __getattr__(self, name: str) -> Any:
        return _remote(self.connection, self._inner, name)

    @property
    def staged(self) -> Any:
        return _RemoteStaged(self.connection, self._inner.staged)

    async def append(self, appends: Sequence[api.Append]) -> list[api.Outcome | api.BrokenKey]:
        started = [self._write(item) for item in appends]
        outcomes: list[api.Outcome | api.BrokenKey] = await self.connection.run(
            self._executed(appends, started)
        )
        return outcomes

    async def _executed(
        self, appends: Sequence[api.Append], started: list[Operation]
    ) -> list[api.Outcome | api.BrokenKey]:
        outcomes = await self._inner.append(appends)
        for operation, outcome in zip(started, outcomes, strict=True):
            assert isinstance(outcome, api.Outcome)  # no process writes foreign keys here
            self._answered(operation, outcome)
        return outcomes

    def _write(self, item: api.Append) -> Operation:
        operation = self._recorder.invoke(
            Kind.WRITE,
            self._broker,
            str(item.topic),
            ledger=item.block.position.ledger,
            replid=item.binding.replid,
            position=item.block.position,
        )
        ledger, entry = item.block.position
        for payload in payloads(item.block):
            operation.values.append((Position(ledger, entry), value_of(payload)))
            entry += 1
        return operation

    async def fence(self, fences: Sequence[api.Fence]) -> list[api.Outcome | api.BrokenKey]:
        if len(fences) > 1:
            self._recorder.seen("several topics fenced in one call")
        started = [self._refence(fence) for fence in fences]
        outcomes: list[api.Outcome | api.BrokenKey] = await self.connection.run(
            self._fenced(fences, started)
        )
        return outcomes

    def _refence(self, fence: api.Fence) -> list[Operation]:
        return [
            self._recorder.invoke(
                Kind.REFENCE,
                self._broker,
                str(log.topic),
                ledger=fence.ledger,
                replid=fence.binding.replid,
            )
            for log in fence.logs
        ]

    async def _fenced(
        self, fences: Sequence[api.Fence], started: list[list[Operation]]
    ) -> list[api.Outcome | api.BrokenKey]:
        outcomes = await self._inner.fence(fences)
        for operations, outcome in zip(started, outcomes, strict=True):
            assert isinstance(outcome, api.Outcome)  # no process writes foreign keys here
            for operation in operations:
                self._answered(operation, outcome)
        return outcomes

    def _answered(self, operation: Operation, outcome: api.Outcome) -> None:
        self._recorder.seen(f"store.{operation.kind.value}.{outcome.value}")
        if outcome is api.Outcome.FENCED:
            self._recorder.seen("deposed broker fenced")
        if outcome is api.Outcome.DONE:
            self._recorder.complete(operation, Outcome.OK)
        elif outcome in DEFINITE_REFUSALS:
            self._recorder.complete(operation, Outcome.FAIL, outcome.value)
        else:
            self._recorder.complete(operation, Outcome.INFO, outcome.value)


class _RemoteStaged:
    """The part of a LogStore that stores staged parts."""

    def __init__(self, connection: Connection, inner: object) -> None:
        self._connection = connection
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return _remote(self._connection, self._inner, name)


def _remote(connection: Connection, inner: object, name: str) -> Callable[..., Any]:
    method = getattr(inner, name)

    async def call(*arguments: Any, **options: Any) -> Any:
        return await connection.run(method(*arguments, **options))

    return call


class RemoteAnchor:
    """The anchor as one broker reaches it. Implements anchor.api.Anchor."""

    def __init__(self, connection: Connection, inner: MemoryAnchor) -> None:
        self.connection = connection
        self.is_away = False
        self.records_every_grant = inner.records_every_grant
        self._inner = inner

    async def read(self, bucket: int) -> Versioned:
        return await self.connection.run(self._travelled(self._inner.read(bucket)))

    async def compare_and_set(self, bucket: int, version: int, record: Record) -> int | None:
        return await self.connection.run(
            self._travelled(self._inner.compare_and_set(bucket, version, record))
        )

    async def close(self) -> None:
        """Nothing to release."""

    async def _travelled(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        await self.connection.travel()
        if self.is_away or self.connection.is_lost():
            work.close()
            raise Unavailable("the anchor cannot be reached")
        result = await work
        await self.connection.travel()
        if self.is_away or self.connection.is_lost():
            raise Unavailable("the anchor's answer was lost")
        return result
