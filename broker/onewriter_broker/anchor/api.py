"""The interface of the anchor: a record per bucket, changed only by compare-and-set.

The guarantee of a single writer depends on one assumption: that this record is linearizable. In Kubernetes it is
an API object, on one machine a file, in tests memory; all pass the same contract suite.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

PAST_REPLIDS_MAX = 16
"""Number of former datasets that are recorded as not adoptable; a second line of defence, so a few suffice."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses at which clients reach a broker."""

    broker_url: str = ""
    http_url: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """The anchor's record of one bucket.

    ``generation``: the number of registrations of datasets; 0: none yet.
    ``replid``: the registered dataset. ``past_replids``: registered earlier, never adoptable again.
    ``owner``: incarnation of the broker process that may write; empty: the bucket has no owner.
    ``addresses``: the addresses of that broker.
    ``ledger_high_water``: the highest ledger ever reserved; it never decreases.
    ``last_ledger``: the last granted ledger that was recorded here, if the registered dataset can
    still have it (a registration after its loss starts with the ledger that the dataset has).
    ``clean``: ``last_ledger`` is complete, because the last owner released the bucket in order.
    ``known_since``: markers of this generation or a later one show the last grant. After an older
    marker a grant may have been lost with the end of a dataset (a torn file, a lagging replica), so
    no producer resumes by it. It never decreases.
    """

    generation: int = 0
    replid: str = ""
    past_replids: tuple[str, ...] = ()
    owner: str = ""
    addresses: Addresses = Addresses()
    ledger_high_water: int = 0
    last_ledger: int = 0
    clean: bool = False
    known_since: int = 0


@dataclass(frozen=True, slots=True)
class Versioned:
    """A record with the version that the next compare-and-set must name; 0: never written."""

    version: int
    record: Record


class Anchor(Protocol):
    """Linearizable compare-and-set over one record per bucket.

    Raises Unavailable if the anchor cannot be reached. A failed ``compare_and_set`` may still have
    been executed, so callers read again.
    """

    records_every_grant: bool
    """True: ``last_ledger`` is written before the answer of each grant that ends the right of a producer
    that may return (anchors with cheap writes)."""

    async def read(self, bucket: int) -> Versioned:
        """The newest record of a bucket, never a stale one."""
        ...

    async def compare_and_set(self, bucket: int, version: int, record: Record) -> int | None:
        """Replace the record if its version still is ``version``.

        Returns the new version, or None if another process was first.
        """
        ...

    async def close(self) -> None:
        """Close connections and files."""
        ...
