"""The core of shared state: the effect of one entry of the log. No I/O.

The state at a position is the fold of the log up to it, and nothing else changes it: a write is applied when its
entry is read from the log, not when it is acknowledged. ``Fold.take`` compares an entry's position and stamp with
the fold. There are five results: it returns one of the first three, and raises for the last two:

=========  ==============================================================================
APPLIED    the entry is the next one: its writes are applied, all or none, and the version increases
KNOWN      its position was folded already, or it is a resend of a folded entry
VOID       it was written for a state that never existed: an earlier entry of the same grant was
           refused, or another entry came first. No reader applies it
GAP        entries before it are missing (``GapFound``)
REWRITTEN  the log lost entries that were applied here, or the entry is void: folding the whole
           log again decides which (``HistoryRewritten``)
=========  ==============================================================================

All readers of the same log get the same results, also those that begin at a checkpoint, which contains the
version and the writers' last sequences (``Base``). An entry that cannot be deserialized, or for which the applier
raises, changes nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from onewriter.state.envelope import Framing, Stamp
from onewriter.state.errors import StateError, UnreadableEntry
from onewriter.state.log import BEGINNING, LogEntry, LogMessage
from onewriter_core.ids import Position

WRITERS_MAX = 256
"""Number of grants whose last sequence is remembered; a resend follows soon after the original."""

S = TypeVar("S")
Op = TypeVar("Op")


class GapFound(StateError):
    """Entries before this one are missing; a checkpoint may cover them."""


class HistoryRewritten(StateError):
    """The log lost entries that were applied here: fold it again."""


class Verdict(enum.Enum):
    """What became of an entry. The docstring of the module explains each value."""

    APPLIED = "applied"
    KNOWN = "known"
    VOID = "void"


@dataclass(frozen=True, slots=True)
class Rules(Generic[S, Op]):
    """The functions that define a state.

    ``apply`` returns the state after an operation and does not change its argument. If it has to change its
    argument, ``copy`` makes a copy first.
    """

    initial: Callable[[], S]
    apply: Callable[[S, Op], S]
    serialize: Callable[[Op], bytes]
    deserialize: Callable[[bytes], Op]
    copy: Callable[[S], S]
    framing: Framing

    def run(self, state: S, operations: tuple[Op, ...]) -> S:
        """Return the state after these operations; ``state`` is not changed."""
        working = self.copy(state)
        for operation in operations:
            working = self.apply(working, operation)
        return working


@dataclass(frozen=True, slots=True)
class AppliedWrite(Generic[S, Op]):
    """An applied write: the states before and after it, and its version."""

    operations: tuple[Op, ...]
    before: S
    after: S
    version: int


@dataclass(frozen=True, slots=True)
class Memo(Generic[S, Op]):
    """The states that a writer computed for an entry, used again if the entry is read back unchanged."""

    messages: tuple[LogMessage, ...]
    before: S
    writes: tuple[AppliedWrite[S, Op], ...]


@dataclass(frozen=True, slots=True)
class Taken(Generic[S, Op]):
    """The result of an entry. ``writes`` is empty unless it was applied."""

    verdict: Verdict
    position: Position
    stamp: Stamp | None
    writes: tuple[AppliedWrite[S, Op], ...] = ()


@dataclass(frozen=True, slots=True)
class Base(Generic[S]):
    """Where a fold begins: at the beginning of the log, or at the position of a checkpoint."""

    state: S
    version: int = 0
    position: Position = BEGINNING
    writers: tuple[tuple[bytes, int], ...] = field(default=())
    """Each writer's last sequence, the least recent writer first."""


class Fold(Generic[S, Op]):
    """The fold of a log so far. Only ``take`` changes it."""

    def __init__(self, rules: Rules[S, Op], base: Base[S]) -> None:
        self._rules = rules
        self.state = base.state
        self.version = base.version
        self.position = base.position
        self.bytes = 0
        """Total size of the folded entries."""
        self._writers = dict(base.writers)

    def base(self) -> Base[S]:
        """Return the base from which another fold can continue."""
        return Base(self.state, self.version, self.position, tuple(self._writers.items()))

    def take(
        self,
        entry: LogEntry,
        memo: Callable[[Stamp], Memo[S, Op] | None],
        *,
        is_as_stored: bool = False,
    ) -> Taken[S, Op]:
        """Fold the next entry; ``memo`` may contain the states that its writer computed.

        ``is_as_stored``: all entries so far were just read from the log's beginning, so the log cannot have
        lost any of them. Raises UnreadableEntry, GapFound, HistoryRewritten; the fold is then unchanged.
        """
        if entry.position <= self.position:
            return Taken(Verdict.KNOWN, entry.position, None)
        try:
            envelope = self._rules.framing.unpack(entry.messages)
        except ValueError as error:
            raise _unreadable(entry, error) from error
        stamp = envelope.stamp
        verdict = Verdict.APPLIED
        if stamp is not None:
            verdict = self._verdict(stamp, entry.position, is_as_stored=is_as_stored)
        writes: tuple[AppliedWrite[S, Op], ...] = ()
        if verdict is Verdict.APPLIED:
            remembered = None if stamp is None else memo(stamp)
            if remembered is not None and self._holds(remembered, entry):
                writes = remembered.writes
            else:
                writes = self._apply(entry, envelope.writes)
        self._move(entry.position, stamp, verdict, writes)
        self.bytes += sum(len(message.content) for message in entry.messages)
        return Taken(verdict, entry.position, stamp, writes)

    def _verdict(self, stamp: Stamp, position: Position, *, is_as_stored: bool) -> Verdict:
        last = self._writers.get(stamp.writer)
        if last is not None and stamp.sequence <= last:
            return Verdict.KNOWN
        is_hole = last is not None and stamp.sequence > last + 1
        if is_hole and position == (self.position.ledger, self.position.entry + 1):
            return Verdict.VOID  # no entry between the two was trimmed
        if stamp.base_version > self.version:
            raise GapFound(
                f"the entry at {position} follows version {stamp.base_version},"
                f" and the log before it only leads to {self.version}",
                position=position,
            )
        if stamp.base_version < self.version:
            if is_as_stored:
                return Verdict.VOID
            raise HistoryRewritten(
                f"the entry at {position} follows version {stamp.base_version};"
                f" version {self.version}, which was read before, is lost",
                position=position,
            )
        return Verdict.APPLIED

    def _holds(self, memo: Memo[S, Op], entry: LogEntry) -> bool:
        return memo.before is self.state and memo.messages == entry.messages

    def _apply(
        self, entry: LogEntry, writes: tuple[tuple[bytes, ...], ...]
    ) -> tuple[AppliedWrite[S, Op], ...]:
        applied: list[AppliedWrite[S, Op]] = []
        state, version = self.state, self.version
        rules = self._rules
        for contents in writes:
            try:
                operations = tuple(map(rules.deserialize, contents))
                after = rules.run(state, operations)
            except Exception as error:
                raise _unreadable(entry, error) from error
            version += 1
            applied.append(AppliedWrite(operations, state, after, version))
            state = after
        return tuple(applied)

    def _move(
        self,
        position: Position,
        stamp: Stamp | None,
        verdict: Verdict,
        writes: tuple[AppliedWrite[S, Op], ...],
    ) -> None:
        self.position = position
        if writes:
            self.state, self.version = writes[-1].after, writes[-1].version
        if stamp is not None and verdict is Verdict.APPLIED:
            self._writers.pop(stamp.writer, None)
            self._writers[stamp.writer] = stamp.sequence
            while len(self._writers) > WRITERS_MAX:
                del self._writers[next(iter(self._writers))]


def _unreadable(entry: LogEntry, error: Exception) -> UnreadableEntry:
    return UnreadableEntry(
        f"the entry at {entry.position} cannot be read: {error!r}", position=entry.position
    )
