"""The pending fence: how it starts, and how the store's result changes the topic."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from onewriter_core.errors import ServerError
from onewriter_core.ids import Identity
from onewriter_core.topic.answers import grant_shared, grants, not_ready
from onewriter_core.topic.effects import NEW_EPOCH, Answer, Close, Effect, Fence, Record, Step
from onewriter_core.topic.events import FenceRefused, FenceStored
from onewriter_core.topic.lookups import (
    tenure_of,
    with_holder,
    with_partition,
    without_empty_holders,
    without_member,
    writers,
)
from onewriter_core.topic.model import (
    DEPOSED_MAX,
    Absence,
    Draining,
    Ending,
    FencePhase,
    Fencing,
    FencingFormerDataset,
    Held,
    ImpossibleStep,
    Partition,
    PendingFence,
    ProducerGroup,
    Purpose,
    Reserved,
    Settled,
    Shared,
    SharedProducer,
    Tenure,
    Topic,
    TransitionCause,
    Vacant,
)
from onewriter_core.topic.refusals import with_refused_group
from onewriter_core.topic.waiters import in_order, load_of


def start_fence(
    topic: Topic,
    purpose: Purpose,
    partitions: tuple[int, ...],
    group: ProducerGroup | None = None,
    cause: TransitionCause = TransitionCause.NONE,
    *,
    newcomers: tuple[SharedProducer, ...] = (),
    answers: str = "",
) -> Step:
    """Ask the store for a fence over the partitions. Its result decides."""
    if topic.pending_fence is not None:
        raise ImpossibleStep(f"{purpose} while {topic.pending_fence.purpose} is in progress")
    number = topic.fences_started + 1
    begins_epoch = purpose in {Purpose.GRANT, Purpose.DEPOSE}
    stops: list[str] = []
    tenures: list[tuple[int, Tenure | None]] = []
    deposed: list[tuple[int, tuple[Identity, ...]]] = []
    for partition in (each for each in topic.partitions if each.number in partitions):
        if begins_epoch:
            stops += writers(topic, partition)
        deposed.append((partition.number, _deposed(partition, group, cause, purpose)))
        tenures.append((partition.number, _new_tenure(partition, purpose, group)))
    others = [w for w in topic.queue if group is None or w.group_id != group.group_id]
    best_loser = next(iter(in_order(others, topic)), None)
    pending = PendingFence(number, purpose, partitions, group, newcomers, cause, answers)
    fence = Fence(
        number,
        purpose,
        partitions,
        group,
        cause,
        tuple(stops),
        tuple(tenures),
        tuple(deposed),
        best_loser,
        topic.policy,
        0 if group is None else load_of(topic, group),
        0 if best_loser is None else load_of(topic, best_loser),
    )
    return replace(topic, fences_started=number, phase=Fencing(pending)), (fence,)


def _required(group: ProducerGroup | None) -> ProducerGroup:
    if group is None:
        raise ImpossibleStep("a grant or a resume needs a producer group")
    return group


def _first_partition(topic: Topic, pending: PendingFence) -> Partition:
    partition = topic.partition(pending.partitions[0])
    if partition is None:
        raise ImpossibleStep(f"partition {pending.partitions[0]} was fenced, and there is none")
    return partition


def _new_tenure(
    partition: Partition, purpose: Purpose, group: ProducerGroup | None
) -> Tenure | None:
    match purpose:
        case Purpose.GRANT:
            winner = _required(group)
            return Tenure(NEW_EPOCH, winner.producer_name, winner.identity, winner.admitted_by)
        case Purpose.SHARE | Purpose.DEPOSE:
            return None
        case Purpose.RESUME | Purpose.ROLL | Purpose.REFENCE:
            return tenure_of(partition)
        case _:
            assert_never(purpose)


def _deposed(
    partition: Partition, group: ProducerGroup | None, cause: TransitionCause, purpose: Purpose
) -> tuple[Identity, ...]:
    """Identities that lost a tenure without leaving. A takeover by one of them must name the epoch."""
    if purpose not in {Purpose.GRANT, Purpose.DEPOSE}:
        return partition.deposed
    lost: Tenure | None = None
    match partition.ownership:
        case Held(tenure, _):
            lost = tenure if cause is not TransitionCause.HANDED_OVER else None
        case Reserved(tenure, _):
            lost = tenure
        case Vacant(tenure, absence):
            lost = tenure if absence.cause is not TransitionCause.CLOSED else None
        case Shared():
            lost = None
        case _:
            assert_never(partition.ownership)
    winner = None if group is None else group.identity
    names = [name for name in partition.deposed if name != winner]
    if lost is not None and not lost.identity.is_anonymous and lost.identity != winner:
        names = [name for name in names if name != lost.identity] + [lost.identity]
    return tuple(names[-DEPOSED_MAX:])


def fence_stored(topic: Topic, event: FenceStored) -> Step:
    """The store opened the ledger: decide, or wait until the former holder no longer serves."""
    phase, ledger, now = topic.phase, event.ledger, event.now
    if not isinstance(phase, Fencing | FencingFormerDataset) or phase.fence.number != event.number:
        raise ImpossibleStep(f"fence {event.number} stored while {phase}")
    pending = phase.fence
    fenced = [partition for partition in topic.partitions if partition.number in pending.partitions]
    newest = max((max(partition.ledger, partition.epoch) for partition in fenced), default=0)
    if ledger <= newest:
        raise ImpossibleStep(f"ledger {ledger} fenced after {newest}")
    ending = _ending(pending, event)
    serves_until = _serves_until(fenced, now if event.assured_at is None else event.assured_at)
    if pending.purpose in {Purpose.GRANT, Purpose.SHARE} and serves_until > now:
        draining = Draining(pending, ledger, serves_until, fenced[0])
        return _drain(topic, phase, draining, ending, now)
    topic = replace(topic, phase=Settled())
    match pending.purpose:
        case Purpose.GRANT:
            return _granted(topic, phase, ledger, now, ending)
        case Purpose.DEPOSE:
            return _vacated_by_order(topic, phase, ledger, now, ending)
        case Purpose.SHARE:
            return _shared(topic, phase, ledger)
        case Purpose.RESUME:
            return _resumed(_opened(topic, phase, ledger), pending, now)
        case Purpose.ROLL | Purpose.REFENCE:
            return _opened(topic, phase, ledger), ()
        case _:
            assert_never(pending.purpose)


def _ending(pending: PendingFence, event: FenceStored) -> Ending:
    """The end of the right of the writers that the fence stopped.

    An ordered handover takes the holder as alive until then.
    """
    at = event.now if event.stopped_at is None else event.stopped_at
    return Ending(at, at if pending.cause is TransitionCause.HANDED_OVER else event.heard_at)


def _absence(
    partition: Partition, pending: PendingFence, now: float, ending: Ending | None
) -> Absence:
    """How the last writer left: before the fence, or because the fence stopped it (``ending``)."""
    return partition.absence or Absence(pending.cause, now, ending)


def _serves_until(partitions: list[Partition], assured_at: float) -> float:
    """Until when a deposed holder may still act for the topic."""
    return assured_at + max((partition.serve_seconds for partition in partitions), default=0.0)


def _drain(
    topic: Topic,
    phase: Fencing | FencingFormerDataset,
    draining: Draining,
    ending: Ending,
    now: float,
) -> Step:
    """Close the former writers now. The new writer gets its grant when no former holder may serve."""
    pending = phase.fence
    raises_epoch = pending.purpose is Purpose.GRANT
    topic, closes = _evicted(topic, pending, now)
    for partition in (each for each in topic.partitions if each.number in pending.partitions):
        topic = with_partition(
            topic,
            replace(
                partition,
                epoch=draining.ledger if raises_epoch else partition.epoch,
                ledger=draining.ledger,
                is_open=_opens(phase, partition),
                ownership=Vacant(absence=_absence(partition, pending, now, ending)),
                deposed=_deposed(partition, pending.group, pending.cause, pending.purpose),
            ),
        )
    return replace(topic, phase=draining), closes


def end_drain(topic: Topic, now: float) -> Step:
    """Grant the fence's partitions if the former holder's serving time has passed."""
    phase = topic.phase
    if not isinstance(phase, Draining):
        raise ImpossibleStep(f"a drain ends while {phase}")
    if phase.until > now:
        return topic, ()
    topic = replace(topic, phase=Settled())
    if phase.fence.purpose is Purpose.SHARE:
        return _shared(topic, phase, phase.ledger)
    return _granted(topic, phase, phase.ledger, now, None)


def _opens(phase: FencePhase, partition: Partition) -> bool:
    """Whether the broker may append to a partition under the ledger of the fence."""
    match phase:
        case Fencing():
            return True
        case FencingFormerDataset():
            return False
        case Draining():
            return partition.is_open  # since the fence was stored, unless the store failed over
        case _:
            assert_never(phase)


def _granted(
    topic: Topic, phase: FencePhase, ledger: int, now: float, ending: Ending | None
) -> Step:
    """Grant the fence's partitions. ``ending``: the end of the writers that the fence stopped just now."""
    pending = phase.fence
    group = _required(pending.group)
    present = _first_partition(topic, pending)
    first = phase.first if isinstance(phase, Draining) else present
    absence = _absence(present, pending, now, ending)
    topic, closes = _evicted(topic, pending, now)
    alive = bool(group.members)
    lost = Absence(TransitionCause.CONNECTION_LOST, now, Ending(now, now))
    tenure = Tenure(ledger, group.producer_name, group.identity, group.admitted_by)
    for partition in (each for each in topic.partitions if each.number in pending.partitions):
        topic = with_partition(
            topic,
            replace(
                partition,
                epoch=ledger,
                ledger=ledger,
                is_open=_opens(phase, partition),
                ownership=Held(tenure, group.group_id) if alive else Vacant(tenure, lost),
                deposed=_deposed(partition, group, pending.cause, pending.purpose),
                serve_seconds=group.serve_seconds if alive else 0.0,
            ),
        )
    if alive:
        topic = with_holder(topic, group)
    record = Record(
        pending.partitions,
        Purpose.GRANT,
        first.epoch,
        ledger,
        ledger,
        group,
        absence.cause,
        absence.seconds(now),
        tenure_of(first),
        absence.outage(now),
    )
    answer = _answers(pending, ledger)
    return topic, (*closes, *grants(topic, group, resumed=False), record, *answer)


def _vacated_by_order(
    topic: Topic, phase: FencePhase, ledger: int, now: float, ending: Ending
) -> Step:
    pending = phase.fence
    first = _first_partition(topic, pending)
    topic, closes = _evicted(topic, pending, now)
    for partition in (each for each in topic.partitions if each.number in pending.partitions):
        topic = with_partition(
            topic,
            replace(
                partition,
                epoch=ledger,
                ledger=ledger,
                is_open=_opens(phase, partition),
                ownership=Vacant(
                    absence=Absence(
                        pending.cause, now, _absence(partition, pending, now, ending).ending
                    )
                ),
                deposed=_deposed(partition, None, pending.cause, pending.purpose),
            ),
        )
    record = Record(
        pending.partitions,
        Purpose.DEPOSE,
        first.epoch,
        ledger,
        ledger,
        None,
        pending.cause,
        None,
        tenure_of(first),
    )
    return topic, (*closes, record, *_answers(pending, ledger))


def _shared(topic: Topic, phase: FencePhase, ledger: int) -> Step:
    pending = phase.fence
    topic = _opened(topic, phase, ledger)
    partition = _first_partition(topic, pending)
    absence = partition.absence or Absence()
    ownership = Shared(pending.newcomers) if pending.newcomers else Vacant(absence=absence)
    topic = with_partition(topic, replace(partition, ownership=ownership, serve_seconds=0.0))
    return topic, tuple(grant_shared(partition, producer) for producer in pending.newcomers)


def _resumed(topic: Topic, pending: PendingFence, now: float) -> Step:
    """Resume after the fence that the resume needed. The tenure may have ended meanwhile."""
    partition = _first_partition(topic, pending)
    group = _required(pending.group)
    tenure = Tenure(partition.epoch, group.producer_name, group.identity)
    match partition.ownership:
        case Vacant(kept) | Reserved(kept, _) if kept == tenure and group.members:
            return resume(topic, partition, group, now)
        case _:
            reason = "the store may have lost this grant"
            return topic, tuple(not_ready(m.registration, reason) for m in group.members)


def resume(topic: Topic, partition: Partition, group: ProducerGroup, now: float) -> Step:
    """Grant the partition to its tenure's holder again, with the same epoch and the same ledger."""
    absence = partition.absence
    if absence is None:
        raise ImpossibleStep(f"partition {partition.number} has a writer and is resumed")
    tenure = Tenure(partition.epoch, group.producer_name, group.identity, group.admitted_by)
    record = Record(
        (partition.number,),
        Purpose.RESUME,
        partition.epoch,
        partition.epoch,
        partition.ledger,
        group,
        absence.cause,
        absence.seconds(now),
        tenure,
        absence.outage(now),
    )
    topic = with_partition(
        with_holder(topic, group), replace(partition, ownership=Held(tenure, group.group_id))
    )
    return topic, (*grants(topic, group, resumed=True), record)


def _opened(topic: Topic, phase: FencePhase, ledger: int) -> Topic:
    partitions = tuple(
        replace(partition, ledger=ledger, is_open=_opens(phase, partition))
        if partition.number in phase.fence.partitions
        else partition
        for partition in topic.partitions
    )
    return replace(topic, partitions=partitions)


def _evicted(topic: Topic, pending: PendingFence, now: float) -> Step:
    """Close the writers of the fence's partitions. A partitioned holder keeps its other partitions."""
    closes: list[Effect] = []
    for partition in (each for each in topic.partitions if each.number in pending.partitions):
        for registration in writers(topic, partition):
            closes.append(Close(registration, pending.cause))
            if isinstance(partition.ownership, Held):
                topic = without_member(topic, partition.ownership.group_id, registration)
    lost = set(pending.partitions)
    holders = tuple(
        replace(h, partitions=tuple(n for n in h.partitions if n not in lost))
        for h in topic.holders
    )
    topic = replace(topic, holders=holders)
    return without_empty_holders(topic, pending.cause, now), tuple(closes)


def fence_refused(topic: Topic, event: FenceRefused) -> Step:
    """The store wrote nothing: reject the producers that asked. The other waiters keep their place.

    A handover is rolled back: its waiter keeps its place in the queue.
    """
    phase, reason, now = topic.phase, event.reason, event.now
    if not isinstance(phase, Fencing | FencingFormerDataset) or phase.fence.number != event.number:
        raise ImpossibleStep(f"fence {event.number} refused while {phase}")
    pending = phase.fence
    topic = replace(topic, phase=Settled())
    effects: tuple[Effect, ...] = ()
    group = pending.group
    if group is not None and pending.cause is TransitionCause.HANDED_OVER:
        if group.is_partitioned:
            group = replace(
                group, partitions=tuple(partition.number for partition in topic.partitions)
            )
        if group.members:
            topic = replace(topic, queue=(*topic.queue, group))
    elif group is not None:
        effects = tuple(not_ready(m.registration, reason) for m in group.members)
        code = ServerError.SERVICE_NOT_READY
        topic = with_refused_group(topic, group, code, reason, now)
    effects += tuple(not_ready(p.registration, reason) for p in pending.newcomers)
    if pending.answers:
        effects += (Answer(pending.answers, topic.epoch, reason),)
    return topic, effects


def _answers(pending: PendingFence, epoch: int) -> tuple[Effect, ...]:
    return (Answer(pending.answers, epoch),) if pending.answers else ()
