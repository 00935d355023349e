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
PORT_STORE_BUS: Final = 16379
"""Of the store's processes among each other, in a cluster."""

SHARDS_MIN: Final = 3
SHARDS_MAX: Final = 16
REPLICAS_MAX: Final = 3
"""Bounds of a cluster that the operator forms: its pods fit into one URL."""

MANAGED_SETTINGS: Final = frozenset({
    "adminSubjects", "advertisedHost", "anchor", "anchorName", "authenticationRequired",
    "consumersDefault", "dataDir", "observerSubjects", "pipelineSubjects", "probePort",
    "host", "httpPort", "httpsPort", "kubernetesNamespace", "manifests", "metricsTokenFile", "name", "port",
    "redisCaFile", "redisCertFile", "redisKeyFile", "redisPassword", "redisPasswordFile", "redisReplicas",
    "redisSentinelMaster", "redisSentinels", "redisServerName", "redisUrl", "redisUsername",
    "tenancyAllow", "tenancyEnforced",
    "tlsCaFile", "tlsCertFile", "tlsKeyFile", "tlsOnly", "tlsPort",
    "tokenAudience", "tokenReview",
})  # fmt: skip
"""Settings of the brokers that follow from the rest of the configuration."""

MANAGED_DIRECTIVES: Final = frozenset({
    "aclfile", "appendfsync", "appendonly", "bind", "daemonize", "dir", "include", "loadmodule",
    "logfile", "masterauth", "masteruser", "maxmemory", "maxmemory-policy", "min-replicas-to-write", "port",
    "protected-mode", "repl-diskless-load", "replicaof", "requirepass", "tls-auth-clients",
    "tls-ca-cert-dir", "tls-ca-cert-file", "tls-cert-file", "tls-key-file", "tls-port", "tls-replication", "user",
})  # fmt: skip
"""Directives of the store's configuration that promises depend on; all of ``cluster-`` in addition."""

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
_CLUSTER_SCHEMES = ("redis+cluster://", "rediss+cluster://")


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
    """When a node pulls an image."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class Image(ApiModel):
    """The image of all components."""

    reference: Annotated[str, Field(min_length=1)]
    """Name with a tag or a digest."""
    pull_policy: WordOf[PullPolicy] = PullPolicy.IF_NOT_PRESENT
    """When a node pulls the image."""
    pull_secrets: ListOf[str] = ()
    """Names of the Secrets for pulling the image."""


class Resources(ApiModel):
    """Resource requests and limits of a container."""

    requests: dict[str, Quantity] = {}
    """Resource requests."""
    limits: dict[str, Quantity] = {}
    """Resource limits."""


class Spreading(StrEnum):
    """How strictly pods are spread."""

    SCHEDULE_ANYWAY = "ScheduleAnyway"
    DO_NOT_SCHEDULE = "DoNotSchedule"
    NONE = "None"


class Spread(ApiModel):
    """How pods of one kind are spread."""

    zones: WordOf[Spreading] = Spreading.SCHEDULE_ANYWAY
    """Spread over zones."""
    nodes: WordOf[Spreading] = Spreading.SCHEDULE_ANYWAY
    """Spread over nodes."""


class PodOptions(ApiModel):
    """Placement, labels and annotations of the pods of one kind."""

    labels: Labels = {}
    """Additional labels."""
    annotations: Labels = {}
    """Additional annotations."""
    node_selector: Labels = {}
    """Labels that a node must have."""
    tolerations: ListOf[Plain] = ()
    """Tolerations in Kubernetes syntax."""
    affinity: Plain = {}
    """Affinity in Kubernetes syntax."""
    priority_class_name: str = ""
    """The PriorityClass; empty: the cluster's default."""
    spread: Spread = Spread()
    """Topology spread of the pods."""


class Storage(ApiModel):
    """A volume of each pod."""

    size: Annotated[
        str,
        BeforeValidator(_text),
        Field(pattern=f"^$|{_QUANTITY}"),
        WithJsonSchema({"type": "string", "pattern": f"^$|{_QUANTITY}"}),
    ] = ""
    """Size of the volume; empty: no volume, data is lost with the pod."""
    class_name: str = ""
    """The StorageClass; empty: the cluster's default; "-": none, for volumes that you create."""
    access_mode: Literal["ReadWriteOnce", "ReadWriteOncePod"] = "ReadWriteOnce"
    """Use ReadWriteOncePod if the volume driver supports it: then not even two pods of one node share the volume."""


class BrokerTls(ApiModel):
    """TLS of the brokers, and their plain ports."""

    enabled: bool = True
    """Whether ports 6651 and 8443 are served."""
    secret_name: str = ""
    """The Secret with tls.crt, tls.key and ca.crt; empty: RELEASE-broker-tls."""
    plain: bool = False
    """Whether brokers serve clients on the plain ports 6650 and 8080 too. Without TLS they always do."""

    @property
    def offers_plain(self) -> bool:
        """Whether clients may use the plain ports."""
        return self.plain or not self.enabled


class Authentication(ApiModel):
    """Authentication of clients."""

    required: bool = True
    """Whether clients without a valid ServiceAccount token are refused."""
    admin_subjects: ListOf[str] = ()
    """Subjects that are administrators of the brokers, in addition to the operator."""


class Access(ApiModel):
    """Rights to read and observe, in addition to those of topics and claims (docs/security.md)."""

    consumers_default: Literal["namespace", "everyone"] = "namespace"
    """Who may read a topic without declared consumers: the ServiceAccounts of its namespace, or everyone."""
    observers: ListOf[str] = ()
    """Subjects that may see all topics and the metrics, but read no messages."""
    pipelines: ListOf[str] = ()
    """Subjects that may read every topic and trim it, in addition to the pipeline of this release."""


class BrokerService(ApiModel):
    """The Service through which clients find brokers."""

    annotations: Labels = {}
    """Annotations of the Service."""


class Budget(ApiModel):
    """A PodDisruptionBudget."""

    enabled: bool = True
    """Whether to install it."""
    max_unavailable: Annotated[int, Field(ge=1)] = 1
    """Number of pods that a drain may evict at the same time."""


class Brokers(PodOptions):
    """The brokers, which clients connect to."""

    replicas: Annotated[int, Field(ge=1, le=BROKERS_MAX)] = 3
    """Number of brokers. With one replica, a restart interrupts every topic."""
    resources: Resources = Resources(
        requests={"cpu": "500m", "memory": "512Mi"}, limits={"memory": "1Gi"}
    )
    """Resources of each broker. A broker uses one core."""
    storage: Storage = Storage()
    """Volume for the configuration from the operator, for a restart of the broker without an operator."""
    tls: BrokerTls = BrokerTls()
    """TLS and plain ports."""
    authentication: Authentication = Authentication()
    """Authentication of clients."""
    access: Access = Access()
    """Rights to read and observe, in addition to those of topics and claims."""
    service: BrokerService = BrokerService()
    """The Service through which clients find brokers."""
    pod_disruption_budget: Budget = Budget()
    """PodDisruptionBudget: how many pods a drain may evict at the same time."""
    settings: dict[str, Setting] = {}
    """Further settings with the names of the brokers' settings: silentAfterSeconds, rollBytes."""

    @field_validator("settings")
    @classmethod
    def _is_free(cls, settings: dict[str, Setting]) -> dict[str, Setting]:
        for name in settings:
            if not re.fullmatch("[a-z][a-zA-Z0-9]*", name):
                raise ValueError(
                    f"unknown setting {name!r}: settings are written like silentAfterSeconds"
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
    """Limits for one subject, and for one namespace, at each broker; 0: no limit."""

    connections_per_subject: Count = 2_000
    """Connections of one subject, or of one host without a token."""
    connections_per_namespace: Count = 5_000
    """Connections of all ServiceAccounts of one Kubernetes namespace."""
    producers_per_subject: Count = 20_000
    """Producers of one subject, including waiting ones."""
    producers_per_namespace: Count = 50_000
    """Producers on the topics of one TENANT/NAMESPACE."""
    consumers_per_subject: Count = 20_000
    """Consumers and readers of one subject."""
    subscriptions_per_namespace: Count = 50_000
    """Subscriptions to the topics of one TENANT/NAMESPACE."""
    stored_bytes_per_namespace: Count = 0
    """Bytes that the topics of one TENANT/NAMESPACE store."""
    store_share_per_namespace: Annotated[float, Field(ge=0, le=1)] = 0.8
    """The same, as a fraction of the store's memory limit; 0: no limit."""
    requests_per_subject: Count = 5_000
    """Concurrent requests of one subject; at the limit its connections are not read."""
    topics_per_subject: Count = 5_000
    """Undeclared topics and partitions that one subject creates by using them."""
    topics_per_namespace: Count = 20_000
    """Topics and partitions of one TENANT/NAMESPACE; above the limit no client can create another."""

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
    """Name of the Secret; empty: none."""
    key: Annotated[str, Field(min_length=1)] = "password"
    """The key in it."""


class Valkey(PodOptions):
    """The store that the chart installs, unless an external one is configured."""

    image: str = ""
    """An image with valkey-server; empty: the image of all components, which contains it."""
    resources: Resources = Resources(
        requests={"cpu": "500m", "memory": "2Gi"}, limits={"memory": "2Gi"}
    )
    """The memory limit bounds what all topics together keep."""
    memory_share: Share = 0.6
    """Fraction of the memory limit for data. The rest is for rewriting the append-only file, which copies memory pages."""
    storage: Storage = Storage(size="8Gi")
    """Volume for the data. At least three times the memory for data, for the old and the new append-only file during a rewrite."""
    append_sync: WordOf[AppendSync] = AppendSync.ALWAYS
    """always: acknowledged messages survive a power failure. everysec allows only durability None."""
    password_secret: SecretKey = SecretKey()
    """A Secret with the brokers' password; without one the operator creates a password."""
    pod_disruption_budget: Budget = Budget()
    """PodDisruptionBudget. There is one pod: with maxUnavailable 1 a drain may evict it, and everything waits until it is back."""
    settings: dict[str, Setting] = {}
    """Further directives of Valkey's configuration."""

    @field_validator("settings")
    @classmethod
    def _keeps_promises(cls, settings: dict[str, Setting]) -> dict[str, Setting]:
        for name in settings:
            is_managed = name in MANAGED_DIRECTIVES or name.startswith("cluster-")
            if is_managed or not re.fullmatch("[a-z][a-z0-9-]*", name):
                raise ValueError(f"{name!r} cannot be set here")
        return settings

    @property
    def memory_bytes(self) -> int:
        """Memory for data; 0 without a memory limit: no bound."""
        limit = self.resources.limits.get("memory")
        return 0 if limit is None else int(quantity(limit) * Decimal(str(self.memory_share)))


class StoreServerTls(ApiModel):
    """TLS of the installed store: for brokers, the operator, and the processes among each other."""

    secret_name: str = ""
    """The Secret with tls.crt, tls.key and ca.crt for all processes of the store; empty: no TLS. It needs valkey.image, because the server in the image of all components is built without TLS."""


class StoreLayout(ApiModel):
    """Processes of the installed store. In a cluster, memory, volume and resources of ``valkey`` are those of each process."""

    shards: Annotated[
        int,
        Field(
            ge=1, le=SHARDS_MAX, json_schema_extra={"enum": [1, *range(SHARDS_MIN, SHARDS_MAX + 1)]}
        ),
    ] = 1
    """1: one process; losing its volume loses all topics. 3 or more: a cluster with that number of primaries, each with replicas, on at least three nodes. 2 is refused: when a primary is lost, a majority of the primaries votes, and one of two is not a majority. An installation keeps its number of shards."""
    replicas: Annotated[int, Field(ge=1, le=REPLICAS_MAX)] = 1
    """Replicas of each primary of a cluster. One process has none."""
    tls: StoreServerTls = StoreServerTls()
    """TLS of the installed store: for brokers, the operator, and the processes among each other."""

    @field_validator("shards")
    @classmethod
    def _has_a_majority(cls, shards: int) -> int:
        if 1 < shards < SHARDS_MIN:
            raise ValueError(
                f"a cluster needs at least {SHARDS_MIN} shards, not {shards}: when a primary is lost, a majority of the"
                " primaries votes for its replica, and one of two is not a majority. Use 1 or 3"
            )
        return shards

    @property
    def is_cluster(self) -> bool:
        """Whether the store is a cluster."""
        return self.shards > 1


class StoreTls(ApiModel):
    """TLS to a rediss:// store or cluster, or rediss:// Sentinels. Renewed Secrets apply to new connections."""

    ca_secret_name: str = ""
    """The Secret whose ca.crt verifies the certificates; empty: the authorities in the image."""
    client_secret_name: str = ""
    """The Secret with tls.crt and tls.key, the brokers' client certificate; empty: none."""
    server_name: str = ""
    """The name that the certificates must have; empty: the host of the URL, of each node of a cluster, or of each Sentinel and the primary."""


class ExternalStore(ApiModel):
    """A Redis or Valkey that you run, instead of the installed store."""

    url: str = ""
    """redis://HOST:PORT, or redis+cluster://HOST:PORT,HOST:PORT with some nodes of a cluster; rediss:// and rediss+cluster:// for TLS. Without a password. Empty: not used."""
    sentinels: ListOf[str] = ()
    """HOST:PORT of Sentinels, instead of url; rediss://HOST:PORT for TLS to all of them and to the primary."""
    sentinel_master: str = "onewriter"
    """The primary's name in the Sentinels' configuration."""
    username: str = ""
    """The ACL user of the brokers."""
    password_secret: SecretKey = SecretKey()
    """The Secret with the user's password."""
    tls: StoreTls = StoreTls()
    """TLS to a rediss:// store or cluster, or rediss:// Sentinels. Renewed Secrets apply to new connections."""
    replicas: Annotated[int, Field(ge=0)] = 0
    """Number of replicas, of each shard in a cluster, that durability AllReplicas waits for; 0: AllReplicas is not available."""

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if self.url and self.sentinels:
            raise ValueError("url and sentinels exclude each other")
        if self.url:
            self._check_url()
        encrypted = {each.startswith("rediss://") for each in self.sentinels}
        if len(encrypted) > 1:
            raise ValueError("sentinels: write rediss:// at all of them or at none")
        if self.tls != StoreTls() and not self.is_encrypted:
            raise ValueError(
                "tls needs a url that begins with rediss:// or rediss+cluster://, or sentinels that begin"
                " with rediss://"
            )
        return self

    def _check_url(self) -> None:
        user, _, _ = urlsplit(self.url).netloc.rpartition("@")
        if ":" in user:
            raise ValueError("url must not carry a password: name its Secret in passwordSecret")
        is_cluster = self.url.startswith(_CLUSTER_SCHEMES)
        if not is_cluster and not self.url.startswith(("redis://", "rediss://")):
            raise ValueError(
                "url must be redis://HOST:PORT or rediss://HOST:PORT, or redis+cluster://HOST:PORT,HOST:PORT"
                " or rediss+cluster://HOST:PORT,HOST:PORT for a cluster"
            )
        nodes = self._nodes()
        if len(nodes) > 1 and not is_cluster:
            raise ValueError("several addresses in url need redis+cluster:// or rediss+cluster://")
        for host, _ in nodes:
            if not host:
                raise ValueError("url must name a host at each address")

    def _nodes(self) -> list[tuple[str, int]]:
        """Host and port of each address in ``url``."""
        _, _, places = urlsplit(self.url).netloc.rpartition("@")
        parts = [urlsplit(f"redis://{place}") for place in places.split(",")]
        return [(part.hostname or "", part.port or PORT_STORE) for part in parts]

    @property
    def is_encrypted(self) -> bool:
        """Whether brokers connect with TLS."""
        return any(
            each.startswith(("rediss://", "rediss+cluster://"))
            for each in (self.url, *self.sentinels)
        )

    @property
    def is_used(self) -> bool:
        """Whether it replaces the installed store."""
        return bool(self.url or self.sentinels)

    @property
    def ports(self) -> tuple[int, ...]:
        """The ports that brokers connect to."""
        if self.url:
            return tuple(sorted({port for _, port in self._nodes()}))
        sentinels = {int(each.rpartition(":")[2]) for each in self.sentinels if ":" in each}
        return tuple(sorted({PORT_STORE, *sentinels}))


class NetworkPolicies(ApiModel):
    """Who may talk to whom. They count where the cluster's network enforces them."""

    enabled: bool = True
    """Whether to install them."""
    clients: ListOf[Plain] = ()
    """Peers that may use topics, in NetworkPolicy syntax; empty: all."""
    monitoring: ListOf[Plain] = ()
    """Peers that may read metrics, in NetworkPolicy syntax; empty: all."""
    api_server_ports: ListOf[Annotated[int, Field(ge=1, le=65535)]] = (443, 6443)
    """Ports of the API server, which is outside the pods' network."""


class Lease(ApiModel):
    """Leader election between the replicas of the operator."""

    duration_seconds: Annotated[float, Field(gt=0, strict=False)] = 15.0
    """Time after which a Lease that was not renewed expires."""
    renew_seconds: Annotated[float, Field(gt=0, strict=False)] = 10.0
    """Time after which a leader that cannot renew the Lease stops."""
    retry_seconds: Annotated[float, Field(gt=0, strict=False)] = 2.0
    """Interval of attempts."""

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
    """Which topics a namespace may declare."""

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
    """A right that the operator does not have by default."""

    enabled: bool = False
    """Whether the operator has the right."""
    namespaces: ListOf[Annotated[str, Field(pattern=DNS_LABEL)]] = ()
    """Namespaces in which the operator has the right; empty: all that it manages."""

    def covers(self, namespace: str) -> bool:
        """Whether it has the right in a namespace."""
        return self.enabled and (not self.namespaces or namespace in self.namespaces)


class OperatorOptions(ApiModel):
    """How the operator itself behaves."""

    namespaces: ListOf[Annotated[str, Field(pattern=DNS_LABEL)]] = ()
    """Namespaces that the operator manages; empty: all."""
    resync_seconds: Annotated[float, Field(ge=10, strict=False)] = 300.0
    """Interval of a full reconcile, which finds objects that others changed."""
    concurrency: Annotated[int, Field(ge=1, le=256)] = 16
    """Number of objects that are reconciled at the same time."""
    lease: Lease = Lease()
    """Leader election between the replicas."""
    leader_services: OptIn = OptIn()
    """The right to manage Services and EndpointSlices of writers (spec.leaderService)."""
    pod_deletion: OptIn = OptIn()
    """The right to delete pods of fenced writers without checking disruption budgets (spec.fencing.podPolicy Delete)."""
    broker_ca_file: str = ""
    """The authority of the brokers' certificates; empty: brokers are reached without TLS."""
    store_ca_file: str = ""
    """The authority of the store's certificate; empty: the store is reached without TLS."""


class Sidecar(ApiModel):
    """The container that the webhook adds to pods labelled onewriter.dev/inject."""

    image: str = ""
    """The sidecar's image; empty: the image of all components."""
    resources: Resources = Resources(
        requests={"cpu": "20m", "memory": "64Mi"}, limits={"memory": "128Mi"}
    )
    """Resources of the sidecar container."""


class Configuration(ApiModel):
    """All of it."""

    release: Annotated[str, Field(pattern=DNS_LABEL, max_length=40)]
    """Prefix of all names."""
    namespace: Annotated[str, Field(pattern=DNS_LABEL, max_length=63)]
    """Where everything is installed."""
    version: str = ""
    """The version of the chart, for labels."""
    cluster_domain: str = "cluster.local"
    """The cluster's DNS domain."""
    image: Image
    """The image of all components."""
    brokers: Brokers = Brokers()
    """The brokers, which clients connect to."""
    store: StoreLayout = StoreLayout()
    """Processes of the installed store."""
    valkey: Valkey = Valkey()
    """The store that the chart installs."""
    external_store: ExternalStore = ExternalStore()
    """A Redis or Valkey that you run, instead of the installed store."""
    quotas: Quotas = Quotas()
    """Limits for one subject, and for one namespace, at each broker; 0: no limit."""
    network_policies: NetworkPolicies = NetworkPolicies()
    """Network policies."""
    tenancy: TenancyOptions = TenancyOptions()
    """Which topics a namespace may declare."""
    operator: OperatorOptions = OperatorOptions()
    """How the operator itself behaves."""
    sidecar: Sidecar = Sidecar()
    """The sidecar that the webhook adds to labelled pods."""

    @model_validator(mode="after")
    def _promises_what_it_keeps(self) -> Self:
        check_promise(self.brokers, self.store, self.valkey, self.external_store)
        return self

    @property
    def has_cluster(self) -> bool:
        """Whether the operator installs a cluster as the store."""
        return self.store.is_cluster and not self.external_store.is_used

    @property
    def operator_subject(self) -> str:
        """Who the operator is to the brokers."""
        return f"system:serviceaccount:{self.namespace}:{self.release}-operator"


def check_promise(
    brokers: Brokers, store: StoreLayout, valkey: Valkey, external: ExternalStore
) -> None:
    """Raises ValueError when our own store is too weak for what the brokers promise."""
    if external.is_used and store.is_cluster:
        raise ValueError(
            "externalStore replaces the installed store: remove store.shards, or remove externalStore"
        )
    if store.tls.secret_name and external.is_used:
        raise ValueError("store.tls is for the installed store: use externalStore.tls")
    if store.tls.secret_name and not valkey.image:
        raise ValueError(
            "store.tls needs valkey.image: the server in the image of all components is built without TLS. Name an image"
            " with a valkey-server that has it, for example valkey/valkey"
        )
    if store.is_cluster and "appenddirname" in valkey.settings:
        raise ValueError(
            "valkey.settings.appenddirname cannot be set in a cluster (store.shards): before a process starts, its pod looks"
            " for data in the directory appendonlydir"
        )
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
    if minimum != "Local" and not store.is_cluster:
        raise ValueError(
            f"brokers.settings.minimumDurability {minimum}: the installed store has no replica; set store.shards to"
            " 3, or name a store that has replicas in externalStore"
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
            f"{path}: {'.'.join(map(str, each['loc'])) or 'all'}: {each['msg'].removeprefix('Value error, ')}"
            for each in error.errors()
        ]
        raise ConfigurationError("\n".join(lines)) from error
