"""Reads parts of a topic, and returns copies with one part replaced. Nothing here decides who may write."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from onewriter_core.topic.model import (
    Absence,
    AccessMode,
    Closed,
    Draining,
    Ending,
    Fencing,
    FencingFormerDataset,
    Held,
    ImpossibleStep,
    Member,
    Partition,
    PendingFence,
    ProducerGroup,
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


def exclusive_owner(topic: Topic, partitions: tuple[int, ...]) -> str | None:
    """The name of the producer that holds one of the partitions, is about to get it or may resume it."""
    pending = topic.pending_fence
    if (
        pending is not None
        and pending.group is not None
        and overlap(pending.partitions, partitions)
    ):
        return pending.group.producer_name
    for partition in topic.partitions:
        if partition.number in partitions and isinstance(partition.ownership, Held | Reserved):
            return partition.ownership.tenure.producer_name
    return None


def may_come_back(topic: Topic, partitions: tuple[int, ...]) -> bool:
    """Whether the partitions have no writer and no fence, and the former holder of one may still resume."""
    pending = topic.pending_fence
    is_fenced = pending is not None and (
        pending.group is not None or pending.purpose is Purpose.SHARE
    )
    if pending is not None and is_fenced and overlap(pending.partitions, partitions):
        return False
    wanted = [
        partition.ownership for partition in topic.partitions if partition.number in partitions
    ]
    is_written = any(isinstance(ownership, Held | Shared) for ownership in wanted)
    return not is_written and any(isinstance(ownership, Reserved) for ownership in wanted)


def awaits_resume(topic: Topic, request: Request) -> bool:
    """Whether an Exclusive request waits until the former holder resumes or its reservation ends."""
    is_first = request.mode is AccessMode.EXCLUSIVE and request.topic_epoch is None
    return is_first and may_come_back(topic, (request.partition,))


def has_shared(topic: Topic, partitions: tuple[int, ...]) -> bool:
    pending = topic.pending_fence
    if (
        pending is not None
        and pending.purpose is Purpose.SHARE
        and overlap(pending.partitions, partitions)
    ):
        return True
    return any(
        partition.number in partitions and isinstance(partition.ownership, Shared)
        for partition in topic.partitions
    )


def is_ownership_ending(topic: Topic, partition: Partition) -> bool:
    """Whether the pending fence ends the present ownership of the partition."""
    pending = topic.pending_fence
    ends_tenures = {Purpose.GRANT, Purpose.SHARE, Purpose.DEPOSE}
    return (
        pending is not None
        and partition.number in pending.partitions
        and pending.purpose in ends_tenures
    )


def free_partitions(topic: Topic) -> frozenset[int]:
    return frozenset(
        partition.number
        for partition in topic.partitions
        if isinstance(partition.ownership, Vacant)
    )


def writers(topic: Topic, partition: Partition) -> list[str]:
    """The registrations that write this partition."""
    match partition.ownership:
        case Held(_, group_id):
            members = holder_of(topic, group_id).members
            return [m.registration for m in members if m.partition == partition.number]
        case Shared(producers):
            return [p.registration for p in producers]
        case Vacant() | Reserved():
            return []
        case _:
            assert_never(partition.ownership)


def holder_of(topic: Topic, group_id: str) -> ProducerGroup:
    holder = topic.holder(group_id)
    if holder is None:
        raise ImpossibleStep(f"a partition is held by {group_id}, which is unknown")
    return holder


def with_partition(topic: Topic, partition: Partition) -> Topic:
    return replace(
        topic,
        partitions=tuple(
            partition if each.number == partition.number else each for each in topic.partitions
        ),
    )


def with_ending(partition: Partition, ending: Ending | None) -> Partition:
    """The partition without a writer, and when the right of its last writer ended."""
    match partition.ownership:
        case Vacant(_, absence) | Reserved(_, _, absence):
            absence = replace(absence, ending=ending)
            return replace(partition, ownership=replace(partition.ownership, absence=absence))
        case Held() | Shared():
            raise ImpossibleStep(f"partition {partition.number} has a writer")
        case _:
            assert_never(partition.ownership)


def with_reservation(partition: Partition, until: float) -> Partition:
    """The partition, and if it is reserved for a returning holder, with this end of the reservation."""
    if not isinstance(partition.ownership, Reserved):
        return partition
    return replace(partition, ownership=replace(partition.ownership, until=until))


def pending_fence_of(topic: Topic) -> PendingFence:
    """The pending fence of a topic that is known to have one."""
    fence = topic.pending_fence
    if fence is None:
        raise ImpossibleStep(f"no fence is pending while {topic.phase}")
    return fence


def with_pending(topic: Topic, fence: PendingFence) -> Topic:
    """The topic with a changed pending fence: a producer joined or left it."""
    match topic.phase:
        case Fencing() | FencingFormerDataset() | Draining():
            return replace(topic, phase=replace(topic.phase, fence=fence))
        case Settled() | Closed():
            raise ImpossibleStep(f"fence {fence.number} changes while {topic.phase}")
        case _:
            assert_never(topic.phase)


def with_holder(topic: Topic, holder: ProducerGroup) -> Topic:
    others = tuple(h for h in topic.holders if h.group_id != holder.group_id)
    return replace(topic, holders=(*others, holder))


def without_member(topic: Topic, group_id: str, registration: str) -> Topic:
    return with_holder(topic, holder_of(topic, group_id).without(registration))


def vacated(
    partition: Partition,
    tenure: Tenure,
    cause: TransitionCause,
    now: float,
    heard_at: float | None = None,
) -> Partition:
    """The partition after its exclusive writer left. If the store may have lost the grant, no producer can resume it."""
    may_resume = not (isinstance(partition.ownership, Held) and partition.ownership.may_be_lost)
    return replace(
        partition,
        ownership=Vacant(
            tenure if may_resume else None, Absence(cause, now, Ending(now, heard_at))
        ),
        # A client stops serving before it closes its producer.
        serve_seconds=0.0 if cause is TransitionCause.CLOSED else partition.serve_seconds,
    )


def without_empty_holders(
    topic: Topic, cause: TransitionCause, now: float, heard_at: float | None = None
) -> Topic:
    """Remove holders that have no members left, also from partitions for which they never had a member."""
    for holder in topic.holders:
        for partition in topic.partitions:
            match partition.ownership:
                case Held(tenure, holder.group_id) if not holder.members:
                    if partition.number in holder.partitions:
                        vacant = vacated(partition, tenure, cause, now, heard_at)
                        topic = with_partition(topic, vacant)
                case _:
                    pass
    return replace(topic, holders=tuple(h for h in topic.holders if h.members))


def tenure_of(partition: Partition) -> Tenure | None:
    """The tenure of a partition, held or resumable."""
    match partition.ownership:
        case Held(tenure, _) | Reserved(tenure, _):
            return tenure
        case Vacant(tenure):
            return tenure
        case Shared():
            return None
        case _:
            assert_never(partition.ownership)


def overlap(some: tuple[int, ...], others: tuple[int, ...]) -> bool:
    return some == others or not set(some).isdisjoint(others)


def new_group(
    topic: Topic, request: Request, partitions: tuple[int, ...], *, is_partitioned: bool
) -> ProducerGroup:
    return ProducerGroup(
        group_id=request.registration,
        partitions=partitions,
        members=(Member(request.partition, request.registration, request.reconnects),),
        is_partitioned=is_partitioned,
        producer_name=request.producer_name,
        name_given=request.name_given,
        identity=request.identity,
        mode=request.mode,
        connection=request.connection,
        priority=request.priority if request.mode is AccessMode.WAIT_FOR_EXCLUSIVE else 0,
        arrival=topic.arrivals + 1,
        admitted_by=request.admitted_by,
        address=request.address,
        host=request.host,
        serve_seconds=request.serve_seconds,
    )


def same_group(group: ProducerGroup, request: Request) -> bool:
    """Whether the request is of the group: same producer name if the client chose one, else same connection."""
    if (group.identity, group.mode) != (request.identity, request.mode):
        return False
    if group.name_given or request.name_given:
        return group.producer_name == request.producer_name
    return group.connection == request.connection
