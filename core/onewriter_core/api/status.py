"""The field ``status`` of a topic and of a claim in Kubernetes. Only the operator writes it.

The conventions are those of Kubernetes: conditions by type, ``observedGeneration``, no phase. The fields change rarely:
the status of an idle topic is never written. ``epoch`` never falls.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from onewriter_core.api.common import ApiModel, ListOf

PARTITIONS_SHOWN_MAX: Final = 64
"""The maximum number of partitions that are listed with epoch and holder. The others are counted."""

TRANSITIONS_SHOWN_MAX: Final = 10
"""The maximum number of transitions that are listed, newest first."""

PRODUCERS_SHOWN_MAX: Final = 100
"""The maximum number of a claim's producers that are listed: the writer first, then the queue in order."""

FENCED_PODS_SHOWN_MAX: Final = 32
"""The maximum number of fenced pods that are listed, newest first."""

SHARED_SHOWN_MAX = 10
"""The maximum number of Shared producers that are listed."""

Number = Annotated[int, Field(ge=0, json_schema_extra={"format": "int64"})]
Time = Annotated[str, Field(max_length=64, json_schema_extra={"format": "date-time"})]
Text = Annotated[str, Field(max_length=1024)]
Word = Annotated[str, Field(max_length=253)]


class Condition(ApiModel):
    """One aspect of an object's state, as in every Kubernetes API (metav1.Condition)."""

    type: Annotated[str, Field(min_length=1, max_length=316)]
    """Type of the condition."""
    status: Literal["True", "False", "Unknown"]
    """Status of the condition."""
    observed_generation: Number
    """The object's generation for which the condition was determined."""
    last_transition_time: Time
    """Time when the status last changed."""
    reason: Annotated[str, Field(min_length=1, max_length=1024, pattern="^[A-Za-z][A-Za-z0-9]*$")]
    """Reason, in one word."""
    message: Annotated[str, Field(max_length=32768)]
    """Message for users."""


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

    name: Text | None = None
    """Its pod, or the producer's name if it did not authenticate as a pod."""
    producer_name: Text
    """The producer's name."""
    claim: Word | None = None
    """The ProducerClaim that admitted it."""
    pod: Word | None = None
    """Its pod, if it authenticated as a pod."""
    pod_uid: Annotated[Word | None, Field(alias="podUID")] = None
    """The pod's uid: a later pod of the same name is another writer."""
    node: Word | None = None
    """The node of the pod."""
    address: Word | None = None
    """Remote address of its connection."""
    since: Time | None = None
    """Time when it was granted the topic."""


class PartitionStatus(ApiModel):
    """One partition's epoch."""

    partition: Annotated[int, Field(ge=0, le=1023)]
    """The partition's number."""
    epoch: Number
    """The partition's topic epoch."""
    producer_name: Text | None = None
    """The partition's writer."""


class Transition(ApiModel):
    """One change of the holder."""

    epoch: Number
    """The topic epoch after the change."""
    cause: Word
    """Why the former writer lost the topic."""
    at: Time
    """When."""
    producer_name: Text | None = None
    """Producer that has held the topic since then; unset if none."""
    pod: Word | None = None
    """Pod of that producer."""
    leaderless_ms: Number | None = None
    """Time without a writer, in milliseconds, from when the former writer left or was found dead; unset if unknown."""
    detection_ms: Number | None = None
    """Time from the former writer's last sign of life to the end of its right to write, in milliseconds; unset if unknown."""
    handover_ms: Number | None = None
    """Time from the end of that right to the grant, in milliseconds; unset if unknown."""
    outage_ms: Number | None = None
    """Time in which no producer could write, in milliseconds: detection and handover; unset if unknown."""
    first_message_ms: Number | None = None
    """Time from the grant to this producer's first message, in milliseconds; unset if none followed within a minute."""


class FencedPod(ApiModel):
    """The pod of a writer that was fenced as stale, with its outcome."""

    pod_uid: Annotated[Word, Field(alias="podUID")]
    """The pod's uid; another pod of the same name is not affected."""
    pod: Word | None = None
    """The pod."""
    claim: Word | None = None
    """The ProducerClaim that had admitted it."""
    epoch: Number
    """The topic epoch under which it wrote, and which the fence ended."""
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
    """Pending, BlockedByPDB, EvictionFailed: still to be removed. Evicted: removed by the operator. PodGone: it
    ended by itself. CameBack: it registered again and stays. NotRequested: spec.fencing.podPolicy is None, or
    the token names no pod."""
    since: Time
    """Time when the outcome was determined."""
    message: Text | None = None
    """Details of the outcome."""


class ExclusiveTopicStatus(ApiModel):
    """Observed state: the writer, since when it writes, and conditions."""

    observed_generation: Annotated[int, Field(ge=-1, json_schema_extra={"format": "int64"})] = -1
    """The generation that this status describes; -1: not reconciled yet."""
    topic: Text | None = None
    """The Pulsar topic of the object."""
    epoch: Number | None = None
    """The newest topic epoch of any partition; it never decreases."""
    holder: Holder | None = None
    """The present writer; unset if there is none."""
    shared_producers: Annotated[
        ListOf[Holder],
        Field(
            max_length=SHARED_SHOWN_MAX,
            json_schema_extra={"x-kubernetes-list-type": "atomic"},
        ),
    ] = ()
    """Shared producers, which write beside each other without an epoch of their own; the first 10."""
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
    """Epoch and writer of each partition; the first 64."""
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
    """Pods of writers that were fenced as stale, newest first; a new operator continues with this list."""
    conditions: Conditions = ()
    """Ready sums up Serving, WriterActive, PolicyApplied, Conflict and Drifted."""


class ClaimedProducer(ApiModel):
    """A producer that was admitted under the claim."""

    producer_name: Text
    """Its name."""
    state: Literal["Granted", "Waiting", "Fenced"]
    """Whether it writes, waits, or was fenced."""
    pod: Word | None = None
    """Its pod."""
    pod_uid: Annotated[Word | None, Field(alias="podUID")] = None
    """The pod's uid."""
    epoch: Number | None = None
    """The epoch under which it writes or wrote."""
    queue_position: Number | None = None
    """Its position in the queue; 1 is next."""
    priority: int | None = None
    """The queue priority in effect."""


class ProducerClaimStatus(ApiModel):
    """Observed state: the producers that use the claim."""

    observed_generation: Annotated[int, Field(ge=-1, json_schema_extra={"format": "int64"})] = -1
    """The generation that this status describes; -1: not reconciled yet."""
    topic: Text | None = None
    """The Pulsar topic of the claim."""
    epoch: Number | None = None
    """The newest epoch granted under the claim."""
    pod: Word | None = None
    """The pod that writes under the claim."""
    producers: Annotated[
        ListOf[ClaimedProducer],
        Field(
            max_length=PRODUCERS_SHOWN_MAX,
            json_schema_extra={"x-kubernetes-list-type": "atomic"},
        ),
    ] = ()
    """Its producers: the writer first, then the waiters in the order of the queue; the first 100."""
    producers_omitted: Number | None = None
    """Number of producers that are not listed."""
    conditions: Conditions = ()
    """Ready sums up Granted and FencedPodEvicted."""
