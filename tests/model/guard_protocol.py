"""Guarded writes (docs/adr/0012) as a model: a guarding topic, a target topic, and all their races.

The race
--------
A leader of epoch 1 sends a message to the target under its guard and freezes. Epoch 2 is granted. The message may
be in several places: in the leader's memory, in the broker's memory, in a call whose answer was lost and that is
sent again, or in a socket buffer that the store reads much later. The store may fail over to a replica that never
received epoch 2 and accepts epoch 1. And the broker, informed that the guard has ended, may give the message's
position to another message and answer "certainly not appended" while a copy of the message is still under way.

How it is modelled
------------------
* The store is the sequence of its writes. The values that scripts read are a fold over this sequence. A failover
  keeps any prefix and raises the generation. storage_protocol.py shows that the store refuses commands of an
  older dataset or owner; this model assumes it.
* One broker serves the target and has at most one undecided call, as the Appender does. Each attempt is a *copy*
  that the store executes at any later time, once, or never; its answer may be lost.
* After a failover both logs are fenced again, in any order. The guarding log is fenced by an owner that remembers
  the last grant, or by one that does not. The latter allows no producer to resume an epoch that may not be the last.
* ``Rules.is_atomic``: both topics share a bucket, and the append compares the epochs. Otherwise the client asks
  the owner of the guarding topic to prove the epoch, and the append compares with the floor and raises it.

Ghosts: ``granted`` (the newest epoch that any producer was granted), ``Operation.is_late`` (a newer epoch than its
own was granted before the operation was invoked), ``sealed`` (the highest epoch whose write or seal was answered).

Not modelled: several guarded blocks in one call (the conformance suite has them), a target whose owner changes
together with the dataset (then the floor is as durable as the topic's acknowledgements), and checks answered by a
primary that was cut off (as durable as the guarding topic's acknowledgements).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple


class Write(NamedTuple):
    """One write that the store executed.

    guard-fence: ``number`` is the tenure that may write, ``other`` the highest epoch. grant: ``number`` is the
    epoch. target-fence: ``number`` is the ledger, ``other`` the floor. entry: ``number`` is the operation,
    ``other`` its position, ``floor`` the floor after it. floor: ``number`` is the floor.
    """

    kind: str
    number: int
    other: int = 0
    generation: int = 0
    ledger: int = 0
    floor: int = 0


class View(NamedTuple):
    """The values that the scripts read."""

    leads: int = 0
    epoch: int = 0
    guard_generation: int = 0
    ledger: int = 0
    target_generation: int = 0
    floor: int = 0
    last: tuple[int, int] = (0, 0)
    entries: tuple[tuple[int, int, int], ...] = ()
    """Ledger, position and operation of each entry."""


class Operation(NamedTuple):
    """One guarded send of the leader of ``epoch``."""

    epoch: int
    phase: str = "idle"
    is_late: bool = False
    is_checked: bool = False


class Copy(NamedTuple):
    """One attempt of an append, on its way to the store."""

    operation: int
    ledger: int
    position: int
    generation: int
    is_first: bool


class Action(NamedTuple):
    """One step of a run."""

    kind: str
    operation: int = -1
    detail: str = ""

    def __str__(self) -> str:
        who = "" if self.operation < 0 else f" of operation {self.operation}"
        return f"{self.kind}{who}" + (f": {self.detail}" if self.detail else "")


class State(NamedTuple):
    """The state of the whole model at one moment."""

    base: View
    """The part of the store's contents that no later failover can lose."""
    writes: tuple[Write, ...]
    """The writes since then."""
    generation: int
    operations: tuple[Operation, ...]
    granted: int = 1
    sealed: int = 0
    copies: frozenset[Copy] = frozenset()
    pending: Copy | None = None
    """The newest attempt of the broker's one call."""
    is_doubtful: bool = False
    """The call was answered REFENCE, or its dataset is gone. The next fence of the target decides its result."""
    position: int = 1
    ledger: int = 1
    floor_memory: int = 0
    told_epoch: int = 1
    """The epoch that a broker has in its memory, in the variant that compares there."""
    failovers: int = 0
    repetitions: int = 0

    @property
    def seen(self) -> View:
        """The present contents of the store."""
        return view(self.base, self.writes)


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of the protocol. Each False is a naive variant, which the search must find wrong."""

    is_atomic: bool = True
    compared_in_append: bool = True
    """If False, the broker compares in its memory before the call."""
    generation_checked: bool = True
    """A guarding log that was not fenced since the dataset was registered guards no writes."""
    present_wins: bool = True
    """The script looks for a repeated block before it checks the block's guard."""
    definite_only_at_first: bool = True
    """A repeated block that is refused and not found is in doubt until the next ledger."""
    raised_in_append: bool = True
    """If False, a separate call raises the floor after the answer."""
    checked_behind_invocation: bool = True
    """If False, an earlier proof is accepted."""
    floors_remembered: bool = True
    """A broker that fences the target writes the floors that it remembers."""
    careful_tenure: bool = True
    """An owner that cannot know whether the last grant survived allows no producer to lead."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The bounds of the search."""

    operations: tuple[int, ...] = (1, 2)
    """The epochs of the sends."""
    epochs: int = 2
    failovers: int = 1
    repetitions: int = 2
    """The number of calls that are sent again."""


Transition = tuple[Action, State]


def view(seen: View, writes: tuple[Write, ...]) -> View:
    """Return the contents of the store after these writes."""
    for write in writes:
        match write.kind:
            case "grant":
                seen = seen._replace(leads=write.number, epoch=write.number)
            case "guard-fence":
                seen = seen._replace(
                    leads=write.number, epoch=write.other, guard_generation=write.generation
                )
            case "target-fence":
                seen = seen._replace(
                    ledger=write.number,
                    target_generation=write.generation,
                    floor=max(seen.floor, write.other),
                    last=(write.number, 0),
                )
            case "floor":
                seen = seen._replace(floor=max(seen.floor, write.number))
            case "entry":
                entry = (write.ledger, write.other, write.number)
                seen = seen._replace(
                    last=entry[:2],
                    entries=(*seen.entries, entry),
                    floor=max(seen.floor, write.floor),
                )
            case _:
                raise ValueError(write)
    return seen


@dataclass(frozen=True, slots=True)
class GuardProtocol:
    """The model: the actions that are possible in each state."""

    rules: Rules = Rules()
    scope: Scope = Scope()

    def initial(self) -> Iterator[State]:
        writes = (
            Write("guard-fence", 0, 0, 1),
            Write("grant", 1),
            Write("target-fence", 1, 0, 1),
        )
        operations = tuple(Operation(epoch) for epoch in self.scope.operations)
        yield self._normal(State(View(), writes, 1, operations))

    def successors(self, state: State) -> Iterator[Transition]:
        for action, after in self._following(state):
            yield action, self._normal(after)

    def _normal(self, state: State) -> State:
        """Remove what can make no difference any more: old history, and copies that no node accepts."""
        seen = state.seen
        if state.failovers == self.scope.failovers:
            state = state._replace(base=seen, writes=())
        copies = frozenset(
            copy
            for copy in state.copies
            if copy == state.pending
            or (copy.generation == state.generation and copy.ledger == seen.ledger)
        )
        return state if copies == state.copies else state._replace(copies=copies)

    def _following(self, state: State) -> Iterator[Transition]:
        seen = state.seen
        yield from self._leaders(state, seen)
        yield from self._broker(state, seen)
        yield from self._store(state, seen)
        yield from self._fences(state, seen)
        if state.failovers < self.scope.failovers:
            for count in range(len(state.writes) + 1):
                yield self._failed_over(state, count)

    # ---- leaders ------------------------------------------------------------------------------

    def _leaders(self, state: State, seen: View) -> Iterator[Transition]:
        is_settled = seen.guard_generation == state.generation
        if is_settled and state.granted < self.scope.epochs:
            epoch = state.granted + 1
            written = (*state.writes, Write("grant", epoch))
            yield (
                Action("grant", detail=f"epoch {epoch}"),
                state._replace(writes=written, granted=epoch),
            )
        if not self.rules.compared_in_append and state.told_epoch < state.granted:
            yield Action("tell the broker"), state._replace(told_epoch=state.granted)
        for number, operation in enumerate(state.operations):
            if operation.epoch > state.granted:
                continue
            if operation.phase == "idle":
                needs = not self.rules.is_atomic and not operation.is_checked
                yield (
                    Action("invoke", number),
                    _operated(
                        state,
                        number,
                        phase="invoked" if needs else "waiting",
                        is_late=state.granted > operation.epoch,
                    ),
                )
                if self.rules.is_atomic or self.rules.checked_behind_invocation:
                    continue
            if operation.phase in {"idle", "invoked"} and not operation.is_checked and is_settled:
                yield self._checked(state, seen, number, operation)
        epoch = state.granted
        is_served = is_settled and seen.target_generation == state.generation
        may_seal = not self.rules.is_atomic and is_served and seen.floor <= epoch
        if may_seal and seen.leads == epoch > state.sealed:
            yield (
                Action("seal", detail=f"epoch {epoch}"),
                state._replace(
                    writes=(*state.writes, Write("floor", epoch)),
                    floor_memory=max(state.floor_memory, epoch),
                    sealed=epoch,
                ),
            )

    def _checked(self, state: State, seen: View, number: int, operation: Operation) -> Transition:
        if seen.leads == operation.epoch:
            phase = "waiting" if operation.phase == "invoked" else "idle"
            return (
                Action("check passes", number),
                _operated(state, number, phase=phase, is_checked=True),
            )
        return Action("check fails", number), _operated(state, number, phase="refused")

    # ---- the target's broker ------------------------------------------------------------------

    def _broker(self, state: State, seen: View) -> Iterator[Transition]:
        pending = state.pending
        if pending is not None:
            is_open = not state.is_doubtful and state.repetitions < self.scope.repetitions
            if is_open and pending.is_first:
                again = pending._replace(is_first=False)
                yield (
                    Action("send again", pending.operation),
                    state._replace(
                        pending=again,
                        copies=state.copies | {again},
                        repetitions=state.repetitions + 1,
                    ),
                )
            return
        if seen.target_generation != state.generation:
            return
        for number, operation in enumerate(state.operations):
            if operation.phase != "waiting":
                continue
            if not self.rules.compared_in_append and state.told_epoch != operation.epoch:
                yield Action("refuse by memory", number), _operated(state, number, phase="refused")
                continue
            copy = Copy(number, state.ledger, state.position, state.generation, is_first=True)
            floor = state.floor_memory
            if not self.rules.is_atomic and self.rules.raised_in_append:
                floor = max(floor, operation.epoch)
            yield (
                Action("send", number),
                _operated(state, number, phase="called")._replace(
                    pending=copy, copies=state.copies | {copy}, floor_memory=floor
                ),
            )

    # ---- the store ----------------------------------------------------------------------------

    def _store(self, state: State, seen: View) -> Iterator[Transition]:
        for copy in state.copies:
            answer, write = self._executed(state, seen, copy)
            writes = state.writes if write is None else (*state.writes, write)
            after = state._replace(writes=writes, copies=state.copies - {copy})
            yield Action("execute, answer lost", copy.operation, answer), after
            if copy == state.pending and not state.is_doubtful:
                yield (
                    Action("execute", copy.operation, answer),
                    self._answered(after, copy, answer),
                )

    def _executed(self, state: State, seen: View, copy: Copy) -> tuple[str, Write | None]:
        """What append.lua answers and writes."""
        operation = state.operations[copy.operation]
        if copy.generation != state.generation:
            return "REFENCE", None
        is_there = (copy.ledger, copy.position, copy.operation) in seen.entries
        if seen.ledger != copy.ledger:
            return "FENCED", None
        refused = self._refusal(state, seen, operation)
        if refused and is_there and self.rules.present_wins:
            return "OK", None
        if refused:
            is_definite = copy.is_first or not self.rules.definite_only_at_first
            return (refused if is_definite else "REFENCE"), None
        if is_there:
            return "OK", None
        if (copy.ledger, copy.position) <= seen.last:
            return "FENCED", None
        raises = not self.rules.is_atomic and self.rules.raised_in_append
        floor = operation.epoch if raises else 0
        entry = Write("entry", copy.operation, copy.position, ledger=copy.ledger, floor=floor)
        return "OK", entry

    def _refusal(self, state: State, seen: View, operation: Operation) -> str:
        """What guard_refusal of guard.lua answers."""
        if not self.rules.compared_in_append:
            return ""
        if not self.rules.is_atomic:
            return "STALE" if seen.floor > operation.epoch else ""
        if self.rules.generation_checked and seen.guard_generation != state.generation:
            return "AHEAD"
        if seen.leads == operation.epoch:
            return ""
        return "STALE" if seen.epoch >= operation.epoch else "AHEAD"

    def _answered(self, state: State, copy: Copy, answer: str) -> State:
        number = copy.operation
        if answer == "OK":
            return self._stored(state, number)._replace(position=copy.position + 1)
        if answer in {"STALE", "AHEAD"}:
            return _operated(state, number, phase="refused")._replace(pending=None)
        return state._replace(is_doubtful=True)

    def _stored(self, state: State, number: int) -> State:
        epoch = state.operations[number].epoch
        after = _operated(state, number, phase="ok")._replace(pending=None, is_doubtful=False)
        if self.rules.is_atomic:
            return after
        return after._replace(
            sealed=max(state.sealed, epoch), floor_memory=max(state.floor_memory, epoch)
        )

    # ---- fences -------------------------------------------------------------------------------

    def _fences(self, state: State, seen: View) -> Iterator[Transition]:
        if seen.guard_generation != state.generation:
            by_memory = Write("guard-fence", state.granted, state.granted, state.generation)
            is_known = seen.epoch == state.granted or not self.rules.careful_tenure
            tenure = seen.leads if is_known else 0
            by_store = Write("guard-fence", tenure, seen.epoch, state.generation)
            yield Action("fence the guarding log, by memory"), _written(state, by_memory)
            yield Action("fence the guarding log, by the store"), _written(state, by_store)
        raises_apart = not self.rules.is_atomic and not self.rules.raised_in_append
        is_low = seen.floor < state.floor_memory and seen.target_generation == state.generation
        if raises_apart and is_low:
            yield Action("raise the floor"), _written(state, Write("floor", state.floor_memory))
        is_left = seen.target_generation != state.generation
        if is_left or state.is_doubtful:
            yield self._target_fenced(state, seen)

    def _target_fenced(self, state: State, seen: View) -> Transition:
        ledger = state.ledger + 1
        floor = state.floor_memory if self.rules.floors_remembered else 0
        fenced = _written(state, Write("target-fence", ledger, floor, state.generation))
        after = fenced._replace(ledger=ledger, position=1)
        pending = state.pending
        if pending is not None:
            if (pending.ledger, pending.position, pending.operation) in seen.entries:
                after = self._stored(after, pending.operation)
            else:  # gathered again, like an operation that was never sent
                after = _operated(after, pending.operation, phase="waiting")
                after = after._replace(pending=None, is_doubtful=False)
        return Action("fence the target"), after

    def _failed_over(self, state: State, count: int) -> Transition:
        after = state._replace(
            writes=state.writes[:count],
            generation=state.generation + 1,
            failovers=state.failovers + 1,
            is_doubtful=state.pending is not None,
        )
        return Action("fail over", detail=f"{count} writes survive"), after


def _operated(
    state: State,
    number: int,
    *,
    phase: str,
    is_late: bool | None = None,
    is_checked: bool | None = None,
) -> State:
    operation = state.operations[number]._replace(phase=phase)
    if is_late is not None:
        operation = operation._replace(is_late=is_late)
    if is_checked is not None:
        operation = operation._replace(is_checked=is_checked)
    operations = (*state.operations[:number], operation, *state.operations[number + 1 :])
    return state._replace(operations=operations)


def _written(state: State, write: Write) -> State:
    return state._replace(writes=(*state.writes, write))
