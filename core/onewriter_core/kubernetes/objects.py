"""Kubernetes objects as typed values. The operator and the plugin parse each object once, when they receive it.

Parsing never fails for an object that has a kind and a name. A newer operator or an administrator may
have written the object: an unknown field is ignored, an unreadable value becomes its default, and a
list drops the entries that lack a required field. ``document`` keeps the object as the API server sent
it (without ``managedFields``), for the parts that a reader passes on or writes back. The strict
models in ``onewriter_core.api`` decide whether a spec is valid.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from onewriter_core.json_values import (
    Json,
    mapping,
    mappings,
    number,
    optional_number,
    present,
    seconds,
    text,
)
from onewriter_core.kubernetes.kinds import (
    CLAIM,
    FIELD_MANAGER,
    ONE_WRITER,
    POD,
    TOPIC,
    Key,
    key_of,
)
from onewriter_core.topic_view import (
    PartitionView,
    ProducerView,
    TransitionView,
    parse_producer,
    parse_times,
)

RETAIN: Final = "Retain"
"""The deletion policy that keeps the topic's log."""


# ------------------------------------------------------------ every object


@dataclass(frozen=True, slots=True)
class OwnerReference:
    """An object that owns another one."""

    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class StatusWriter:
    """A field manager that wrote fields of a status, and when."""

    manager: str
    time: str
    fields: frozenset[str]


@dataclass(frozen=True, slots=True)
class KubeObject:
    """An object of any kind. ``created`` and ``deleted`` are timestamps, empty when unset."""

    key: Key
    api_version: str
    uid: str
    generation: int
    resource_version: str
    created: str
    deleted: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    finalizers: tuple[str, ...]
    owners: tuple[OwnerReference, ...]
    status_writers: tuple[StatusWriter, ...]
    document: Json = field(repr=False)

    @property
    def is_going(self) -> bool:
        """Whether the object was deleted and finalizers keep it."""
        return bool(self.deleted)

    @property
    def version_number(self) -> int | None:
        """The resourceVersion as a number (comparable by KEP-5504); None if it is not a number."""
        version = self.resource_version
        return int(version) if version.isascii() and version.isdecimal() else None

    def annotation(self, name: str) -> str:
        """An annotation's value; empty when it is not set."""
        return str(self.annotations.get(name, ""))

    def is_set(self, name: str) -> bool:
        """Whether a boolean annotation is true."""
        return self.annotation(name).strip().lower() in {"true", "yes", "1"}

    def is_owned_by(self, uid: str) -> bool:
        """Whether the object of that uid owns this one."""
        return any(owner.uid == uid for owner in self.owners)

    def status_editor(self, fields: Container[str]) -> tuple[str, str]:
        """The other field manager that wrote one of these status fields, and when; empty if none."""
        for writer in self.status_writers:
            if writer.manager != FIELD_MANAGER and any(each in fields for each in writer.fields):
                return writer.manager or "an unnamed field manager", writer.time
        return "", ""


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition of a status; every field is empty when the status lacks the condition."""

    status: str = ""
    reason: str = ""
    message: str = ""
    since: str = ""


Conditions = Mapping[str, Condition]
"""Conditions by type."""

NO_CONDITION: Final = Condition()


@dataclass(frozen=True, slots=True)
class FencedPod:
    """The pod of a writer that was fenced as stale, as ``status.fencedPods`` lists it.

    ``more`` holds the fields of an entry that this version does not know; they are written back.
    """

    pod_uid: str
    epoch: int
    cause: str
    at: str
    outcome: str
    since: str
    pod: str = ""
    claim: str = ""
    message: str = ""
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def identifier(self) -> str:
        """Identifies one fence of one pod: no pod writes twice under one epoch."""
        return f"{self.pod_uid}@{self.epoch}"

    def to_document(self) -> Json:
        """The entry of ``status.fencedPods``."""
        return {
            **self.more,
            "podUID": self.pod_uid,
            "epoch": self.epoch,
            "cause": self.cause,
            "at": self.at,
            "outcome": self.outcome,
            "since": self.since,
            **present(pod=self.pod, claim=self.claim, message=self.message),
        }


_FENCED_POD_FIELDS: Final = frozenset(
    {"podUID", "epoch", "cause", "at", "outcome", "since", "pod", "claim", "message"}
)


# ------------------------------------------------------------ ExclusiveTopic


@dataclass(frozen=True, slots=True)
class ServicePort:
    """A port of the leader Service."""

    port: int
    target_port: int | str
    name: str = ""
    protocol: str = "TCP"


@dataclass(frozen=True, slots=True)
class LeaderService:
    """``spec.leaderService``."""

    name: str
    ports: tuple[ServicePort, ...]


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """The parts of an ExclusiveTopic's spec that the operator itself uses."""

    topic: str = ""
    partitions: int = 0
    durability: str = "Local"
    deletion_policy: str = RETAIN
    pod_policy: str = "Evict"
    min_interval_seconds: float = 30
    leader_service: LeaderService | None = None

    @property
    def deletes_log(self) -> bool:
        """Whether the topic's log is to be deleted with the object."""
        return self.deletion_policy != RETAIN


@dataclass(frozen=True, slots=True)
class TopicStatus:
    """An ExclusiveTopic's status. ``document`` is the whole status, also what is not parsed.

    ``topic`` and ``durability`` are empty, ``epoch``, ``holder`` and ``waiting`` None when unset.
    """

    observed_generation: int
    topic: str
    epoch: int | None
    holder: ProducerView | None
    waiting: int | None
    partitions: tuple[PartitionView, ...]
    durability: str
    transitions: tuple[TransitionView, ...]
    fenced_pods: tuple[FencedPod, ...]
    conditions: Conditions
    document: Json = field(repr=False)

    def condition(self, kind: str) -> Condition:
        """The condition of a type."""
        return self.conditions.get(kind, NO_CONDITION)


@dataclass(frozen=True, slots=True)
class TopicObject(KubeObject):
    """An ExclusiveTopic."""

    spec: TopicSpec
    status: TopicStatus

    @property
    def was_used(self) -> bool:
        """Whether a producer held the topic when its status was written."""
        return self.status.holder is not None


# ------------------------------------------------------------ ProducerClaim


@dataclass(frozen=True, slots=True)
class ClaimSpec:
    """The parts of a ProducerClaim's spec that the operator itself uses.

    ``pod_labels``: the labels that the podSelector matches; None without a podSelector.
    """

    topic_name: str = ""
    pod_labels: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class ClaimedProducer:
    """A producer that was admitted under a claim, as ``status.producers`` lists it.

    ``more`` holds the fields of an entry that this version does not know; they are written back.
    """

    producer_name: str
    state: str
    pod: str = ""
    pod_uid: str = ""
    epoch: int | None = None
    queue_position: int | None = None
    priority: int = 0
    more: Mapping[str, Any] = field(default_factory=dict)

    def to_document(self) -> Json:
        """The entry of ``status.producers``."""
        found = {**self.more, "producerName": self.producer_name, "state": self.state}
        found |= present(pod=self.pod, podUID=self.pod_uid, priority=self.priority)
        if self.epoch is not None:
            found["epoch"] = self.epoch
        if self.queue_position is not None:
            found["queuePosition"] = self.queue_position
        return found


_PRODUCER_FIELDS: Final = frozenset(
    {"producerName", "state", "pod", "podUID", "epoch", "queuePosition", "priority"}
)


@dataclass(frozen=True, slots=True)
class ClaimStatus:
    """A ProducerClaim's status."""

    observed_generation: int
    epoch: int | None
    producers: tuple[ClaimedProducer, ...]
    producers_omitted: int
    conditions: Conditions

    def condition(self, kind: str) -> Condition:
        """The condition of a type."""
        return self.conditions.get(kind, NO_CONDITION)


@dataclass(frozen=True, slots=True)
class ClaimObject(KubeObject):
    """A ProducerClaim."""

    spec: ClaimSpec
    status: ClaimStatus

    @property
    def topic_key(self) -> Key:
        """The ExclusiveTopic that the claim is for."""
        return Key(TOPIC.kind, self.key.namespace, self.spec.topic_name)

    @property
    def was_used(self) -> bool:
        """Whether a producer used the claim when its status was written."""
        return bool(self.status.producers)


DeclaredObject = TopicObject | ClaimObject
"""An object that the brokers receive."""


# ------------------------------------------------------------ Pod


@dataclass(frozen=True, slots=True)
class PodContainer:
    """A container of a pod. ``ports``: the numbers of its named ports."""

    name: str
    ports: Mapping[str, int]
    has_restarted: bool


@dataclass(frozen=True, slots=True)
class PodObject(KubeObject):
    """A pod."""

    ip: str
    node: str
    phase: str
    is_ready: bool
    containers: tuple[PodContainer, ...]

    def port(self, name: str) -> int | None:
        """The number of a named port; None if no container has it."""
        return next((each.ports[name] for each in self.containers if name in each.ports), None)


# ------------------------------------------------------------ OneWriter


@dataclass(frozen=True, slots=True)
class StoreMemory:
    """``status.store.memory`` of a OneWriter."""

    summary: str = ""
    used_bytes: int | None = None
    limit_bytes: int | None = None
    growth_bytes_per_hour: int | None = None

    def to_document(self) -> Json:
        """The field as it is written; empty if unset."""
        if self.used_bytes is None:
            return {}
        found: Json = {"summary": self.summary, "usedBytes": self.used_bytes}
        found |= present(limitBytes=self.limit_bytes)
        if self.growth_bytes_per_hour is not None:
            found["growthBytesPerHour"] = self.growth_bytes_per_hour
        return found


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """``status.store`` of a OneWriter."""

    state: str = ""
    is_managed: bool = False
    url: str = ""
    topology: str = ""
    durability: str = ""
    memory: StoreMemory = StoreMemory()

    def to_document(self) -> Json:
        """The field as it is written."""
        return {
            "state": self.state,
            "managed": self.is_managed,
            **present(
                url=self.url,
                topology=self.topology,
                durability=self.durability,
                memory=self.memory.to_document(),
            ),
        }


@dataclass(frozen=True, slots=True)
class Certificate:
    """An entry of ``status.certificates`` of a OneWriter."""

    name: str
    reported_by: str
    not_after: str


@dataclass(frozen=True, slots=True)
class OneWriterStatus:
    """A OneWriter's status. Numbers are None and texts empty when unset.

    ``waiting_reasons``: reasons why buckets wait, each with the number of its buckets.
    """

    brokers: str
    buckets_waiting: int | None
    waiting_reasons: tuple[tuple[str, int], ...]
    store: StoreStatus
    certificates: tuple[Certificate, ...]
    operator_version: str
    broker_versions: str
    conditions: Conditions

    def condition(self, kind: str) -> Condition:
        """The condition of a type."""
        return self.conditions.get(kind, NO_CONDITION)


@dataclass(frozen=True, slots=True)
class OneWriterObject(KubeObject):
    """The object of an installation."""

    status: OneWriterStatus


# ------------------------------------------------------------ Lease


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """The content of a Lease."""

    holder: str = ""
    renewed: str = ""
    transitions: int = 0
    duration_seconds: float = 0.0


def parse_lease(document: Json) -> LeaseRecord:
    """The content of a Lease."""
    spec = mapping(document.get("spec"))
    return LeaseRecord(
        text(spec.get("holderIdentity")),
        text(spec.get("renewTime")),
        number(spec.get("leaseTransitions")),
        number(spec.get("leaseDurationSeconds")),
    )


# ------------------------------------------------------------ parsing


def parse(document: Json) -> KubeObject:
    """An object of any kind, as a value of its class. Raises KeyError without kind or name."""
    match document["kind"]:
        case TOPIC.kind:
            return parse_topic(document)
        case CLAIM.kind:
            return parse_claim(document)
        case ONE_WRITER.kind:
            return parse_one_writer(document)
        case POD.kind:
            return parse_pod(document)
        case _:
            return _object(document)


def parse_pod(document: Json) -> PodObject:
    """A pod; items of a listing do not state their kind."""
    spec, status = mapping(document.get("spec")), mapping(document.get("status"))
    return PodObject(
        *_fields({"kind": POD.kind, **document}),
        ip=text(status.get("podIP")),
        node=text(spec.get("nodeName")),
        phase=text(status.get("phase")),
        is_ready=parse_conditions(status).get("Ready", NO_CONDITION).status == "True",
        containers=tuple(_containers(spec, status)),
    )


def _containers(spec: Json, status: Json) -> Iterable[PodContainer]:
    restarted = {
        each.get("name")
        for each in mappings(status.get("containerStatuses"))
        if each.get("restartCount")
    }
    for each in mappings(spec.get("containers")):
        ports = {
            text(port.get("name")): number(port.get("containerPort"))
            for port in mappings(each.get("ports"))
            if port.get("name")
        }
        yield PodContainer(text(each.get("name")), ports, each.get("name") in restarted)


def parse_topic_status(status: Json) -> TopicStatus:
    """An ExclusiveTopic's status."""
    return TopicStatus(
        observed_generation=number(status.get("observedGeneration"), -1),
        topic=text(status.get("topic")),
        epoch=optional_number(status.get("epoch")),
        holder=parse_producer(status.get("holder")),
        waiting=optional_number(status.get("waiting")),
        partitions=tuple(map(_partition, mappings(status.get("partitions")))),
        durability=text(status.get("durability")),
        transitions=tuple(map(_transition, mappings(status.get("transitions")))),
        fenced_pods=tuple(_fenced_pods(mappings(status.get("fencedPods")))),
        conditions=parse_conditions(status),
        document=status,
    )


def parse_conditions(status: Json) -> Conditions:
    """The conditions of a status, by type."""
    found: dict[str, Condition] = {}
    for each in mappings(status.get("conditions")):
        fields = (text(each.get(n)) for n in ("status", "reason", "message", "lastTransitionTime"))
        found.setdefault(text(each.get("type")), Condition(*fields))
    return found


def _object(document: Json) -> KubeObject:
    return KubeObject(*_fields(document))


_Fields = tuple[
    Key,
    str,
    str,
    int,
    str,
    str,
    str,
    Mapping[str, str],
    Mapping[str, str],
    tuple[str, ...],
    tuple[OwnerReference, ...],
    tuple[StatusWriter, ...],
    Json,
]


def _fields(document: Json) -> _Fields:
    """The fields of a KubeObject, in their order."""
    metadata = mapping(document.get("metadata"))
    kept = {name: value for name, value in metadata.items() if name != "managedFields"}
    return (
        key_of(document),
        text(document.get("apiVersion")),
        text(metadata.get("uid")),
        number(metadata.get("generation")),
        text(metadata.get("resourceVersion")),
        text(metadata.get("creationTimestamp")),
        text(metadata.get("deletionTimestamp")),
        mapping(metadata.get("labels")),
        mapping(metadata.get("annotations")),
        tuple(metadata.get("finalizers") or ()),
        tuple(
            OwnerReference(text(each.get("kind")), text(each.get("name")), text(each.get("uid")))
            for each in mappings(metadata.get("ownerReferences"))
        ),
        tuple(
            StatusWriter(text(each.get("manager")), text(each.get("time")), _written(each))
            for each in mappings(metadata.get("managedFields"))
            if each.get("subresource") == "status"
        ),
        document | {"metadata": kept},
    )


def _written(entry: Json) -> frozenset[str]:
    """The fields of the status that an entry of ``managedFields`` covers."""
    fields = mapping(mapping(entry.get("fieldsV1")).get("f:status"))
    return frozenset(name.removeprefix("f:") for name in fields)


def parse_topic(document: Json) -> TopicObject:
    """An ExclusiveTopic."""
    return TopicObject(
        *_fields(document),
        spec=_topic_spec(mapping(document.get("spec"))),
        status=parse_topic_status(mapping(document.get("status"))),
    )


def _topic_spec(spec: Json) -> TopicSpec:
    fencing = mapping(spec.get("fencing"))
    service = spec.get("leaderService")
    return TopicSpec(
        topic=text(spec.get("topic")),
        partitions=number(spec.get("partitions")),
        durability=text(spec.get("durability")) or "Local",
        deletion_policy=text(spec.get("deletionPolicy")) or RETAIN,
        pod_policy=text(fencing.get("podPolicy")) or "Evict",
        min_interval_seconds=seconds(fencing.get("minIntervalSeconds"), 30.0),
        leader_service=None if service is None else _leader_service(mapping(service)),
    )


def _leader_service(service: Json) -> LeaderService:
    ports = tuple(
        ServicePort(
            port=number(each.get("port")),
            target_port=each.get("targetPort") or number(each.get("port")),
            name=text(each.get("name")),
            protocol=text(each.get("protocol")) or "TCP",
        )
        for each in mappings(service.get("ports"))
    )
    return LeaderService(text(service.get("name")), ports)


def _partition(found: Json) -> PartitionView:
    return PartitionView(
        optional_number(found.get("partition")),
        number(found.get("epoch")),
        holder=text(found.get("producerName")),
    )


def _transition(found: Json) -> TransitionView:
    producer, pod = text(found.get("producerName")), text(found.get("pod"))
    return TransitionView(
        number(found.get("epoch")),
        text(found.get("cause")),
        text(found.get("at")),
        kind="grant",
        holder=ProducerView(producer, pod=pod) if producer or pod else None,
        previous=None,
        **parse_times(found),
    )


def _fenced_pods(entries: Iterable[Json]) -> Iterable[FencedPod]:
    for each in entries:
        uid, epoch = text(each.get("podUID")), optional_number(each.get("epoch"))
        if not uid or epoch is None:
            continue
        yield FencedPod(
            uid,
            epoch,
            text(each.get("cause")),
            text(each.get("at")),
            text(each.get("outcome")),
            text(each.get("since")),
            text(each.get("pod")),
            text(each.get("claim")),
            text(each.get("message")),
            {name: value for name, value in each.items() if name not in _FENCED_POD_FIELDS},
        )


def parse_claim(document: Json) -> ClaimObject:
    """A ProducerClaim."""
    spec, status = mapping(document.get("spec")), mapping(document.get("status"))
    selector = mapping(spec.get("subject")).get("podSelector")
    labels = None if selector is None else mapping(mapping(selector).get("matchLabels"))
    return ClaimObject(
        *_fields(document),
        spec=ClaimSpec(text(mapping(spec.get("topicRef")).get("name")), labels),
        status=parse_claim_status(status),
    )


def parse_claim_status(status: Json) -> ClaimStatus:
    """A ProducerClaim's status."""
    return ClaimStatus(
        observed_generation=number(status.get("observedGeneration"), -1),
        epoch=optional_number(status.get("epoch")),
        producers=tuple(map(_claimed_producer, mappings(status.get("producers")))),
        producers_omitted=number(status.get("producersOmitted")),
        conditions=parse_conditions(status),
    )


def _claimed_producer(found: Json) -> ClaimedProducer:
    return ClaimedProducer(
        text(found.get("producerName")),
        text(found.get("state")),
        text(found.get("pod")),
        text(found.get("podUID")),
        optional_number(found.get("epoch")),
        optional_number(found.get("queuePosition")),
        number(found.get("priority")),
        {name: value for name, value in found.items() if name not in _PRODUCER_FIELDS},
    )


def parse_one_writer(document: Json) -> OneWriterObject:
    """The object of an installation."""
    return OneWriterObject(
        *_fields(document), status=_one_writer_status(mapping(document.get("status")))
    )


def _one_writer_status(status: Json) -> OneWriterStatus:
    buckets, versions = mapping(status.get("buckets")), mapping(status.get("versions"))
    return OneWriterStatus(
        brokers=text(mapping(status.get("brokers")).get("summary")),
        buckets_waiting=optional_number(buckets.get("waiting")),
        waiting_reasons=tuple(
            (text(each.get("reason")), number(each.get("buckets")))
            for each in mappings(buckets.get("reasons"))
        ),
        store=_store_status(mapping(status.get("store"))),
        certificates=tuple(
            Certificate(*(text(each.get(name)) for name in ("name", "reportedBy", "notAfter")))
            for each in mappings(status.get("certificates"))
        ),
        operator_version=text(versions.get("operator")),
        broker_versions=text(versions.get("brokers")),
        conditions=parse_conditions(status),
    )


def _store_status(store: Json) -> StoreStatus:
    memory = mapping(store.get("memory"))
    return StoreStatus(
        state=text(store.get("state")),
        is_managed=store.get("managed") is True,
        url=text(store.get("url")),
        topology=text(store.get("topology")),
        durability=text(store.get("durability")),
        memory=StoreMemory(
            text(memory.get("summary")),
            *(
                optional_number(memory.get(name))
                for name in ("usedBytes", "limitBytes", "growthBytesPerHour")
            ),
        ),
    )
