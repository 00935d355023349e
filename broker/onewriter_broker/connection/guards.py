"""Guards of producers: what their writes depend on, and a first check of it.

The store checks the guard with each append (append.lua). The checks in this module only report
early that a guard has ended or never existed. They grant no right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from onewriter_broker.log.store.api import Guard, GuardKind
from onewriter_broker.log.topic_log.guards import has_space, reserve_floor, too_many_floors
from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_broker.resources.ownerships import GenerationStatus, Ownerships, generation_status_in
from onewriter_broker.resources.records import decode as decode_record
from onewriter_broker.topic.epoch_checks import Prove, epoch_status_of, raise_floor
from onewriter_broker.topic.history.tenures import tenure_of
from onewriter_broker.topic.registry.stored_states import check_state
from onewriter_broker.topic.registry.topics import Topics
from onewriter_core.authorization import OwnedResource
from onewriter_core.errors import Fenced, Refused, ServerError, Unavailable
from onewriter_core.ids import TopicName, bucket_of, whole_number
from onewriter_core.own.floors import decode
from onewriter_core.own.names import canonical, own_field, resource_bucket, split_field, topic_of
from onewriter_core.property_names import (
    GUARD_GROUP_PROPERTY,
    GUARD_NUMBER_PROPERTY,
    GUARD_PROPERTY,
)
from onewriter_core.topic.model import WHOLE


@dataclass(frozen=True, slots=True)
class RequestedGuard:
    """A guard as a client names it: an epoch of a topic, or a generation of an ownership."""

    name: str
    number: int
    group: str | None = None


def requested_guard(properties: Mapping[str, str]) -> RequestedGuard | None:
    """The guard that a producer's properties name; None if there is none. Raises Refused."""
    name = properties.get(GUARD_PROPERTY)
    if name is None:
        if GUARD_NUMBER_PROPERTY in properties or GUARD_GROUP_PROPERTY in properties:
            raise Refused(
                ServerError.NOT_ALLOWED_ERROR, f"a guard needs the property {GUARD_PROPERTY}"
            )
        return None
    number = _number(properties.get(GUARD_NUMBER_PROPERTY, ""))
    return RequestedGuard(name, number, properties.get(GUARD_GROUP_PROPERTY))


def _number(text: str) -> int:
    number = whole_number(text)
    if not number:
        raise Refused(
            ServerError.NOT_ALLOWED_ERROR,
            f"{GUARD_NUMBER_PROPERTY} must be the epoch or the generation that the writes depend on",
        )
    return number


def guarding_topic(requested: RequestedGuard) -> TopicName | None:
    """The topic of a guard; None if the guard names a resource. Raises InvalidTopicName."""
    return TopicName.parse(requested.name) if requested.group is None else topic_of(requested.name)


def resolve(requested: RequestedGuard, target: TopicName, buckets: int) -> Guard:
    """The record in the store on which writes to ``target`` depend. Raises Refused,
    InvalidTopicName.
    """
    if requested.group is None:
        topic = TopicName.parse(requested.name)
        kind, name, bucket = GuardKind.EPOCH, str(topic), bucket_of(topic, buckets)
    else:
        resource = canonical(requested.name)
        kind, name = GuardKind.OWNERSHIP, own_field(requested.group, resource)
        bucket = resource_bucket(resource, buckets)
    if bucket != bucket_of(target, buckets):
        kind = GuardKind.FLOOR
    return Guard(kind, name, requested.number)


class Guards:
    """Checks guards for the topics that this broker serves. ``prove`` is the parameter of
    ``epoch_status_of``.
    """

    def __init__(self, topics: Topics, ownerships: Ownerships, prove: Prove, buckets: int) -> None:
        self._topics = topics
        self._prove = prove
        self._ownerships = ownerships
        self._buckets = buckets

    async def admit(
        self,
        requested: RequestedGuard,
        target: TopicLog,
        subject: str,
        require: Callable[[OwnedResource], object],
    ) -> Guard:
        """The guard of writes to ``target``, unless the broker knows that it has ended or never
        existed.

        ``subject`` is the client's subject, whose quota counts a floor that the target stores.
        ``require`` raises Refused if the client has no right to use a resource that is not a topic
        as a guard.

        Raises Fenced if the guard has ended, Refused if it never existed, and Unavailable or
        Undecided if the broker cannot decide now.
        """
        guard = resolve(requested, target.name, self._buckets)
        if guard.kind is GuardKind.FLOOR:
            guard_status = await self._elsewhere(requested, target)
        elif guard.kind is GuardKind.EPOCH:
            guard_status = await self._beside(TopicName.parse(guard.name))
        else:
            guard_status = await self._owned(requested)
        if guarding_topic(requested) is None:  # the caller has checked the right to a topic
            name = canonical(requested.name)
            require(OwnedResource(name, requested.group or "", guard_status.first_subject))
        if guard.kind is GuardKind.FLOOR:
            self._check_floor(guard, target)
            # a resource that has only a floor will get no number
            is_there = requested.group is None or guard_status.current > 0
            if is_there and 0 < guard_status.highest < guard.number:
                raise Unavailable(
                    f"{requested.name} has not reached {guard.number} at this broker yet; retry"
                )
        _judge(requested, guard_status)
        if guard.kind is GuardKind.FLOOR:
            await reserve_floor(target, guard, subject)
        return guard

    async def seal(self, guard: Guard, target: TopicLog) -> None:
        """Reject all writes of older numbers to ``target`` from now on. Raises as ``admit`` does.

        In the bucket of its guard, older numbers are rejected anyway. There, this only checks that
        the guard is current.
        """
        if guard.kind is GuardKind.FLOOR:
            self._check_floor(guard, target)
            await raise_floor(target, guard, self._prove)
            return
        if guard.kind is GuardKind.EPOCH:
            requested = RequestedGuard(guard.name, guard.number)
            guard_status = await self._beside(TopicName.parse(guard.name))
        else:
            group, resource = split_field(guard.name)
            requested = RequestedGuard(resource, guard.number, group)
            guard_status = await self._owned(requested)
            # The ownership's bucket is also the target's bucket: check that this broker still owns
            # it.
            await epoch_status_of(target, self._prove)
        _judge(requested, guard_status)

    async def _beside(self, name: TopicName) -> GenerationStatus:
        """The tenure and the highest epoch of a topic that this broker serves."""
        topic = self._topics.loaded.get(str(name.base))
        if topic is None or not topic.has(name):
            entry = await self._topics.entry_of(name)
            partition = WHOLE if name.partition is None else name.partition
            if entry is None or partition not in entry.log_numbers:
                return GenerationStatus(0, 0)
            topic = await self._topics.serve(name)
        epochs = await epoch_status_of(topic.runner.logs[topic.partition_of(name)], self._prove)
        return GenerationStatus(epochs.leads, epochs.epoch)

    async def _elsewhere(self, requested: RequestedGuard, target: TopicLog) -> GenerationStatus:
        """The tenure and the highest epoch of a topic that another broker may serve, read from the
        store.
        """
        if requested.group is not None:
            return await self._owned_elsewhere(requested, target)
        name = TopicName.parse(requested.name)
        state = await target.store.read_state(name)
        check_state(name, state, self._buckets)
        tenure = tenure_of(state)
        current = 0 if tenure is None else tenure.epoch
        return GenerationStatus(current, int(state.get("epoch", "0")))

    async def _owned(self, requested: RequestedGuard) -> GenerationStatus:
        """The standing of an ownership whose bucket this broker serves."""
        return await self._ownerships.generation_status(
            requested.group or "", canonical(requested.name)
        )

    async def _owned_elsewhere(
        self, requested: RequestedGuard, target: TopicLog
    ) -> GenerationStatus:
        resource = canonical(requested.name)
        bucket = resource_bucket(resource, self._buckets)
        records = await target.store.read_owned(bucket)
        record = records.get(own_field(requested.group or "", resource))
        if record is not None:
            return generation_status_in(
                decode_record(record, known_since=0, reserved_until=0.0).ownership
            )
        numbers = {name: each.generation for name, each in records.items()}
        return GenerationStatus(0, decode(numbers).of(requested.group or ""))

    def _check_floor(self, guard: Guard, target: TopicLog) -> None:
        floor = int(target.state.get(guard.floor_field, "0"))
        if floor > guard.number:
            raise _over(guard.name, guard.number, floor)
        floors_max = target.limits.floors_max
        if not has_space(target.state, guard, floors_max):
            raise too_many_floors(target.name, floors_max)


def _judge(requested: RequestedGuard, guard_status: GenerationStatus) -> None:
    """Raise Fenced or Refused unless the guard's number is the current one."""
    if guard_status.current == requested.number:
        return
    if guard_status.highest >= requested.number:
        raise _over(requested.name, requested.number, guard_status.highest)
    what = "led" if requested.group is None else "owned"
    raise Refused(
        ServerError.NOT_ALLOWED_ERROR,
        f"the guard {requested.name} was never {what} under {requested.number}",
    )


def _over(name: str, number: int, highest: int) -> Fenced:
    return Fenced(
        f"the guard {name} has a newer number than {number}. Current epoch: {highest}",
        epoch=number,
        current_epoch=highest,
    )
