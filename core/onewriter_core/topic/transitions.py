"""The functions of the transition table, and ``settle`` (machine.py has the theory).

Each function takes the topic and one event, and returns the topic afterwards with the effects. The functions for
the result of a fence are in fences.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from onewriter_core.errors import ServerError
from onewriter_core.topic.access_modes import contend, defer, share_requested
from onewriter_core.topic.answers import not_ready, reject_old_epoch, reject_replaced
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
from onewriter_core.topic.fences import end_drain, resume, start_fence
from onewriter_core.topic.groups import partition_requested
from onewriter_core.topic.lookups import (
    awaits_resume,
    free_partitions,
    holder_of,
    is_ownership_ending,
    new_group,
    pending_fence_of,
    vacated,
    with_holder,
    with_partition,
    with_pending,
    without_empty_holders,
    without_member,
    writers,
)
from onewriter_core.topic.model import (
    Absence,
    AccessMode,
    Closed,
    Ending,
    FencingFormerDataset,
    Held,
    ImpossibleStep,
    Member,
    Ownership,
    Partition,
    Purpose,
    Request,
    Reserved,
    Settled,
    Shared,
    Tenure,
    Topic,
    TransitionCause,
    Vacant,
)
from onewriter_core.topic.waiters import in_order, next_promoted


def requested(topic: Topic, event: ProducerRequested) -> Step:
    """A producer asks for its partition."""
    return _decided(topic, event.request, event.now)


def refused_when_closed(topic: Topic, event: ProducerRequested) -> Step:
    """The topic is closed: the producer looks it up again."""
    return topic, (not_ready(event.request.registration, "the topic is moving"),)


def _decided(topic: Topic, request: Request, now: float) -> Step:
    partition = topic.partition(request.partition)
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
    """A granted producer reconnects with its epoch: first the epoch gate, then the resume."""
    registration = request.registration
    if epoch < partition.epoch:
        return topic, (reject_old_epoch(registration, epoch, partition.epoch),)
    if epoch > partition.epoch:
        return topic, (
            Suspect(registration, epoch, partition.epoch),
            reject_old_epoch(registration, epoch, partition.epoch),
        )
    tenure = Tenure(epoch, request.producer_name, request.identity)
    if is_ownership_ending(topic, partition):
        return topic, (not_ready(registration, "the holder of the topic is changing"),)
    match partition.ownership:
        case Held(held, group_id, may_be_lost) if held == tenure and not may_be_lost:
            return _replaced(topic, partition, group_id, request)
        case Vacant(kept) | Reserved(kept, _) if kept == tenure:
            if not partition.is_open:
                return _start_or_defer(topic, request, Purpose.RESUME, partition)
            group = new_group(topic, request, (partition.number,), is_partitioned=False)
            return resume(replace(topic, arrivals=topic.arrivals + 1), partition, group, now)
        case Held() | Vacant() | Reserved() | Shared():
            return topic, (reject_old_epoch(registration, epoch, partition.epoch),)
        case _:
            assert_never(partition.ownership)


def _replaced(topic: Topic, partition: Partition, group_id: str, request: Request) -> Step:
    """The holder reconnected before its old connection was found dead. The newer connection counts."""
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
        effects = (Close(old.registration, TransitionCause.CONNECTION_LOST), *effects)
    return with_holder(topic, holder), effects


def settle(topic: Topic, effects: tuple[Effect, ...], now: float) -> Step:
    """Start what had to wait for the pending fence, until the next fence is pending."""
    while isinstance(topic.phase, Settled):
        lost = tuple(
            partition.number
            for partition in topic.partitions
            if isinstance(partition.ownership, Held) and partition.ownership.may_be_lost
        )
        unfenced = tuple(
            partition.number
            for partition in topic.partitions
            # Also without a writer: consumers move cursors under the ledger's token.
            if not partition.is_open
            and (partition.ledger > 0 or isinstance(partition.ownership, Held | Shared))
        )
        if lost:
            topic, more = start_fence(topic, Purpose.DEPOSE, lost, None, TransitionCause.GRANT_LOST)
        elif unfenced:
            topic, more = start_fence(topic, Purpose.REFENCE, unfenced, None, TransitionCause.NONE)
        elif (request := _next_deferred(topic)) is not None:
            rest = tuple(other for other in topic.deferred if other is not request)
            topic, more = _decided(replace(topic, deferred=rest), request, now)
        else:
            waiter = next_promoted(topic, free_partitions(topic))
            if waiter is None:
                break
            topic = replace(
                topic, queue=tuple(w for w in topic.queue if w.group_id != waiter.group_id)
            )
            topic, more = start_fence(
                topic, Purpose.GRANT, waiter.partitions, waiter, TransitionCause.NONE
            )
        effects += more
    return topic, effects


def _next_deferred(topic: Topic) -> Request | None:
    """The first request that waits for neither a fence nor a reservation."""
    return next((r for r in topic.deferred if not awaits_resume(topic, r)), None)


def _start_or_defer(topic: Topic, request: Request, purpose: Purpose, partition: Partition) -> Step:
    group = new_group(topic, request, (partition.number,), is_partitioned=False)
    pending = topic.pending_fence
    if pending is None:
        topic = replace(topic, arrivals=topic.arrivals + 1)
        return start_fence(topic, purpose, (partition.number,), group, TransitionCause.NONE)
    older = pending.group
    if (
        (pending.purpose, pending.partitions) == (purpose, (partition.number,))
        and older is not None
        and (older.producer_name, older.identity) == (group.producer_name, group.identity)
        and all(member.reconnects < request.reconnects for member in older.members)
    ):
        topic = replace(topic, arrivals=topic.arrivals + 1)
        topic = with_pending(topic, replace(pending, group=group))
        return topic, tuple(reject_replaced(member.registration) for member in older.members)
    return defer(topic, None, request)


def gone(topic: Topic, event: ProducerGone) -> Step:
    """A producer left or was found dead. It frees what it holds, nothing else."""
    registration, cause, now = event.registration, event.cause, event.now
    heard_at = event.heard_at
    topic = replace(
        topic,
        held_back=tuple(h for h in topic.held_back if h.request.registration != registration),
        deferred=tuple(r for r in topic.deferred if r.registration != registration),
        queue=tuple(left for w in topic.queue if (left := w.without(registration)).members),
    )
    for partition in topic.partitions:
        match partition.ownership:
            case Shared(producers):
                staying = tuple(p for p in producers if p.registration != registration)
                if staying != producers:
                    absence = Absence(cause, now, Ending(now, heard_at))
                    ownership = Shared(staying) if staying else Vacant(absence=absence)
                    topic = with_partition(topic, replace(partition, ownership=ownership))
            case Held(tenure, group_id):
                members = holder_of(topic, group_id).members
                if Member(partition.number, registration) in [
                    replace(m, reconnects=0) for m in members
                ]:
                    vacant = vacated(partition, tenure, cause, now, heard_at)
                    topic = with_partition(topic, vacant)
                    topic = without_member(topic, group_id, registration)
            case Vacant() | Reserved():
                pass
            case _:
                assert_never(partition.ownership)
    return without_empty_holders(topic, cause, now, heard_at), ()


def gone_while_fencing(topic: Topic, event: ProducerGone) -> Step:
    """As ``gone``. The fence continues, also for a group that has no member left."""
    pending = pending_fence_of(topic)
    group = pending.group and pending.group.without(event.registration)
    newcomers = tuple(p for p in pending.newcomers if p.registration != event.registration)
    return gone(with_pending(topic, replace(pending, group=group, newcomers=newcomers)), event)


def ticked(topic: Topic, event: ClockTicked) -> Step:
    """End what is due: reservations, remembered refusals, the wait for a partition 0."""
    topic, due = _expired(topic, event)
    return _requested_alone(topic, due, event.now)


def ticked_while_draining(topic: Topic, event: ClockTicked) -> Step:
    """As ``ticked``. Also grants the topic if the former holder's serving time has passed."""
    topic, due = _expired(topic, event)
    topic, effects = end_drain(topic, event.now)
    topic, more = _requested_alone(topic, due, event.now)
    return topic, effects + more


def _expired(topic: Topic, event: ClockTicked) -> tuple[Topic, list[Request]]:
    """The topic without what is due, and the requests that waited for a partition 0."""
    now = event.now
    for partition in topic.partitions:
        if isinstance(partition.ownership, Reserved) and partition.ownership.until <= now:
            ownership = _after_reservation(partition.ownership, event)
            topic = with_partition(topic, replace(partition, ownership=ownership))
    due = [held.request for held in topic.held_back if held.until <= now]
    topic = replace(
        topic,
        held_back=tuple(h for h in topic.held_back if h.until > now),
        refused_groups=tuple(g for g in topic.refused_groups if g.until > now),
    )
    return topic, due


def _after_reservation(reserved: Reserved, event: ClockTicked) -> Reserved | Vacant:
    """A reservation that is due ends, unless the broker answers returning holders late."""
    if event.resumable_until > event.now:
        return replace(reserved, until=event.resumable_until)
    return Vacant(reserved.tenure, reserved.absence)


def _requested_alone(topic: Topic, due: list[Request], now: float) -> Step:
    """Each request competes for its own partition: the request of partition 0 did not come."""
    effects: tuple[Effect, ...] = ()
    for request in due:
        topic, more = _decided(topic, replace(request, alone=True), now)
        effects += more
    return topic, effects


def handed_over(topic: Topic, event: HandoverRequested) -> Step:
    """Hand the topic over from its holder to a waiter: one fence, without a gap."""
    identifier, to = event.identifier, event.to
    refusal = _other_epoch(topic, event.if_epoch)
    if refusal:
        return topic, (Answer(identifier, topic.epoch, refusal),)
    for waiter in in_order(topic.queue, topic):
        if not to or to in {waiter.producer_name, waiter.admitted_by}:
            queue = tuple(w for w in topic.queue if w.group_id != waiter.group_id)
            return start_fence(
                replace(topic, queue=queue),
                Purpose.GRANT,
                waiter.partitions,
                waiter,
                TransitionCause.HANDED_OVER,
                answers=identifier,
            )
    refusal = f"no producer {to!r} is waiting" if to else "no producer is waiting"
    return topic, (Answer(identifier, topic.epoch, refusal),)


def deposed(topic: Topic, event: FenceRequested) -> Step:
    """An administrator deposes the holder. The waiters stay."""
    refusal = _other_epoch(topic, event.if_epoch)
    if refusal:
        return topic, (Answer(event.identifier, topic.epoch, refusal),)
    numbers = tuple(partition.number for partition in topic.partitions)
    return start_fence(
        topic, Purpose.DEPOSE, numbers, None, TransitionCause.FENCED, answers=event.identifier
    )


def _other_epoch(topic: Topic, if_epoch: int | None) -> str:
    """Why an administrator's order for the epoch ``if_epoch`` is refused; empty: it is not."""
    if if_epoch is not None and if_epoch != topic.epoch:
        return f"the topic epoch is {topic.epoch}, not {if_epoch}"
    return ""


def order_refused(topic: Topic, event: HandoverRequested | FenceRequested) -> Step:
    """One order at a time, and none for a topic that this broker no longer serves."""
    text = "the holder of the topic is changing"
    return topic, (Answer(event.identifier, topic.epoch, text),)


def rolled(topic: Topic, event: LedgerFull) -> Step:
    """Open a new ledger for the same holder."""
    partition = topic.partition(event.partition)
    if partition is None or not partition.is_open:
        return topic, ()
    return start_fence(topic, Purpose.ROLL, (event.partition,), None, TransitionCause.NONE)


def dataset_changed(topic: Topic, event: DatasetChanged) -> Step:
    """Every ledger must be fenced again. Grants that may be lost can no longer be resumed."""
    partitions: list[Partition] = []
    for partition in topic.partitions:
        closed = replace(partition, is_open=False)
        if not event.grants_known:
            closed = replace(closed, ownership=_without_grant(partition.ownership))
        partitions.append(closed)
    return replace(topic, partitions=tuple(partitions)), ()


def _without_grant(ownership: Ownership) -> Ownership:
    """The ownership if the store may have forgotten who was granted the partition."""
    match ownership:
        case Held():
            return replace(ownership, may_be_lost=True)
        case Vacant(_, absence) | Reserved(_, _, absence):
            return Vacant(absence=absence)
        case Shared():
            return ownership
        case _:
            assert_never(ownership)


def dataset_changed_while_fencing(topic: Topic, event: DatasetChanged) -> Step:
    """As ``dataset_changed``. The fence that is on its way may be stored in the former dataset."""
    topic = replace(topic, phase=FencingFormerDataset(pending_fence_of(topic)))
    return dataset_changed(topic, event)


def partitions_added(topic: Topic, event: PartitionsAdded) -> Step:
    """Groups that wait for all partitions wait for the new ones as well."""
    partitions = event.partitions
    numbers = tuple(partition.number for partition in partitions)
    queue = tuple(
        replace(w, partitions=(*w.partitions, *numbers)) if w.is_partitioned else w
        for w in topic.queue
    )
    return replace(topic, partitions=(*topic.partitions, *partitions), queue=queue), ()


def policy_changed(topic: Topic, event: PolicyChanged) -> Step:
    """Promote the waiters in another order from now on."""
    return replace(topic, policy=event.policy), ()


def loads_changed(topic: Topic, event: LoadsChanged) -> Step:
    """Note how many topics the waiters' hosts lead."""
    return replace(topic, loads=event.loads), ()


def unloaded(topic: Topic, event: Unloaded) -> Step:
    """Close the granted producers and reject the waiting ones, so that they look the topic up again."""
    reason = event.reason
    effects: list[Effect] = []
    for partition in topic.partitions:
        effects += [Close(r, TransitionCause.MOVED) for r in writers(topic, partition)]
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
        replace(partition, ownership=Vacant(), is_open=False) for partition in topic.partitions
    )
    closed = Topic(
        partitions,
        topic.policy,
        phase=Closed(),
        arrivals=topic.arrivals,
        fences_started=topic.fences_started,
    )
    return closed, tuple(effects)


def unchanged(topic: Topic, _: Event) -> Step:
    """The event changes nothing in this phase."""
    return topic, ()


def impossible(topic: Topic, event: FenceStored | FenceRefused) -> Step:
    """No fence is on its way, so there is no result: the caller sent an event that it must not send."""
    raise ImpossibleStep(f"{event} while {topic.phase}")
