"""Who may write a topic: ``step(topic, event) -> (topic, effects)``.

Rules of this file
------------------
* ``step`` is pure. Time comes in with the event, names and priorities with the request; what must
  be done goes out as effects, performed in order. Broker, simulation and model checker run it.
* The epoch gate comes first: a producer that carries an older epoch is refused before anybody else
  is touched, queued, probed or deposed (the stale fencer of docs/comparison.md).
* Removal names who. A producer that leaves frees what *it* holds, never what its successor holds.
* Ownership changes only when the store has said so: ``FenceStored`` answers ``Fence``. Until then
  the topic has a pending fence, a state of its own, and at most one.
* Whatever a peer sends is answered, never raised. What cannot happen raises.

Theory of operation
-------------------
A partition (the topic, or one of its partitions) is Vacant, Reserved, Shared or Held:

====================  ===========================  ==========================================
from                  to                           by
====================  ===========================  ==========================================
Vacant                Held                         a fence stored for a group
Vacant                Shared                       a Shared producer (after a fence, unless open)
Vacant with tenure    Held, same epoch             the tenure's holder comes back
Reserved              Held, same epoch             the tenure's holder comes back in time
Reserved              Vacant                       the window passes, or somebody fences
Shared                Vacant                       the last producer leaves
Held                  Held, new epoch              takeover, handover: one fence, no gap
Held                  Vacant with tenure           its producer leaves or is found dead
Held                  Vacant                       an administrator fences
====================  ===========================  ==========================================

The new topic epoch *is* the ledger that the fence opened, so epochs rise strictly and may jump.
A holder may have asked to serve (answer reads, act) until a while after it was last assured that it
holds the topic. Then whoever wins is told no earlier, though the store keeps the old one's writes
out from the fence on; only who closes its producer is not waited for.
After every event ``_settle`` starts what had to wait: re-fences, deferred requests, and the
promotion of the next waiter. A waiter that vanished while its fence was stored is skipped there:
the partition is vacant again and the next one is promoted, until one takes it or nobody is left.

Partitions: a group wants one partition or all of them. Partition 0's request makes the group;
requests that arrive before it are held back, those after it join, or are refused as it was. A group
is granted all its partitions by one fence or none.

Not here: publishing (compares the ledger and appends), pings, and everything that is not a
decision. The table of docs/concepts.md (mode against state) is ``_contend`` and ``_share``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from onewriter_core.errors import ServerError
from onewriter_core.topic.access_modes import contend, defer, share_requested
from onewriter_core.topic.answers import moved_on, not_ready, outdated
from onewriter_core.topic.effects import Answer, Close, Effect, Grant, Probe, Reject, Step, Suspect
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
    PartitionsAdded,
    PolicyChanged,
    ProducerGone,
    ProducerRequested,
    Unloaded,
)
from onewriter_core.topic.fences import (
    fence_refused,
    fence_stored,
    resume,
    served_out,
    start_fence,
)
from onewriter_core.topic.groups import partition_requested
from onewriter_core.topic.lookups import (
    awaits_resume,
    free_partitions,
    holder_of,
    is_changing_hands,
    new_group,
    vacated,
    with_holder,
    with_partition,
    without_absentees,
    without_member,
    writers,
)
from onewriter_core.topic.model import (
    AccessMode,
    Departure,
    Held,
    Member,
    Partition,
    Purpose,
    Request,
    Reserved,
    Shared,
    Tenure,
    Topic,
    Vacant,
)
from onewriter_core.topic.waiters import in_order, next_promoted


def step(topic: Topic, event: Event) -> Step:
    """What the event makes of the topic, and what is to be done about it."""
    match event:
        case ProducerRequested(request, now):
            return _and_settle(_requested(topic, request, now), now)
        case ProducerGone(registration, departure, now):
            return _and_settle(_gone(topic, registration, departure, now), now)
        case FenceStored(number, ledger, now, assured_at):
            return _and_settle(fence_stored(topic, number, ledger, now, assured_at), now)
        case FenceRefused(number, reason, now):
            return _and_settle(fence_refused(topic, number, reason, now), now)
        case ClockTicked(now):
            return _and_settle(_ticked(topic, now), now)
        case HandoverRequested(identifier, to, _, if_epoch):
            return _handed_over(topic, identifier, to, if_epoch)
        case FenceRequested(identifier, if_epoch, _):
            return _fenced(topic, identifier, if_epoch)
        case LedgerFull(number, _):
            return _rolled(topic, number)
        case DatasetChanged(grants_known, now):
            return _and_settle(_dataset_changed(topic, grants_known=grants_known), now)
        case PartitionsAdded(partitions, now):
            return _and_settle(_partitions_added(topic, partitions), now)
        case PolicyChanged(policy, now):
            return _and_settle((replace(topic, policy=policy), ()), now)
        case LoadsChanged(loads, now):
            return _and_settle((replace(topic, loads=loads), ()), now)
        case Unloaded(reason, _):
            return _unloaded(topic, reason)
        case _:
            assert_never(event)


def next_deadline(topic: Topic) -> float | None:
    """When the machine wants to be told of the time (ClockTicked); None: no need."""
    deadlines = [held.until for held in topic.held_back]
    deadlines += [group.until for group in topic.refused_groups]
    deadlines += [s.ownership.until for s in topic.partitions if isinstance(s.ownership, Reserved)]
    if topic.pending_fence is not None and topic.pending_fence.waits is not None:
        deadlines.append(topic.pending_fence.waits.until)
    return min(deadlines, default=None)


def _requested(topic: Topic, request: Request, now: float) -> Step:
    partition = topic.partition(request.partition)
    if topic.is_closed:
        return topic, (not_ready(request.registration, "the topic is moving"),)
    if partition is None:
        return topic, (
            Reject(request.registration, ServerError.TOPIC_NOT_FOUND, "no such partition"),
        )
    if request.mode is AccessMode.SHARED:
        return share_requested(topic, partition, request)
    if request.topic_epoch is not None:
        return _returned(topic, partition, request, request.topic_epoch, now)
    if partition.number >= 0 and not request.alone:
        return partition_requested(topic, partition, request, now)
    group = new_group(topic, request, (partition.number,), is_partitioned=False)
    return contend(replace(topic, arrivals=topic.arrivals + 1), group, request, now)


def _returned(topic: Topic, partition: Partition, request: Request, epoch: int, now: float) -> Step:
    """A producer that was granted before comes back with its epoch: the gate, then the resume."""
    registration = request.registration
    if epoch < partition.epoch:
        return topic, (moved_on(registration, epoch, partition.epoch),)
    if epoch > partition.epoch:
        return topic, (
            Suspect(registration, epoch, partition.epoch),
            moved_on(registration, epoch, partition.epoch),
        )
    tenure = Tenure(epoch, request.producer_name, request.identity)
    if is_changing_hands(topic, partition):
        return topic, (not_ready(registration, "the holder of the topic is changing"),)
    match partition.ownership:
        case Held(held, group_id) if held == tenure and not partition.grants_lost:
            return _replaced(topic, partition, group_id, request)
        case Vacant(kept) | Reserved(kept, _) if kept == tenure:
            if not partition.is_open:
                return _start_or_defer(topic, request, Purpose.RESUME, partition)
            group = new_group(topic, request, (partition.number,), is_partitioned=False)
            return resume(replace(topic, arrivals=topic.arrivals + 1), partition, group, now)
        case Held() | Vacant() | Reserved() | Shared():
            return topic, (moved_on(registration, epoch, partition.epoch),)
        case _:
            assert_never(partition.ownership)


def _replaced(topic: Topic, partition: Partition, group_id: str, request: Request) -> Step:
    """The holder reconnected before its old connection was found dead: the newer one counts."""
    holder = holder_of(topic, group_id)
    old = next((m for m in holder.members if m.partition == partition.number), None)
    if old is not None and request.reconnects <= old.reconnects:
        return topic, (
            Reject(
                request.registration,
                ServerError.PRODUCER_BUSY,
                f"Producer with name '{request.producer_name}' is already connected to topic",
            ),
            Probe(old.registration),
        )
    member = Member(partition.number, request.registration, request.reconnects)
    kept = holder if old is None else holder.without(old.registration)
    holder = replace(
        kept,
        members=(*kept.members, member),
        connection=request.connection,
        address=request.address,
    )
    effects: tuple[Effect, ...] = (
        Grant(
            request.registration,
            partition.number,
            holder.producer_name,
            partition.epoch,
            resumed=True,
        ),
    )
    if old is not None:
        effects = (Close(old.registration, Departure.CONNECTION_LOST), *effects)
    return with_holder(topic, holder), effects


def _and_settle(done: Step, now: float) -> Step:
    """Start what had to wait for the fence that is decided now, until another is in progress."""
    topic, effects = done
    while topic.pending_fence is None and not topic.is_closed:
        lost = tuple(
            s.number for s in topic.partitions if s.grants_lost and isinstance(s.ownership, Held)
        )
        unfenced = tuple(
            s.number
            for s in topic.partitions
            # Also where nobody writes: consumers move cursors under the ledger's token.
            if not s.is_open and (s.ledger > 0 or isinstance(s.ownership, Held | Shared))
        )
        if lost:
            topic, more = start_fence(topic, Purpose.DEPOSE, lost, None, Departure.GRANT_LOST)
        elif unfenced:
            topic, more = start_fence(topic, Purpose.REFENCE, unfenced, None, Departure.NONE)
        elif (request := _next_deferred(topic)) is not None:
            rest = tuple(other for other in topic.deferred if other is not request)
            topic, more = _requested(replace(topic, deferred=rest), request, now)
        else:
            waiter = next_promoted(topic, free_partitions(topic))
            if waiter is None:
                break
            topic = replace(
                topic, queue=tuple(w for w in topic.queue if w.group_id != waiter.group_id)
            )
            topic, more = start_fence(
                topic, Purpose.GRANT, waiter.partitions, waiter, Departure.NONE
            )
        effects += more
    return topic, effects


def _next_deferred(topic: Topic) -> Request | None:
    """The first request that nothing keeps waiting."""
    return next((r for r in topic.deferred if not awaits_resume(topic, r)), None)


def _start_or_defer(topic: Topic, request: Request, purpose: Purpose, partition: Partition) -> Step:
    group = new_group(topic, request, (partition.number,), is_partitioned=False)
    pending = topic.pending_fence
    if pending is None:
        topic = replace(topic, arrivals=topic.arrivals + 1)
        return start_fence(topic, purpose, (partition.number,), group, Departure.NONE)
    older = pending.group
    if (
        (pending.purpose, pending.partitions) == (purpose, (partition.number,))
        and older is not None
        and (older.producer_name, older.identity) == (group.producer_name, group.identity)
        and all(member.reconnects < request.reconnects for member in older.members)
    ):
        topic = replace(
            topic, arrivals=topic.arrivals + 1, pending_fence=replace(pending, group=group)
        )
        return topic, tuple(outdated(member.registration) for member in older.members)
    return defer(topic, None, request)


def _gone(topic: Topic, registration: str, departure: Departure, now: float) -> Step:
    topic = replace(
        topic,
        held_back=tuple(h for h in topic.held_back if h.request.registration != registration),
        deferred=tuple(r for r in topic.deferred if r.registration != registration),
        queue=tuple(left for w in topic.queue if (left := w.without(registration)).members),
    )
    pending = topic.pending_fence
    if pending is not None:
        group = pending.group and pending.group.without(registration)
        newcomers = tuple(p for p in pending.newcomers if p.registration != registration)
        topic = replace(topic, pending_fence=replace(pending, group=group, newcomers=newcomers))
    for partition in topic.partitions:
        match partition.ownership:
            case Shared(producers):
                staying = tuple(p for p in producers if p.registration != registration)
                if staying != producers:
                    ownership = Shared(staying) if staying else Vacant()
                    topic = with_partition(topic, replace(partition, ownership=ownership))
            case Held(tenure, group_id):
                members = holder_of(topic, group_id).members
                if Member(partition.number, registration) in [
                    replace(m, reconnects=0) for m in members
                ]:
                    topic = with_partition(topic, vacated(partition, tenure, departure, now))
                    topic = without_member(topic, group_id, registration)
            case Vacant() | Reserved():
                pass
            case _:
                assert_never(partition.ownership)
    return without_absentees(topic, departure, now), ()


def _ticked(topic: Topic, now: float) -> Step:
    for partition in topic.partitions:
        if isinstance(partition.ownership, Reserved) and partition.ownership.until <= now:
            topic = with_partition(
                topic, replace(partition, ownership=Vacant(partition.ownership.tenure))
            )
    due = [held.request for held in topic.held_back if held.until <= now]
    topic = replace(
        topic,
        held_back=tuple(h for h in topic.held_back if h.until > now),
        refused_groups=tuple(g for g in topic.refused_groups if g.until > now),
    )
    topic, effects = served_out(topic, now)
    for request in due:
        topic, more = _requested(topic, replace(request, alone=True), now)
        effects += more
    return topic, effects


def _handed_over(topic: Topic, identifier: str, to: str, if_epoch: int | None) -> Step:
    """A planned change of hands: one fence from the holder to a waiter, without a gap."""
    refusal = _no_order_now(topic, if_epoch)
    if refusal:
        return topic, (Answer(identifier, topic.epoch, refusal),)
    for waiter in in_order(topic.queue, topic):
        if not to or to in {waiter.producer_name, waiter.claim}:
            queue = tuple(w for w in topic.queue if w.group_id != waiter.group_id)
            return start_fence(
                replace(topic, queue=queue),
                Purpose.GRANT,
                waiter.partitions,
                waiter,
                Departure.HANDED_OVER,
                answers=identifier,
            )
    refusal = f"no producer {to!r} is waiting" if to else "no producer is waiting"
    return topic, (Answer(identifier, topic.epoch, refusal),)


def _fenced(topic: Topic, identifier: str, if_epoch: int | None) -> Step:
    """An administrator deposes whoever holds the topic; the waiters stay."""
    refusal = _no_order_now(topic, if_epoch)
    if refusal:
        return topic, (Answer(identifier, topic.epoch, refusal),)
    partitions = tuple(partition.number for partition in topic.partitions)
    return start_fence(
        topic, Purpose.DEPOSE, partitions, None, Departure.FENCED, answers=identifier
    )


def _no_order_now(topic: Topic, if_epoch: int | None) -> str:
    """Why an administrator's order, about ``if_epoch`` if that is given, comes to nothing."""
    if topic.pending_fence is not None or topic.is_closed:
        return "the holder of the topic is changing"
    if if_epoch is not None and if_epoch != topic.epoch:
        return f"the topic epoch is {topic.epoch}, not {if_epoch}"
    return ""


def _rolled(topic: Topic, number: int) -> Step:
    partition = topic.partition(number)
    if (
        topic.pending_fence is not None
        or topic.is_closed
        or partition is None
        or not partition.is_open
    ):
        return topic, ()  # asked again while the ledger stays full
    return start_fence(topic, Purpose.ROLL, (number,), None, Departure.NONE)


def _dataset_changed(topic: Topic, *, grants_known: bool) -> Step:
    partitions: list[Partition] = []
    for partition in topic.partitions:
        closed = replace(partition, is_open=False)
        if not grants_known:
            closed = replace(closed, grants_lost=True)
            if isinstance(closed.ownership, Vacant | Reserved):
                closed = replace(closed, ownership=Vacant(), grants_lost=False)
        partitions.append(closed)
    pending = topic.pending_fence and replace(topic.pending_fence, is_outdated=True)
    return replace(topic, partitions=tuple(partitions), pending_fence=pending), ()


def _partitions_added(topic: Topic, partitions: tuple[Partition, ...]) -> Step:
    numbers = tuple(partition.number for partition in partitions)
    queue = tuple(
        replace(w, partitions=(*w.partitions, *numbers)) if w.is_partitioned else w
        for w in topic.queue
    )
    return replace(topic, partitions=(*topic.partitions, *partitions), queue=queue), ()


def _unloaded(topic: Topic, reason: str) -> Step:
    """Granted producers reconnect; everybody who waits for an answer looks the topic up again."""
    effects: list[Effect] = []
    for partition in topic.partitions:
        effects += [Close(r, Departure.MOVED) for r in writers(topic, partition)]
    unanswered = [h.request.registration for h in topic.held_back]
    unanswered += [r.registration for r in topic.deferred]
    unanswered += [m.registration for w in topic.queue for m in w.members]
    pending = topic.pending_fence
    if pending is not None:
        if pending.group is not None:
            unanswered += [m.registration for m in pending.group.members]
        unanswered += [p.registration for p in pending.newcomers]
        if pending.answers:
            effects.append(Answer(pending.answers, topic.epoch, reason))
    effects += [not_ready(registration, reason) for registration in unanswered]
    partitions = tuple(
        replace(s, ownership=Vacant(), is_open=False, grants_lost=False) for s in topic.partitions
    )
    closed = Topic(
        partitions, topic.policy, arrivals=topic.arrivals, fences_started=topic.fences_started
    )
    return replace(closed, is_closed=True), tuple(effects)
