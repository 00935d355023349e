"""``BucketAnchor``: the brokers' linearizable record of who owns which bucket, in Kubernetes.

One object holds the buckets of a shard, so that a broker that acquires the buckets of another broker writes once. Only
brokers write it, by compare-and-set on its resourceVersion. ``onewriter_broker.anchor.api`` documents the fields.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from onewriter_core.api.common import API_VERSION, ApiModel, ListOf, Resource

BUCKETS_PER_OBJECT_MAX = 1_024
"""Records in one object: etcd stores at most 1.5 MiB per object, a record has about a kilobyte."""

PAST_REPLIDS_MAX = 16

Counter = Annotated[int, Field(ge=0, json_schema_extra={"format": "int64"})]
Replid = Annotated[str, Field(max_length=64)]


class BucketRecord(ApiModel):
    """Record of one bucket."""

    bucket: Annotated[int, Field(ge=0, le=4095)]
    """The bucket's number."""
    version: Annotated[int, Field(ge=1, json_schema_extra={"format": "int64"})]
    """Number of writes of this record."""
    generation: Counter = 0
    """Number of registrations of a dataset; 0: none."""
    replid: Replid = ""
    """The valid dataset (the server's master_replid)."""
    past_replids: Annotated[
        ListOf[Replid],
        Field(max_length=PAST_REPLIDS_MAX, json_schema_extra={"x-kubernetes-list-type": "atomic"}),
    ] = ()
    """Datasets that were registered earlier and must not be adopted again."""
    owner: Annotated[str, Field(max_length=300)] = ""
    """Incarnation of the broker that may write; empty: none."""
    broker_url: Annotated[str, Field(max_length=1024)] = ""
    """URL of that broker for clients."""
    http_url: Annotated[str, Field(max_length=1024)] = ""
    """URL of its HTTP interface."""
    ledger_high_water: Counter = 0
    """The highest ledger ever reserved; it never decreases."""
    last_ledger: Counter = 0
    """The last granted ledger that was recorded here."""
    clean: bool = False
    """Whether lastLedger is complete, because the last owner gave the bucket up in order."""
    known_since: Counter = 0
    """Markers of this generation or a later one contain the last grant."""


class AnchorSummary(ApiModel):
    """The records in a few numbers, for kubectl."""

    buckets: Counter = 0
    """Number of buckets that a broker has ever owned."""
    owners: Counter = 0
    """Number of brokers that own a bucket."""
    generation: Counter = 0
    """The highest generation of any bucket."""


class BucketAnchor(Resource):
    """Records which broker owns which bucket. Do not delete it or restore an old copy: that breaks
    guarantees.
    """

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
