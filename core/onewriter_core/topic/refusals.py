"""Partitioned producers that were rejected before all their requests arrived.

A client asks for its partitions one by one, and the machine decides for all of them at once. Requests that arrive
after a rejection get the same rejection, each once. They do not wait for a partition 0 that has its answer.
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
"""The rejection of a group answers its remaining requests for this time."""


def with_refused_group(
    topic: Topic, group: ProducerGroup, code: ServerError, text: str, now: float
) -> Topic:
    """The topic that remembers a rejected group, if some of its requests have not arrived."""
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
    """Reject a request as its group was rejected; None: the group was not rejected recently."""
    for group in topic.refused_groups:
        if _is_of(group, request) and partition.number in group.missing:
            missing = tuple(number for number in group.missing if number != partition.number)
            others = tuple(other for other in topic.refused_groups if other != group)
            kept = (*others, replace(group, missing=missing)) if missing else others
            reject = Reject(request.registration, group.code, group.text)
            return replace(topic, refused_groups=kept), (reject,)
    return None


def without_refusals_of(topic: Topic, request: Request) -> Topic:
    """Forget earlier rejections: a new attempt of the group begins."""
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
