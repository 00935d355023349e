"""Partitioned producers that were refused before all their requests had come: the rest follows.

A client asks for its partitions one by one, and what becomes of them is decided for all. The
requests that come after the refusal are answered with it, each once, instead of being held back
for a partition 0 that has had its answer.
"""

from __future__ import annotations

from dataclasses import replace

from onewriter_core.errors import ServerError
from onewriter_core.topic.effects import Reject, Step
from onewriter_core.topic.model import (
    REFUSED_GROUPS_MAX,
    Partition,
    ProducerGroup,
    RefusedGroup,
    Request,
    Topic,
)

REFUSAL_SECONDS = 2.0
"""How long the refusal of a group stands for those of its requests that have not come yet."""


def with_refused_group(
    topic: Topic, group: ProducerGroup, code: ServerError, text: str, now: float
) -> Topic:
    """The topic that remembers a refused group, if some of its requests are still to come."""
    missing = tuple(number for number in group.partitions if not group.has_member(number))
    if not missing:
        return topic
    refused = RefusedGroup(
        group.connection,
        group.producer_name if group.name_given else "",
        group.identity,
        group.mode,
        missing,
        code,
        text,
        now + REFUSAL_SECONDS,
    )
    return replace(topic, refused_groups=(*topic.refused_groups, refused)[-REFUSED_GROUPS_MAX:])


def refused_with_its_group(topic: Topic, partition: Partition, request: Request) -> Step | None:
    """Answer a request as its group was; None: that was not refused, or long ago."""
    for group in topic.refused_groups:
        if _is_of(group, request) and partition.number in group.missing:
            missing = tuple(number for number in group.missing if number != partition.number)
            others = tuple(other for other in topic.refused_groups if other != group)
            kept = (*others, replace(group, missing=missing)) if missing else others
            reject = Reject(request.registration, group.code, group.text)
            return replace(topic, refused_groups=kept), (reject,)
    return None


def without_refusals_of(topic: Topic, request: Request) -> Topic:
    """A new attempt begins: the answer to the former one says nothing about it."""
    others = tuple(group for group in topic.refused_groups if not _is_of(group, request))
    return replace(topic, refused_groups=others)


def _is_of(group: RefusedGroup, request: Request) -> bool:
    name = request.producer_name if request.name_given else ""
    return (group.connection, group.producer_name, group.identity, group.mode) == (
        request.connection,
        name,
        request.identity,
        request.mode,
    )
