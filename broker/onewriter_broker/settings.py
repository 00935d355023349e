"""Every limit and choice of the broker: name, unit, default.

Values come from, in this order: the command line, ``ONEWRITER_*`` environment variables, these
defaults. ``cli.py`` builds a Settings and hands it to each broker process as a file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from onewriter_broker.log.api import Durability
from onewriter_core.api.tenancy import read_exceptions
from onewriter_core.authorization import ConsumersDefault


class Settings(BaseSettings):
    """The broker's configuration."""

    model_config = SettingsConfigDict(env_prefix="ONEWRITER_", frozen=True, extra="forbid")

    # Where it listens
    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(6650, ge=0, le=65535, description="port of Pulsar's binary protocol")
    http_port: int = Field(8080, ge=0, le=65535, description="port of the HTTP interface")
    probe_port: int = Field(
        0,
        ge=0,
        le=65535,
        description="port of probes and metrics alone; 0: they are on the HTTP port only",
    )
    advertised_host: str = Field(
        "", description="host that lookups answer; empty: the listen address"
    )
    tls_cert_file: Path | None = Field(
        None, description="certificate chain in PEM; with it TLS is served beside plain"
    )
    tls_key_file: Path | None = Field(None, description="private key of the certificate")
    tls_ca_file: Path | None = Field(
        None,
        description="authorities in PEM that certificates of other brokers are checked against; read"
        " again when it changes; none: the system's",
    )
    tls_port: int = Field(
        6651, ge=0, le=65535, description="port of Pulsar's binary protocol over TLS"
    )
    https_port: int = Field(8443, ge=0, le=65535, description="port of the HTTP interface over TLS")
    name: str = Field("broker-0", description="this broker's stable name; placement hashes it")

    # Where it keeps what it knows
    data_dir: Path = Field(
        Path("var"), description="directory of the anchor and the embedded server"
    )
    redis_url: str = Field("", description="redis:// or unix:// of the store; empty: embedded")
    redis_username: str = Field("", description="ACL user, where redis_url names none")
    redis_password_file: Path | None = Field(
        None, description="file with the user's password; read again for each connection"
    )
    redis_sentinels: str = Field("", description="host:port,... of Sentinels instead of redis_url")
    redis_sentinel_master: str = Field(
        "onewriter", description="the master's name at the Sentinels"
    )
    redis_is_alone: bool = Field(
        False,
        description="redis_url names one server for good, never a copy of it (the embedded one)",
    )
    redis_replicas: int = Field(
        0, ge=0, description="replicas that durability AllReplicas waits for; 0: not offered"
    )
    buckets: int = Field(64, ge=1, le=4096, description="buckets; fixed for the life of the data")
    minimum_durability: Durability = Field(
        Durability.LOCAL, description="refuse to start on a store weaker than this"
    )

    # Kubernetes
    anchor: Literal["file", "kubernetes"] = Field(
        "file", description="where the buckets' owners are recorded: in data_dir, or in an object"
    )
    anchor_name: str = Field("shard-0", description="the BucketAnchor object of this shard")
    kubernetes_namespace: str = Field(
        "", description="namespace of the anchor's object; empty: that of this pod"
    )
    kubernetes_url: str = Field("", description="the API server; empty: that of this pod's cluster")
    kubernetes_ca_file: Path | None = Field(None, description="its CA, outside a cluster")
    kubernetes_token_file: Path | None = Field(None, description="our token, outside a cluster")

    manifests: tuple[Path, ...] = Field(
        (), description="files or directories of ExclusiveTopic and ProducerClaim manifests"
    )

    # Who may do what
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
        False, description="have the Kubernetes API judge tokens of ServiceAccounts (TokenReview)"
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
        description="token subjects (comma separated) that may change things over HTTP; empty:"
        " everybody while no token is required, nobody otherwise",
    )
    metrics_token_file: Path | None = Field(
        None,
        description="token that may read metrics besides administrators' tokens; read again every 10 s",
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
        description="who may read a topic that names no consumers: everyone, or namespace (the"
        " ServiceAccounts of its Kubernetes namespace)",
    )
    queue_priority_field: int = Field(
        14, ge=0, description="field of CommandProducer that carries PIP-440's priority; 0: none"
    )

    # Detection
    ping_interval_seconds: float = Field(
        1.0, gt=0, description="PING to connections with exclusive producers"
    )
    silent_after_seconds: float = Field(
        2.5, gt=0, description="no byte for so long: the holder is silent"
    )
    idle_ping_interval_seconds: float = Field(
        30.0, gt=0, description="PING to all other connections"
    )
    resume_window_seconds: float = Field(
        3.0,
        ge=0,
        description="after a bucket moved: time for the holder to come back before a waiter",
    )
    frozen_after_seconds: float = Field(
        2.0,
        gt=0,
        description="a broker that for so long uses no processor time, and whose event loop stands"
        " still, is killed by its supervisor",
    )
    stuck_after_seconds: float = Field(
        10.0,
        gt=0,
        description="a broker whose event loop stands still for so long, though it uses processor"
        " time, is killed by its supervisor",
    )
    connect_timeout_seconds: float = Field(
        10.0, gt=0, description="time for a new connection's CONNECT"
    )

    # Limits
    message_bytes_max: int = Field(5 * 1024 * 1024, gt=0, description="largest entry, in bytes")
    connections_max: int = Field(20_000, gt=0, description="client connections of one broker")
    producers_per_connection_max: int = Field(50_000, gt=0)
    consumers_per_connection_max: int = Field(50_000, gt=0)
    topics_max: int = Field(200_000, gt=0, description="topics loaded by one broker")
    quota_connections_per_subject: int = Field(
        10_000,
        ge=0,
        description="connections of one subject, or of one host without a token; 0: any number",
    )
    quota_connections_per_namespace: int = Field(
        10_000,
        ge=0,
        description="connections of the ServiceAccounts of one Kubernetes namespace; 0: any number",
    )
    quota_producers_per_subject: int = Field(
        100_000, ge=0, description="producers of one subject, waiting ones included; 0: any number"
    )
    quota_producers_per_namespace: int = Field(
        200_000, ge=0, description="producers on the topics of one namespace; 0: any number"
    )
    quota_consumers_per_subject: int = Field(
        100_000, ge=0, description="consumers and readers of one subject; 0: any number"
    )
    quota_subscriptions_per_namespace: int = Field(
        200_000, ge=0, description="subscriptions to the topics of one namespace; 0: any number"
    )
    quota_stored_bytes_per_namespace: int = Field(
        0, ge=0, description="bytes that the topics of one namespace store; 0: any number"
    )
    quota_store_share_per_namespace: float = Field(
        0.0,
        ge=0,
        le=1,
        description="the same as a part of the store's memory limit; 0: all of it",
    )
    undeclared_store_share: float = Field(
        0.5,
        ge=0,
        le=1,
        description="part of the store's memory limit for all undeclared topics together; 0: all of it",
    )
    undeclared_retention_bytes: int = Field(
        256 * 1024 * 1024,
        ge=0,
        description="bytes of an undeclared topic that are kept, of each partition; 0: all",
    )
    store_reserve_share: float = Field(
        0.05,
        ge=0,
        le=0.5,
        description="part of the store's memory limit that only holders of declared topics use",
    )
    quota_requests_per_subject: int = Field(
        10_000,
        ge=0,
        description="requests of one subject that are worked on at once; then its connections are"
        " not read until half are answered; 0: any number",
    )
    quota_topics_per_subject: int = Field(
        50_000,
        ge=0,
        description="topics and partitions that one subject makes by using them; 0: any number",
    )
    quota_topics_per_namespace: int = Field(
        100_000,
        ge=0,
        description="topics and partitions of a namespace beyond which no client makes more;"
        " 0: any number",
    )
    pending_bytes_per_connection_max: int = Field(
        16 * 1024 * 1024,
        gt=0,
        description="sent but unanswered bytes before a connection is not read",
    )
    pending_bytes_max: int = Field(
        256 * 1024 * 1024, gt=0, description="the same over all connections"
    )
    outgoing_bytes_per_connection_max: int = Field(
        1024 * 1024,
        gt=0,
        description="unsent bytes after which nothing is dispatched to a connection",
    )
    tail_bytes_per_log: int = Field(
        2 * 1024 * 1024, gt=0, description="newest blocks of a log kept in memory, in bytes"
    )
    tail_bytes_max: int = Field(64 * 1024 * 1024, gt=0, description="the same over all logs")

    # The log
    roll_bytes: int = Field(64 * 1024 * 1024, gt=0, description="a ledger is rolled at this size")
    roll_seconds: float = Field(600.0, gt=0, description="or at this age, if it holds entries")
    compaction_keys_max: int = Field(
        500_000,
        gt=0,
        description="keys of a log that can be compacted; each takes 150 bytes meanwhile",
    )
    ownership_kept_days: float = Field(
        30.0,
        gt=0,
        description="a full bucket keeps an ownership's record so long after its owner, then it may go",
    )
    store_timeout_seconds: float = Field(
        5.0, gt=0, description="one call to the store; then Undecided"
    )
    publish_standstill_seconds: float = Field(
        20.0, gt=0, description="an atomic publish is given up that gets on no further for so long"
    )
    stop_seconds: float = Field(10.0, gt=0, description="time for a clean stop")

    @field_validator("tenancy_allow")
    @classmethod
    def _lists_tenants(cls, text: str) -> str:
        read_exceptions(text)
        return text
