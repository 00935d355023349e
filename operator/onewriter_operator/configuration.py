"""The operator's configuration: what is installed, and how the operator itself behaves.

The chart writes it as one YAML file from its values, which share the models of this module, so that
a person meets each name once. ``read`` checks all of it before anything is done. What Kubernetes
itself judges (tolerations, affinities, peers of network policies) passes as it is written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

import pydantic
import yaml
from pydantic import BeforeValidator, Field, WithJsonSchema, field_validator, model_validator

from onewriter_core.api.common import DNS_LABEL, ApiModel, ListOf, WordOf
from onewriter_core.api.tenancy import Tenancy
from onewriter_core.errors import ConfigurationError

BROKERS_MAX: Final = 64
"""Brokers of one installation: each of 64 buckets has one at most."""

PORT_PULSAR: Final = 6650
PORT_PULSAR_TLS: Final = 6651
PORT_HTTP: Final = 8080
PORT_HTTPS: Final = 8443
PORT_PROBES: Final = 8081
"""Of probes and metrics alone."""

PORT_STORE: Final = 6379

MANAGED_SETTINGS: Final = frozenset({
    "adminSubjects", "advertisedHost", "anchor", "anchorName", "authenticationRequired",
    "consumersDefault", "dataDir", "observerSubjects", "pipelineSubjects", "probePort",
    "host", "httpPort", "httpsPort", "kubernetesNamespace", "manifests", "metricsTokenFile", "name", "port",
    "redisPassword", "redisPasswordFile", "redisReplicas", "redisSentinelMaster",
    "redisSentinels", "redisUrl", "redisUsername", "tenancyAllow", "tenancyEnforced",
    "tlsCaFile", "tlsCertFile", "tlsKeyFile", "tlsPort",
    "tokenAudience", "tokenReview",
})  # fmt: skip
"""Settings of the brokers that follow from the rest of the configuration."""

MANAGED_DIRECTIVES: Final = frozenset({
    "aclfile", "appendfsync", "appendonly", "bind", "daemonize", "dir", "include", "loadmodule",
    "logfile", "maxmemory", "maxmemory-policy", "port", "protected-mode", "requirepass", "user",
})  # fmt: skip
"""Directives of the store's configuration that promises depend on."""

TENANT: Final = r"^[-=:.A-Za-z0-9_]+$"
"""A tenant's name as Pulsar allows it."""

_QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|[kMGTPE]|[KMGTPE]i)?$"
_FACTORS: Final[Mapping[str, Decimal]] = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    **{unit: Decimal(1000) ** power for power, unit in enumerate("kMGTPE", 1)},
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", 1)},
}
_PLAIN_OBJECT = {"type": "object", "additionalProperties": True}


def _text(value: object) -> object:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return str(value) if is_number else value


Quantity = Annotated[
    str,
    BeforeValidator(_text),
    Field(pattern=_QUANTITY),
    WithJsonSchema({"anyOf": [{"type": "string", "pattern": _QUANTITY}, {"type": "number"}]}),
]
"""An amount as Kubernetes writes it: 2, 500m, 1.5Gi."""

Plain = Annotated[dict[str, Any], WithJsonSchema(_PLAIN_OBJECT)]
"""A part of a Kubernetes object that only the API server judges."""

Setting = str | int | float | bool
Share = Annotated[float, Field(gt=0, le=0.95, strict=False)]
Labels = dict[str, str]


def quantity(text: str) -> Decimal:
    """An amount in its unit: bytes, or cores."""
    number, unit = re.fullmatch(r"([0-9.]+)([a-zA-Z]*)", text).groups()  # type: ignore[union-attr]  # validated
    return Decimal(number) * _FACTORS[unit]


class PullPolicy(StrEnum):
    """When a node fetches an image."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class Image(ApiModel):
    """The one image that all parts run."""

    reference: Annotated[str, Field(min_length=1)]
    """Name with a tag or a digest."""
    pull_policy: WordOf[PullPolicy] = PullPolicy.IF_NOT_PRESENT
    """When a node fetches the image."""
    pull_secrets: ListOf[str] = ()
    """Names of Secrets with which it may."""


class Resources(ApiModel):
    """What a container asks for and may take at most."""

    requests: dict[str, Quantity] = {}
    """What the scheduler sets aside."""
    limits: dict[str, Quantity] = {}
    """What it may take at most."""


class Spreading(StrEnum):
    """How strictly pods are kept apart."""

    SCHEDULE_ANYWAY = "ScheduleAnyway"
    DO_NOT_SCHEDULE = "DoNotSchedule"
    NONE = "None"


class Spread(ApiModel):
    """How pods of one kind are kept apart."""

    zones: WordOf[Spreading] = Spreading.SCHEDULE_ANYWAY
    """Over zones."""
    nodes: WordOf[Spreading] = Spreading.SCHEDULE_ANYWAY
    """Over nodes."""


class PodOptions(ApiModel):
    """Where pods of one kind run, and what they are labelled with."""

    labels: Labels = {}
    """Labels beside our own."""
    annotations: Labels = {}
    """Annotations beside our own."""
    node_selector: Labels = {}
    """Labels that a node must have."""
    tolerations: ListOf[Plain] = ()
    """Taints that are tolerated, as Kubernetes writes them."""
    affinity: Plain = {}
    """An affinity, as Kubernetes writes it."""
    priority_class_name: str = ""
    """The PriorityClass; empty: the cluster's default."""
    spread: Spread = Spread()
    """How pods are kept apart."""


class Storage(ApiModel):
    """A volume of each pod."""

    size: Annotated[
        str,
        BeforeValidator(_text),
        Field(pattern=f"^$|{_QUANTITY}"),
        WithJsonSchema({"type": "string", "pattern": f"^$|{_QUANTITY}"}),
    ] = ""
    """Its size; empty: no volume, what a pod writes goes with it."""
    class_name: str = ""
    """The StorageClass; empty: the cluster's default; "-": none, for volumes made by hand."""
    access_mode: Literal["ReadWriteOnce", "ReadWriteOncePod"] = "ReadWriteOnce"
    """ReadWriteOncePod where the volumes' driver can: not even two pods of one node share it."""


class BrokerTls(ApiModel):
    """TLS of the brokers, and whether their plain ports are offered beside it."""

    enabled: bool = True
    """Whether ports 6651 and 8443 are served."""
    secret_name: str = ""
    """The Secret with tls.crt, tls.key and ca.crt; empty: RELEASE-broker-tls."""
    plain: bool = False
    """Whether Services and network policies offer the plain ports 6650 and 8080 too. Without TLS they always do."""

    @property
    def offers_plain(self) -> bool:
        """Whether clients may use the plain ports."""
        return self.plain or not self.enabled


class Authentication(ApiModel):
    """Who is asked to prove who he is."""

    required: bool = True
    """Whether clients without a valid ServiceAccount token are refused."""
    admin_subjects: ListOf[str] = ()
    """Subjects that may fence and hand over over HTTP, beside the operator."""


class Access(ApiModel):
    """Who may read and observe, beside what topics and claims say (docs/security.md)."""

    consumers_default: Literal["namespace", "everyone"] = "namespace"
    """Who may read a topic that names no consumers: the ServiceAccounts of its namespace, or everyone."""
    observers: ListOf[str] = ()
    """Subjects that may see all topics and the metrics, and read no message."""
    pipelines: ListOf[str] = ()
    """Subjects that may read every topic and trim it, beside the pipeline of this release."""


class BrokerService(ApiModel):
    """The Service that clients look up brokers by."""

    annotations: Labels = {}
    """Its annotations."""


class Budget(ApiModel):
    """A PodDisruptionBudget."""

    enabled: bool = True
    """Whether there is one."""
    max_unavailable: Annotated[int, Field(ge=1)] = 1
    """Pods that a drain may take away at the same time."""


class Brokers(PodOptions):
    """The brokers: what clients connect to."""

    replicas: Annotated[int, Field(ge=1, le=BROKERS_MAX)] = 3
    """How many. With one, a restart of it is a pause for every topic."""
    resources: Resources = Resources(
        requests={"cpu": "500m", "memory": "512Mi"}, limits={"memory": "1Gi"}
    )
    """Of each. A broker uses one core."""
    storage: Storage = Storage()
    """Where a broker keeps what the operator told it, for a restart while there is no operator."""
    tls: BrokerTls = BrokerTls()
    """TLS, and the plain ports beside it."""
    authentication: Authentication = Authentication()
    """Who is asked to prove who he is."""
    access: Access = Access()
    """Who may read and observe, beside what topics and claims say."""
    service: BrokerService = BrokerService()
    """The Service that clients look up brokers by."""
    pod_disruption_budget: Budget = Budget()
    """How many a drain may take away at once."""
    settings: dict[str, Setting] = {}
    """Further settings, each as in the broker's list of settings: silentAfterSeconds, rollBytes."""

    @field_validator("settings")
    @classmethod
    def _is_free(cls, settings: dict[str, Setting]) -> dict[str, Setting]:
        for name in settings:
            if not re.fullmatch("[a-z][a-zA-Z0-9]*", name):
                raise ValueError(
                    f"{name!r} is no setting: they are written like silentAfterSeconds"
                )
            if name in MANAGED_SETTINGS:
                raise ValueError(f"{name} follows from the rest of the configuration")
        return settings

    @property
    def stop_seconds(self) -> float:
        """How long a broker may take to hand over its buckets."""
        return float(self.settings.get("stopSeconds", 10.0))


Count = Annotated[int, Field(ge=0)]


class Quotas(ApiModel):
    """What one subject, and one namespace, may take of each broker; 0: any number."""

    connections_per_subject: Count = 2_000
    """Connections of one subject, or of one host without a token."""
    connections_per_namespace: Count = 5_000
    """Connections of all ServiceAccounts of one Kubernetes namespace."""
    producers_per_subject: Count = 20_000
    """Producers of one subject, waiting ones included."""
    producers_per_namespace: Count = 50_000
    """Producers on the topics of one TENANT/NAMESPACE."""
    consumers_per_subject: Count = 20_000
    """Consumers and readers of one subject."""
    subscriptions_per_namespace: Count = 50_000
    """Subscriptions to the topics of one TENANT/NAMESPACE."""
    stored_bytes_per_namespace: Count = 0
    """Bytes that the topics of one TENANT/NAMESPACE store."""
    store_share_per_namespace: Annotated[float, Field(ge=0, le=1)] = 0.8
    """The same as a part of the store's memory limit; 0: all of it."""
    requests_per_subject: Count = 5_000
    """Requests of one subject that are worked on at once; then its connections are not read."""
    topics_per_subject: Count = 5_000
    """Undeclared topics and partitions that one subject makes by using them."""
    topics_per_namespace: Count = 20_000
    """Topics and partitions of one TENANT/NAMESPACE beyond which no client makes more."""

    @property
    def settings(self) -> dict[str, Setting]:
        """The same as settings of a broker: quotaConnectionsPerSubject and so on."""
        values: dict[str, Setting] = self.model_dump(by_alias=True)
        return {f"quota{name[0].upper()}{name[1:]}": value for name, value in values.items()}


class AppendSync(StrEnum):
    """When the store syncs its log to disk."""

    ALWAYS = "always"
    EVERY_SECOND = "everysec"


class SecretKey(ApiModel):
    """A key of a Secret in the installation's namespace."""

    name: str = ""
    """The Secret; empty: none is given."""
    key: Annotated[str, Field(min_length=1)] = "password"
    """The key in it."""


class Valkey(PodOptions):
    """The store that is installed beside the brokers, unless an external one is named."""

    image: str = ""
    """An image with valkey-server; empty: the one of all parts, which has it."""
    resources: Resources = Resources(
        requests={"cpu": "500m", "memory": "2Gi"}, limits={"memory": "2Gi"}
    )
    """Its memory limit bounds what all topics together keep."""
    memory_share: Share = 0.6
    """Share of the memory limit for data. The rest is for rewriting the log, which copies pages."""
    storage: Storage = Storage(size="8Gi")
    """Where the data are. At least three times the memory for data: old and new log at a rewrite."""
    append_sync: WordOf[AppendSync] = AppendSync.ALWAYS
    """always: what is acknowledged survives a power cut. everysec promises durability None only."""
    password_secret: SecretKey = SecretKey()
    """A Secret with the brokers' password; without one a password is made."""
    pod_disruption_budget: Budget = Budget()
    """Whether a drain may take it away: one, so it may, and everything waits until it is back."""
    settings: dict[str, Setting] = {}
    """Further directives of its configuration."""

    @field_validator("settings")
    @classmethod
    def _keeps_promises(cls, settings: dict[str, Setting]) -> dict[str, Setting]:
        for name in settings:
            if name in MANAGED_DIRECTIVES or not re.fullmatch("[a-z][a-z0-9-]*", name):
                raise ValueError(f"{name!r} cannot be set here")
        return settings

    @property
    def memory_bytes(self) -> int:
        """Memory for data; 0 without a memory limit: no bound."""
        limit = self.resources.limits.get("memory")
        return 0 if limit is None else int(quantity(limit) * Decimal(str(self.memory_share)))


class ExternalStore(ApiModel):
    """A Redis or Valkey that somebody else runs; it takes the place of our own."""

    url: str = ""
    """redis://HOST:PORT or rediss://HOST:PORT, without a password; empty: not used."""
    sentinels: ListOf[str] = ()
    """HOST:PORT of Sentinels, instead of url."""
    sentinel_master: str = "onewriter"
    """The name that the Sentinels know the primary by."""
    username: str = ""
    """The ACL user of the brokers."""
    password_secret: SecretKey = SecretKey()
    """The Secret with its password."""
    replicas: Annotated[int, Field(ge=0)] = 0
    """Replicas that durability AllReplicas waits for; 0: not offered."""

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if self.url and self.sentinels:
            raise ValueError("url and sentinels exclude each other")
        if self.url:
            parts = urlsplit(self.url)
            if parts.scheme not in {"redis", "rediss"} or not parts.hostname:
                raise ValueError("url must be redis://HOST:PORT or rediss://HOST:PORT")
            if parts.password:
                raise ValueError("url must not carry a password: name its Secret in passwordSecret")
        return self

    @property
    def is_used(self) -> bool:
        """Whether it takes the place of our own."""
        return bool(self.url or self.sentinels)

    @property
    def ports(self) -> tuple[int, ...]:
        """The ports that brokers connect to."""
        if self.url:
            return (urlsplit(self.url).port or PORT_STORE,)
        sentinels = {int(each.rpartition(":")[2]) for each in self.sentinels if ":" in each}
        return tuple(sorted({PORT_STORE, *sentinels}))


class NetworkPolicies(ApiModel):
    """Who may talk to whom. They count where the cluster's network enforces them."""

    enabled: bool = True
    """Whether there are any."""
    clients: ListOf[Plain] = ()
    """Peers that may use topics, as a NetworkPolicy writes them; empty: everybody."""
    monitoring: ListOf[Plain] = ()
    """Peers that may read metrics; empty: everybody."""
    api_server_ports: ListOf[Annotated[int, Field(ge=1, le=65535)]] = (443, 6443)
    """Ports of the API server, which is outside the pods' network."""


class Lease(ApiModel):
    """The election between the replicas of the operator."""

    duration_seconds: Annotated[float, Field(gt=0, strict=False)] = 15.0
    """For so long a leader counts that does not renew."""
    renew_seconds: Annotated[float, Field(gt=0, strict=False)] = 10.0
    """A leader that could not renew for so long stops."""
    retry_seconds: Annotated[float, Field(gt=0, strict=False)] = 2.0
    """Between two attempts."""

    @model_validator(mode="after")
    def _stops_in_time(self) -> Self:
        if self.renew_seconds >= self.duration_seconds:
            raise ValueError("renewSeconds must be below durationSeconds")
        if self.renew_seconds <= 1.2 * self.retry_seconds:
            raise ValueError("renewSeconds must be above 1.2 times retrySeconds")
        return self


class TenantException(ApiModel):
    """Further tenants of one namespace."""

    namespace: Annotated[str, Field(pattern=DNS_LABEL, max_length=63)]
    """The Kubernetes namespace."""
    tenants: Annotated[ListOf[Annotated[str, Field(pattern=TENANT)]], Field(min_length=1)]
    """The Pulsar tenants whose topics its objects may declare."""


class TenancyOptions(ApiModel):
    """Whose topics a namespace may declare."""

    enforced: bool = True
    """Whether an ExclusiveTopic may only name topics of its namespace's tenant: the tenant of the same
    name; tenant public belongs to namespace default."""
    allow: ListOf[TenantException] = ()
    """Exceptions: further tenants of single namespaces."""

    @property
    def rule(self) -> Tenancy:
        """The rule that follows."""
        found: dict[str, frozenset[str]] = {}
        for each in self.allow:
            found[each.namespace] = found.get(each.namespace, frozenset()) | set(each.tenants)
        return Tenancy(self.enforced, found)


class OptIn(ApiModel):
    """A right of the operator that it does not have by default."""

    enabled: bool = False
    """Whether it has the right."""
    namespaces: ListOf[Annotated[str, Field(pattern=DNS_LABEL)]] = ()
    """Namespaces that it has the right in; empty: all that it looks after."""

    def covers(self, namespace: str) -> bool:
        """Whether it has the right in a namespace."""
        return self.enabled and (not self.namespaces or namespace in self.namespaces)


class OperatorOptions(ApiModel):
    """How the operator itself behaves."""

    namespaces: ListOf[Annotated[str, Field(pattern=DNS_LABEL)]] = ()
    """Namespaces that it looks after; empty: all."""
    resync_seconds: Annotated[float, Field(ge=10, strict=False)] = 300.0
    """Everything is looked at anew so often, for what was changed outside."""
    concurrency: Annotated[int, Field(ge=1, le=256)] = 16
    """Objects that are worked on at the same time."""
    lease: Lease = Lease()
    """The election between its replicas."""
    leader_services: OptIn = OptIn()
    """Services and EndpointSlices that lead to writers (spec.leaderService)."""
    pod_deletion: OptIn = OptIn()
    """Deleting pods of fenced writers behind disruption budgets (spec.fencing.podPolicy Delete)."""
    broker_ca_file: str = ""
    """The authority of the brokers' certificates; empty: brokers are reached without TLS."""


class Sidecar(ApiModel):
    """The container that is added to pods labelled onewriter.dev/inject."""

    image: str = ""
    """Its image; empty: the one of all parts."""
    resources: Resources = Resources(
        requests={"cpu": "20m", "memory": "64Mi"}, limits={"memory": "128Mi"}
    )
    """What it asks for and may take at most."""


class Configuration(ApiModel):
    """All of it."""

    release: Annotated[str, Field(pattern=DNS_LABEL, max_length=40)]
    """What all names begin with."""
    namespace: Annotated[str, Field(pattern=DNS_LABEL, max_length=63)]
    """Where everything is installed."""
    version: str = ""
    """The version of the chart, for labels."""
    cluster_domain: str = "cluster.local"
    """The cluster's DNS domain."""
    image: Image
    """The one image that all parts run."""
    brokers: Brokers = Brokers()
    """What clients connect to."""
    valkey: Valkey = Valkey()
    """The store that is installed beside them."""
    external_store: ExternalStore = ExternalStore()
    """A store that somebody else runs instead."""
    quotas: Quotas = Quotas()
    """What one subject, and one namespace, may take of each broker; 0: any number."""
    network_policies: NetworkPolicies = NetworkPolicies()
    """Who may talk to whom."""
    tenancy: TenancyOptions = TenancyOptions()
    """Whose topics a namespace may declare."""
    operator: OperatorOptions = OperatorOptions()
    """How the operator itself behaves."""
    sidecar: Sidecar = Sidecar()
    """What is added to pods that ask for it."""

    @model_validator(mode="after")
    def _promises_what_it_keeps(self) -> Self:
        check_promise(self.brokers, self.valkey, self.external_store)
        return self

    @property
    def operator_subject(self) -> str:
        """Who the operator is to the brokers."""
        return f"system:serviceaccount:{self.namespace}:{self.release}-operator"


def check_promise(brokers: Brokers, valkey: Valkey, external: ExternalStore) -> None:
    """Raises ValueError when our own store is too weak for what the brokers promise."""
    minimum = brokers.settings.get("minimumDurability", "Local")
    if external.is_used or minimum == "None":
        return
    if not valkey.storage.size:
        raise ValueError(
            "valkey.storage.size is empty: without a volume nothing can be promised, so set"
            " brokers.settings.minimumDurability to None, or give it a volume"
        )
    if valkey.append_sync is not AppendSync.ALWAYS:
        raise ValueError(
            "valkey.appendSync everysec promises nothing: set"
            " brokers.settings.minimumDurability to None, or appendSync to always"
        )
    if minimum != "Local":
        raise ValueError(
            f"brokers.settings.minimumDurability {minimum}: the installed store has no replica;"
            " name one that has in externalStore"
        )


def read(path: Path) -> Configuration:
    """The configuration in a file. Raises ConfigurationError, a line for each mistake."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigurationError(f"{path}: {error}") from error
    if not isinstance(document, dict):
        raise ConfigurationError(f"{path}: must be a mapping")
    try:
        return Configuration.from_document(document)
    except pydantic.ValidationError as error:
        lines = [
            f"{path}: {'.'.join(map(str, each['loc'])) or 'all'}: {each['msg']}"
            for each in error.errors()
        ]
        raise ConfigurationError("\n".join(lines)) from error
