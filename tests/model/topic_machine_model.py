"""A small world around the real ``step()``: producers, their connections, and a store that takes time.

Producers ask for a topic (or its partitions, one request each, in any order), lose their connections, reconnect
with the epoch that they were granted, close, and ask again after a refusal. The broker notices a lost connection
later than the client does, or after the client has reconnected. A fence takes any length of time; any other event
may happen meanwhile. A granted producer appends at once, and a producer that was granted the topic tries to append
until it is informed of its end. This log shows an old epoch after a newer one earliest.

The model has these bounds: ledgers (they also bound epochs), lost connections in a run, reconnects in one life of a
producer. Names are reused when no component knows them any more, arrival and claim numbers are kept as ranks, and
the list of deposed producers is dropped if no producer takes over. This only merges states that no rule can
distinguish.

The broker assures a producer from time to time that it may serve. The producer relies on this for
``serve_seconds``, and stops when it closes or is informed of its end. At LATER no earlier assurance is valid.

Ghost state (only properties read it): ``log``, ``serving``.

Many states share a topic and differ in what clients know. A world therefore keeps one ``Node`` for each
distinct topic, and a node keeps one ``Outcome`` for each event: the rules and the predicates of the
topic machine run once for each pair of topic and event. Nodes are compared by identity.

Not modelled: the store (storage_protocol.py), pings, several brokers, time other than "the deadline has passed",
and a client's reaction to its errors other than a retry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import assert_never

from tests.topic_invariants import check, check_step, places

from onewriter_core.errors import ServerError
from onewriter_core.ids import Identity
from onewriter_core.topic.effects import Close, Effect, Fence, Grant, Reject, Step
from onewriter_core.topic.events import (
    ClockTicked,
    DatasetChanged,
    Event,
    FenceRefused,
    FenceRequested,
    FenceStored,
    HandoverRequested,
    LedgerFull,
    LoadsChanged,
    ProducerGone,
    ProducerRequested,
)
from onewriter_core.topic.lookups import tenure_of
from onewriter_core.topic.machine import next_deadline, step
from onewriter_core.topic.model import (
    WHOLE,
    Absence,
    AccessMode,
    Draining,
    Fencing,
    FencingFormerDataset,
    Held,
    Loads,
    Ownership,
    Partition,
    PromotionPolicy,
    Request,
    Reserved,
    Shared,
    Tenure,
    Topic,
    TransitionCause,
    Vacant,
)

RESERVED_UNTIL = 3.0
LATER = 10.0
"""The time at which every deadline has passed. Everything else happens at 0."""

EXTENDED_UNTIL = 11.0
"""The end of a reservation that was extended at LATER, because the broker answers returning holders late."""


@dataclass(frozen=True, slots=True)
class Actor:
    """A producer: its identity and its request. ``alone``: it asks for each partition by itself."""

    name: str
    mode: AccessMode
    partitions: tuple[int, ...] = (WHOLE,)
    alone: bool = False
    priority: int = 0
    host: str = ""
    serve_seconds: float = 0.0

    @property
    def identity(self) -> Identity:
        return Identity(self.name, "pod")


@dataclass(frozen=True, slots=True)
class Line:
    """What a producer knows about one partition, and the connections that it has lost there.

    ``lost`` are registrations that the broker still considers connected, each with the epoch under which bytes of
    it may still arrive.
    """

    registration: str = ""
    epoch: int | None = None
    granted: bool = False
    reconnects: int = 0
    lost: tuple[tuple[str, int | None], ...] = ()


Lines = tuple[tuple[Line, ...], ...]
Rules = Callable[[Topic, Event], Step]


class Node:
    """A distinct topic of a world, with the outcomes of the events that reached it so far."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.outcomes: dict[Event, Outcome] = {}

    @cached_property
    def is_sound(self) -> bool:
        """Check the predicates of a state; raises Violation."""
        check(self.topic)
        return True


class Outcome:
    """What the rules return for one event in one topic. ``after`` holds the normalised topic."""

    def __init__(
        self, before: Topic, event: Event, topic: Topic, effects: tuple[Effect, ...], after: Node
    ) -> None:
        self.before = before
        self.event = event
        self.topic = topic
        self.effects = effects
        self.after = after

    @cached_property
    def keeps_promises(self) -> bool:
        """Check the predicates of a step; raises Violation."""
        check_step(self.before, self.event, self.topic, self.effects)
        return True


@dataclass(frozen=True, slots=True)
class State:
    node: Node
    lines: Lines
    log: tuple[int, ...]
    stopped: tuple[str, ...] = ()
    losses: int = 0
    failovers: int = 0
    serving: frozenset[str] = frozenset()
    is_assured: bool = False

    @property
    def topic(self) -> Topic:
        return self.node.topic


@dataclass(frozen=True, slots=True)
class Action:
    """An event with its outcome. An append is not an event of the machine and has none."""

    name: str
    outcome: Outcome | None = None

    @property
    def event(self) -> Event | None:
        return None if self.outcome is None else self.outcome.event

    @property
    def effects(self) -> tuple[Effect, ...]:
        return () if self.outcome is None else self.outcome.effects

    def __str__(self) -> str:
        reported = ", ".join(_reported(effect) for effect in self.effects)
        return f"{self.name}  =>  {reported}" if reported else self.name


def _reported(effect: Effect) -> str:
    match effect:
        case Grant(registration, _, _, epoch, resumed):
            return f"{'resume' if resumed else 'grant'} {registration} epoch {epoch}"
        case Reject(registration, code, _):
            return f"reject {registration} {code.name}"
        case Close(registration, _):
            return f"close {registration}"
        case Fence(_, purpose, partitions):
            return f"fence {purpose.value} {partitions}"
        case _:
            return type(effect).__name__.lower()


@dataclass(frozen=True, slots=True)
class World:
    """The model. ``rules`` is the function to explore: the real step, or a naive one.

    ``departs_late``: a producer that the broker closed is reported as gone once more, some time later.
    ``loads``: the numbers of topics that hosts may lead elsewhere; they may change at any time.
    """

    actors: tuple[Actor, ...]
    partitions: int = 0
    ledger_max: int = 4
    reconnects_max: int = 1
    losses_max: int = 2
    failovers_max: int = 0
    is_administered: bool = False
    may_refuse: bool = False
    starts_reserved: bool = False
    closes: bool = True
    departs_late: bool = False
    policy: PromotionPolicy = PromotionPolicy.PRIORITY
    loads: tuple[Loads, ...] = ()
    rules: Rules = step
    nodes: dict[Topic, Node] = field(default_factory=dict, compare=False, repr=False)

    def initial(self) -> Iterator[State]:
        numbers = range(self.partitions) if self.partitions else (WHOLE,)
        lines = tuple(tuple(Line() for _ in actor.partitions) for actor in self.actors)
        log = tuple(0 for _ in numbers)
        partitions = tuple(Partition(number) for number in numbers)
        yield State(self._node(Topic(partitions, self.policy)), lines, log)
        if self.starts_reserved:
            first = self.actors[0]
            tenure = Tenure(1, first.name, first.identity)
            moved = Partition(WHOLE, 1, 1, ownership=Reserved(tenure, RESERVED_UNTIL))
            yield State(self._node(Topic((moved,))), ((Line(epoch=1),), *lines[1:]), (1,))

    def successors(self, state: State) -> Iterator[tuple[Action, State]]:
        for number, actor in enumerate(self.actors):
            yield from self._of_connection(state, number, actor)
            for at in range(len(actor.partitions)):
                yield from self._of_line(state, number, actor, at)
        yield from self._of_store(state)
        for loads in self.loads:
            if loads != state.topic.loads:
                yield self._happens(f"hosts lead {loads}", state, LoadsChanged(loads, 0.0))
        if self.is_administered:
            yield from self._of_administrator(state)

    def _of_connection(
        self, state: State, number: int, actor: Actor
    ) -> Iterator[tuple[Action, State]]:
        lines = state.lines[number]
        if not any(line.registration for line in lines):
            return
        if state.losses >= self.losses_max:
            return

        def lose(line: Line) -> Line:
            if not line.registration:
                return line
            lost = (line.registration, line.epoch if line.granted else None)
            return replace(line, registration="", granted=False, lost=(*line.lost, lost))

        after = _with_lines(state, number, tuple(lose(line) for line in lines))
        after = replace(after, losses=state.losses + 1)
        yield Action(f"{actor.name} loses its connection"), after

    def _of_line(
        self, state: State, number: int, actor: Actor, at: int
    ) -> Iterator[tuple[Action, State]]:
        line, partition = state.lines[number][at], actor.partitions[at]
        where = f"{actor.name}" if partition == WHOLE else f"{actor.name}/{partition}"
        may_come = line.epoch is None or line.reconnects < self.reconnects_max
        if not line.registration and may_come:
            registration = self._fresh(state, where)
            reconnects = 0 if line.epoch is None else line.reconnects + 1
            request = Request(
                registration,
                actor.name,
                actor.name,
                actor.mode,
                partition,
                alone=actor.alone,
                name_given=True,
                identity=actor.identity,
                priority=actor.priority,
                host=actor.host,
                serve_seconds=actor.serve_seconds,
                topic_epoch=line.epoch,
                reconnects=reconnects,
            )
            come = replace(line, registration=registration, reconnects=reconnects)
            carrying = "" if line.epoch is None else f" with epoch {line.epoch}"
            yield self._happens(
                f"{where} asks as {registration}{carrying}",
                _with_line(state, number, at, come),
                ProducerRequested(request, 0.0),
            )
        partition_now = state.topic.partition(partition)
        tenure = None if partition_now is None else tenure_of(partition_now)
        is_current = line.granted and tenure is not None and tenure.epoch == line.epoch
        if actor.serve_seconds and is_current and actor.name not in state.serving:
            assured = replace(state, serving=state.serving | {actor.name}, is_assured=True)
            yield Action(f"{actor.name} is assured"), assured
        if line.registration and self.closes:
            closed = replace(state, serving=state.serving - {actor.name})
            yield self._happens(
                f"{line.registration} closes",
                _with_line(closed, number, at, Line(lost=line.lost)),
                ProducerGone(line.registration, TransitionCause.CLOSED, 0.0),
            )
        for lost in line.lost:
            kept = tuple(other for other in line.lost if other != lost)
            yield self._happens(
                f"the broker misses {lost[0]}",
                _with_line(state, number, at, replace(line, lost=kept)),
                ProducerGone(lost[0], TransitionCause.CONNECTION_LOST, 0.0),
            )
        sources = [*line.lost, (line.registration, line.epoch if line.granted else None)]
        for registration, epoch in sources:
            if epoch is not None and registration not in state.stopped:
                log = _appended(state.log, partition, epoch)
                if log != state.log:
                    yield Action(f"{registration} appends under {epoch}"), replace(state, log=log)

    def _of_store(self, state: State) -> Iterator[tuple[Action, State]]:
        pending = state.topic.pending_fence
        newest = max(max(partition.ledger, partition.epoch) for partition in state.topic.partitions)
        is_fencing = isinstance(state.topic.phase, Fencing | FencingFormerDataset)
        if pending is not None and is_fencing and newest < self.ledger_max:
            assured_at = 0.0 if state.is_assured else -LATER
            yield self._happens(
                f"ledger {newest + 1} is stored",
                state,
                FenceStored(pending.number, newest + 1, 0.0, assured_at),
            )
        if pending is not None and is_fencing and self.may_refuse:
            yield self._happens(
                "the fence is refused", state, FenceRefused(pending.number, "store is away", 0.0)
            )
        deadline = next_deadline(state.topic)
        if deadline is not None:
            later = replace(state, serving=frozenset(), is_assured=False)
            now = max(LATER, deadline)
            yield self._happens("the deadline passes", later, ClockTicked(now))
            if deadline < LATER:
                extended = ClockTicked(LATER, EXTENDED_UNTIL)
                yield self._happens("the deadline passes while loads are late", later, extended)
        if state.failovers < self.failovers_max:
            for grants_known in (True, False):
                yield self._happens(
                    f"the store fails over, grants {'known' if grants_known else 'lost'}",
                    replace(state, failovers=state.failovers + 1),
                    DatasetChanged(grants_known, 0.0),
                )

    def _of_administrator(self, state: State) -> Iterator[tuple[Action, State]]:
        if state.topic.pending_fence is None:
            yield self._happens("handover", state, HandoverRequested("handover", "", 0.0))
            yield self._happens("fence", state, FenceRequested("fence", None, 0.0))
            for partition in state.topic.partitions:
                full = LedgerFull(partition.number, 0.0)
                yield self._happens(f"ledger of {partition.number} is full", state, full)

    def _happens(self, name: str, state: State, event: Event) -> tuple[Action, State]:
        outcome = self._outcome(state.node, event)
        stopped = state.stopped if outcome.topic.pending_fence is not None else ()
        lines, log = state.lines, state.log
        for effect in outcome.effects:
            match effect:
                case Fence():
                    stopped = effect.stops
                case Grant(registration, partition, _, epoch):
                    lines = self._received(lines, registration, effect)
                    received = any(line.registration == registration for of in lines for line in of)
                    if epoch is not None and received and not effect.resumed:
                        log = _appended(log, partition, epoch)
                case Close(registration) | Reject(registration):
                    lines = self._received(lines, registration, effect)
                case _:
                    pass
        serving = state.serving
        if serving:
            serving -= {
                actor.name
                for actor, was, now in zip(self.actors, state.lines, lines, strict=True)
                if any(line.granted for line in was) and not any(line.granted for line in now)
            }
        after = State(
            outcome.after,
            lines,
            log,
            stopped,
            state.losses,
            state.failovers,
            serving,
            state.is_assured,
        )
        return Action(name, outcome), after

    def _node(self, topic: Topic) -> Node:
        node = self.nodes.get(topic)
        if node is None:
            node = self.nodes[topic] = Node(topic)
        return node

    def _outcome(self, node: Node, event: Event) -> Outcome:
        outcome = node.outcomes.get(event)
        if outcome is None:
            topic, effects = self.rules(node.topic, event)
            after = self._node(self._plain(topic))
            outcome = node.outcomes[event] = Outcome(node.topic, event, topic, effects, after)
        return outcome

    def _received(self, lines: Lines, registration: str, effect: Grant | Close | Reject) -> Lines:
        """Apply the broker's answer to the client's state. A lost connection receives nothing."""

        def notices(line: Line) -> Line:
            if line.registration != registration:
                if isinstance(effect, Grant) or not line.lost:
                    return line
                lost = tuple((r, None if r == registration else e) for r, e in line.lost)
                return replace(line, lost=lost)
            match effect:
                case Grant(_, _, _, epoch):
                    return replace(line, granted=True, epoch=epoch)
                case Reject(_, ServerError.PRODUCER_FENCED):
                    return Line(lost=line.lost)
                case Reject():
                    return replace(line, registration="", granted=False)
                case Close():
                    late = ((registration, None),) if self.departs_late else ()
                    lost = (*line.lost, *late)
                    return replace(line, registration="", granted=False, lost=lost)
                case _:
                    assert_never(effect)

        return tuple(tuple(notices(line) for line in of_actor) for of_actor in lines)

    def _plain(self, topic: Topic) -> Topic:
        """Remove from the topic what no rule can distinguish here; see the bounds above."""
        topic = _ranked(topic)
        if any(actor.mode is AccessMode.EXCLUSIVE_WITH_FENCING for actor in self.actors):
            return topic
        partitions = (
            replace(partition, deposed=(), ownership=_without_absence(partition.ownership))
            for partition in topic.partitions
        )
        return replace(topic, partitions=tuple(partitions))

    def _fresh(self, state: State, where: str) -> str:
        topic = state.topic
        known = {*places(topic), *(group.group_id for group in (*topic.holders, *topic.queue))}
        if topic.pending_fence is not None and topic.pending_fence.group is not None:
            known.add(topic.pending_fence.group.group_id)
        known |= {lost[0] for lines in state.lines for line in lines for lost in line.lost}
        return next(
            name for name in (f"{where}.{i}" for i in range(1, len(known) + 2)) if name not in known
        )


def _without_absence(ownership: Ownership) -> Ownership:
    match ownership:
        case Vacant() | Reserved():
            return replace(ownership, absence=Absence())
        case Held() | Shared():
            return ownership
        case _:
            assert_never(ownership)


def _appended(log: tuple[int, ...], partition: int, epoch: int) -> tuple[int, ...]:
    return tuple(epoch if number == max(partition, 0) else old for number, old in enumerate(log))


def _with_lines(state: State, number: int, lines: tuple[Line, ...]) -> State:
    changed = (*state.lines[:number], lines, *state.lines[number + 1 :])
    return State(
        state.node,
        changed,
        state.log,
        state.stopped,
        state.losses,
        state.failovers,
        state.serving,
        state.is_assured,
    )


def _with_line(state: State, number: int, at: int, line: Line) -> State:
    lines = tuple(line if i == at else old for i, old in enumerate(state.lines[number]))
    return _with_lines(state, number, lines)


def _ranked(topic: Topic) -> Topic:
    """Replace arrival and fence numbers by ranks; rules read only their order."""
    phase, pending = topic.phase, topic.pending_fence
    groups = [*topic.queue]
    if pending is not None and pending.group is not None:
        groups.append(pending.group)
    ranks = {a: i for i, a in enumerate(sorted(c.arrival for c in groups), start=1)}
    if isinstance(phase, Fencing | FencingFormerDataset | Draining):
        group = phase.fence.group
        group = group and replace(group, arrival=ranks[group.arrival])
        phase = replace(phase, fence=replace(phase.fence, number=1, group=group))
    return replace(
        topic,
        queue=tuple(replace(w, arrival=ranks[w.arrival]) for w in topic.queue),
        holders=tuple(replace(h, arrival=0) for h in topic.holders),
        phase=phase,
        fences_started=0 if pending is None else 1,
        arrivals=len(ranks),
    )


# -- Pulsar's rules ---------------------------------------------------------------------------


def queueing_without_the_check(topic: Topic, event: Event) -> Step:
    """Pulsar queues a reconnecting waiter without a check and sets ITS epoch when it promotes it."""
    match event:
        case ProducerRequested(request, now):
            partition = topic.partition(request.partition)
            occupied = partition is not None and not isinstance(partition.ownership, Vacant)
            if request.mode is AccessMode.WAIT_FOR_EXCLUSIVE and (occupied or topic.queue):
                carried = "" if request.topic_epoch is None else str(request.topic_epoch)
                request = replace(request, topic_epoch=None, admitted_by=carried)
            return step(topic, ProducerRequested(request, now))
        case FenceStored():
            winner = None if topic.pending_fence is None else topic.pending_fence.group
            topic, effects = step(topic, event)
            if winner is None or not winner.admitted_by or not winner.members:
                return topic, effects
            epoch = int(winner.admitted_by)
            tenure = Tenure(epoch, winner.producer_name, winner.identity)
            partitions = tuple(
                replace(partition, epoch=epoch, ownership=Held(tenure, winner.group_id))
                if partition.number in winner.partitions
                else partition
                for partition in topic.partitions
            )
            reported = tuple(
                replace(e, epoch=epoch) if isinstance(e, Grant) else e for e in effects
            )
            return replace(topic, partitions=partitions), reported
        case _:
            return step(topic, event)


def forgetting_who_serves(topic: Topic, event: Event) -> Step:
    """Ignore that a producer asked to serve: the winner is informed as soon as the fence is stored."""
    if isinstance(event, FenceStored):
        event = replace(event, assured_at=-LATER)
    return step(topic, event)


def removal_of_whoever_holds(topic: Topic, event: Event) -> Step:
    """Pulsar clears the exclusive flag when *a* producer leaves, whichever producer set it."""
    if isinstance(event, ProducerGone):
        writing = [name for name, place in places(topic).items() if place == "writing"]
        if event.registration not in places(topic) and writing:
            event = replace(event, registration=writing[0])
    return step(topic, event)
