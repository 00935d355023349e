"""Dependencies that the resource buckets of a broker share, and the resources that a request names."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from onewriter_broker.log.appender import AppendPath
from onewriter_broker.log.store.api import Binding, LogStore, Outcome
from onewriter_broker.ownership.acquisition import Holding
from onewriter_broker.ownership.bucket_events import Refenced
from onewriter_core.api.topic import Durability
from onewriter_core.errors import Refused
from onewriter_core.ids import Identity
from onewriter_core.own.table import SERVE_SECONDS_MAX

if TYPE_CHECKING:
    from onewriter_broker.resources.resource_bucket import ResourceBucket

SECONDS_PER_DAY = 86_400.0

KEPT_SECONDS = 30 * SECONDS_PER_DAY
"""Default time for which a record is kept after its owner left. Then it may be dropped to make room for others."""


class BucketsOwned(Protocol):
    """The methods of bucket ownership that resources use (buckets.BucketOwnership)."""

    def holding(self, bucket: int) -> Holding | None: ...

    async def reserve_ledger(self, bucket: int) -> int: ...

    async def record_grant(self, bucket: int, ledger: int) -> None: ...

    async def record_use(self, bucket: int, ledger: int) -> None: ...

    async def refence(
        self, bucket: int, failed: Binding, outcome: Outcome | None = None
    ) -> Refenced: ...


RECORDS_PER_BUCKET_MAX = 10_000
"""Most records of a bucket. A dropped record leaves a floor for its group, so no generation restarts."""

RECORDS_PER_WRITE_MAX = 100
"""Most records in one call of the store, with their audit records."""


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    """Limits of one resource bucket: see the constants. Tests pass smaller ones."""

    records_per_bucket_max: int = RECORDS_PER_BUCKET_MAX
    records_per_write_max: int = RECORDS_PER_WRITE_MAX
    quiet_seconds: float = SERVE_SECONDS_MAX
    """After a failover that may have lost grants: how long a broker that does not know which ones grants nothing."""


@dataclass(frozen=True, slots=True)
class ResourceDependencies:
    """What all resource buckets of a broker share. ``promises``: durabilities that the store can provide now."""

    store: LogStore
    appender: AppendPath
    ownership: BucketsOwned
    spawn: Callable[[Coroutine[object, object, None]], object]
    now: Callable[[], float]
    wall_ms: Callable[[], int]
    incarnation: str
    promises: Callable[[], frozenset[Durability]]
    reserved_until: Callable[[int], float]
    """Until when a bucket's resources are reserved for the owners that its former broker had."""
    deposed: Callable[[ResourceBucket, str], None]
    """Called with a record whose owner changed, before the new owner is answered."""
    kept_seconds: float = KEPT_SECONDS
    may_drop: Callable[[], bool] = lambda: True
    """Whether all brokers keep floors. A broker without them would grant old generations again."""
    limits: ResourceLimits = ResourceLimits()


@dataclass(frozen=True, slots=True)
class WantedResource:
    """One resource of a request, by the name of its record.

    ``objection`` gets the identity of the last owner that has not released the resource, or None. It returns why
    the caller may not own the resource.
    """

    field: str
    generation: int
    may_reset: bool = False
    objection: Callable[[Identity | None], Refused | None] = lambda _last: None
