"""A topic as its broker reports it (``GET /onewriter/v1/topics/...`` and the watch stream), parsed once.

The status of an ExclusiveTopic repeats parts of the report; ``kubernetes/objects.py`` parses them into the same types.
A broker of another release may report more fields or fewer: an unknown field is ignored, a missing one has its default,
and a transition without epoch, cause or time is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from onewriter_core.json_values import (
    mapping,
    mappings,
    number,
    optional_number,
    optional_seconds,
    text,
)


@dataclass(frozen=True, slots=True)
class ProducerView:
    """A producer that holds, shares or waits for a topic, or did. ``place`` is its queue position."""

    producer_name: str
    claim: str = ""
    pod: str = ""
    pod_uid: str = ""
    node: str = ""
    address: str = ""
    since: str = ""
    epoch: int | None = None
    place: int | None = None
    priority: int = 0
    waiting_seconds: float | None = None

    @property
    def has_pod(self) -> bool:
        """Whether it authenticated as a pod."""
        return bool(self.pod and self.pod_uid)


TIMES: Final = MappingProxyType(
    {
        "leaderless_ms": "leaderlessMs",
        "detection_ms": "detectionMs",
        "handover_ms": "handoverMs",
        "outage_ms": "outageMs",
        "first_message_ms": "firstMessageMs",
    }
)
"""The times of a transition by attribute. A broker of an earlier release reports the first one only."""


@dataclass(frozen=True, slots=True)
class PartitionView:
    """One partition, or the topic itself (``partition`` None). ``holder`` is a producer's name."""

    partition: int | None
    epoch: int
    ledger: int = 0
    holder: str = ""


@dataclass(frozen=True, slots=True)
class TransitionView:
    """One change of the holder. A time is None if it is unknown."""

    epoch: int
    cause: str
    at: str
    kind: str = "grant"
    leaderless_ms: int | None = None
    detection_ms: int | None = None
    handover_ms: int | None = None
    outage_ms: int | None = None
    first_message_ms: int | None = None
    holder: ProducerView | None = None
    previous: ProducerView | None = None

    def times(self) -> Iterable[tuple[str, int | None]]:
        """Its times by their names in the status."""
        return ((name, getattr(self, attribute)) for attribute, name in TIMES.items())


@dataclass(frozen=True, slots=True)
class LossView:
    """Entries of one log that the store lost (up to ``last``), or may have lost (up to ``ledger``)."""

    log: str
    after: str
    last: str = ""
    entries: int = 0
    ledger: int = 0


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic's state. ``declared_by`` None: the broker does not report it.

    ``*_omitted``: how many producers the broker leaves out of its lists.
    """

    state: str = ""
    epoch: int = 0
    broker: str = ""
    is_served: bool = True
    waiting_reason: str = ""
    durability: str = ""
    is_undivided: bool = False
    declared_by: str | None = None
    holder: ProducerView | None = None
    holders: tuple[ProducerView, ...] = ()
    shared_producers: tuple[ProducerView, ...] = ()
    waiters: tuple[ProducerView, ...] = ()
    waiting: int = 0
    holders_omitted: int = 0
    waiters_omitted: int = 0
    partitions: tuple[PartitionView, ...] = ()
    transitions: tuple[TransitionView, ...] = ()
    losses: tuple[LossView, ...] = ()
    at_risk: tuple[LossView, ...] = ()

    @property
    def producers(self) -> tuple[ProducerView, ...]:
        """The producers that hold, share or wait for the topic."""
        return (*self.holders, *self.waiters, *self.shared_producers)

    @property
    def ledger(self) -> int:
        """The highest ledger; it rises with every change of the holder."""
        return max((each.ledger for each in self.partitions), default=0)


def parse_view(status: object) -> TopicView:
    """A topic's status as its broker sent it. Raises TypeError if it is not a JSON object."""
    if not isinstance(status, dict):
        raise TypeError(f"a topic's status must be a JSON object, not {type(status).__name__}")
    return TopicView(
        state=text(status.get("state")),
        epoch=number(status.get("epoch")),
        broker=text(status.get("broker")),
        is_served=bool(status.get("served", True)),
        waiting_reason=text(status.get("waitingReason")),
        durability=text(status.get("durability")),
        is_undivided=bool(status.get("undivided")),
        declared_by=text(status["declaredBy"]) if "declaredBy" in status else None,
        holder=parse_producer(status.get("holder")),
        holders=_producers(status.get("holders")),
        shared_producers=_producers(status.get("sharedProducers")),
        waiters=_producers(status.get("waiters")),
        waiting=number(status.get("waiting")),
        holders_omitted=number(status.get("holdersOmitted")),
        waiters_omitted=number(status.get("waitersOmitted")),
        partitions=tuple(
            PartitionView(
                optional_number(each.get("partition")),
                number(each.get("epoch")),
                number(each.get("ledger")),
                text(each.get("holder")),
            )
            for each in mappings(status.get("slots"))
        ),
        transitions=tuple(
            TransitionView(
                number(each.get("epoch")),
                text(each.get("cause")),
                text(each.get("at")),
                text(each.get("kind")) or "grant",
                holder=parse_producer(each.get("holder")),
                previous=parse_producer(each.get("previous")),
                **parse_times(each),
            )
            for each in mappings(status.get("transitions"))
            if each.get("epoch") is not None and each.get("cause") and each.get("at")
        ),
        losses=_losses(status.get("losses")),
        at_risk=_losses(status.get("atRisk")),
    )


def parse_times(transition: Mapping[str, Any]) -> dict[str, int | None]:
    """The times of a transition, by the attributes of TransitionView."""
    return {attribute: optional_number(transition.get(name)) for attribute, name in TIMES.items()}


def _losses(found: object) -> tuple[LossView, ...]:
    return tuple(
        LossView(
            text(each.get("topic")),
            text(each.get("after")),
            text(each.get("last")),
            number(each.get("entries")),
            number(each.get("ledger")),
        )
        for each in mappings(found)
    )


def _producers(found: object) -> tuple[ProducerView, ...]:
    return tuple(each for each in map(parse_producer, mappings(found)) if each is not None)


def parse_producer(found: object) -> ProducerView | None:
    """A producer; None for null and any value without fields."""
    fields = mapping(found)
    if not fields:
        return None
    return ProducerView(
        producer_name=text(fields.get("producerName")),
        claim=text(fields.get("claim")),
        pod=text(fields.get("pod")),
        pod_uid=text(fields.get("podUID")),
        node=text(fields.get("node")),
        address=text(fields.get("address")),
        since=text(fields.get("since")),
        epoch=optional_number(fields.get("epoch")),
        place=optional_number(fields.get("place")),
        priority=number(fields.get("priority")),
        waiting_seconds=optional_seconds(fields.get("waitingSeconds")),
    )
