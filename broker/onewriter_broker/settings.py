"""Every limit and option of the broker: name, unit, default.

Values come from, in this order: the command line, ``ONEWRITER_*`` environment variables, these defaults.
``cli.py`` builds a Settings object and passes it to each broker process as a file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, Self

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from onewriter_core.api.tenancy import read_exceptions
from onewriter_core.api.topic import Durability
from onewriter_core.authorization import ConsumersDefault
from onewriter_core.command import invalid_settings

LOOPBACK: Final = "127.0.0.1"

ENVIRONMENT_PREFIX: Final = "ONEWRITER_"
"""Start of the names of the environment variables."""


class Settings(BaseSettings):
    """The broker's configuration."""

    model_config = SettingsConfigDict(env_prefix=ENVIRONMENT_PREFIX, frozen=True, extra="forbid")

    # Addresses
    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(6650, ge=0, le=65535, description="port of Pulsar's binary protocol")
    http_port: int = Field(8080, ge=0, le=65535, description="port of the HTTP interface")
    probe_port: int = Field(
        0,
        ge=0,
        le=65535,
        description="separate port for probes and metrics; 0: they are on the HTTP port only",
    )
    advertised_host: str = Field(
        "", description="host that look-ups return; empty: the listen address"
    )
    tls_cert_file: Path | None = Field(
        None, description="certificate chain in PEM; enables TLS in addition to the plain ports"
    )
    tls_key_file: Path | None = Field(None, description="private key of the certificate")
    tls_ca_file: Path | None = Field(
        None,
        description="authorities in PEM that verify certificates of other brokers; read again when the"
        " file changes; none: the system's",
    )
    tls_only: bool = Field(
        False,
        description="serve the plain ports on 127.0.0.1 alone, and name TLS addresses alone in look-ups"
        " and redirects; needs a certificate",
    )
    tls_port: int = Field(
        6651, ge=0, le=65535, description="port of Pulsar's binary protocol over TLS"
    )
    https_port: int = Field(8443, ge=0, le=65535, description="port of the HTTP interface over TLS")
    name: str = Field("broker-0", description="this broker's stable name; placement hashes it")

    # Storage
    data_dir: Path = Field(
        Path("var"), description="directory of the anchor and the embedded server"
    )
    redis_url: str = Field(
        "",
        description="redis://, rediss:// (TLS) or unix:// URL of the store, or redis+cluster://HOST:PORT,... or"
        " rediss+cluster:// with some nodes of a cluster; empty: embedded",
    )
    redis_username: str = Field("", description="ACL user, if redis_url names none")
    redis_password_file: Path | None = Field(
        None, description="file with the user's password; read again for each connection"
    )
    redis_ca_file: Path | None = Field(
        None,
        description="authorities in PEM that verify the certificates of a rediss:// store and of rediss:// Sentinels;"
        " none: the system's",
    )
    redis_cert_file: Path | None = Field(
        None,
        description="client certificate in PEM for a rediss:// store; like redis_ca_file and redis_key_file,"
        " read again for each connection",
    )
    redis_key_file: Path | None = Field(None, description="private key of the client certificate")
    redis_server_name: str = Field(
        "",
        description="name that the certificates of a rediss:// store and of rediss:// Sentinels must have; empty:"
        " the host of each",
    )
    redis_sentinels: str = Field(
        "",
        description="host:port,... of Sentinels instead of redis_url; rediss://host:port,... for TLS to them and to"
        " the primary",
    )
    redis_sentinel_master: str = Field(
        "onewriter", description="the primary's name at the Sentinels"
    )
    redis_is_alone: bool = Field(
        False,
        description="redis_url always names the same server, never a copy of it (the embedded one)",
    )
    redis_replicas: int = Field(
        0, ge=0, description="replicas that durability AllReplicas waits for; 0: not available"
    )
    redis_declared_durability: Durability | None = Field(
        None,
        description="durability that an answered write of a managed store has, if the store forbids CONFIG; brokers"
        " cannot check it and show it as declared",
    )
    redis_declared_noeviction: bool = Field(
        False,
        description="a managed store that hides its maxmemory-policy never evicts keys; shown as declared",
    )
    buckets: int = Field(64, ge=1, le=4096, description="buckets; fixed for the life of the data")
    minimum_durability: Durability = Field(
        Durability.LOCAL, description="refuse to start on a store weaker than this"
    )

    # Kubernetes
    anchor: Literal["file", "kubernetes"] = Field(
        "file",
        description="where the buckets' owners are recorded: file (in data_dir) or kubernetes (in an object)",
    )
    anchor_name: str = Field("shard-0", description="the BucketAnchor object of this shard")
    kubernetes_namespace: str = Field(
        "", description="namespace of the anchor's object; empty: that of this pod"
    )
    kubernetes_url: str = Field(
        "", description="URL of the API server; empty: that of this pod's cluster"
    )
    kubernetes_ca_file: Path | None = Field(
        None, description="CA of the API server, outside a cluster"
    )
    kubernetes_token_file: Path | None = Field(
        None, description="token for the API server, outside a cluster"
    )

    manifests: tuple[Path, ...] = Field(
        (), description="files or directories of ExclusiveTopic and ProducerClaim manifests"
    )

    # Rights
    allow_undeclared: str = Field(
        "public/default",
        description="namespaces (comma separated, * for all) whose topics need no manifest",
    )
    require_declared: bool = Field(False, description="refuse topics that no manifest declares")
    tenancy_enforced: bool = Field(
        False,
        description="an ExclusiveTopic may only name topics of its Kubernetes namespace's tenant, and a"
        " topic stays with the namespace that declared it first",
    )
    tenancy_allow: str = Field(
        "", description="further tenants of namespaces: NAMESPACE=TENANT+TENANT,..."
    )
    authentication_required: bool = Field(False, description="refuse clients without a token")
    token_secret_file: Path | None = Field(None, description="HS256 key of client tokens")
    token_public_key_file: Path | None = Field(
        None, description="RS256 or ES256 key of client tokens"
    )
    token_review: bool = Field(
        False, description="verify tokens of ServiceAccounts with the Kubernetes API (TokenReview)"
    )
    token_audience: str = Field(
        "",
        description="audience that tokens must have; needed with a public key; empty: any for tokens"
        " of a secret key, onewriter for those of ServiceAccounts",
    )
    token_issuer: str = Field(
        "", description="issuer that tokens signed with a key must have; empty: any"
    )
    token_expiry_required: bool = Field(
        False, description="refuse tokens signed with a key that never expire"
    )
    admin_subjects: str = Field(
        "",
        description="token subjects (comma separated) that are administrators; empty: all clients while no"
        " token is required, none otherwise",
    )
    metrics_token_file: Path | None = Field(
        None,
        description="token that may read metrics, in addition to administrators' tokens; read again every 10 s",
    )
    observer_subjects: str = Field(
        "",
        description="token subjects (comma separated) that may see all topics and the metrics",
    )
    pipeline_subjects: str = Field(
        "",
        description="token subjects (comma separated) that may read every topic and trim it",
    )
    consumers_default: ConsumersDefault = Field(
        ConsumersDefault.EVERYONE,
        description="who may read a topic without declared consumers: everyone, or namespace (the"
        " ServiceAccounts of its Kubernetes namespace)",
    )
    queue_priority_field: int = Field(
        14, ge=0, description="field of CommandProducer that carries PIP-440's priority; 0: none"
    )

    # Detection
    ping_interval_seconds: float = Field(
        1.0, gt=0, description="interval of PINGs to connections with exclusive producers"
    )
    silent_after_seconds: float = Field(
        2.5, gt=0, description="a holder that sends no byte for this time is silent"
    )
    idle_ping_interval_seconds: float = Field(
        30.0, gt=0, description="interval of PINGs to all other connections"
    )
    resume_window_seconds: float = Field(
        3.0,
        ge=0,
        description="after a bucket moved and its topic was loaded: time in which the holder can resume before a"
        " waiter is promoted",
    )
    unused_topic_seconds: float = Field(
        300.0,
        gt=0,
        description="a topic without clients and subscriptions leaves the broker's memory after this time",
    )
    frozen_after_seconds: float = Field(
        2.0,
        gt=0,
        description="the supervisor kills a broker whose event loop does not run, and that uses no processor"
        " time, for this time",
    )
    stuck_after_seconds: float = Field(
        10.0,
        gt=0,
        description="the supervisor kills a broker whose event loop does not run for this time, although it"
        " uses processor time",
    )
    connect_timeout_seconds: float = Field(
        10.0, gt=0, description="time in which a new connection must send CONNECT"
    )

    # Limits
    message_bytes_max: int = Field(5 * 1024 * 1024, gt=0, description="largest entry, in bytes")
    connections_max: int = Field(20_000, gt=0, description="client connections of one broker")
    producers_per_connection_max: int = Field(
        50_000, gt=0, description="producers of one connection"
    )
    consumers_per_connection_max: int = Field(
        50_000, gt=0, description="consumers of one connection"
    )
    topics_max: int = Field(200_000, gt=0, description="topics loaded by one broker")
    quota_connections_per_subject: int = Field(
        10_000,
        ge=0,
        description="connections of one subject, or of one host without a token; 0: no limit",
    )
    quota_connections_per_namespace: int = Field(
        10_000,
        ge=0,
        description="connections of the ServiceAccounts of one Kubernetes namespace; 0: no limit",
    )
    quota_producers_per_subject: int = Field(
        100_000, ge=0, description="producers of one subject, including waiting ones; 0: no limit"
    )
    quota_producers_per_namespace: int = Field(
        200_000, ge=0, description="producers on the topics of one namespace; 0: no limit"
    )
    quota_consumers_per_subject: int = Field(
        100_000, ge=0, description="consumers and readers of one subject; 0: no limit"
    )
    quota_subscriptions_per_namespace: int = Field(
        200_000, ge=0, description="subscriptions to the topics of one namespace; 0: no limit"
    )
    quota_stored_bytes_per_namespace: int = Field(
        0, ge=0, description="bytes that the topics of one namespace store; 0: no limit"
    )
    quota_store_share_per_namespace: float = Field(
        0.0,
        ge=0,
        le=1,
        description="the same, as a fraction of the store's memory limit; 0: no limit",
    )
    undeclared_store_share: float = Field(
        0.5,
        ge=0,
        le=1,
        description="fraction of the store's memory limit for all undeclared topics together; 0: no limit",
    )
    undeclared_retention_bytes: int = Field(
        256 * 1024 * 1024,
        ge=0,
        description="bytes that each partition of an undeclared topic keeps; 0: all",
    )
    store_reserve_share: float = Field(
        0.05,
        ge=0,
        le=0.5,
        description="fraction of the store's memory limit that is reserved for holders of declared topics",
    )
    quota_requests_per_subject: int = Field(
        10_000,
        ge=0,
        description="concurrent requests of one subject; at the limit its connections are not read until half"
        " are answered; 0: no limit",
    )
    quota_topics_per_subject: int = Field(
        50_000,
        ge=0,
        description="topics and partitions that one subject creates by using them; 0: no limit",
    )
    quota_topics_per_namespace: int = Field(
        100_000,
        ge=0,
        description="topics and partitions of a namespace; above the limit no client can create another;"
        " 0: no limit",
    )
    pending_bytes_per_connection_max: int = Field(
        16 * 1024 * 1024,
        gt=0,
        description="bytes of messages without a receipt, of one connection; at the limit the broker stops reading the connection",
    )
    pending_bytes_max: int = Field(
        256 * 1024 * 1024, gt=0, description="the same for all connections together"
    )
    outgoing_bytes_per_connection_max: int = Field(
        1024 * 1024,
        gt=0,
        description="unsent bytes of a connection; at the limit the broker sends it no more messages",
    )
    tail_bytes_per_log: int = Field(
        2 * 1024 * 1024, gt=0, description="newest blocks of a log kept in memory, in bytes"
    )
    tail_bytes_max: int = Field(
        64 * 1024 * 1024, gt=0, description="the same for all logs together"
    )

    # Log
    roll_bytes: int = Field(64 * 1024 * 1024, gt=0, description="a ledger is rolled at this size")
    roll_seconds: float = Field(
        600.0, gt=0, description="a ledger with entries is rolled at this age"
    )
    compaction_keys_max: int = Field(
        500_000,
        gt=0,
        description="largest number of keys of a log that is compacted; each needs 150 bytes meanwhile",
    )
    ownership_kept_days: float = Field(
        30.0,
        gt=0,
        description="time for which a full bucket keeps the record of an ownership without an owner",
    )
    store_timeout_seconds: float = Field(
        5.0, gt=0, description="timeout of a call to the store; after it the result is Undecided"
    )
    publish_standstill_seconds: float = Field(
        20.0, gt=0, description="an atomic publish without progress for this time fails"
    )
    stop_seconds: float = Field(10.0, gt=0, description="time for a clean stop")

    @property
    def plain_host(self) -> str:
        """The address on which the ports without TLS listen, except the port of probes."""
        return LOOPBACK if self.tls_only else self.host

    @classmethod
    def read(cls, **given: object) -> Self:
        """The settings from ``given`` and, for all others, the environment.

        Raises ConfigurationError, with a line for each invalid setting that names its variable.
        """
        try:
            return cls(**given)  # type: ignore[arg-type]  # pydantic judges
        except ValidationError as error:
            raise invalid_settings(error, ENVIRONMENT_PREFIX) from None

    @field_validator("tenancy_allow")
    @classmethod
    def _lists_tenants(cls, text: str) -> str:
        read_exceptions(text)
        return text
