"""``ExclusiveTopic``: a topic that has one writer at a time, and how it is to be kept."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from onewriter_core.api.common import (
    API_VERSION,
    DECLARED_TOPIC,
    DNS_LABEL,
    SERVICE_NAME,
    AccessModeWord,
    ApiModel,
    ListOf,
    Resource,
    WordOf,
)
from onewriter_core.ids import NUMBER_MAX, PARTITION_SUFFIX, TOPIC_NAME_LENGTH_MAX, TopicName
from onewriter_core.topic.model import AccessMode

PARTITIONS_MAX = 1024
"""Partitions of one topic: all of them live in one bucket and are fenced by one script call."""

DECLARED_TOPIC_LENGTH_MAX = TOPIC_NAME_LENGTH_MAX - len(f"{PARTITION_SUFFIX}{PARTITIONS_MAX - 1}")
"""Bytes of a declared topic's name, such that its partitions' names fit as well."""

DAY_SECONDS = 86_400
RETENTION_AGE_SECONDS_MAX = 100 * 366 * DAY_SECONDS

Port = Annotated[int, Field(ge=1, le=65_535)]


class PromotionPolicy(StrEnum):
    """In which order waiters are promoted."""

    FIFO = "Fifo"
    PRIORITY = "Priority"
    BALANCED = "Balanced"


class Durability(StrEnum):
    """What an acknowledgement promises: nothing, a disk, one replica, every replica."""

    NONE = "None"
    LOCAL = "Local"
    REPLICATED = "Replicated"
    ALL_REPLICAS = "AllReplicas"


class PodPolicy(StrEnum):
    """What becomes of the pod of a writer that was fenced as stale."""

    EVICT = "Evict"
    DELETE = "Delete"
    NONE = "None"


class DeletionPolicy(StrEnum):
    """What becomes of the log when the ExclusiveTopic is deleted. Epochs survive in any case."""

    RETAIN = "Retain"
    DELETE_IF_EMPTY = "DeleteIfEmpty"
    DELETE = "Delete"


class Access(ApiModel):
    """Who may write, and how.

    With ``require_claim``, the default, a producer needs a matching ProducerClaim.
    """

    modes: Annotated[ListOf[AccessModeWord], Field(min_length=1, max_length=4)] = (
        AccessMode.EXCLUSIVE,
        AccessMode.WAIT_FOR_EXCLUSIVE,
        AccessMode.EXCLUSIVE_WITH_FENCING,
    )
    require_claim: bool = True

    @field_validator("modes")
    @classmethod
    def _no_mode_twice(cls, modes: tuple[AccessMode, ...]) -> tuple[AccessMode, ...]:
        # In the CRD: x-kubernetes-list-type: set.
        if len(set(modes)) != len(modes):
            raise ValueError("must not name a mode twice")
        return modes


class Promotion(ApiModel):
    """How the next writer is chosen. A holder is never deposed by a waiter's higher priority."""

    policy: WordOf[PromotionPolicy] = PromotionPolicy.PRIORITY


class Detection(ApiModel):
    """When a connected holder counts as silent.

    It is pinged every ``ping_interval_seconds``. ``progress_deadline_seconds`` also bounds how long
    it may go without publishing; 0 switches that off.
    """

    ping_interval_seconds: Annotated[float, Field(ge=0.1, le=60)] = 1
    ping_failures: Annotated[int, Field(ge=1, le=100)] = 3
    progress_deadline_seconds: Annotated[float, Field(ge=0, le=DAY_SECONDS)] = 0

    @property
    def silence_seconds(self) -> float:
        """Silent means: no inbound byte for this long, although pinged at every interval.

        Half an interval short of the last ping, so that the defaults (2.5 s) leave room for the
        takeover within 3 s.
        """
        return (self.ping_failures - 0.5) * self.ping_interval_seconds


class Handover(ApiModel):
    """How long a planned handover may wait for the holder to finish what it has in flight."""

    timeout_seconds: Annotated[float, Field(ge=0.1, le=600)] = 5


class Retention(ApiModel):
    """How much of the log is kept; without bounds, everything.

    What exceeds any one bound goes, oldest first. With ``keep_unacknowledged`` nothing goes that a
    durable subscription has not acknowledged, whatever the bounds say. Entries and bytes are
    counted per partition, as producers sent them (a batch is one entry).
    """

    max_age_seconds: Annotated[int, Field(ge=1, le=RETENTION_AGE_SECONDS_MAX)] | None = None
    max_bytes: Annotated[int, Field(ge=1, le=NUMBER_MAX)] | None = None
    max_entries: Annotated[int, Field(ge=1, le=NUMBER_MAX)] | None = None
    keep_unacknowledged: bool = True


class Compaction(ApiModel):
    """Whether the latest message of each key is kept in a compacted view; off unless asked for."""

    enabled: bool = False


class Fencing(ApiModel):
    """What happens to the pod of a writer fenced as stale; means nothing outside Kubernetes."""

    pod_policy: WordOf[PodPolicy] = PodPolicy.EVICT
    min_interval_seconds: Annotated[float, Field(ge=0, le=DAY_SECONDS)] = 30


class ServicePort(ApiModel):
    """One port of the leader's Service, as in a Kubernetes Service."""

    name: Annotated[str, Field(pattern=DNS_LABEL, max_length=63)] | None = None
    port: Port
    target_port: Port | None = None
    protocol: Literal["TCP", "UDP", "SCTP"] = "TCP"


class LeaderService(ApiModel):
    """A Service whose only endpoint is the holder's pod; means nothing outside Kubernetes."""

    name: Annotated[str, Field(pattern=SERVICE_NAME, max_length=63)]
    ports: Annotated[ListOf[ServicePort], Field(min_length=1, max_length=32)]

    @model_validator(mode="after")
    def _ports_are_told_apart(self) -> Self:
        # In CEL: self.ports.size() == 1 || self.ports.all(p, has(p.name) &&
        #         self.ports.exists_one(q, has(q.name) && q.name == p.name))
        names = [port.name for port in self.ports]
        if len(names) > 1 and (None in names or len(set(names)) != len(names)):
            raise ValueError("several ports need a name each, and no name twice")
        return self


class ExclusiveTopicSpec(ApiModel):
    """What is wanted of the topic; every field has a default.

    ``topic`` cannot change once the object exists. ``partitions`` 0 means a topic without
    partitions; it may grow, never shrink.
    """

    topic: Annotated[str, Field(pattern=DECLARED_TOPIC, max_length=DECLARED_TOPIC_LENGTH_MAX)] | None = None  # fmt: skip
    partitions: Annotated[int, Field(ge=0, le=PARTITIONS_MAX)] = 0
    access: Access = Access()
    promotion: Promotion = Promotion()
    detection: Detection = Detection()
    handover: Handover = Handover()
    durability: WordOf[Durability] = Durability.LOCAL
    retention: Retention = Retention()
    compaction: Compaction = Compaction()
    fencing: Fencing = Fencing()
    leader_service: LeaderService | None = None
    deletion_policy: WordOf[DeletionPolicy] = DeletionPolicy.RETAIN

    @field_validator("topic")
    @classmethod
    def _names_a_whole_topic(cls, topic: str | None) -> str | None:
        # In CEL: !self.matches('-partition-(0|[1-9][0-9]{0,4})$') and a bound on size(bytes(self)).
        if topic is not None:
            _whole_topic(topic)
        return topic


class ExclusiveTopic(Resource):
    """A topic that has one writer at a time."""

    api_version: Literal["onewriter.dev/v1alpha1"] = API_VERSION
    kind: Literal["ExclusiveTopic"] = "ExclusiveTopic"
    spec: ExclusiveTopicSpec = ExclusiveTopicSpec()

    @property
    def topic_name(self) -> TopicName:
        """The Pulsar topic, without a partition.

        ``spec.topic``, or else ``persistent://NAMESPACE/default/NAME`` after the object's own
        namespace and name. Kubernetes' namespace ``default`` stands for Pulsar's tenant
        ``public``, so that a plain manifest names a topic which plain clients use.
        """
        if self.spec.topic is not None:
            return TopicName.parse(self.spec.topic)
        namespace = self.metadata.namespace
        tenant = "public" if namespace == "default" else namespace
        return TopicName.parse(f"persistent://{tenant}/default/{self.metadata.name}")

    @model_validator(mode="after")
    def _default_name_is_a_whole_topic(self) -> Self:
        if self.spec.topic is None and self.topic_name.partition is not None:
            raise ValueError(
                "metadata.name ends like one partition of a topic: choose another, or set spec.topic"
            )
        return self


def _whole_topic(text: str) -> None:
    """Raise ValueError unless ``text`` names a topic, not one of its partitions."""
    if len(text.encode("utf-8", "surrogatepass")) > DECLARED_TOPIC_LENGTH_MAX:
        raise ValueError(f"must have at most {DECLARED_TOPIC_LENGTH_MAX} bytes")
    if TopicName.parse(text).partition is not None:
        raise ValueError("must name a topic, not one of its partitions (use spec.partitions)")
