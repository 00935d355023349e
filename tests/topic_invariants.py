"""The invariants of every topic and of every step. All tests of the machine use this one definition.

``check`` judges a state, ``check_step`` a step with its effects. Both raise Violation with the name of the
predicate. The predicates follow from the promises, not from the code of the machine. They share only the model and
the order of waiters with it.

Not here: properties of a log or of a client (docs/invariants.md lists where each property is checked).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import assert_never

from tests.violation import Violation

from onewriter_core.errors import ServerError
from onewriter_core.topic.effects import Answer, Close, Effect, Fence, Grant, Probe, Queue, Reject
from onewriter_core.topic.events import (
    ClockTicked,
    Event,
    FenceRefused,
    FenceRequested,
    FenceStored,
    HandoverRequested,
    ProducerGone,
    ProducerRequested,
    Unloaded,
)
from onewriter_core.topic.lookups import awaits_resume
from onewriter_core.topic.model import (
    DEFERRED_MAX,
    DEPOSED_MAX,
    HELD_BACK_MAX,
    REFUSED_GROUPS_MAX,
    WAITERS_MAX,
    WHOLE,
    AccessMode,
    Draining,
    Held,
    Partition,
    ProducerGroup,
    Purpose,
    Request,
    Reserved,
    Shared,
    Tenure,
    Topic,
    TransitionCause,
    Vacant,
)
from onewriter_core.topic.waiters import in_order


def check(topic: Topic) -> None:
    """Raise Violation unless every predicate about a state holds."""
    _registered_once(topic)
    _holders_fit(topic)
    _pending_fence_fits(topic)
    _nothing_slept_through(topic)
    _bounds_kept(topic)
    if topic.is_closed:
        _must(
            "a closed topic is empty",
            not places(topic) and topic.pending_fence is None,
            "no registration and no pending fence",
            places(topic) or topic.pending_fence,
        )


def check_step(before: Topic, event: Event, after: Topic, effects: tuple[Effect, ...]) -> None:
    """Raise Violation unless every predicate about a step holds."""
    _epochs_rise(before, event, after)
    _rights_do_not_return(before, event, after)
    _reservations_last(before, event, after)
    _one_fence(before, event, after, effects)
    _grants_earned(before, event, after, effects)
    _no_other_producer_serves(before, event, after, effects)
    _everybody_answered(before, event, after, effects)
    _gate_kept(before, event, after, effects)
    _removal_names_who(before, event, after, effects)
    _promotion_chosen(before, event, after, effects)
    _administrator_answered(before, event, after, effects)


def places(topic: Topic) -> dict[str, str]:
    """The place of each registration: writing, fencing, waiting, deferred or held back."""
    return dict(_places(topic))


def _must(name: str, holds: bool, expected: object, found: object, *, of: object = None) -> None:
    """Raise Violation with the invariant's name, what was expected and what was found, unless it holds.

    ``of``: the partition, the producer or the registration that it concerns.
    """
    if not holds:
        concerned = "" if of is None else f"{_concerned(of)}: "
        raise Violation(f"{name}: {concerned}expected {_shown(expected)}, found {_shown(found)}")


def _concerned(of: object) -> str:
    match of:
        case Partition(number):
            return "the topic" if number == WHOLE else f"partition {number}"
        case ProducerGroup():
            return f"producer {of.producer_name}"
        case Grant() | Request() | ProducerGone():
            return f"registration {of.registration}"
        case _:
            return f"registration {of}"


def _shown(value: object) -> object:
    return "nothing" if value is None or value in ((), []) else value


def _places(topic: Topic) -> Iterator[tuple[str, str]]:
    for partition in topic.partitions:
        if isinstance(partition.ownership, Shared):
            yield from ((p.registration, "writing") for p in partition.ownership.producers)
    yield from ((m.registration, "writing") for h in topic.holders for m in h.members)
    if topic.pending_fence is not None:
        yield from ((p.registration, "fencing") for p in topic.pending_fence.newcomers)
        if topic.pending_fence.group is not None:
            yield from ((m.registration, "fencing") for m in topic.pending_fence.group.members)
    yield from ((m.registration, "waiting") for w in topic.queue for m in w.members)
    yield from ((r.registration, "deferred") for r in topic.deferred)
    yield from ((h.request.registration, "held back") for h in topic.held_back)


def _writes(topic: Topic, partition: Partition) -> set[str]:
    match partition.ownership:
        case Held(_, group_id):
            holder = topic.holder(group_id)
            members = () if holder is None else holder.members
            return {m.registration for m in members if m.partition == partition.number}
        case Shared(producers):
            return {p.registration for p in producers}
        case Vacant() | Reserved():
            return set()
        case _:
            assert_never(partition.ownership)


def _tenure(partition: Partition) -> Tenure | None:
    return None if isinstance(partition.ownership, Shared) else partition.ownership.tenure


# -- of a state --------------------------------------------------------------------------------


def _registered_once(topic: Topic) -> None:
    twice = [
        name for name, count in Counter(name for name, _ in _places(topic)).items() if count > 1
    ]
    _must("each registration appears once", not twice, "no registration in two places", twice)
    groups = Counter(c.group_id for c in (*topic.holders, *topic.queue))
    if topic.pending_fence is not None and topic.pending_fence.group is not None:
        groups[topic.pending_fence.group.group_id] += 1
    _must(
        "each group appears once",
        all(count == 1 for count in groups.values()),
        "no group in two places",
        [group_id for group_id, count in groups.items() if count > 1],
    )


def _holders_fit(topic: Topic) -> None:
    held: set[tuple[str, int]] = set()
    for partition in topic.partitions:
        tenure = _tenure(partition)
        _must(
            "a tenure has its partition's epoch",
            tenure is None or tenure.epoch == partition.epoch,
            partition.epoch,
            tenure,
            of=partition,
        )
        match partition.ownership:
            case Held(Tenure(_, name, identity), group_id):
                holder = topic.holder(group_id)
                if holder is None:
                    raise Violation(
                        "a Held partition's group is a known holder: "
                        f"{_concerned(partition)}: expected a holder, found none of group {group_id}"
                    )
                fits = (holder.producer_name, holder.identity) == (name, identity)
                _must(
                    "a holder holds what it was granted",
                    fits,
                    (name, identity),
                    (holder.producer_name, holder.identity),
                    of=partition,
                )
                _must(
                    "a holder's partitions contain what it holds",
                    partition.number in holder.partitions,
                    partition.number,
                    holder.partitions,
                    of=partition,
                )
                held.add((group_id, partition.number))
            case Shared(producers):
                names = {producer.producer_name for producer in producers}
                _must(
                    "a Shared partition has producers",
                    bool(producers),
                    "a producer",
                    producers,
                    of=partition,
                )
                _must(
                    "Shared producers have different names",
                    len(names) == len(producers),
                    "different names",
                    [p.producer_name for p in producers],
                    of=partition,
                )
            case Vacant() | Reserved():
                pass
            case _:
                assert_never(partition.ownership)
    for holder in topic.holders:
        _must("a holder has a member", bool(holder.members), "a member", holder.members, of=holder)
        members = {(holder.group_id, m.partition) for m in holder.members}
        _must(
            "a holder's members write",
            members <= held,
            "members of held partitions",
            members - held,
            of=holder,
        )
        _must(
            "a partition has one member",
            len(members) == len(holder.members),
            "one member for each partition",
            holder.members,
            of=holder,
        )


def _pending_fence_fits(topic: Topic) -> None:
    pending = topic.pending_fence
    if pending is None:
        waits = all(awaits_resume(topic, request) for request in topic.deferred)
        _must(
            "a request is deferred only by a pending fence or a reservation",
            waits,
            "no deferred request that awaits neither",
            [r.registration for r in topic.deferred if not awaits_resume(topic, r)],
        )
        return
    numbers = {partition.number for partition in topic.partitions}
    _must(
        "a pending fence's partitions exist",
        bool(pending.partitions) and set(pending.partitions) <= numbers,
        "one or more of the topic's partitions",
        pending.partitions,
    )
    _must(
        "the pending fence is the newest one",
        pending.number == topic.fences_started,
        topic.fences_started,
        pending.number,
    )
    needs = pending.purpose in {Purpose.GRANT, Purpose.RESUME}
    _must(
        "a grant or a resume has a group",
        needs == (pending.group is not None),
        "a group" if needs else "no group",
        pending.group,
    )
    if pending.group is not None:
        _must(
            "a fenced group wants the fence's partitions",
            pending.group.partitions == pending.partitions,
            pending.partitions,
            pending.group.partitions,
        )
    _must(
        "newcomers are Shared",
        pending.purpose is Purpose.SHARE or not pending.newcomers,
        "no newcomers without the purpose Share",
        [p.registration for p in pending.newcomers],
    )


def _nothing_slept_through(topic: Topic) -> None:
    """No lost wake-up: without a pending fence no producer waits for a free partition (L2)."""
    if topic.pending_fence is not None or topic.is_closed:
        return
    waiting = in_order(topic.queue, topic)
    for place, waiter in enumerate(waiting):
        wanted = set(waiter.partitions)
        overtaken = any(wanted & set(earlier.partitions) for earlier in waiting[:place])
        free = all(
            isinstance(partition.ownership, Vacant)
            for partition in topic.partitions
            if partition.number in wanted
        )
        _must(
            "no waiter is grantable while no fence is pending",
            overtaken or not free,
            "a fence or a partition that is not free",
            waiter.partitions,
            of=waiter,
        )
    for partition in topic.partitions:
        if isinstance(partition.ownership, Held | Shared):
            _must(
                "no writer is left without a fence in this dataset",
                partition.is_open,
                "a ledger that was opened in this dataset",
                partition.ownership,
                of=partition,
            )
        if isinstance(partition.ownership, Held):
            _must(
                "no holder keeps a grant that may be lost",
                not partition.ownership.may_be_lost,
                "a fence or the end of the grant",
                partition.ownership,
                of=partition,
            )


def _bounds_kept(topic: Topic) -> None:
    _must(
        "waiters are bounded",
        len(topic.queue) <= WAITERS_MAX + 1,
        f"at most {WAITERS_MAX + 1}",
        len(topic.queue),
    )  # a handover rolled back
    _must(
        "deferred requests are bounded",
        len(topic.deferred) <= DEFERRED_MAX,
        f"at most {DEFERRED_MAX}",
        len(topic.deferred),
    )
    _must(
        "requests held back are bounded",
        len(topic.held_back) <= HELD_BACK_MAX,
        f"at most {HELD_BACK_MAX}",
        len(topic.held_back),
    )
    _must(
        "refused groups are bounded",
        len(topic.refused_groups) <= REFUSED_GROUPS_MAX,
        f"at most {REFUSED_GROUPS_MAX}",
        len(topic.refused_groups),
    )
    _must(
        "waiters have the mode WaitForExclusive",
        all(w.mode is AccessMode.WAIT_FOR_EXCLUSIVE for w in topic.queue),
        "no waiter of another mode",
        [w.producer_name for w in topic.queue if w.mode is not AccessMode.WAIT_FOR_EXCLUSIVE],
    )
    empty = [w.producer_name for w in topic.queue if not w.members]
    _must("a waiter has a member", not empty, "no waiter without a member", empty)
    numbers = {partition.number for partition in topic.partitions}
    _must(
        "partitions have different numbers",
        len(numbers) == len(topic.partitions),
        "different numbers",
        [partition.number for partition in topic.partitions],
    )
    for partition in topic.partitions:
        _must(
            "deposed identities are bounded",
            len(partition.deposed) <= DEPOSED_MAX,
            f"at most {DEPOSED_MAX}",
            len(partition.deposed),
            of=partition,
        )
        _must(
            "no anonymous identity is remembered",
            not any(i.is_anonymous for i in partition.deposed),
            "identities that are not anonymous",
            partition.deposed,
            of=partition,
        )
        _must(
            "an epoch is at most the newest ledger",
            partition.epoch <= partition.ledger or not partition.is_open,
            f"at most {partition.ledger}",
            partition.epoch,
            of=partition,
        )


# -- of a step ---------------------------------------------------------------------------------


def _partition_pairs(before: Topic, after: Topic) -> Iterator[tuple[Partition, Partition]]:
    for old in before.partitions:
        new = after.partition(old.number)
        if new is None:
            raise Violation(f"partitions stay: expected {_concerned(old)}, found nothing")
        yield old, new


def _epochs_rise(before: Topic, event: Event, after: Topic) -> None:
    for old, new in _partition_pairs(before, after):
        _must(
            "an epoch never falls",
            new.epoch >= old.epoch,
            f"at least {old.epoch}",
            new.epoch,
            of=new,
        )
        _must(
            "a ledger never falls",
            new.ledger >= old.ledger,
            f"at least {old.ledger}",
            new.ledger,
            of=new,
        )
        if (new.epoch, new.ledger) != (old.epoch, old.ledger):
            pending = before.pending_fence
            named = (
                isinstance(event, FenceStored)
                and pending is not None
                and old.number in pending.partitions
            )
            _must(
                "only a stored fence moves epoch or ledger",
                named,
                (old.epoch, old.ledger),
                (new.epoch, new.ledger),
                of=new,
            )
        if new.epoch > old.epoch:
            _must(
                "a new epoch is the ledger",
                new.epoch == new.ledger > old.ledger,
                f"a ledger above {old.ledger} as the epoch",
                (new.epoch, new.ledger),
                of=new,
            )


def _rights_do_not_return(before: Topic, event: Event, after: Topic) -> None:
    """A right to write or to resume that ended returns only with a new epoch."""
    for old, new in _partition_pairs(before, after):
        tenure = _tenure(new)
        if tenure not in {None, _tenure(old)}:
            was_lower = 0 if isinstance(event, ClockTicked) else old.epoch  # raised by the fence
            is_new = new.epoch == _opened(before, event) > was_lower
            _must(
                "a tenure begins with its epoch",
                is_new,
                "the earlier tenure or a new epoch",
                tenure,
                of=new,
            )
    _must(
        "a closed topic stays closed",
        after.is_closed or not before.is_closed,
        "a closed topic",
        after.phase,
    )


def _reservations_last(before: Topic, event: Event, after: Topic) -> None:
    """A reservation passes only with the time, and not while the broker answers returning holders late."""
    for old, new in _partition_pairs(before, after):
        if not isinstance(old.ownership, Reserved):
            continue
        reserved = old.ownership
        if isinstance(new.ownership, Reserved):
            _must(
                "a reservation is never shortened",
                new.ownership.until >= reserved.until,
                f"at least until {reserved.until:g}",
                new.ownership.until,
                of=new,
            )
        elif isinstance(new.ownership, Vacant) and new.ownership.tenure == reserved.tenure:
            is_due = isinstance(event, ClockTicked) and (
                max(reserved.until, event.resumable_until) <= event.now
            )
            _must(
                "a reservation ends when it is due",
                is_due,
                f"a reservation until {reserved.until:g}",
                event,
                of=new,
            )


def _one_fence(before: Topic, event: Event, after: Topic, effects: tuple[Effect, ...]) -> None:
    fences = [effect for effect in effects if isinstance(effect, Fence)]
    _must("at most one fence is asked for", len(fences) <= 1, "at most one", fences)
    was = None if before.pending_fence is None else before.pending_fence.number
    now = None if after.pending_fence is None else after.pending_fence.number
    ends = isinstance(event, FenceStored | FenceRefused | Unloaded) or _opened(before, event) > 0
    _must("a pending fence ends by its result", was is None or was == now or ends, was, now)
    begun = [] if now in {was, None} else [now]
    _must(
        "a new pending fence is asked of the store",
        [f.number for f in fences] == begun,
        begun,
        [f.number for f in fences],
    )
    for fence in fences:
        changes = fence.purpose in {Purpose.GRANT, Purpose.DEPOSE}
        writers = [
            w
            for partition in after.partitions
            if partition.number in fence.partitions
            for w in _writes(after, partition)
        ]
        stopped = writers if changes else []
        _must(
            "a fence stops its partitions' writers",
            sorted(fence.stops) == sorted(stopped),
            sorted(stopped),
            sorted(fence.stops),
        )
        numbers = [number for number, _ in fence.tenures]
        _must(
            "a fence has every partition's tenure",
            sorted(numbers) == sorted(fence.partitions),
            sorted(fence.partitions),
            sorted(numbers),
        )


def _grants_earned(before: Topic, event: Event, after: Topic, effects: tuple[Effect, ...]) -> None:
    partitions = {old.number: (old, new) for old, new in _partition_pairs(before, after)}
    for grant in (effect for effect in effects if isinstance(effect, Grant)):
        _must(
            "a grant is of a partition that exists",
            grant.partition in partitions,
            "one of the topic's partitions",
            grant.partition,
            of=grant,
        )
        old, new = partitions[grant.partition]
        _must(
            "a granted producer writes",
            grant.registration in _writes(after, new),
            "a writer",
            new.ownership,
            of=grant,
        )
        _must(
            "a grant has the stored epoch",
            (grant.epoch or 0) == new.epoch,
            new.epoch,
            grant.epoch,
            of=grant,
        )
        if grant.resumed:
            _must(
                "a resume keeps the epoch", new.epoch == old.epoch, old.epoch, new.epoch, of=grant
            )
            _must(
                "a resume needs the tenure",
                _tenure(old) == _tenure(new) is not None,
                _tenure(old) or "an earlier tenure",
                _tenure(new),
                of=grant,
            )
        elif isinstance(new.ownership, Held):
            stored = new.epoch == _opened(before, event)
            joins = old.ownership == new.ownership
            _must(
                "a new epoch is granted only after a stored fence",
                stored or joins,
                "a stored fence or an earlier grant of the group",
                event,
                of=grant,
            )


def _opened(before: Topic, event: Event) -> int:
    """The ledger of the stored fence that this event may decide; 0: there is none."""
    if isinstance(event, FenceStored):
        return event.ledger
    if isinstance(before.phase, Draining) and isinstance(event, ClockTicked):
        return before.phase.ledger
    return 0


def _no_other_producer_serves(
    before: Topic, event: Event, after: Topic, effects: tuple[Effect, ...]
) -> None:
    """No grant while a former holder may still serve (S14)."""
    pending = before.pending_fence
    if not isinstance(event, FenceStored | ClockTicked):
        serving = {partition.number for partition in before.partitions if partition.serve_seconds}
        early = [
            e for e in effects if isinstance(e, Grant) and e.partition in serving and not e.resumed
        ]
        _must("no grant while a former holder may serve", not early, "no grant", early)
    if pending is None or not isinstance(event, FenceStored | ClockTicked):
        return
    until = before.phase.until if isinstance(before.phase, Draining) else -math.inf
    if isinstance(event, FenceStored) and pending.purpose in {Purpose.GRANT, Purpose.SHARE}:
        assured_at = event.now if event.assured_at is None else event.assured_at
        seconds = max(
            partition.serve_seconds
            for partition in before.partitions
            if partition.number in pending.partitions
        )
        until = assured_at + seconds if seconds else -math.inf
    granted = [
        e
        for e in effects
        if isinstance(e, Grant) and e.partition in pending.partitions and not e.resumed
    ]
    is_over = event.now >= until
    _must(
        "no grant while a former holder may serve",
        is_over or not granted,
        f"no grant before {until:g}",
        granted,
    )
    waited = isinstance(after.phase, Draining) and after.phase.until >= until
    _must(
        "a delayed grant keeps its deadline",
        is_over or waited,
        f"a drain until {until:g}",
        after.phase,
    )


def _everybody_answered(
    before: Topic, event: Event, after: Topic, effects: tuple[Effect, ...]
) -> None:
    """A producer that asks, is moved or is removed gets one answer. No other producer gets one."""
    was, now = places(before), places(after)
    answers: dict[str, list[Effect | None]] = {}
    for effect in effects:
        if isinstance(effect, Grant | Queue | Reject | Close):
            answers.setdefault(effect.registration, []).append(effect)
    gone = event.registration if isinstance(event, ProducerGone) else None
    request = event.request.registration if isinstance(event, ProducerRequested) else None
    for name, received in answers.items():
        fenced_out = [type(e) for e in received] == [Queue, Reject]  # of two deferred requests
        _must(
            "no producer is answered twice in a step",
            len(received) == 1 or fenced_out,
            "one answer",
            received,
            of=name,
        )
        _must(
            "only a known producer is answered",
            name in was or name == request,
            "no answer",
            received,
            of=name,
        )
        _must("a departed producer is not answered", name != gone, "no answer", received, of=name)
    names = was.keys() | now.keys()
    if request is not None:
        names |= {request}
    for name in names:
        answer = answers.get(name, [None])[-1]
        _answered(
            name,
            was.get(name),
            now.get(name),
            answer,
            is_gone=name == gone,
            is_asked=name == request,
        )


def _answered(
    registration: str,
    was: str | None,
    now: str | None,
    answer: Effect | None,
    *,
    is_gone: bool,
    is_asked: bool,
) -> None:
    if was is None:
        _must("only a producer that asks is added", is_asked, "no place", now, of=registration)
    if now is None:
        ending = Close if was == "writing" else Reject
        _must(
            "a removed producer is notified",
            is_gone or isinstance(answer, ending),
            ending.__name__,
            answer,
            of=registration,
        )
    elif now == "writing":
        _must(
            "a new writer is notified once",
            isinstance(answer, Grant) == (was != "writing"),
            "no Grant" if was == "writing" else "Grant",
            answer,
            of=registration,
        )
    else:
        _must(
            "no writer becomes a waiter",
            was != "writing",
            "writing or no place",
            now,
            of=registration,
        )
        _must(
            "a waiting producer is not rejected",
            not isinstance(answer, Close | Reject | Grant),
            "Queue, Probe or no answer",
            answer,
            of=registration,
        )
        queued = now == "waiting" and was not in {"waiting", "fencing"}
        _must(
            "a new waiter is notified",
            isinstance(answer, Queue) or not queued,
            "Queue",
            answer,
            of=registration,
        )


def _gate_kept(before: Topic, event: Event, after: Topic, effects: tuple[Effect, ...]) -> None:
    """A stale producer is rejected before any other producer is touched (the stale fencer)."""
    if not isinstance(event, ProducerRequested) or before.is_closed:
        return
    request, partition = event.request, before.partition(event.request.partition)
    if partition is None or request.mode is AccessMode.SHARED or request.topic_epoch is None:
        return
    if request.topic_epoch < partition.epoch:
        _must("a stale request changes nothing", after == before, before, after, of=request)
        fenced = [
            effect
            for effect in effects
            if isinstance(effect, Reject)
            and effect.registration == request.registration
            and effect.code is ServerError.PRODUCER_FENCED
        ]
        _must(
            "a stale request is fenced",
            len(fenced) == len(effects) == 1,
            "one Reject with PRODUCER_FENCED",
            effects,
            of=request,
        )


def _removal_names_who(
    before: Topic, event: Event, after: Topic, effects: tuple[Effect, ...]
) -> None:
    """A producer that leaves frees what it holds, never what its successor holds."""
    if not isinstance(event, ProducerGone):
        return
    answers = [e for e in effects if isinstance(e, Grant | Queue | Reject | Close | Probe)]
    _must("a departure answers no other producer", not answers, "no answer", answers, of=event)
    was, now = places(before), places(after)
    _must(
        "a departed producer has no place",
        event.registration not in now,
        "no place",
        now.get(event.registration),
        of=event,
    )
    for registration in was.keys() - {event.registration}:
        promoted = (was[registration], now.get(registration)) == ("waiting", "fencing")
        stayed = was[registration] == now.get(registration)
        _must(
            "a departure moves another producer only to a promotion",
            stayed or promoted,
            was[registration],
            now.get(registration),
            of=registration,
        )
    leaving = {
        h.group_id
        for h in before.holders
        if event.registration in [m.registration for m in h.members]
    }
    for old, new in _partition_pairs(before, after):
        if old.ownership != new.ownership:
            freed = event.registration in _writes(before, old) or (
                isinstance(old.ownership, Held) and old.ownership.group_id in leaving
            )
            _must(
                "a departure frees only what the departed held",
                freed,
                old.ownership,
                new.ownership,
                of=new,
            )


def _promotion_chosen(
    before: Topic, event: Event, after: Topic, effects: tuple[Effect, ...]
) -> None:
    """No waiter is overtaken, and a promotion takes the first waiter in order (S11)."""
    for fence in (effect for effect in effects if isinstance(effect, Fence)):
        winner = fence.group
        if winner is None or fence.purpose is not Purpose.GRANT:
            continue
        if fence.cause is TransitionCause.HANDED_OVER:
            _handover_chosen(before, event, winner)
            continue
        for partition in (each for each in after.partitions if each.number in fence.partitions):
            free = isinstance(partition.ownership, Vacant)
            takes = winner.mode is AccessMode.EXCLUSIVE_WITH_FENCING
            _must(
                "only a takeover deposes",
                free or takes,
                "a Vacant partition",
                partition.ownership,
                of=winner,
            )
        rivals = [
            w
            for w in after.queue
            if not set(w.partitions).isdisjoint(winner.partitions)
            and (w in before.queue or w.arrival < winner.arrival)
        ]
        if winner.mode is AccessMode.WAIT_FOR_EXCLUSIVE:
            ahead = in_order((*rivals, winner), after)
            rivals = ahead[: ahead.index(winner)]
        overtaken = [w for w in rivals if not _extends(after, winner)]
        _must(
            "no waiter is overtaken",
            not overtaken,
            "no earlier waiter for its partitions",
            [w.producer_name for w in overtaken],
            of=winner,
        )


def _handover_chosen(before: Topic, event: Event, winner: ProducerGroup) -> None:
    meant = [
        w
        for w in in_order(before.queue, before)
        if isinstance(event, HandoverRequested)
        and (not event.to or event.to in {w.producer_name, w.admitted_by})
    ]
    _must(
        "a handover takes the first waiter that matches",
        meant[:1] == [winner],
        [w.producer_name for w in meant[:1]],
        [winner.producer_name],
    )


def _extends(topic: Topic, group: ProducerGroup) -> bool:
    """Whether the group's producer holds other partitions already: waiters for all partitions wait for it anyway."""
    return any(
        set(holder.partitions).isdisjoint(group.partitions)
        and (holder.identity, holder.mode) == (group.identity, group.mode)
        and (holder.producer_name == group.producer_name or holder.connection == group.connection)
        for holder in topic.holders
    )


def _administrator_answered(
    before: Topic, event: Event, after: Topic, effects: tuple[Effect, ...]
) -> None:
    answered = [effect.identifier for effect in effects if isinstance(effect, Answer)]
    expected = (
        [before.pending_fence.answers]
        if before.pending_fence is not None and before.pending_fence.answers
        else []
    )
    if isinstance(event, HandoverRequested | FenceRequested):
        expected.append(event.identifier)
    promised = (
        [after.pending_fence.answers]
        if after.pending_fence is not None and after.pending_fence.answers
        else []
    )
    _must(
        "an administrator is answered once",
        sorted(answered + promised) == sorted(expected),
        sorted(expected),
        sorted(answered + promised),
    )
