"""Pending writes: generated, collected into entries, and decided by reading them back.

::

    queued ──▶ generated on the tip ──▶ in an entry, sent ──▶ read back: applied, its caller notified
       ▲                                     │
       └─────────── certainly not in the log ┘   (a later grant's log was read to its end)

The **tip** is the state after everything that was sent under the current grant; only generators see it. Several
entries may be in flight, and all writes that arrive meanwhile go into the next one. After any error under a grant,
nothing more is sent under it. The next grant decides the writes without an outcome: the log is read up to the
beginning of that grant, and a write that was not read is not in the log and never will be. Its generator runs
again, on the new state.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from onewriter._errors import OnewriterError, Refused, ServerError
from onewriter.state.envelope import Envelope, Stamp
from onewriter.state.errors import VersionConflict
from onewriter.state.fold import AppliedWrite, Memo, Rules, Taken, Verdict
from onewriter.state.log import LogMessage

WRITES_PER_ENTRY_MAX = 1_000
"""Largest number of writes in one entry."""

ENTRY_BYTES_AIM = 256 * 1024
"""Size of operations after which the next write begins another entry."""

ENTRY_BYTES_SPARE = 64 * 1024
"""Part of an entry that is reserved for its stamp, its lengths and the broker's metadata."""

S = TypeVar("S")
Op = TypeVar("Op")


@dataclass(frozen=True, slots=True)
class Outcome(Generic[S]):
    """The result of a write: the state directly after its operations, and that state's version."""

    state: S
    version: int


@dataclass(slots=True, eq=False)
class PendingWrite(Generic[S, Op]):
    """One call of ``write``. ``is_sent``: it may be in the log, which is not decided yet."""

    generate: Callable[[S], Iterable[Op]]
    outcome: asyncio.Future[Outcome[S]]
    if_version: int | None = None
    is_forced: bool = False
    """Write an entry even if the write changes nothing: a barrier."""
    is_sent: bool = False


WriteWithoutEntry = tuple[PendingWrite[S, Op], Outcome[S] | Exception]
"""A write without operations: it changes nothing, or raised. Its result depends on the tip, which may never become
the state; so its caller is notified only after the entries before the tip are decided."""


@dataclass(slots=True, eq=False)
class SentEntry(Generic[S, Op]):
    """An entry in flight. The results of its ``unstored`` are valid once it is applied."""

    writes: list[PendingWrite[S, Op]]
    unstored: list[WriteWithoutEntry[S, Op]]
    memo: Memo[S, Op]


@dataclass(slots=True)
class Gathered(Generic[S, Op]):
    """The writes of one round: those of an entry, and those without operations."""

    before: S
    writes: list[PendingWrite[S, Op]] = field(default_factory=list)
    applied: list[AppliedWrite[S, Op]] = field(default_factory=list)
    contents: list[tuple[bytes, ...]] = field(default_factory=list)
    unstored: list[WriteWithoutEntry[S, Op]] = field(default_factory=list)
    is_forced: bool = False
    bytes: int = 0


class WriteOutbox(Generic[S, Op]):
    """The writes of one instance, queued or sent with their stamps. No I/O."""

    def __init__(self, rules: Rules[S, Op], entry_bytes_max: int) -> None:
        self._rules = rules
        self._bytes_max = entry_bytes_max - ENTRY_BYTES_SPARE
        self.queue: deque[PendingWrite[S, Op]] = deque()
        self.sent: dict[tuple[bytes, int], SentEntry[S, Op]] = {}
        self._writer = b""
        self._sequence = 0
        self.is_spoiled = False
        """Whether an entry of the current grant is void, or the log contains another writer's entry after the
        beginning of the grant: nothing more may be sent under it."""
        self._tip: S
        self._tip_version = 0

    # ------------------------------------------------------------ a grant begins

    def begin(self, writer: bytes, state: S, version: int) -> None:
        """Begin a grant at this state: sent writes that were not read back are not in the log."""
        self.recall()
        self._writer = writer
        self._sequence = 0
        self.is_spoiled = False
        self._tip, self._tip_version = state, version

    def recall(self, *, only_refused: bool = False) -> None:
        """Queue again the sent writes that were not read back, because they are not in the log.

        With ``only_refused``, queue again only those that were refused.
        """
        for key, entry in reversed(list(self.sent.items())):
            if only_refused and any(write.is_sent for write in entry.writes):
                continue
            del self.sent[key]
            for write in reversed(_all_of(entry)):
                write.is_sent = False
                if not write.outcome.done():
                    self.queue.appendleft(write)

    # ------------------------------------------------------------ out

    def gather(self) -> Gathered[S, Op]:
        """Run the generators of queued writes on the tip, as many as fit into one entry.

        A write whose generator or applier raises, or that expects another version, becomes a rider with the
        error as its result.
        """
        gathered: Gathered[S, Op] = Gathered(self._tip)
        most = self._rules.framing.writes_max or WRITES_PER_ENTRY_MAX
        while self.queue and len(gathered.writes) < most and gathered.bytes < ENTRY_BYTES_AIM:
            write = self.queue[0]
            if write.outcome.done():
                self.queue.popleft()  # its caller was cancelled
                continue
            try:
                made = self._generate(write)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is the caller's
                self.queue.popleft()
                gathered.unstored.append((write, error))
                continue
            if made is None:
                self.queue.popleft()
                gathered.unstored.append((write, Outcome(self._tip, self._tip_version)))
                gathered.is_forced = gathered.is_forced or write.is_forced
                continue
            contents, applied = made
            framing = self._rules.framing
            size = sum(map(len, contents)) + framing.operation_bytes * len(contents)
            if len(contents) > framing.operations_max:
                size = max(size, self._bytes_max + 1)
            if gathered.writes and gathered.bytes + size > self._bytes_max:
                break  # the write begins the next entry, where its generator runs again
            self.queue.popleft()
            if size > self._bytes_max:
                write.outcome.set_exception(_too_large(size, self._bytes_max))
                continue
            gathered.writes.append(write)
            gathered.contents.append(contents)
            gathered.applied.append(applied)
            gathered.bytes += size
            self._tip, self._tip_version = applied.after, applied.version
        return gathered

    def _generate(
        self, write: PendingWrite[S, Op]
    ) -> tuple[tuple[bytes, ...], AppliedWrite[S, Op]] | None:
        """Return a write's operations and their effect; None: no operations."""
        if write.if_version is not None and write.if_version != self._tip_version:
            raise VersionConflict(write.if_version, self._tip_version)
        operations = tuple(write.generate(self._rules.copy(self._tip)))
        if not operations:
            return None
        contents = tuple(map(self._rules.serialize, operations))
        after = self._rules.run(self._tip, operations)
        return contents, AppliedWrite(operations, self._tip, after, self._tip_version + 1)

    def seal(self, gathered: Gathered[S, Op]) -> tuple[LogMessage, ...]:
        """Return the messages of these writes' entry; from now on the writes count as sent."""
        version = self._tip_version - len(gathered.writes)
        stamp = Stamp(self._writer, self._sequence, version)
        messages = self._rules.framing.pack(Envelope(stamp, tuple(gathered.contents)))
        if messages:
            self._sequence += 1
            memo = Memo(messages, gathered.before, tuple(gathered.applied))
            entry = SentEntry(gathered.writes, gathered.unstored, memo)
            self.sent[stamp.writer, stamp.sequence] = entry
            for write in gathered.writes:
                write.is_sent = True
        return messages

    def attach(self, unstored: list[WriteWithoutEntry[S, Op]]) -> bool:
        """Let writes without operations wait for the latest entry in flight. False: there is none."""
        newest = self.sent.get((self._writer, self._sequence - 1))
        if newest is not None:
            newest.unstored.extend(unstored)
        return newest is not None

    def put_back(self, writes: Iterable[PendingWrite[S, Op]]) -> None:
        """Put undecided writes back to the front of the queue."""
        self.queue.extendleft(reversed([write for write in writes if not write.outcome.done()]))

    # ------------------------------------------------------------ back

    def memo(self, stamp: Stamp) -> Memo[S, Op] | None:
        """Return the states that were computed for one of this instance's entries."""
        entry = self.sent.get((stamp.writer, stamp.sequence))
        return None if entry is None else entry.memo

    def taken(self, taken: Taken[S, Op]) -> None:
        """Record an entry that was read from the log; notify the callers if it is this instance's."""
        stamp = taken.stamp
        if taken.writes and (stamp is None or stamp.writer != self._writer):
            self.is_spoiled = True  # another writer has appended: the tip is outdated
        if stamp is None or (stamp.writer, stamp.sequence) not in self.sent:
            return
        if taken.verdict is not Verdict.APPLIED:
            self.is_spoiled = True
            return
        entry = self.sent.pop((stamp.writer, stamp.sequence))
        for write, applied in zip(entry.writes, taken.writes, strict=True):
            settle(write, Outcome(applied.after, applied.version))
        for unstored, outcome in entry.unstored:
            settle(unstored, outcome)

    def fail_all(self, error_of: Callable[[PendingWrite[S, Op]], OnewriterError]) -> None:
        """Fail all writes, because this instance cannot decide any write any more."""
        writes = [write for entry in self.sent.values() for write in _all_of(entry)]
        writes += self.queue
        self.sent.clear()
        self.queue.clear()
        for write in writes:
            if not write.outcome.done():
                write.outcome.set_exception(error_of(write))
                write.outcome.exception()  # mark it as retrieved: the caller may have been cancelled


def settle(write: PendingWrite[S, Op], outcome: Outcome[S] | Exception) -> None:
    """Set a write's outcome, if its caller still waits."""
    if isinstance(outcome, StopIteration):  # a future cannot carry a StopIteration
        outcome = RuntimeError(f"the generator raised {outcome!r}")
    if isinstance(outcome, Exception):
        fail(write, outcome)
    elif not write.outcome.done():
        write.outcome.set_result(outcome)


def fail(write: PendingWrite[S, Op], error: BaseException) -> None:
    """Fail a write that was not written, if its caller still waits."""
    if not write.outcome.done():
        write.outcome.set_exception(error)


def _all_of(entry: SentEntry[S, Op]) -> list[PendingWrite[S, Op]]:
    return [*entry.writes, *(unstored for unstored, _ in entry.unstored)]


def _too_large(size: int, bytes_max: int) -> Refused:
    return Refused(
        ServerError.NOT_ALLOWED_ERROR,
        f"a write of {size} bytes, or of too many operations; one entry holds {bytes_max} bytes:"
        " nothing was written",
    )
