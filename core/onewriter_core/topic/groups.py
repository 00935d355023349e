"""Partitioned producers: the request of partition 0 makes the group, the other requests join it."""

from __future__ import annotations

from dataclasses import replace

from onewriter_core.topic.access_modes import contend
from onewriter_core.topic.answers import not_ready
from onewriter_core.topic.effects import Grant, Queue, Reject, Step
from onewriter_core.topic.lookups import (
    is_ownership_ending,
    new_group,
    same_group,
    with_holder,
    with_pending,
)
from onewriter_core.topic.model import (
    HELD_BACK_MAX,
    Held,
    HeldBack,
    Member,
    Partition,
    ProducerGroup,
    Request,
    Topic,
)
from onewriter_core.topic.refusals import (
    refused_with_its_group,
    with_refused_group,
    without_refusals_of,
)

HOLD_BACK_SECONDS = 2.0
"""A partition's request waits this long for partition 0. Then it competes alone."""


def partition_requested(topic: Topic, partition: Partition, request: Request, now: float) -> Step:
    """One request of a partitioned producer: it joins the group, makes it, or waits for partition 0."""
    joined = _join(topic, partition, request)
    if joined is not None:
        return joined
    holds_other_partitions = any(
        same_group(holder, request) and partition.number not in holder.partitions
        for holder in topic.holders
    )
    if holds_other_partitions:  # a partition added after the grant
        group = new_group(topic, request, (partition.number,), is_partitioned=False)
        topic = replace(topic, arrivals=topic.arrivals + 1)
        return contend(topic, group, request, now, extends=True)
    if partition.number != 0:
        refused = refused_with_its_group(topic, partition, request)
        if refused is not None:
            return refused
        if len(topic.held_back) >= HELD_BACK_MAX:
            return topic, (not_ready(request.registration, "too many partitions are waiting"),)
        held = HeldBack(request, now + HOLD_BACK_SECONDS)
        return replace(topic, held_back=(*topic.held_back, held)), ()
    group = new_group(
        topic,
        request,
        tuple(partition.number for partition in topic.partitions),
        is_partitioned=True,
    )
    still_held: list[HeldBack] = []
    for held in topic.held_back:
        early = held.request
        if same_group(group, early) and not group.has_member(early.partition):
            member = Member(early.partition, early.registration, early.reconnects)
            group = replace(group, members=(*group.members, member))
        else:
            still_held.append(held)
    topic = replace(
        without_refusals_of(topic, request),
        held_back=tuple(still_held),
        arrivals=topic.arrivals + 1,
    )
    topic, effects = contend(topic, group, request, now)
    for effect in effects:
        if isinstance(effect, Reject) and effect.registration == request.registration:
            topic = with_refused_group(topic, group, effect.code, effect.message, now)
    return topic, effects


def _join(topic: Topic, partition: Partition, request: Request) -> Step | None:
    """Add the request to the group that partition 0 made; None: there is no group yet."""
    member = Member(partition.number, request.registration, request.reconnects)

    def fits(group: ProducerGroup | None) -> bool:
        return (
            group is not None
            and group.is_partitioned
            and partition.number in group.partitions
            and same_group(group, request)
            and not group.has_member(partition.number)
        )

    for holder in topic.holders:
        ownership = partition.ownership
        holds = isinstance(ownership, Held) and ownership.group_id == holder.group_id
        if holds and fits(holder):
            if is_ownership_ending(topic, partition):
                text = "the holder of the topic is changing"
                return topic, (not_ready(request.registration, text),)
            joined = replace(holder, members=(*holder.members, member))
            grant = Grant(
                member.registration, partition.number, holder.producer_name, partition.epoch
            )
            return with_holder(topic, joined), (grant,)
    pending = topic.pending_fence
    if pending is not None and pending.group is not None and fits(pending.group):
        joined = replace(pending.group, members=(*pending.group.members, member))
        return with_pending(topic, replace(pending, group=joined)), ()
    for waiter in topic.queue:
        if fits(waiter):
            joined = replace(waiter, members=(*waiter.members, member))
            queue = tuple(joined if w.group_id == waiter.group_id else w for w in topic.queue)
            return replace(topic, queue=queue), (Queue(member.registration, waiter.producer_name),)
    return None
