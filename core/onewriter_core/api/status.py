"""What Kubernetes shows of a topic and of a claim: ``status``, written by the operator alone.

The conventions are Kubernetes' own: conditions by type, ``observedGeneration``, no phase. Nothing
here moves fast: an idle topic is never written. ``epoch`` never falls.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from onewriter_core.api.common import ApiModel, ListOf

PARTITIONS_SHOWN_MAX: Final = 64
"""Partitions whose epoch and holder are listed; the others are counted."""

TRANSITIONS_SHOWN_MAX: Final = 10
"""Changes of hands that are listed, newest first."""

PRODUCERS_SHOWN_MAX: Final = 100
"""Producers of a claim that are listed, the writer first, then in the order of the queue."""

FENCED_PODS_SHOWN_MAX: Final = 32
"""Pods of writers fenced as stale that are listed, newest first."""

Number = Annotated[int, Field(ge=0, json_schema_extra={"format": "int64"})]
Time = Annotated[str, Field(max_length=64, json_schema_extra={"format": "date-time"})]
Text = Annotated[str, Field(max_length=1024)]
Word = Annotated[str, Field(max_length=253)]


class Condition(ApiModel):
    """One aspect of an object's state, as in every Kubernetes API (metav1.Condition)."""

    type: Annotated[str, Field(min_length=1, max_length=316)]
    """What it is about."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    observed_generation: Number
    """The generation of the object that it was judged by."""
    last_transition_time: Time
    """When the status last changed."""
    reason: Annotated[str, Field(min_length=1, max_length=1024, pattern="^[A-Za-z][A-Za-z0-9]*$")]
    """Why, in one word."""
    message: Annotated[str, Field(max_length=32768)]
    """Why, in words for a person."""


Conditions = Annotated[
    ListOf[Condition],
    Field(
        max_length=16,
        json_schema_extra={
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
        },
    ),
]


class Holder(ApiModel):
    """Who writes."""

    producer_name: Text
    """The producer's name."""
    claim: Word | None = None
    """The ProducerClaim that admitted it."""
    pod: Word | None = None
    """Its pod, where it authenticated as one."""
    pod_uid: Annotated[Word | None, Field(alias="podUID")] = None
    """The pod's uid: a pod of the same name that is made later is another writer."""
    node: Word | None = None
    """The node of the pod."""
    address: Word | None = None
    """Where its connection comes from."""
    since: Time | None = None
    """When it was granted the topic."""


class PartitionStatus(ApiModel):
    """One partition's epoch."""

    partition: Annotated[int, Field(ge=0, le=1023)]
    """Its number."""
    epoch: Number
    """Its topic epoch."""
    producer_name: Text | None = None
    """Who writes it."""


class Transition(ApiModel):
    """A change of hands."""

    epoch: Number
    """The topic epoch that it led to."""
    cause: Word
    """Why the writer before it no longer writes."""
    at: Time
    """When."""
    producer_name: Text | None = None
    """Who writes since; none: nobody."""
    pod: Word | None = None
    """The pod that writes since."""
    leaderless_ms: Number | None = None
    """How long nobody could write, in milliseconds; left out where it is not known."""


class FencedPod(ApiModel):
    """The pod of a writer that was fenced as stale, and what became of it."""

    pod_uid: Annotated[Word, Field(alias="podUID")]
    """The pod's uid: it, and no pod of the same name, is meant."""
    pod: Word | None = None
    """The pod."""
    claim: Word | None = None
    """The ProducerClaim that had admitted it."""
    epoch: Number
    """The topic epoch that it wrote under, and that was ended."""
    cause: Word
    """Why it was fenced."""
    at: Time
    """When it was fenced."""
    outcome: Literal[
        "Pending",
        "BlockedByPDB",
        "EvictionFailed",
        "Evicted",
        "PodGone",
        "CameBack",
        "NotRequested",
    ]
    """Pending, BlockedByPDB, EvictionFailed: still to be removed. Evicted: removed by the operator.
    PodGone: it went by itself. CameBack: it registered again, and stays. NotRequested:
    spec.fencing.podPolicy is None, or it is no pod that can be named."""
    since: Time
    """When that was found."""
    message: Text | None = None
    """Why, where the outcome does not say all."""


class ExclusiveTopicStatus(ApiModel):
    """Who writes, since when, and whether all is well."""

    observed_generation: Annotated[int, Field(ge=-1, json_schema_extra={"format": "int64"})] = -1
    """The generation that this status speaks of; -1: nobody has looked yet."""
    topic: Text | None = None
    """The Pulsar topic that the object stands for."""
    epoch: Number | None = None
    """The newest topic epoch of any partition; it never falls."""
    holder: Holder | None = None
    """Who writes; none: nobody."""
    waiting: Number | None = None
    """Producers in the queue."""
    partitions: Annotated[
        ListOf[PartitionStatus],
        Field(
            max_length=PARTITIONS_SHOWN_MAX,
            json_schema_extra={
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["partition"],
            },
        ),
    ] = ()
    """Epoch and writer by partition; the first 64."""
    durability: Word | None = None
    """What an acknowledgement promises at present."""
    transitions: Annotated[
        ListOf[Transition],
        Field(
            max_length=TRANSITIONS_SHOWN_MAX,
            json_schema_extra={"x-kubernetes-list-type": "atomic"},
        ),
    ] = ()
    """The last changes of hands, newest first."""
    fenced_pods: Annotated[
        ListOf[FencedPod],
        Field(
            max_length=FENCED_PODS_SHOWN_MAX,
            json_schema_extra={"x-kubernetes-list-type": "atomic"},
        ),
    ] = ()
    """Pods of writers that were fenced as stale, newest first; the operator goes on from here."""
    conditions: Conditions = ()
    """Ready sums up Serving, WriterActive, PolicyApplied, Conflict and Drifted."""


class ClaimedProducer(ApiModel):
    """A producer that was admitted under the claim."""

    producer_name: Text
    """Its name."""
    state: Literal["Granted", "Waiting", "Fenced"]
    """Whether it writes, waits, or lost its turn."""
    pod: Word | None = None
    """Its pod."""
    pod_uid: Annotated[Word | None, Field(alias="podUID")] = None
    """The pod's uid."""
    epoch: Number | None = None
    """The epoch that it writes, or wrote, under."""
    queue_position: Number | None = None
    """Its place in the queue; 1 is next."""
    priority: int | None = None
    """The queue priority in effect."""


class ProducerClaimStatus(ApiModel):
    """Who uses the claim."""

    observed_generation: Annotated[int, Field(ge=-1, json_schema_extra={"format": "int64"})] = -1
    """The generation that this status speaks of; -1: nobody has looked yet."""
    topic: Text | None = None
    """The Pulsar topic that the claim is for."""
    epoch: Number | None = None
    """The newest epoch granted under the claim."""
    pod: Word | None = None
    """The pod that writes under it."""
    producers: Annotated[
        ListOf[ClaimedProducer],
        Field(
            max_length=PRODUCERS_SHOWN_MAX,
            json_schema_extra={"x-kubernetes-list-type": "atomic"},
        ),
    ] = ()
    """Its producers, the writer first, then in the order of the queue; the first 100."""
    producers_omitted: Number | None = None
    """Producers beyond those."""
    conditions: Conditions = ()
    """Ready sums up Granted and FencedPodEvicted."""
