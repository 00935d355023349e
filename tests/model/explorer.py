"""Breadth-first exploration of every reachable state of a small model.

This module contains the search, the three kinds of property, and the text of a counter-example. A model is any
object that returns its initial states and, for a state, every possible action with the state that follows.
States must be hashable and immutable.

* ``Always``: true in every reachable state.
* ``Step``: true of every transition (before, action, after), also of those that change nothing.
* ``Sometimes``: must occur at least once. A model that never reaches it proves nothing about it. An unreached
  ``Sometimes`` is therefore a failure, like a broken property.

The search visits one level after the other, so the first violation found has a shortest run. The caller sets the
bounds. If a bound ends the search early, the report names the bound, and ``assert_sound`` fails unless the caller
accepts a partial search.

Out of scope: fairness and liveness (no property states that an action *must* happen), symmetry reduction and
compact hashing (a model that needs them normalises its own states).
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

StateT = TypeVar("StateT")
ActionT = TypeVar("ActionT")
ActionT_co = TypeVar("ActionT_co", covariant=True)

STATES_MAX = 2_000_000
"""Default number of states after which a search stops and reports this bound (about 1 KiB per state)."""


class Model(Protocol[StateT, ActionT_co]):
    """An object to explore. ``str(action)`` is the line that describes the action in a counter-example."""

    def initial(self) -> Iterable[StateT]:
        """Return the states in which a run may begin."""
        ...

    def successors(self, state: StateT) -> Iterable[tuple[ActionT_co, StateT]]:
        """Return every action that is enabled in ``state``, with the state after it.

        An action with several possible results is yielded once per result. An exception is a violation and is
        reported with its run: the code under exploration must not raise.
        """
        ...


@dataclass(frozen=True)
class Always(Generic[StateT]):
    """A predicate over states. The result False or an AssertionError is a violation."""

    name: str
    holds: Callable[[StateT], bool]


@dataclass(frozen=True)
class Step(Generic[StateT, ActionT]):
    """A predicate over transitions. The result False or an AssertionError is a violation."""

    name: str
    holds: Callable[[StateT, ActionT, StateT], bool]


@dataclass(frozen=True)
class Sometimes(Generic[StateT, ActionT]):
    """A transition that must be reachable. The search evaluates it until it has occurred once."""

    name: str
    reached: Callable[[StateT, ActionT, StateT], bool]


@dataclass(frozen=True)
class Violation(Generic[StateT, ActionT]):
    """A broken property with a shortest run that breaks it.

    ``actions[i]`` leads from ``states[i]`` to ``states[i + 1]``. ``detail`` is the text of the error if one was
    raised.
    """

    broken: str
    detail: str
    actions: tuple[ActionT, ...]
    states: tuple[StateT, ...]

    def trace(self, describe: Callable[[StateT], str] | None = None) -> str:
        """Return the run as numbered lines. ``describe`` adds a line about the state after each action."""
        lines = [f"broken: {self.broken}" + (f" ({self.detail})" if self.detail else "")]
        if describe is not None:
            lines.append(f"      {describe(self.states[0])}")
        for number, (action, after) in enumerate(
            zip(self.actions, self.states[1:], strict=True), start=1
        ):
            lines.append(f"{number:4}. {action}")
            if describe is not None:
                lines.append(f"      {describe(after)}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Report(Generic[StateT, ActionT]):
    """The result of a search.

    ``depth`` is the longest distance from an initial state. ``cut`` names the bound that ended the search early;
    it is empty if the search visited every reachable state. ``unreached`` are the ``Sometimes`` that did not
    occur; after a violation or a cut, which end the search early, they mean little.
    """

    states: int
    transitions: int
    depth: int
    seconds: float
    cut: str
    violation: Violation[StateT, ActionT] | None
    unreached: tuple[str, ...]

    def __str__(self) -> str:
        ending = self.cut or ("violation" if self.violation else "complete")
        return (
            f"{self.states} states, {self.transitions} transitions, depth {self.depth}, "
            f"{self.seconds:.1f} s, {ending}"
        )

    def assert_sound(
        self, *, partial: bool = False, describe: Callable[[StateT], str] | None = None
    ) -> None:
        """Raise AssertionError unless all properties held, the search was complete and every ``Sometimes`` occurred.

        ``partial`` accepts a search that a bound ended.
        """
        if self.violation is not None:
            raise AssertionError(f"{self.violation.trace(describe)}\n({self})")
        if self.cut and not partial:
            raise AssertionError(f"the search is incomplete: {self}")
        if self.unreached:
            raise AssertionError(f"never reached: {', '.join(self.unreached)} ({self})")


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Switch the collector off: states contain no cycles, and scanning millions of them takes most of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def explore(
    model: Model[StateT, ActionT],
    *,
    always: Sequence[Always[StateT]] = (),
    steps: Sequence[Step[StateT, ActionT]] = (),
    sometimes: Sequence[Sometimes[StateT, ActionT]] = (),
    states_max: int = STATES_MAX,
    depth_max: int | None = None,
) -> Report[StateT, ActionT]:
    """Visit every state reachable from the initial ones, nearest first, and check all properties.

    The search stops at the first violation, when more than ``states_max`` states are known, or when the next
    level would need more than ``depth_max`` actions.
    """
    started = time.perf_counter()
    search = _Search(model, always, steps, sometimes)
    with _without_garbage_collection():
        search.run(states_max, depth_max)
    return Report(
        states=len(search.origins),
        transitions=search.transitions,
        depth=search.depth,
        seconds=time.perf_counter() - started,
        cut=search.cut,
        violation=search.violation,
        unreached=tuple(wanted.name for wanted in search.unreached),
    )


class _Search(Generic[StateT, ActionT]):
    """One run of ``explore``. ``origins`` maps each known state to the way in which it was first reached."""

    def __init__(
        self,
        model: Model[StateT, ActionT],
        always: Sequence[Always[StateT]],
        steps: Sequence[Step[StateT, ActionT]],
        sometimes: Sequence[Sometimes[StateT, ActionT]],
    ) -> None:
        self._model = model
        self._always = always
        self._steps = steps
        self.unreached = list(sometimes)
        self.origins: dict[StateT, tuple[StateT, ActionT] | None] = {}
        self.transitions = 0
        self.depth = 0
        self.cut = ""
        self.violation: Violation[StateT, ActionT] | None = None

    def run(self, states_max: int, depth_max: int | None) -> None:
        level: list[StateT] = []
        for state in self._model.initial():
            if state not in self.origins:
                self.origins[state] = None
                level.append(state)
                if not self._check(state):
                    return
        while level:
            if depth_max is not None and self.depth >= depth_max:
                self.cut = f"cut at depth {depth_max}"
                return
            following: list[StateT] = []
            for state in level:
                if not self._expand(state, following):
                    return
                if len(self.origins) > states_max:
                    self.cut = f"cut at {states_max} states"
                    return
            level = following
            self.depth += bool(level)

    def _expand(self, state: StateT, following: list[StateT]) -> bool:
        """Take every action from ``state``. Return False if a property is broken."""
        origins, steps = self.origins, self._steps
        try:
            successors = list(self._model.successors(state))
        except Exception as error:  # noqa: BLE001 - whatever the explored code raises is a finding
            self._report("an action raised", f"{type(error).__name__}: {error}", state)
            return False
        for action, after in successors:
            self.transitions += 1
            for step in steps:
                detail = ""
                try:
                    if step.holds(state, action, after):
                        continue
                except AssertionError as error:
                    detail = str(error)
                self._report(step.name, detail, state, (action, after))
                return False
            if self.unreached:
                self.unreached = [
                    wanted for wanted in self.unreached if not wanted.reached(state, action, after)
                ]
            if after not in origins:
                origins[after] = (state, action)
                following.append(after)
                if not self._check(after):
                    return False
        return True

    def _check(self, state: StateT) -> bool:
        """Check a new state. Return False if a property is broken."""
        for always in self._always:
            detail = ""
            try:
                if always.holds(state):
                    continue
            except AssertionError as error:
                detail = str(error)
            self._report(always.name, detail, state)
            return False
        return True

    def _report(
        self, broken: str, detail: str, state: StateT, last: tuple[ActionT, StateT] | None = None
    ) -> None:
        """Record what broke in ``state``, or on the ``last`` transition from it, with the run that leads there."""
        states, actions = [state], list[ActionT]()
        while (origin := self.origins[states[-1]]) is not None:
            states.append(origin[0])
            actions.append(origin[1])
        states.reverse()
        actions.reverse()
        if last is not None:
            actions.append(last[0])
            states.append(last[1])
        self.violation = Violation(broken, detail, tuple(actions), tuple(states))
