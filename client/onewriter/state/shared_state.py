"""``SharedState``: a value that all its users share, changed only by operations in a log."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Generic, NamedTuple, Self, TypeVar

from onewriter._client import Client
from onewriter._errors import Closed, OnewriterError, Unavailable
from onewriter.state.checkpoints import Checkpointer, Checkpoints, CheckpointStore, Snapshots
from onewriter.state.envelope import CompactFraming, Framing
from onewriter.state.fold import AppliedWrite, Base, Rules, Taken, Verdict
from onewriter.state.log import BarrierUnsupported, Log
from onewriter.state.memory import MemoryLog
from onewriter.state.pending_writes import Outcome, PendingWrite
from onewriter.state.replica import Replica, Trouble
from onewriter.state.topic_log import TopicLog
from onewriter.state.writer import StateLimits, Writer

S = TypeVar("S")
Op = TypeVar("Op")
R = TypeVar("R")


class Versioned(NamedTuple, Generic[S]):
    """A state and its version, which increases by one with every write that changes something."""

    version: int
    state: S


Listener = Callable[[tuple[AppliedWrite[Any, Any], ...]], None]


def unchanged(state: S) -> S:
    """Return the state itself: the copy function of immutable states."""
    return state


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedStateBuilder(Generic[S, Op]):
    """Defines a state; ``open`` it on a topic, or ``in_memory`` for tests.

    ``initial`` returns the state of an empty log. ``apply(state, operation)`` returns the state after an
    operation. All users apply the same operations in the same order, so ``apply`` must depend on its arguments
    only. ``serialize`` and ``deserialize`` convert operations to bytes and back.

    States are copied (``copy``, by default deeply) before they are changed or returned, so that no user can
    change the shared value. With ``immutable=True`` nothing is copied: states must then never change, and
    ``apply`` must return new ones.

    With ``snapshots``, which convert states to bytes and back, ``checkpoints`` bound the time to open the state.
    """

    initial: Callable[[], S]
    apply: Callable[[S, Op], S]
    serialize: Callable[[Op], bytes]
    deserialize: Callable[[bytes], Op]
    immutable: bool = False
    copy: Callable[[S], S] = copy.deepcopy
    framing: Framing = field(default_factory=CompactFraming)
    limits: StateLimits = field(default_factory=StateLimits)
    snapshots: Snapshots[S] | None = None
    checkpoints: Checkpoints = field(default_factory=Checkpoints)

    def open(self, client: Client, topic: str) -> SharedState[S, Op]:
        """Return the state on a topic, which must not be partitioned. Enter it with ``async with``."""
        store = None
        if self.snapshots is not None and self.checkpoints.is_enabled:
            store = CheckpointStore.beside(client, topic)
        return SharedState(self, TopicLog(client, topic, is_batched=self.framing.is_batched), store)

    def in_memory(
        self, log: MemoryLog | None = None, checkpoints: CheckpointStore | None = None
    ) -> SharedState[S, Op]:
        """Return the state on a log in memory. States on the same log share it, as on a topic."""
        return SharedState(self, log or MemoryLog(), checkpoints)

    def with_limits(self, limits: StateLimits) -> Self:
        """Return the same builder with other limits."""
        return replace(self, limits=limits)

    def rules(self) -> Rules[S, Op]:
        """Return the functions for the fold."""
        return Rules(
            self.initial,
            self.apply,
            self.serialize,
            self.deserialize,
            unchanged if self.immutable else self.copy,
            self.framing,
        )


class SharedState(Generic[S, Op]):
    """A shared state. Enter it (``async with``) in one task; any task of that loop may use it.

    Entering folds the log from the latest checkpoint on. Raises StateGap if entries are missing, Refused (a
    partitioned topic, no right to read), Unavailable if it takes longer than
    ``StateLimits.opening_timeout_seconds``.
    """

    def __init__(
        self, builder: SharedStateBuilder[S, Op], source: Log, store: CheckpointStore | None = None
    ) -> None:
        self._rules = builder.rules()
        self._limits = builder.limits
        self._writer: Writer[S, Op] = Writer(source, self._rules, builder.limits, self._prepare)
        self._checkpointer: Checkpointer[S] | None = None
        if store is not None and builder.snapshots is not None:
            self._checkpointer = Checkpointer(
                store, source, builder.snapshots, builder.checkpoints, self._is_holder
            )
        self._replica: Replica[S, Op] = Replica(
            source,
            self._rules,
            self._recover,
            memo=self._writer.outbox.memo,
            on_taken=self._on_taken,
            on_replaced=self._on_replaced,
            on_trouble=self._on_trouble,
        )
        self._writer.attach(self._replica)
        self._source = source
        self._listeners: dict[object, Listener] = {}
        self._ends: dict[object, Callable[[OnewriterError], None]] = {}
        self._tasks = asyncio.TaskGroup()
        self._running: list[asyncio.Task[None]] = []
        self._is_open = False

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        work = [self._replica.run(), self._writer.run()]
        if self._checkpointer is not None:
            work.append(self._checkpointer.run(self._replica))
        self._running = [self._tasks.create_task(each) for each in work]
        try:
            await self._complete(self._limits.opening_timeout_seconds)
        except BaseException:
            await self._stop(None, None, None)
            raise
        self._is_open = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Complete the accepted writes, and hand the log over."""
        self._is_open = False
        try:
            if not isinstance(error, asyncio.CancelledError):
                await self._writer.close(self._limits.timeout_seconds)
        finally:
            await self._stop(kind, error, traceback)

    async def _stop(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._writer.abandon()
        self._end_watches(Closed("the shared state was closed"))
        for task in self._running:
            task.cancel()
        # The task group would wrap the application's error; pass on its own cancellation only.
        if isinstance(error, asyncio.CancelledError):
            await self._tasks.__aexit__(kind, error, traceback)
        else:
            await self._tasks.__aexit__(None, None, None)

    # ------------------------------------------------------------ reading

    @property
    def version(self) -> int:
        """The version of the state that this instance has folded so far."""
        return self._replica.fold.version

    @property
    def grants(self) -> int:
        """Number of grants that this instance has received."""
        return self._writer.grants

    @property
    def trouble(self) -> Trouble | None:
        """The reason why it no longer follows its log; None while it does. Closed: its client was closed."""
        return self._replica.trouble

    async def read(
        self,
        reader: Callable[[S], R],
        *,
        latest: bool = False,
        timeout_seconds: float | None = None,
    ) -> R:
        """Call ``reader`` with the state, and return its result. ``reader`` must not block.

        With ``latest`` the state contains every write of every user that was acknowledged before this call.
        Without it, the state is this instance's: reading is free, never returns an older state than before, and
        includes everything that this instance wrote or read. Raises Unavailable, StateGap; with ``latest`` also
        UnreadableEntry if the log cannot be read to its end.
        """
        return reader((await self.snapshot(latest=latest, timeout_seconds=timeout_seconds)).state)

    async def snapshot(
        self, *, latest: bool = False, timeout_seconds: float | None = None
    ) -> Versioned[S]:
        """Return the state and its version; see ``read``. Pass the version to ``write`` as ``if_version``."""
        self._check_open()
        seconds = self._limits.timeout_seconds if timeout_seconds is None else timeout_seconds
        await self._complete(seconds)
        if latest:
            await self._freshen(seconds)
        fold = self._replica.fold
        return Versioned(fold.version, self._rules.copy(fold.state))

    async def _complete(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._replica.complete()
        except TimeoutError as error:
            raise Unavailable(f"the log was not read to its end within {seconds:g} s") from error

    async def _freshen(self, seconds: float) -> None:
        """Wait until everything that was acknowledged before is folded."""
        try:
            async with asyncio.timeout(seconds):
                folded = self._replica.fold.position
                end = await self._source.barrier()
                if end < folded:
                    self._replica.suspect()
                await self._replica.complete()
                await self._replica.reach(end)
                return
        except BarrierUnsupported:
            pass
        except TimeoutError as error:
            raise Unavailable(f"the log's end was not reached within {seconds:g} s") from error
        await self._write(_nothing, None, seconds, is_forced=True)

    # ------------------------------------------------------------ writing

    async def write(
        self,
        generate: Callable[[S], Iterable[Op]],
        reader: Callable[[S], R],
        *,
        if_version: int | None = None,
        timeout_seconds: float | None = None,
    ) -> R:
        """Append the operations of ``generate``, all or none, and return the result of ``reader``.

        ``generate`` receives the latest state, with every write before this one. It may run several times, each
        time on another state, and must have no side effects. ``reader`` runs once, on the state directly after
        these operations. Without operations nothing is written, and ``reader`` receives the state of
        ``generate``, which was the latest at one moment of this call.

        Raises the exception of ``generate`` or of the applier, VersionConflict (``if_version``), NotSent,
        Refused or Closed if nothing was written. Raises OutcomeUnknown if the time limit has passed and the write
        may be in the log. An exception of ``reader`` is raised after the write is complete.
        """
        outcome = await self._write(generate, if_version, timeout_seconds)
        return reader(self._rules.copy(outcome.state))

    async def _write(
        self,
        generate: Callable[[S], Iterable[Op]],
        if_version: int | None,
        timeout_seconds: float | None,
        *,
        is_forced: bool = False,
    ) -> Outcome[S]:
        self._check_open()
        seconds = self._limits.timeout_seconds if timeout_seconds is None else timeout_seconds
        write = PendingWrite(
            generate,
            asyncio.get_running_loop().create_future(),
            if_version=if_version,
            is_forced=is_forced,
        )
        return await self._writer.write(write, seconds)

    # ------------------------------------------------------------ for SharedMap and watches

    async def ready(self) -> None:
        """Wait until the state can be read. Raises Closed, Unavailable, StateGap, Refused."""
        self._check_open()
        await self._complete(self._limits.timeout_seconds)
        self._check_open()  # the state may have been closed meanwhile

    def listen(
        self, key: object, listener: Listener, on_end: Callable[[OnewriterError], None]
    ) -> None:
        """Report applied writes to ``listener``, and to ``on_end`` the reason when there will be no more.

        The reason is a trouble, or Closed. The callbacks must not block or raise.
        """
        self._listeners[key] = listener
        self._ends[key] = on_end
        if self.trouble is not None:
            on_end(self.trouble)

    def unlisten(self, key: object) -> None:
        """Stop the reports."""
        self._listeners.pop(key, None)
        self._ends.pop(key, None)

    def present(self) -> tuple[S, int]:
        """Return this instance's state, not a copy, and its version."""
        return self._replica.fold.state, self._replica.fold.version

    async def checkpoint(self) -> None:
        """Write a checkpoint of the current state now. Raises Unavailable, Refused."""
        self._check_open()
        if self._checkpointer is None:
            raise Closed("this state has no checkpoints")
        await self._checkpointer.write(self._replica.fold.base())

    def _check_open(self) -> None:
        if not self._is_open:
            raise Closed("the shared state is not open: use it in an async with statement")

    async def _prepare(self) -> None:
        if self._checkpointer is not None:
            await self._checkpointer.begin()

    def _is_holder(self) -> bool:
        return self._writer.grant is not None

    async def _recover(self) -> Base[S]:
        if self._checkpointer is not None:
            base = await self._checkpointer.recover()
            if base is not None:
                return base
        return Base(self._rules.initial())

    def _on_taken(self, taken: Taken[S, Op]) -> None:
        self._writer.taken(taken)
        if taken.verdict is Verdict.APPLIED and taken.writes and self._replica.is_complete:
            for listener in list(self._listeners.values()):
                listener(taken.writes)

    def _on_trouble(self, trouble: Trouble) -> None:
        self._writer.troubled(trouble)
        self._end_watches(trouble)

    def _end_watches(self, error: OnewriterError) -> None:
        for on_end in list(self._ends.values()):
            on_end(error)

    def _on_replaced(self, before: S, after: S) -> None:
        """Report the difference to watches, after the log lost entries that were read before."""
        applied: AppliedWrite[S, Op] = AppliedWrite((), before, after, self.version)
        for listener in list(self._listeners.values()):
            listener((applied,))


def _nothing(_state: object) -> tuple[()]:
    return ()
