"""Atomic publishes as a model: one log, brokers that replace one another, and a replica that lags.

A publish has a version. Each attempt at it is a sequence of parts that one broker appends one after the other. A
call may be executed late, twice, or never be answered. A fence ends the earlier broker; a failover restores the
dataset as the replica had it. Readers see the entries below the watermark of the serving broker.

Not modelled: the order of fences and failovers (storage_protocol.py has it; here a fence always opens the newest
ledger on the registered dataset), several logs, the numbers of entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

PARTS = 3
"""Parts of each attempt: the one that opens it, one between, and the one that commits it."""


class Part(NamedTuple):
    """A block of an attempt. ``number`` counts from 0; the last one commits."""

    ledger: int
    attempt: int
    version: int
    number: int

    @property
    def commits(self) -> bool:
        return self.number == PARTS - 1


class Row(NamedTuple):
    """A block that belongs to no attempt."""

    ledger: int


class Marker(NamedTuple):
    ledger: int


Item = Part | Row | Marker


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of the protocol. The search must find each variant wrong in which one rule is missing."""

    watermark_waits: bool = True
    fence_drops: bool = True
    checks_version: bool = True
    commit_rides_on_last: bool = True
    others_wait: bool = True
    reads_fate_behind_fence: bool = True


@dataclass(frozen=True, slots=True)
class Scope:
    """The bounds of the search."""

    attempts: tuple[int, ...] = (1, 1)
    """The versions requested, one attempt each."""
    fences: int = 2
    failovers: int = 1
    rows: int = 1


@dataclass(frozen=True, slots=True)
class Data:
    """The contents of a node: the log, the open attempt and the version."""

    items: tuple[Item, ...] = (Marker(1),)
    open: int | None = None
    version: int = 0

    @property
    def ledger(self) -> int:
        return max(item.ledger for item in self.items)


@dataclass(frozen=True, slots=True)
class Asked:
    """One attempt: its ledger, the parts that it appended, and its answer."""

    version: int
    ledger: int = 0
    stored: int = 0
    sent: int | None = None
    """The part that has no answer yet."""
    answer: str = ""


@dataclass(frozen=True, slots=True)
class State:
    data: Data = Data()
    replica: Data = Data()
    attempts: tuple[Asked, ...] = ()
    copies: frozenset[Part] = frozenset()
    """Calls that may be executed once more, or for the first time."""
    watermark: int = 1
    """The number of items that the serving broker allows readers to read."""
    seen: tuple[Item, ...] = ()
    fences: int = 0
    failovers: int = 0
    rows: int = 0
    is_serving: bool = True
    """The marker of the newest ledger is durable, so its broker serves."""


@dataclass(frozen=True, slots=True)
class Action:
    text: str
    attempt: int | None = None

    def __str__(self) -> str:
        return self.text if self.attempt is None else f"{self.text} (attempt {self.attempt})"


class PublishProtocol:
    """The model: the actions that are possible under these rules and within this scope."""

    def __init__(self, rules: Rules = Rules(), scope: Scope = Scope()) -> None:
        self.rules = rules
        self.scope = scope

    def initial(self) -> Iterable[State]:
        yield State(attempts=tuple(Asked(version) for version in self.scope.attempts))

    def successors(self, state: State) -> Iterable[tuple[Action, State]]:
        yield from self._publishing(state)
        for part in sorted(state.copies):
            yield from self._executed(state, part)
        if state.is_serving and state.rows < self.scope.rows:
            yield from self._row(state)
        if state.replica != state.data:
            yield Action("the replica catches up"), replace(state, replica=state.data)
        yield from self._read(state)
        if state.fences < self.scope.fences:
            yield Action("another broker fences"), self._fenced(state, state.data)
        if state.failovers < self.scope.failovers and state.fences < self.scope.fences:
            failed_over = replace(state, failovers=state.failovers + 1)
            yield (
                Action("the replica counts, and is fenced"),
                self._fenced(failed_over, state.replica),
            )

    # ------------------------------------------------------------ the broker that serves

    def _publishing(self, state: State) -> Iterator[tuple[Action, State]]:
        ledger = state.data.ledger
        is_busy = any(each.ledger == ledger and not each.answer for each in state.attempts)
        for number, each in enumerate(state.attempts):
            if each.answer or not state.is_serving:
                continue
            if each.ledger == 0 and not is_busy:
                begun = replace(each, ledger=ledger)
                yield Action("it begins", number), _with(state, number, begun)
            elif each.ledger == ledger and each.sent is None and each.stored < PARTS:
                part = Part(ledger, number, each.version, each.stored)
                sent = _with(state, number, replace(each, sent=each.stored))
                yield Action("a part is sent", number), replace(sent, copies=sent.copies | {part})
            elif each.ledger == ledger and each.stored == PARTS and state.replica == state.data:
                reported = replace(each, answer="published")
                moved = replace(_with(state, number, reported), watermark=len(state.data.items))
                yield Action("it is durable and answered", number), moved

    def _row(self, state: State) -> Iterator[tuple[Action, State]]:
        data = state.data
        is_busy = any(each.ledger == data.ledger and not each.answer for each in state.attempts)
        if is_busy and self.rules.others_wait:
            return
        if data.open is not None and self.rules.others_wait:
            return
        stored = replace(data, items=(*data.items, Row(data.ledger)))
        yield Action("somebody else writes"), replace(state, data=stored, rows=state.rows + 1)

    def _executed(self, state: State, part: Part) -> Iterator[tuple[Action, State]]:
        """The store executes a copy. The answer reaches a waiting broker or is lost; the copy may arrive once more."""
        data, answer = self._append(state.data, part)
        each = state.attempts[part.attempt]
        executed = replace(state, data=data)
        waits = each.sent == part.number and each.ledger == part.ledger and not each.answer
        if waits:
            received = replace(executed, copies=executed.copies - {part})
            if answer == "stored":
                reported = replace(each, sent=None, stored=part.number + 1)
            elif answer == "known":
                reported = replace(each, sent=None, answer="duplicate")
            else:  # its broker is deposed and cannot decide what happened to its last part
                is_certain = not part.commits
                reported = replace(each, sent=None, answer="failed" if is_certain else "unknown")
            yield (
                Action(f"part {part.number}: {answer}", part.attempt),
                _with(received, part.attempt, reported),
            )
        yield Action(f"part {part.number} without an answer: {answer}", part.attempt), executed
        if not waits:
            yield (
                Action("a late copy is lost", part.attempt),
                replace(state, copies=state.copies - {part}),
            )

    def _append(self, data: Data, part: Part) -> tuple[Data, str]:
        """What the script does."""
        if part in data.items:
            return data, "stored"
        if part.ledger != data.ledger:
            return data, "refused"
        if part.number == 0:
            if data.open is not None and self.rules.others_wait:
                return data, "refused"
            if self.rules.checks_version and data.version >= part.version:
                return data, "known"
        elif data.open != part.attempt and self.rules.others_wait:
            return data, "refused"
        is_noted = part.commits if self.rules.commit_rides_on_last else part.number == 0
        return Data(
            (*data.items, part),
            None if part.commits else part.attempt,
            max(data.version, part.version) if is_noted else data.version,
        ), "stored"

    # ------------------------------------------------------------ readers

    def _read(self, state: State) -> Iterator[tuple[Action, State]]:
        """The watermark rises to the end of all durable and complete items; then a reader reads up to it."""
        if not state.is_serving:
            return
        items = state.data.items
        end = 0
        for index, item in enumerate(items):
            if index < len(state.replica.items) and state.replica.items[index] == item:
                is_whole = not isinstance(item, Part) or item.commits
                if is_whole or not self.rules.watermark_waits:
                    end = index + 1
            else:
                break
        reach = max(end, state.watermark)
        if reach > len(state.seen):
            yield Action("readers go on"), replace(state, watermark=reach, seen=items[:reach])

    # ------------------------------------------------------------ the next broker

    def _fenced(self, state: State, data: Data) -> State:
        """A fence opens the newest ledger on this data and decides the attempts under older ledgers."""
        ledger = max(state.data.ledger, data.ledger) + 1
        kept = data.items
        if self.rules.fence_drops:
            kept = tuple(
                item for item in kept if not (isinstance(item, Part) and item.attempt == data.open)
            )
        fenced = Data((*kept, Marker(ledger)), None, data.version)
        attempts = tuple(
            self._decided(each, number, fenced) for number, each in enumerate(state.attempts)
        )
        return replace(
            state,
            data=fenced,
            replica=fenced,
            attempts=attempts,
            watermark=len(fenced.items),
            fences=state.fences + 1,
        )

    def _decided(self, each: Asked, number: int, fenced: Data) -> Asked:
        """The broker's answer to an attempt that a fence has ended."""
        if each.answer or each.ledger == 0:
            return each
        if each.stored < PARTS and each.sent != PARTS - 1:
            return replace(each, answer="failed")  # its last part was never sent
        if not self.rules.reads_fate_behind_fence:
            return replace(each, answer="failed")
        last = Part(each.ledger, number, each.version, PARTS - 1)
        return replace(each, answer="published" if last in fenced.items else "failed")


def _with(state: State, number: int, attempt: Asked) -> State:
    attempts = (*state.attempts[:number], attempt, *state.attempts[number + 1 :])
    return replace(state, attempts=attempts)


def runs(items: tuple[Item, ...]) -> list[tuple[int, int]]:
    """Return the attempt and the version of each complete publish."""
    return [
        (item.attempt, item.version) for item in items if isinstance(item, Part) and item.commits
    ]


def is_whole(items: tuple[Item, ...]) -> bool:
    """Return whether the parts of each attempt are complete and contiguous."""
    index = 0
    while index < len(items):
        item = items[index]
        if isinstance(item, Part):
            expected = tuple(item._replace(number=number) for number in range(PARTS))
            if items[index : index + PARTS] != expected:
                return False
            index += PARTS
        else:
            index += 1
    return True
