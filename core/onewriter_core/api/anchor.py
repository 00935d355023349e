"""``BucketAnchor``: the brokers' linearizable record of who owns which bucket, in Kubernetes.

One object holds the buckets of a shard, so that a broker that takes over another's buckets writes
once. Only brokers write it, by compare-and-set on its resourceVersion; people read it. What the
fields mean is in ``onewriter_broker.anchor.api``.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from onewriter_core.api.common import API_VERSION, ApiModel, ListOf, Resource

BUCKETS_PER_OBJECT_MAX = 1_024
"""Records of one object: an object has at most 1.5 MiB in etcd, a record about a kilobyte."""

PAST_REPLIDS_MAX = 16

Counter = Annotated[int, Field(ge=0, json_schema_extra={"format": "int64"})]
Replid = Annotated[str, Field(max_length=64)]


class BucketRecord(ApiModel):
    """The state of one bucket."""

    bucket: Annotated[int, Field(ge=0, le=4095)]
    """The bucket's number."""
    version: Annotated[int, Field(ge=1, json_schema_extra={"format": "int64"})]
    """Number of writes to this record."""
    generation: Counter = 0
    """Number of datasets that were registered. 0: none."""
    replid: Replid = ""
    """The registered dataset (master_replid of the store server)."""
    past_replids: Annotated[
        ListOf[Replid],
        Field(max_length=PAST_REPLIDS_MAX, json_schema_extra={"x-kubernetes-list-type": "atomic"}),
    ] = ()
    """Datasets that were registered earlier. Brokers never adopt them again."""
    owner: Annotated[str, Field(max_length=300)] = ""
    """Incarnation of the broker that owns the bucket. Empty: no broker."""
    broker_url: Annotated[str, Field(max_length=1024)] = ""
    """Address of that broker for clients."""
    http_url: Annotated[str, Field(max_length=1024)] = ""
    """HTTP address of that broker."""
    ledger_high_water: Counter = 0
    """The highest ledger that was ever reserved. Never decreases."""
    last_ledger: Counter = 0
    """The last granted ledger that was recorded here."""
    clean: bool = False
    """Whether lastLedger is complete: the last owner released the bucket in an orderly way."""
    known_since: Counter = 0
    """First generation whose markers contain the last grant."""


class AnchorSummary(ApiModel):
    """Summary of the records, for kubectl."""

    buckets: Counter = 0
    """Number of buckets that ever had an owner."""
    owners: Counter = 0
    """Number of brokers that own buckets."""
    generation: Counter = 0
    """The highest generation of any bucket."""


class BucketAnchor(Resource):
    """Records which broker owns which bucket. Never delete it or restore an old copy: that breaks the
    guarantees."""

    api_version: Literal["onewriter.dev/v1alpha1"] = API_VERSION
    kind: Literal["BucketAnchor"] = "BucketAnchor"
    buckets: Annotated[
        ListOf[BucketRecord],
        Field(
            max_length=BUCKETS_PER_OBJECT_MAX,
            json_schema_extra={
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["bucket"],
            },
        ),
    ] = ()
    """One record per bucket."""
    summary: AnchorSummary = AnchorSummary()
    """Summary of the records."""
