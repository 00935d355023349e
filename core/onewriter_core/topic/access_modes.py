"""Decides a producer's request by its access mode and the state of the partitions that it requests (PIP-68)."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from onewriter_core.errors import ServerError
from onewriter_core.topic.answers import (
    grant_shared,
    not_ready,
    probes,
    reject_all,
    reject_busy,
    reject_replaced,
)
from onewriter_core.topic.effects import Close, Effect, Probe, Queue, Step
from onewriter_core.topic.fences import start_fence
from onewriter_core.topic.lookups import (
    exclusive_owner,
    has_shared,
    is_ownership_ending,
    may_come_back,
    overlap,
    with_partition,
    with_pending,
)
from onewriter_core.topic.model import (
    DEFERRED_MAX,
    WAITERS_MAX,
    AccessMode,
    ImpossibleStep,
    Partition,
    ProducerGroup,
    Purpose,
    Request,
    Shared,
    SharedProducer,
    Topic,
    TransitionCause,
    Vacant,
)
from onewriter_core.topic.refusals import with_refused_group


def contend(
    topic: Topic, group: ProducerGroup, request: Request, now: float, *, extends: bool = False
) -> Step:
    """Decide an exclusive request by its mode and the ownership of its partitions (the table of PIP-68).

    ``extends``: the holder of the topic requests a partition that was added. The queue does not matter then,
    because its members wait for that holder anyway.
    """
    owner = exclusive_owner(topic, group.partitions)
    shared_present = has_shared(topic, group.partitions)
    is_free = owner is None and not shared_present
    if not is_free and group.mode is AccessMode.WAIT_FOR_EXCLUSIVE:
        return _queued(topic, group)
    waiters: list[ProducerGroup] = []
    if not extends:
        waiters = [w for w in topic.queue if overlap(w.partitions, group.partitions)]
    match group.mode:
        case AccessMode.EXCLUSIVE:
            if not waiters and may_come_back(topic, group.partitions):
                # The client may be the former holder, whose grant was lost with its broker.
                return _wait_for_former_holder(topic, group, request)
            if owner is not None:
                text = f"Topic has an existing exclusive producer: {owner}"
                return topic, reject_all(group, text) + probes(topic, group.partitions)
            if shared_present:
                text = "Topic has existing shared producers"
                return topic, reject_all(group, text) + probes(topic, group.partitions)
            if waiters:
                return topic, reject_all(group, "Topic has waiting exclusive producers")
        case AccessMode.WAIT_FOR_EXCLUSIVE:
            if waiters or (topic.pending_fence is not None and not extends):
                return _queued(topic, group)
        case AccessMode.EXCLUSIVE_WITH_FENCING:
            refusal = _takeover_refusal(topic, group, request, is_free=is_free and not waiters)
            if refusal is not None:
                return topic, refusal
            if topic.pending_fence is None and waiters:
                topic, effects = _without_waiters(topic, waiters, now)
                topic, more = start_fence(
                    topic, Purpose.GRANT, group.partitions, group, TransitionCause.TAKEN_OVER
                )
                return topic, effects + more
        case AccessMode.SHARED:
            raise ImpossibleStep("a Shared producer never competes for exclusive access")
        case _:
            assert_never(group.mode)
    if topic.pending_fence is not None:
        return defer(topic, group, request)
    return start_fence(topic, Purpose.GRANT, group.partitions, group, TransitionCause.TAKEN_OVER)


def _wait_for_former_holder(topic: Topic, group: ProducerGroup, request: Request) -> Step:
    """Keep an Exclusive request while the former holder may resume. A partitioned producer must retry as a whole."""
    if group.is_partitioned:
        text = "the topic is reserved for its former holder"
        return topic, tuple(not_ready(m.registration, text) for m in group.members)
    return defer(topic, group, request)


def _without_waiters(topic: Topic, waiters: list[ProducerGroup], now: float) -> Step:
    """Remove waiters that a takeover passes, and reject them, also their requests that have not arrived yet."""
    code, text = ServerError.PRODUCER_FENCED, "Fenced out"
    groups = {waiter.group_id for waiter in waiters}
    topic = replace(topic, queue=tuple(w for w in topic.queue if w.group_id not in groups))
    for waiter in waiters:
        topic = with_refused_group(topic, waiter, code, text, now)
    return topic, tuple(e for waiter in waiters for e in reject_all(waiter, text, code))


def _takeover_refusal(
    topic: Topic, group: ProducerGroup, request: Request, *, is_free: bool
) -> tuple[Effect, ...] | None:
    """The rejection of an ExclusiveWithFencing request; None if it may take the topic over."""
    partitions = [
        partition for partition in topic.partitions if partition.number in group.partitions
    ]
    epoch = max(partition.epoch for partition in partitions)
    if request.if_epoch is not None and request.if_epoch != epoch:
        text = f"the topic epoch is {epoch}, not {request.if_epoch}"
        return reject_all(group, text)
    if is_free:
        return None
    if not request.may_take_over:
        text = "no claim of this client permits a takeover of the topic"
        return reject_all(group, text, ServerError.AUTHORIZATION_ERROR)
    was_deposed = any(group.identity in partition.deposed for partition in partitions)
    if was_deposed and request.if_epoch is None:
        text = f"this client was deposed; its takeover must name the current topic epoch, {epoch}"
        return reject_all(group, text)
    return None


def _queued(topic: Topic, group: ProducerGroup) -> Step:
    if len(topic.queue) >= WAITERS_MAX:
        text = f"the topic already has {WAITERS_MAX} waiting producers, which is the limit"
        return topic, reject_all(group, text, ServerError.PRODUCER_BUSY)
    waits = tuple(Queue(m.registration, group.producer_name) for m in group.members)
    topic = replace(topic, queue=(*topic.queue, group))
    return topic, waits + probes(topic, group.partitions)


def share_requested(topic: Topic, partition: Partition, request: Request) -> Step:
    """Admit a Shared producer if no exclusive producer holds the partition, is being granted it or waits."""
    owner = exclusive_owner(topic, (partition.number,))
    if owner is not None:
        text = f"Topic has an existing exclusive producer: {owner}"
        return topic, (reject_busy(request, text), *probes(topic, (partition.number,)))
    if any(partition.number in waiter.partitions for waiter in topic.queue):
        return topic, (reject_busy(request, "Topic has waiting exclusive producers"),)
    pending = topic.pending_fence
    is_fence_for_sharing = (
        pending is not None
        and pending.purpose is Purpose.SHARE
        and partition.number in pending.partitions
    )
    present = partition.ownership.producers if isinstance(partition.ownership, Shared) else ()
    coming = pending.newcomers if pending is not None and is_fence_for_sharing else ()
    producer = SharedProducer(
        request.registration, request.producer_name, request.identity, request.reconnects
    )
    effects: tuple[Effect, ...] = ()
    for other in (*present, *coming):
        if other.producer_name != producer.producer_name:
            continue
        if other.identity != producer.identity or other.reconnects >= producer.reconnects:
            text = f"Producer with name '{producer.producer_name}' is already connected to topic"
            return topic, (reject_busy(request, text), Probe(other.registration))
        if other in present:
            effects = (Close(other.registration, TransitionCause.CONNECTION_LOST),)
        else:
            effects = (reject_replaced(other.registration),)
        present = tuple(p for p in present if p != other)
        coming = tuple(p for p in coming if p != other)
    if pending is not None and is_fence_for_sharing:
        pending = replace(pending, newcomers=(*coming, producer))
        return with_pending(topic, pending), effects
    if is_ownership_ending(topic, partition):
        return defer(topic, None, request)
    if partition.is_open and isinstance(partition.ownership, Shared | Vacant):
        tenure = partition.ownership.tenure if isinstance(partition.ownership, Vacant) else None
        if tenure is None and not partition.serve_seconds:
            topic = with_partition(
                topic, replace(partition, ownership=Shared((*present, producer)))
            )
            return topic, (*effects, grant_shared(partition, producer))
    if topic.pending_fence is not None:
        return defer(topic, None, request)
    # A Shared producer ends the right of the last exclusive holder to resume, which takes a fence. It also
    # waits for a holder that an administrator fenced and that may still serve.
    return start_fence(topic, Purpose.SHARE, (partition.number,), newcomers=(producer,))


def defer(topic: Topic, group: ProducerGroup | None, request: Request) -> Step:
    """Keep a request until the pending fence or the reservation is decided.

    It replaces a deferred request of an older connection of the same producer.
    """
    members = () if group is None else group.members
    former = [other for other in topic.deferred if _is_outdated(other, request)]
    effects: tuple[Effect, ...] = tuple(reject_replaced(other.registration) for other in former)
    deferred = tuple(other for other in topic.deferred if other not in former)
    topic = replace(topic, deferred=deferred)
    if len(deferred) >= DEFERRED_MAX or len(members) > 1:
        registrations = [m.registration for m in members] or [request.registration]
        text = "the holder of the topic is changing"
        return topic, effects + tuple(not_ready(r, text) for r in registrations)
    return replace(topic, deferred=(*deferred, request)), effects


def _is_outdated(older: Request, newer: Request) -> bool:
    """Whether both requests are of one producer, and ``newer`` is of its later connection."""
    return (
        (older.producer_name, older.identity, older.partition)
        == (newer.producer_name, newer.identity, newer.partition)
        and (older.mode is AccessMode.SHARED) == (newer.mode is AccessMode.SHARED)
        and older.reconnects < newer.reconnects
    )
