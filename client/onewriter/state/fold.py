"""The heart of shared state: what one entry of the log makes of it. No I/O.

The state at a position is the fold of the log up to it, and nothing else ever changes it: a write
is applied when its entry comes out of the log, not when it is acknowledged. ``Fold.take`` looks at
an entry's position and stamp and finds exactly one verdict:

=========  ==============================================================================
APPLIED    it is the next one: its writes are applied, all or none, and the version rises
KNOWN      its position was folded already, or it is a resend of an entry that was
VOID       it was decided on a state that was not there: an entry of the same grant in front of
           it was refused, or another came before it. Nobody applies it
GAP        entries are missing before it (``GapFound``)
REWRITTEN  the log lost entries that were applied here, or the entry is void: folding the whole
           log anew tells which (``HistoryRewritten``)
=========  ==============================================================================

All who fold the same log come to the same verdicts, also those who begin at a checkpoint: it holds
the version and what is remembered of writers (``Base``). An entry that does not deserialise, or on
which the applier raises, leaves everything as it was.
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
"""Grants of which the last sequence is remembered; a resend comes soon after what it repeats."""

S = TypeVar("S")
Op = TypeVar("Op")


class GapFound(StateError):
    """Entries are missing in front of this one; a checkpoint may cover them."""


class HistoryRewritten(StateError):
    """The log lost entries that were applied here: fold it anew."""


class Verdict(enum.Enum):
    """What became of an entry."""

    APPLIED = "applied"
    KNOWN = "known"
    VOID = "void"


@dataclass(frozen=True, slots=True)
class Rules(Generic[S, Op]):
    """What a state is made of.

    ``apply`` returns the state after an operation and leaves the one that it was given alone; where
    it cannot, ``copy`` gives it one of its own first.
    """

    initial: Callable[[], S]
    apply: Callable[[S, Op], S]
    serialize: Callable[[Op], bytes]
    deserialize: Callable[[bytes], Op]
    copy: Callable[[S], S]
    framing: Framing

    def run(self, state: S, operations: tuple[Op, ...]) -> S:
        """The state after these operations; ``state`` stays as it is."""
        working = self.copy(state)
        for operation in operations:
            working = self.apply(working, operation)
        return working


@dataclass(frozen=True, slots=True)
class AppliedWrite(Generic[S, Op]):
    """One write as it was applied: the states around it, and the version that it made."""

    operations: tuple[Op, ...]
    before: S
    after: S
    version: int


@dataclass(frozen=True, slots=True)
class Memo(Generic[S, Op]):
    """What a writer computed when it made an entry: used again if the entry comes back unchanged."""

    messages: tuple[LogMessage, ...]
    before: S
    writes: tuple[AppliedWrite[S, Op], ...]


@dataclass(frozen=True, slots=True)
class Taken(Generic[S, Op]):
    """What became of an entry. ``writes`` is empty unless it was applied."""

    verdict: Verdict
    position: Position
    stamp: Stamp | None
    writes: tuple[AppliedWrite[S, Op], ...] = ()


@dataclass(frozen=True, slots=True)
class Base(Generic[S]):
    """Where a fold begins: at the log's very beginning, or behind a checkpoint's position."""

    state: S
    version: int = 0
    position: Position = BEGINNING
    writers: tuple[tuple[bytes, int], ...] = field(default=())
    """Each writer's last sequence, the one that wrote longest ago first."""


class Fold(Generic[S, Op]):
    """The fold of a log so far. Only ``take`` changes it."""

    def __init__(self, rules: Rules[S, Op], base: Base[S]) -> None:
        self._rules = rules
        self.state = base.state
        self.version = base.version
        self.position = base.position
        self.bytes = 0
        """Of all entries that it was given."""
        self._writers = dict(base.writers)

    def base(self) -> Base[S]:
        """What another fold needs to go on from here."""
        return Base(self.state, self.version, self.position, tuple(self._writers.items()))

    def take(
        self,
        entry: LogEntry,
        memo: Callable[[Stamp], Memo[S, Op] | None],
        *,
        is_as_stored: bool = False,
    ) -> Taken[S, Op]:
        """Fold in the next entry; ``memo`` may know what its writer computed.

        ``is_as_stored``: everything folded so far was just read from the log's very beginning, so
        that the log cannot have lost any of it. Raises UnreadableEntry, GapFound, HistoryRewritten;
        then nothing has changed.
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
            return Verdict.VOID  # nothing was cut between the two
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
