"""``status`` of a topic and of a claim in Kubernetes. Only the operator writes it.

It follows the conventions of Kubernetes: conditions by type, ``observedGeneration``, no phase. The
operator writes changes only, so it never writes the status of an idle topic. ``epoch`` never
decreases.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from onewriter_core.api.common import ApiModel, ListOf

PARTITIONS_SHOWN_MAX: Final = 64
"""Partitions whose epoch and holder are listed; the others are counted."""

TRANSITIONS_SHOWN_MAX: Final = 10
"""Transitions that are listed, newest first."""

PRODUCERS_SHOWN_MAX: Final = 100
"""Producers of a claim that are listed: the holder first, then in the order of the queue."""

FENCED_PODS_SHOWN_MAX: Final = 32
"""Pods of producers fenced as stale that are listed, newest first."""

Number = Annotated[int, Field(ge=0, json_schema_extra={"format": "int64"})]
Time = Annotated[str, Field(max_length=64, json_schema_extra={"format": "date-time"})]
Text = Annotated[str, Field(max_length=1024)]
Word = Annotated[str, Field(max_length=253)]


class Condition(ApiModel):
    """One aspect of the state of an object, as in other Kubernetes APIs (metav1.Condition)."""

    type: Annotated[str, Field(min_length=1, max_length=316)]
    """The type of the condition."""
    status: Literal["True", "False", "Unknown"]
    """Whether the condition is true."""
    observed_generation: Number
    """The generation of the object to which the condition applies."""
    last_transition_time: Time
    """When the status last changed."""
    reason: Annotated[str, Field(min_length=1, max_length=1024, pattern="^[A-Za-z][A-Za-z0-9]*$")]
    """The reason, as one word."""
    message: Annotated[str, Field(max_length=32768)]
    """The reason, as a sentence."""


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
    """The producer that holds the topic."""

    producer_name: Text
    """The producer's name."""
    claim: Word | None = None
    """The ProducerClaim that admitted the producer."""
    pod: Word | None = None
    """The pod of the producer, if it authenticated as a pod."""
    pod_uid: Annotated[Word | None, Field(alias="podUID")] = None
    """The uid of the pod. It distinguishes the pod from a later pod of the same name."""
    node: Word | None = None
    """The node of the pod."""
    address: Word | None = None
    """Network address of the producer."""
    since: Time | None = None
    """When the producer was granted the topic."""


class PartitionStatus(ApiModel):
    """Epoch and producer of one partition."""

    partition: Annotated[int, Field(ge=0, le=1023)]
    """Number of the partition."""
    epoch: Number
    """Topic epoch of the partition."""
    producer_name: Text | None = None
    """Name of the producer that holds the partition."""


class Transition(ApiModel):
    """One change of the holder."""

    epoch: Number
    """The new topic epoch."""
    cause: Word
    """Why the previous holder lost the topic."""
    at: Time
    """Time of the transition."""
    producer_name: Text | None = None
    """Producer that has held the topic since then. Unset if none."""
    pod: Word | None = None
    """Pod of that producer."""
    leaderless_ms: Number | None = None
    """How long no producer could write, in milliseconds. Unset if unknown."""


class FencedPod(ApiModel):
    """The pod of a producer that was fenced as stale, and what happened to it."""

    pod_uid: Annotated[Word, Field(alias="podUID")]
    """The uid of the pod."""
    pod: Word | None = None
    """The name of the pod."""
    claim: Word | None = None
    """The ProducerClaim that had admitted the producer."""
    epoch: Number
    """The topic epoch of the producer, which ended."""
    cause: Word
    """Why the producer was fenced."""
    at: Time
    """When the producer was fenced."""
    outcome: Literal[
        "Pending",
        "BlockedByPDB",
        "EvictionFailed",
        "Evicted",
        "PodGone",
        "CameBack",
        "NotRequested",
    ]
    """Pending, BlockedByPDB, EvictionFailed: the pod still has to be removed. Evicted: the operator
    removed it. PodGone: it ended without the operator. CameBack: its producer registered again, so
    the pod stays. NotRequested: spec.fencing.podPolicy is None, or the pod is unknown."""
    since: Time
    """When the outcome was determined."""
    message: Text | None = None
    """Details of the outcome."""


class ExclusiveTopicStatus(ApiModel):
    """Observed state of the topic: holder, queue, transitions, conditions."""

    observed_generation: Annotated[int, Field(ge=-1, json_schema_extra={"format": "int64"})] = -1
    """The generation of the object that this status describes. -1: the operator has not processed
    the object yet."""
    topic: Text | None = None
    """The Pulsar topic of the object."""
    epoch: Number | None = None
    """The newest topic epoch of all partitions. Never decreases."""
    holder: Holder | None = None
    """The producer that holds the topic. Unset if none."""
    waiting: Number | None = None
    """Number of producers in the queue."""
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
    """Epoch and producer of the first 64 partitions."""
    durability: Word | None = None
    """What an acknowledgement guarantees at present."""
    transitions: Annotated[
        ListOf[Transition],
        Field(
            max_length=TRANSITIONS_SHOWN_MAX,
            json_schema_extra={"x-kubernetes-list-type": "atomic"},
        ),
    ] = ()
    """The last transitions, newest first."""
    fenced_pods: Annotated[
        ListOf[FencedPod],
        Field(
            max_length=FENCED_PODS_SHOWN_MAX,
            json_schema_extra={"x-kubernetes-list-type": "atomic"},
        ),
    ] = ()
    """Pods of producers that were fenced as stale, newest first. The operator continues with this
    list after a restart."""
    conditions: Conditions = ()
    """Conditions. Ready summarizes Serving, WriterActive, PolicyApplied, Conflict and Drifted."""


class ClaimedProducer(ApiModel):
    """A producer that was admitted under the claim."""

    producer_name: Text
    """Name of the producer."""
    state: Literal["Granted", "Waiting", "Fenced"]
    """Granted: holds the topic. Waiting: is in the queue. Fenced: lost the topic."""
    pod: Word | None = None
    """Pod of the producer."""
    pod_uid: Annotated[Word | None, Field(alias="podUID")] = None
    """The uid of the pod."""
    epoch: Number | None = None
    """The epoch that the producer was granted."""
    queue_position: Number | None = None
    """Position in the queue. 1 is next."""
    priority: int | None = None
    """Effective queue priority."""


class ProducerClaimStatus(ApiModel):
    """Observed state of the claim: its producers and conditions."""

    observed_generation: Annotated[int, Field(ge=-1, json_schema_extra={"format": "int64"})] = -1
    """The generation of the object that this status describes. -1: the operator has not processed
    the object yet."""
    topic: Text | None = None
    """The Pulsar topic that the claim is for."""
    epoch: Number | None = None
    """The newest epoch that was granted under the claim."""
    pod: Word | None = None
    """The pod that holds the topic under the claim."""
    producers: Annotated[
        ListOf[ClaimedProducer],
        Field(
            max_length=PRODUCERS_SHOWN_MAX,
            json_schema_extra={"x-kubernetes-list-type": "atomic"},
        ),
    ] = ()
    """The first 100 producers under the claim: the holder first, then in the order of the queue."""
    producers_omitted: Number | None = None
    """Number of producers that are not listed."""
    conditions: Conditions = ()
    """Conditions. Ready summarizes Granted and FencedPodEvicted."""
