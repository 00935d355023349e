"""Changes of a bucket, and the interface that receives them."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Protocol

from onewriter_broker.ownership.acquisition import Holding


class LostReason(enum.Enum):
    """The reason for which a bucket is no longer held."""

    TAKEN = "taken"
    """Another broker owns it."""
    GIVEN_BACK = "given-back"
    """It was drained and released."""
    DATASET_REFUSED = "dataset-refused"
    """The store has a dataset that must not be adopted; the bucket waits for an administrator."""


class Refenced(enum.Enum):
    """The state of a bucket after a refused write."""

    KEPT = "kept"
    """Owner and dataset are unchanged. After a reconnect the old ledger continues; after a
    rejected write, fence the topic again under the next ledger."""
    REBOUND = "rebound"
    """Bound again, perhaps to another dataset: fence every topic again under the new binding."""
    LOST = "lost"
    """Not held any more."""


class BucketEvents(Protocol):
    """Receives the changes of buckets. All methods but ``drain`` must return at once (post to mailboxes)."""

    def bucket_acquired(self, bucket: int, holding: Holding) -> None:
        """Serve the bucket: load its catalog, re-fence its topics."""
        ...

    def bucket_lost(self, bucket: int, reason: LostReason) -> None:
        """Stop serving the bucket: close its producers and consumers."""
        ...

    def dataset_changed(self, bucket: int, holding: Holding) -> None:
        """Still the owner, under a new binding: re-fence the topics, compare their tails."""
        ...

    async def drain(self, bucket: int) -> None:
        """Drain the bucket's topics: when it returns, no grant and no write is in flight."""
        ...


class Several:
    """Several listeners, called one after the other. Implements BucketEvents."""

    def __init__(self, listeners: Sequence[BucketEvents]) -> None:
        self._listeners = listeners

    def bucket_acquired(self, bucket: int, holding: Holding) -> None:
        for listener in self._listeners:
            listener.bucket_acquired(bucket, holding)

    def bucket_lost(self, bucket: int, reason: LostReason) -> None:
        for listener in self._listeners:
            listener.bucket_lost(bucket, reason)

    def dataset_changed(self, bucket: int, holding: Holding) -> None:
        for listener in self._listeners:
            listener.dataset_changed(bucket, holding)

    async def drain(self, bucket: int) -> None:
        for listener in self._listeners:
            await listener.drain(bucket)
