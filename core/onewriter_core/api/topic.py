"""``ExclusiveTopic``: a topic with one writer at a time, and its policies."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from onewriter_core.api.common import (
    API_VERSION,
    DECLARED_TOPIC,
    DNS_LABEL,
    IS_A_SET,
    PRINTABLE,
    SERVICE_NAME,
    AccessModeWord,
    ApiModel,
    ListOf,
    NamespaceName,
    Resource,
    WordOf,
    rule,
    rules,
)
from onewriter_core.ids import NUMBER_MAX, PARTITION_SUFFIX, TOPIC_NAME_LENGTH_MAX, TopicName
from onewriter_core.topic.model import AccessMode, PromotionPolicy

PARTITIONS_MAX = 1024
"""The maximum number of partitions. All of them are in one bucket, and one script call fences them."""

DECLARED_TOPIC_LENGTH_MAX = TOPIC_NAME_LENGTH_MAX - len(f"{PARTITION_SUFFIX}{PARTITIONS_MAX - 1}")
"""The maximum bytes of a declared topic's name, so that its partitions' names fit as well."""

CONSUMERS_MAX = 256
"""The maximum number of namespaces in a topic's consumers, and of subjects."""

DAY_SECONDS = 86_400
RETENTION_AGE_SECONDS_MAX = 100 * 366 * DAY_SECONDS

Port = Annotated[int, Field(ge=1, le=65_535)]


class Durability(StrEnum):
    """What an acknowledgement promises: nothing, a disk, one replica, every replica."""

    # Ordered from weak to strong.
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


class Consumers(ApiModel):
    """Who may read: everyone, or those that are named. Claims for the topic allow reading as well."""

    everyone: bool = False
    """Whether every client may read the topic."""
    namespaces: Annotated[
        ListOf[NamespaceName], Field(max_length=CONSUMERS_MAX, json_schema_extra=IS_A_SET)
    ] = ()
    """Kubernetes namespaces whose ServiceAccounts may read the topic."""
    subjects: Annotated[
        ListOf[Annotated[str, Field(pattern=PRINTABLE, max_length=253)]],
        Field(max_length=CONSUMERS_MAX, json_schema_extra=IS_A_SET),
    ] = ()
    """Token subjects that may read the topic; for a ServiceAccount: system:serviceaccount:NAMESPACE:NAME."""

    @field_validator("namespaces", "subjects")
    @classmethod
    def _no_duplicates(cls, named: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(named)) != len(named):
            raise ValueError("must not name one twice")
        return named


class Access(ApiModel):
    """Who may write, and how; who may read."""

    modes: Annotated[
        ListOf[AccessModeWord], Field(min_length=1, max_length=4, json_schema_extra=IS_A_SET)
    ] = (
        AccessMode.EXCLUSIVE,
        AccessMode.WAIT_FOR_EXCLUSIVE,
        AccessMode.EXCLUSIVE_WITH_FENCING,
    )
    """Allowed producer access modes, with Pulsar's names."""
    require_claim: bool = True
    """Whether a producer needs a ProducerClaim that matches it."""
    consumers: Consumers | None = None
    """Who may read. If unset, the installation's setting decides: by default the ServiceAccounts of the topic's
    namespace in Kubernetes, and every client on one machine."""

    @field_validator("modes")
    @classmethod
    def _no_mode_twice(cls, modes: tuple[AccessMode, ...]) -> tuple[AccessMode, ...]:
        if len(set(modes)) != len(modes):
            raise ValueError("must not name a mode twice")
        return modes


class Promotion(ApiModel):
    """How the next writer is chosen. A holder is never deposed by a waiter's higher priority."""

    policy: WordOf[PromotionPolicy] = PromotionPolicy.PRIORITY
    """Fifo: by arrival. Priority: highest priority first (PIP-440), then by arrival. Balanced: within the
    highest priority, the waiter whose node leads the fewest topics, then by arrival."""


class Detection(ApiModel):
    """When a connected holder counts as silent."""

    ping_interval_seconds: Annotated[float, Field(ge=0.1, le=60)] = 1
    """Interval of pings to the holder."""
    ping_failures: Annotated[int, Field(ge=1, le=100)] = 3
    """Number of consecutive pings without any byte from the holder after which it counts as silent."""
    progress_deadline_seconds: Annotated[float, Field(ge=0, le=DAY_SECONDS)] = 0
    """Longest time without a publish of the holder; 0: no limit."""

    @property
    def silence_seconds(self) -> float:
        """Silent means: no inbound byte for this long, although pinged at every interval.

        Half an interval short of the last ping, so that the defaults (2.5 s) leave room for the
        takeover within 3 s.
        """
        return (self.ping_failures - 0.5) * self.ping_interval_seconds


class Handover(ApiModel):
    """How a planned handover is done."""

    timeout_seconds: Annotated[float, Field(ge=0.1, le=600)] = 5
    """Longest time for the holder to complete its messages in flight."""


class Retention(ApiModel):
    """How much of the log is kept; without bounds, everything.

    What exceeds any one bound goes, oldest first. Entries and bytes are counted per partition, as
    producers sent them (a batch is one entry).
    """

    max_age_seconds: Annotated[int, Field(ge=1, le=RETENTION_AGE_SECONDS_MAX)] | None = None
    """Entries older than this are dropped."""
    max_bytes: Annotated[int, Field(ge=1, le=NUMBER_MAX)] | None = None
    """Number of bytes to keep."""
    max_entries: Annotated[int, Field(ge=1, le=NUMBER_MAX)] | None = None
    """Number of entries to keep."""
    keep_unacknowledged: bool = True
    """Whether entries that a durable subscription has not acknowledged stay, whatever the limits."""


class Compaction(ApiModel):
    """Whether the latest message of each key is kept in a compacted view."""

    enabled: bool = False
    """Whether the topic is compacted."""
    threshold_bytes: Annotated[int, Field(ge=1, le=NUMBER_MAX)] = 16 * 1024 * 1024
    """Bytes of new entries after which a log is compacted again; at least half of the view's own size."""


class FencingPolicy(ApiModel):
    """What happens to the pod of a writer fenced as stale; means nothing outside Kubernetes."""

    pod_policy: WordOf[PodPolicy] = PodPolicy.EVICT
    """Evict: evict the pod if its PodDisruptionBudget allows it. Delete: delete it at once. None: keep it."""
    min_interval_seconds: Annotated[float, Field(ge=0, le=DAY_SECONDS)] = 30
    """Time between two evictions for this topic."""


class ServicePort(ApiModel):
    """A port of the leader Service, as in a Kubernetes Service."""

    name: Annotated[str, Field(pattern=DNS_LABEL, max_length=63)] | None = None
    """The port's name; required if there are several."""
    port: Port
    """The port of the Service."""
    target_port: Port | None = None
    """The port of the pod; default: the port of the Service."""
    protocol: Literal["TCP", "UDP", "SCTP"] = "TCP"
    """The transport protocol."""


class LeaderService(ApiModel):
    """A Service whose only endpoint is the holder's pod; means nothing outside Kubernetes."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "self.ports.size() == 1 || self.ports.all(p, has(p.name) &&"
                " self.ports.exists_one(q, has(q.name) && q.name == p.name))",
                "if there are several ports, each needs a different name",
                field=".ports",
            ),
            # Only here: objects that earlier releases accepted are still served, without the Service.
            rule(
                "self.ports.all(p, self.ports.exists_one(q, q.port == p.port"
                " && q.protocol == p.protocol))",
                "a Service cannot have two ports with the same number and protocol",
                field=".ports",
            ),
        )
    )

    name: Annotated[str, Field(pattern=SERVICE_NAME, max_length=63)]
    """The Service's name, in the topic's namespace."""
    ports: Annotated[ListOf[ServicePort], Field(min_length=1, max_length=32)]
    """The Service's ports."""

    @model_validator(mode="after")
    def _ports_are_distinct(self) -> Self:
        names = [port.name for port in self.ports]
        if len(names) > 1 and (None in names or len(set(names)) != len(names)):
            raise ValueError("if there are several ports, each needs a different name")
        return self


class ExclusiveTopicSpec(ApiModel):
    """Desired state of the topic; every field has a default."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "has(self.topic) == has(oldSelf.topic)"
                " && (!has(self.topic) || self.topic == oldSelf.topic)",
                "the topic of an ExclusiveTopic cannot change: create another object",
                field=".topic",
                reason="FieldValueForbidden",
            ),
            rule(
                "!has(self.partitions) || !has(oldSelf.partitions)"
                " || (self.partitions >= oldSelf.partitions"
                " && (self.partitions == 0) == (oldSelf.partitions == 0))",
                "the number of partitions can grow but not shrink, and a topic without partitions"
                " cannot get partitions",
                field=".partitions",
                reason="FieldValueForbidden",
            ),
        )
    )

    topic: (
        Annotated[
            str,
            Field(
                pattern=DECLARED_TOPIC,
                max_length=DECLARED_TOPIC_LENGTH_MAX,
                json_schema_extra=rules(
                    rule(
                        "!self.matches('-partition-(0|[1-9][0-9]{0,4})$')",
                        "must name a topic, not one of its partitions (use spec.partitions)",
                    ),
                    rule(
                        f"size(bytes(self)) <= {DECLARED_TOPIC_LENGTH_MAX}",
                        f"must have at most {DECLARED_TOPIC_LENGTH_MAX} bytes",
                    ),
                ),
            ),
        ]
        | None
    ) = None
    """The Pulsar topic, persistent://TENANT/NAMESPACE/NAME; by default persistent://(namespace)/default/(name)
    of this object. Immutable."""
    partitions: Annotated[int, Field(ge=0, le=PARTITIONS_MAX)] = 0
    """Number of partitions, each with its own epoch and all with the same writer; 0: a topic without
    partitions."""
    access: Access = Access()
    """Who may write, and how; who may read."""
    promotion: Promotion = Promotion()
    """How the next writer is chosen."""
    detection: Detection = Detection()
    """When a connected writer counts as silent."""
    handover: Handover = Handover()
    """How a planned handover is done."""
    durability: WordOf[Durability] = Durability.LOCAL
    """What an acknowledgement guarantees. None: nothing. Local: the message is on disk. Replicated,
    AllReplicas: one replica, or all of them, have it as well."""
    retention: Retention = Retention()
    """How much of the log is kept."""
    compaction: Compaction = Compaction()
    """Whether the latest message of each key is kept."""
    fencing: FencingPolicy = FencingPolicy()
    """What happens to the pod of a writer that was fenced as stale."""
    leader_service: LeaderService | None = None
    """A Service that routes only to the writer's pod."""
    deletion_policy: WordOf[DeletionPolicy] = DeletionPolicy.RETAIN
    """What happens to the log when this object is deleted. Retain: it stays. DeleteIfEmpty: it is deleted if it
    is empty. Delete: it is deleted. Epochs survive in any case."""

    @field_validator("topic")
    @classmethod
    def _names_a_whole_topic(cls, topic: str | None) -> str | None:
        if topic is not None:
            _whole_topic(topic)
        return topic


class ExclusiveTopic(Resource):
    """A topic with one writer at a time."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "has(self.spec.topic) || !self.metadata.name.matches('-partition-(0|[1-9][0-9]{0,4})$')",
                "metadata.name ends like the name of a partition: use another name, or set spec.topic",
            )
        )
    )

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
                "metadata.name ends like the name of a partition: use another name, or set spec.topic"
            )
        return self


def _whole_topic(text: str) -> None:
    """Raise ValueError unless ``text`` names a topic, not one of its partitions."""
    if len(text.encode("utf-8", "surrogatepass")) > DECLARED_TOPIC_LENGTH_MAX:
        raise ValueError(f"must have at most {DECLARED_TOPIC_LENGTH_MAX} bytes")
    if TopicName.parse(text).partition is not None:
        raise ValueError("must name a topic, not one of its partitions (use spec.partitions)")
