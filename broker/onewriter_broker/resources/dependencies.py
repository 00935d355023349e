"""What the rooms of a broker share, and what they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from onewriter_broker.log.appender import Appender
from onewriter_broker.log.store.api import Binding, Durability, LogStore, Outcome
from onewriter_broker.ownership.acquisition import Holding
from onewriter_broker.ownership.bucket_events import Refenced
from onewriter_core.errors import Refused
from onewriter_core.ids import Identity

if TYPE_CHECKING:
    from onewriter_broker.resources.resource_bucket import ResourceBucket

SECONDS_PER_DAY = 86_400.0

KEPT_SECONDS = 30 * SECONDS_PER_DAY
"""Unless told otherwise a record stays so long after its owner, before it may make room for others."""


class BucketsOwned(Protocol):
    """What this needs of bucket ownership (buckets.BucketOwnership)."""

    def holding(self, bucket: int) -> Holding | None: ...

    async def reserve_ledger(self, bucket: int) -> int: ...

    async def record_grant(self, bucket: int, ledger: int) -> None: ...

    async def record_use(self, bucket: int, ledger: int) -> None: ...

    async def refence(
        self, bucket: int, failed: Binding, outcome: Outcome | None = None
    ) -> Refenced: ...


@dataclass(frozen=True, slots=True)
class ResourceDependencies:
    """What all rooms of a broker share. ``promises``: what the store can promise now."""

    store: LogStore
    appender: Appender
    ownership: BucketsOwned
    spawn: Callable[[Coroutine[object, object, None]], object]
    now: Callable[[], float]
    wall_ms: Callable[[], int]
    incarnation: str
    promises: Callable[[], frozenset[Durability]]
    reserved_until: Callable[[int], float]
    """Until when the owners are waited for that a bucket's former broker had."""
    deposed: Callable[[ResourceBucket, str], None]
    """Told of a record whose owner is another one from now on, before that one is answered."""
    kept_seconds: float = KEPT_SECONDS
    may_drop: Callable[[], bool] = lambda: True
    """Whether all brokers keep floors: one that does not would let generations begin anew."""


@dataclass(frozen=True, slots=True)
class WantedResource:
    """One resource of a request, by its record's name.

    ``objection`` is asked with the identity that owned it last and has not released it, None where
    there is none: why the asker may not own it.
    """

    field: str
    generation: int
    may_reset: bool = False
    objection: Callable[[Identity | None], Refused | None] = lambda _last: None
