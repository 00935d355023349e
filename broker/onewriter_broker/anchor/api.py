"""The anchor as the broker sees it: a record per bucket, changed only by compare-and-set.

It is the one assumption behind promise 1: a linearizable record. In Kubernetes an API object, on
one machine a file, in tests memory; all pass the same contract suite.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

PAST_REPLIDS_MAX = 16
"""Datasets remembered as never adoptable again; a second line of defence, so a few suffice."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where clients reach a broker."""

    broker_url: str = ""
    http_url: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """What counts for one bucket.

    ``generation``: how often a dataset was registered; 0: never.
    ``replid``: the dataset that counts. ``past_replids``: registered earlier, never adoptable again.
    ``owner``: incarnation of the broker process that may write; empty: the bucket has no owner.
    ``addresses``: where that broker is.
    ``ledger_high_water``: the highest ledger ever reserved; it never decreases.
    ``last_ledger``: the last granted ledger that was recorded here, as far as the dataset that
    counts can still hold it (a registration that had to do without it starts from what is there).
    ``clean``: ``last_ledger`` is complete, because the last owner gave the bucket back in order.
    ``known_since``: markers of this generation or a later one tell the last grant; an older marker
    may have been followed by a grant that was lost with a dataset's tail (redis: a torn file, a
    lagging replica), so no producer resumes by it. It never decreases.
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

    Raises Unavailable when the anchor cannot be reached; a failed or unreachable
    ``compare_and_set`` may still have happened, so callers read again.
    """

    records_every_grant: bool
    """True: ``last_ledger`` is written before the answer of each grant that ends the right of a producer
    that may return (anchors with cheap writes)."""

    async def read(self, bucket: int) -> Versioned:
        """The newest record of a bucket; never a stale one."""
        ...

    async def compare_and_set(self, bucket: int, version: int, record: Record) -> int | None:
        """Replace the record if its version still is ``version``.

        Returns the new version, or None if another process was first.
        """
        ...

    async def close(self) -> None:
        """Release what the anchor holds."""
        ...
