"""``OneWriter``: the state of one installation, for people and tools. Only the operator writes it.

The object has no spec: the values of the chart are the only configuration. Deleting it deletes nothing else, and the
operator creates it again.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from onewriter_core.api.common import API_VERSION, ApiModel, ListOf, Resource
from onewriter_core.api.status import Conditions, Number, Text, Time, Word

WAITING_REASONS_MAX: Final = 5
"""The maximum number of reasons that are listed for waiting buckets."""

CERTIFICATES_MAX: Final = 64
"""The maximum number of certificates that are listed."""

ATOMIC: Final = {"x-kubernetes-list-type": "atomic"}


class BrokersStatus(ApiModel):
    """The brokers."""

    summary: Word
    """Ready and configured brokers, as 3/3."""
    ready: Number
    """Number of ready brokers."""
    desired: Number
    """Number of configured brokers."""
    followed: Number
    """Number of brokers that report to the operator."""


class StoreMemory(ApiModel):
    """The memory of the store. The values are rounded, so that an idle installation causes no write."""

    summary: Word
    """Used share of the limit, as 62%; the used amount if there is no limit."""
    used_bytes: Number
    """Used memory."""
    limit_bytes: Number | None = None
    """Memory limit for data; unset if there is none."""
    growth_bytes_per_hour: Annotated[int | None, Field(json_schema_extra={"format": "int64"})] = (
        None
    )
    """Change of the used memory within the last hour, as measured by this operator; unset during its first
    half hour."""


class StoreStatus(ApiModel):
    """The store of all topics."""

    state: Literal["Reachable", "PartlyReachable", "Unreachable", "Unknown"]
    """Whether the brokers reach the store. PartlyReachable: some do. Unknown: no broker reports it."""
    managed: bool
    """Whether the operator installed it; false for an external store."""
    url: Text | None = None
    """Its address without credentials; with Sentinels the list of them."""
    topology: Literal["Single", "Sentinel", "Cluster"] | None = None
    """Single: one server. Sentinel: Sentinels name the present primary. Cluster: several primaries."""
    durability: Word | None = None
    """The strongest durability that the store can promise at present."""
    memory: StoreMemory | None = None
    """Its memory; unset until a broker reports it."""


class WaitingReason(ApiModel):
    """Why some buckets are not served."""

    reason: Text
    """The reason, as a broker reports it."""
    buckets: Number
    """Number of buckets with this reason."""


class BucketsStatus(ApiModel):
    """The buckets: each topic belongs to one of them."""

    total: Number | None = None
    """Number of buckets; unset until a broker reports it."""
    waiting: Number | None = None
    """Number of buckets that no broker serves; unset if unknown. Their topics are not served either."""
    reasons: Annotated[
        ListOf[WaitingReason], Field(max_length=WAITING_REASONS_MAX, json_schema_extra=ATOMIC)
    ] = ()
    """The most frequent reasons."""


class CertificateStatus(ApiModel):
    """A certificate, as reported by the process that uses its file."""

    name: Word
    """The use of the certificate: broker, store-ca, webhook or broker-ca."""
    reported_by: Word
    """The broker that uses it, or operator."""
    not_after: Time
    """Time when it expires."""


class Versions(ApiModel):
    """The versions that run."""

    operator: Word | None = None
    """Version of the operator that writes this status."""
    brokers: Text | None = None
    """Version of the brokers; during an upgrade several, separated by commas."""


class OneWriterStatus(ApiModel):
    """Observed state of the installation."""

    observed_generation: Annotated[int, Field(ge=-1, json_schema_extra={"format": "int64"})] = -1
    """The generation that this status describes; -1: not reconciled yet."""
    brokers: BrokersStatus | None = None
    """The brokers."""
    store: StoreStatus | None = None
    """The store."""
    buckets: BucketsStatus | None = None
    """Buckets that are served and that wait."""
    certificates: Annotated[
        ListOf[CertificateStatus],
        Field(max_length=CERTIFICATES_MAX, json_schema_extra=ATOMIC),
    ] = ()
    """Certificates in use; the one that expires first is first."""
    versions: Versions | None = None
    """The versions that run."""
    conditions: Conditions = ()
    """Ready sums up Installed, BrokersReady, StoreReachable, StoreHealthy, StoreComplete, BucketsServed and
    CertificatesValid."""


class OneWriter(Resource):
    """State of one installation of onewriter. It has no spec: the chart's values are the configuration. Deleting
    it deletes nothing else, and the operator creates it again.
    """

    api_version: Literal["onewriter.dev/v1alpha1"] = API_VERSION
    kind: Literal["OneWriter"] = "OneWriter"
