"""Bucket ownership: which buckets this broker serves, and every change of that.

This module contains the loop that follows the placement plan, the reaction to refused writes, and the
release of buckets. Elsewhere: the steps of a takeover (acquisition.py), ledgers and records of a held
bucket (held_bucket.py), the pure decisions (placement.py, adoption.py), logs and topics.

A bucket is held from a successful stamp until it is dropped. The store checks the ownership at every
write: a broker that holds a bucket wrongly cannot append to it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from onewriter_broker.anchor.api import Addresses, Anchor, Versioned
from onewriter_broker.log.store.api import Binding, LogStore, Outcome
from onewriter_broker.ownership.acquisition import (
    Acquirer,
    BucketRefused,
    Holding,
    backoff_seconds,
    still_holds,
    without_owner,
)
from onewriter_broker.ownership.bucket_events import BucketEvents, LostReason, Refenced
from onewriter_broker.ownership.held_bucket import BucketTaken, HeldBucket
from onewriter_broker.ownership.placement import (
    LiveView,
    Targets,
    expected,
    may_take,
    name_of,
    plan,
)
from onewriter_core.errors import OnewriterError, Unavailable, Undecided

READS_MAX = 1_024
"""Largest number of concurrent reads of the anchor; some anchors combine them."""

ACQUISITIONS_MAX = 64
"""Largest number of concurrent acquisitions: enough for a whole takeover of a broker to share a write."""

PLACEMENT_SECONDS = 1.0
"""Interval of reading all records; a change of membership starts the next reading early."""

EXPECTING_SECONDS = 0.1
"""Interval of reading while a bucket moves to this broker or from it: clients ask for its new owner."""

MOVING_SECONDS = 3.0
"""Seconds after its release during which a bucket counts as moving."""

DRAIN_SECONDS_MAX = 5.0
"""Time limit for draining the topics of a bucket before its release."""

RECORD_SECONDS = 0.1
"""Shortest interval in which a bucket's grants share one write to the anchor, if no producer's return depends on it."""

RECORD_PAUSES = 4
"""The pause is this many times as long as the last writes took, but at most RECORD_PAUSES * RECORD_SECONDS.

So the anchor is not always busy.
"""

RECORD_SECONDS_MAX = 5.0
"""Look-ups use no older record of a foreign bucket."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A bucket that could not be acquired, and the time of the next attempt."""

    reason: str
    attempts: int
    retry_at: float


class BucketOwnership:
    """The buckets of one broker process.

    ``me`` is its incarnation (placement.incarnation_of), ``buckets`` their number. ``single_node``
    says that exactly one store is configured. ``live_view`` returns membership's present view,
    ``wake`` is set when it changes; ``last_seen_ms`` returns the time of a process's last heartbeat on its wall clock,
    ``clock_ahead_ms`` by how much that clock was ahead of this broker's, ``is_late`` whether the heartbeat of a living broker
    with this name is late.
    """

    def __init__(
        self,
        *,
        me: str,
        addresses: Addresses,
        buckets: int,
        anchor: Anchor,
        store: LogStore,
        events: BucketEvents,
        single_node: bool,
        live_view: Callable[[], LiveView | None],
        last_seen_ms: Callable[[str], int | None] = lambda _incarnation: None,
        clock_ahead_ms: Callable[[str], int] = lambda _incarnation: 0,
        is_late: Callable[[str], bool] = lambda _name: False,
        wake: asyncio.Event | None = None,
        randomness: random.Random | None = None,
    ) -> None:
        self._me = me
        self._addresses = addresses
        self._buckets = range(buckets)
        self._anchor = anchor
        self._store = store
        self._events = events
        self._live_view = live_view
        self._is_late = is_late
        self._wake = asyncio.Event() if wake is None else wake
        self._randomness = random.Random() if randomness is None else randomness  # noqa: S311 - jitter needs no secrecy
        self._acquirer = Acquirer(
            me,
            addresses,
            anchor,
            store,
            single_node=single_node,
            randomness=self._randomness,
            last_seen_ms=last_seen_ms,
            clock_ahead_ms=clock_ahead_ms,
        )
        self._held: dict[int, HeldBucket] = {}
        self._waiting: dict[int, _Waiting] = {}
        self._records: dict[int, tuple[float, Versioned]] = {}
        self._unreadable: dict[int, str] = {}
        self._busy: set[int] = set()
        self._refencing: dict[int, asyncio.Future[Refenced | None]] = {}
        self._low: set[int] = set()
        self._has_low = asyncio.Event()
        self._unrecorded: set[int] = set()
        self._has_unrecorded = asyncio.Event()
        self._reads = asyncio.Semaphore(READS_MAX)
        self._acquisitions = asyncio.Semaphore(ACQUISITIONS_MAX)
        self._targets = Targets()
        self._is_leaving = False
        self._moving_until = 0.0
        self._held_reported = 0

    # Questions.

    def held(self) -> dict[int, Holding]:
        """The buckets that this broker serves now."""
        return {bucket: held.holding for bucket, held in self._held.items()}

    def holding(self, bucket: int) -> Holding | None:
        """The right to serve the bucket, or None."""
        held = self._held.get(bucket)
        return None if held is None else held.holding

    def owner_of(self, bucket: int) -> Addresses | None:
        """The addresses of the bucket's owner; None if no broker is known to serve it now, or if it is moving.

        For a foreign bucket they come from a record that is at most RECORD_SECONDS_MAX old; while the
        anchor is unavailable, and buckets do not move, from the last record that was read. While the
        store is unavailable, no broker is known to be dead: perhaps only this broker lost the store,
        and its clients must find the brokers that acquired its buckets.
        """
        if (held := self._held.get(bucket)) is not None:
            return None if held.is_closing else self._addresses
        read_at, known = self._records.get(bucket, (0.0, None))
        is_old = _now() - read_at > RECORD_SECONDS_MAX and bucket not in self._unreadable
        if known is None or is_old or not known.record.owner:
            return None
        owner, view = name_of(known.record.owner), self._live_view()
        is_there = owner != name_of(self._me) if view is None else owner in view.alive
        return known.record.addresses if is_there else None

    def is_in_doubt(self, bucket: int) -> bool:
        """Whether the heartbeat of the bucket's owner is late, so that it may be dead although ``owner_of`` names it."""
        if bucket in self._held:
            return False
        _, known = self._records.get(bucket, (0.0, None))
        is_late = known is not None and self._is_late(name_of(known.record.owner))
        return is_late and self._live_view() is not None

    def other_owners(self) -> set[Addresses]:
        """The addresses of the other brokers that own buckets by the records that were read last."""
        none_or_mine = {"", name_of(self._me)}
        return {
            known.record.addresses
            for _, known in self._records.values()
            if name_of(known.record.owner) not in none_or_mine
        }

    def waiting_reason(self, bucket: int) -> str:
        """The reason for which a bucket is not or not fully served here although it should be; empty if it is."""
        waiting = self._waiting.get(bucket)
        return self._unreadable.get(bucket, "") if waiting is None else waiting.reason

    def served(self) -> list[int]:
        """The buckets that this broker serves without a problem."""
        return [bucket for bucket in self._held if bucket not in self._waiting]

    def waiting(self) -> dict[int, str]:
        """The buckets that this broker should serve but cannot, with the reason.

        Buckets of others whose record cannot be read are not among them: their owners may serve them.
        """
        return {bucket: waiting.reason for bucket, waiting in self._waiting.items()}

    # Ledgers and grants.

    async def reserve_ledger(self, bucket: int) -> int:
        """The next ledger of a held bucket; suspends only if the reserved block is used up.

        Obligation: call ``LogStore.fence`` with it before anything else suspends, so that fences
        are executed in the order of their ledgers. What survived a failover follows from comparing
        the highest ledgers (Record.last_ledger), which relies on this order.

        Raises Unavailable if the bucket is not held or the anchor cannot be reached.
        """
        held = self._require(bucket)
        while (ledger := held.take_ledger()) is None:
            await self._changing(held, held.refill())
            held = self._require(bucket)
        if held.is_low:
            self._low.add(bucket)
            self._has_low.set()
        return ledger

    async def record_grant(self, bucket: int, ledger: int) -> None:
        """Record that ``ledger`` is about to be granted; call it before the grant is answered.

        On an anchor that records every grant, the record is written when this returns; concurrent
        grants share one write. Raises Unavailable if the record could not be written: do not answer a
        grant that ends the right of a producer that may return.
        """
        held = self._require(bucket)
        await self._changing(held, held.record_grant(ledger))

    def note_grant(self, bucket: int, ledger: int) -> None:
        """Record a grant soon, which ends no right of a producer that may return.

        All grants of a bucket within 0.1 s to 0.4 s share one write (RECORD_SECONDS, RECORD_PAUSES).
        """
        held = self._held.get(bucket)
        if held is not None and held.note_grant(ledger):
            self._unrecorded.add(bucket)
            self._has_unrecorded.set()

    async def confirm_record(self, bucket: int) -> None:
        """Check that a transition could be recorded; call it before a writer is stopped for one.

        Returns immediately while the anchor answers. Raises Unavailable.
        """
        held = self._require(bucket)
        await self._changing(held, held.confirm())

    async def record_use(self, bucket: int, ledger: int) -> None:
        """Record that the bucket will have data from ``ledger`` on; one call is sufficient.

        Without the record, a bucket that only Shared producers wrote to could be emptied and then
        treated as new. Raises Unavailable.
        """
        held = self._require(bucket)
        await self._changing(held, held.record_use(ledger))

    async def _changing(self, held: HeldBucket, change: Awaitable[None]) -> None:
        """Await a change of a held bucket's record; drop the bucket if another broker has acquired it."""
        try:
            await change
        except BucketTaken:
            self._drop(held, LostReason.TAKEN)
            raise
        if self._held.get(held.bucket) is not held:
            raise Unavailable(f"this broker no longer owns bucket {held.bucket}; retry")

    def _require(self, bucket: int) -> HeldBucket:
        held = self._held.get(bucket)
        if held is None or held.is_closing:
            raise Unavailable(f"bucket {bucket} is not served by this broker; retry")
        return held

    # Acquisition and loss.

    async def acquire(self, bucket: int) -> Holding | None:
        """Acquire a bucket if it is free; None if it is not (its owner may be alive).

        Raises BucketRefused, Unavailable or Undecided; then the bucket is not held.
        """
        view = self._live_view()
        if view is None:
            raise Unavailable(
                "the store does not answer, so this broker does not know which brokers are alive"
            )
        if bucket in self._held:
            return self._held[bucket].holding
        acquisition = await self._acquirer.acquire(
            bucket, lambda record: may_take(self._me, view.of(bucket), record)
        )
        if acquisition is None or self._is_leaving:
            return None
        self._held[bucket] = HeldBucket(acquisition, self._anchor)
        self._events.bucket_acquired(bucket, acquisition.holding)
        return acquisition.holding

    async def refence(
        self, bucket: int, failed: Binding, outcome: Outcome | None = None
    ) -> Refenced:
        """React to a refused write, or to a reconnect (``outcome`` None).

        ``failed`` is the binding of that write; if the bucket is already bound again, the result is
        immediate, and concurrent callers share one result. Waits while anchor or store are unavailable
        (``waiting_reason`` shows it); the owner of an unchanged dataset continues without the anchor.
        """
        held = self._held.get(bucket)
        if held is None:
            return Refenced.LOST
        if held.holding.binding != failed:
            return Refenced.REBOUND
        while (shared := self._refencing.get(bucket)) is not None:
            if (result := await asyncio.shield(shared)) is not None:
                return result
        answer = self._refencing[bucket] = asyncio.get_running_loop().create_future()
        result = None
        try:
            result = await self._refence(held, outcome)
            return result
        finally:
            del self._refencing[bucket]
            answer.set_result(result)  # None if this caller was cancelled: another caller continues

    async def _refence(self, held: HeldBucket, outcome: Outcome | None) -> Refenced:
        bucket, attempts = held.bucket, 0
        while self._held.get(bucket) is held:
            try:
                result = await self._refence_once(held, outcome)
            except BucketRefused as error:
                _log.error("bucket.refused", bucket=bucket, reason=str(error))
                self._drop(held, LostReason.DATASET_REFUSED)
                self._put_off(bucket, error)
            except (Unavailable, Undecided) as error:
                attempts += 1
                self._put_off(bucket, error)
                await asyncio.sleep(backoff_seconds(attempts, self._randomness))
            else:
                self._waiting.pop(bucket, None)
                return result
        return Refenced.LOST

    async def _refence_once(self, held: HeldBucket, outcome: Outcome | None) -> Refenced:
        bucket, binding = held.bucket, held.holding.binding
        if (
            outcome is None
            and not held.is_contested
            and still_holds(binding, await self._store.observe([bucket]))
        ):
            return Refenced.KEPT
        try:
            current = await self._anchor.read(bucket)
        except Unavailable:
            # The owner of an unchanged dataset needs no anchor; a fenced broker must read it.
            if (
                outcome is Outcome.FENCED
                or held.is_contested
                or not still_holds(binding, await self._store.observe([bucket]))
            ):
                raise
            return Refenced.KEPT
        if not held.is_own(current.record):
            self._drop(held, LostReason.TAKEN)
            return Refenced.LOST
        if held.names(current.record):
            held.is_contested = False
            if still_holds(binding, await self._store.observe([bucket])):
                return Refenced.KEPT
        held.is_contested = True
        acquisition = await self._acquirer.acquire(bucket, held.is_own, held.granted)
        if acquisition is None:
            self._drop(held, LostReason.TAKEN)
        if acquisition is None or self._held.get(bucket) is not held:
            return Refenced.LOST
        held.is_closing = True
        self._held[bucket] = HeldBucket(acquisition, self._anchor)
        self._events.dataset_changed(bucket, acquisition.holding)
        return Refenced.REBOUND

    async def give_back(self, bucket: int) -> None:
        """Drain a held bucket and release it, so that another broker may acquire it immediately.

        The bucket is not held when this returns, even if the anchor failed: a record that could not
        be released still names this process, and the placement loop releases it later.
        """
        held = self._held.get(bucket)
        if held is None or held.is_closing:
            return
        held.is_closing = True
        is_drained = True
        try:
            async with asyncio.timeout(DRAIN_SECONDS_MAX):
                await self._events.drain(bucket)
        except (TimeoutError, OnewriterError) as error:
            is_drained = (
                False  # released anyway: a bucket that stayed closing would serve no client
            )
            _log.warning("bucket.not_drained", bucket=bucket, reason=str(error) or "too slow")
        try:
            await held.release(is_drained=is_drained)
        except Unavailable as error:
            _log.warning("bucket.not_released", bucket=bucket, reason=str(error))
        self._drop(held, LostReason.GIVEN_BACK)
        self._moving_until = _now() + MOVING_SECONDS
        self._wake.set()

    async def give_back_all(self) -> None:
        """Acquire no more buckets, and release all of them concurrently."""
        self._is_leaving = True
        async with asyncio.TaskGroup() as tasks:
            for bucket in list(self._held):
                tasks.create_task(self.give_back(bucket))

    def _drop(self, held: HeldBucket, reason: LostReason) -> None:
        """End the ownership of a bucket once; its unused ledgers are discarded."""
        held.is_closing = True
        if self._held.get(held.bucket) is held:
            del self._held[held.bucket]
            log = _log.debug if reason is LostReason.GIVEN_BACK else _log.warning
            log("bucket.lost", bucket=held.bucket, reason=reason.value)
            self._events.bucket_lost(held.bucket, reason)

    # The loop.

    async def run(self) -> None:
        """Follow the placement plan and refill ledger blocks, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._refill_low())
            tasks.create_task(self._record_noted())
            while True:
                is_expecting = await self.place_once(tasks)
                try:
                    async with asyncio.timeout(
                        EXPECTING_SECONDS if is_expecting else PLACEMENT_SECONDS
                    ):
                        await self._wake.wait()
                except TimeoutError:
                    continue
                self._wake.clear()

    async def place_once(self, tasks: asyncio.TaskGroup) -> bool:
        """Read the records and start the planned actions as tasks of the group.

        True: a bucket moves to this broker or from it.
        """
        started_at = _now()
        await self._read_records()
        view = self._live_view()
        is_moving = _now() < self._moving_until
        if view is None or self._is_leaving:
            return is_moving
        records = {  # only the records that were just read: without the anchor nothing is released either
            bucket: versioned.record
            for bucket, (read_at, versioned) in self._records.items()
            if read_at >= started_at
        }
        todo = plan(self._me, view, records, self._held, self._targets)
        if not self._busy and len(self._held) != self._held_reported:
            self._held_reported = len(self._held)
            _log.info("buckets.held", held=len(self._held), all=len(self._buckets))
        for bucket in records.keys() - {*todo.acquire, *todo.give_back, *todo.release}:
            if bucket not in self._refencing:
                self._waiting.pop(bucket, None)  # it is served, here or elsewhere
        for buckets, work in (
            (todo.acquire, self._try_to_acquire),
            (todo.give_back, self.give_back),
            (todo.release, self._release),
        ):
            for bucket in buckets:
                waiting = self._waiting.get(bucket)
                if bucket not in self._busy and (waiting is None or waiting.retry_at <= _now()):
                    self._busy.add(bucket)
                    tasks.create_task(self._work(bucket, work))
        return is_moving or expected(self._me, view, records, self._targets)

    async def _work(self, bucket: int, work: Callable[[int], Awaitable[None]]) -> None:
        """Run one action on a bucket; if anchor or store are unavailable, it is retried later."""
        try:
            await work(bucket)
        except OnewriterError as error:
            self._put_off(bucket, error)
        else:
            self._waiting.pop(bucket, None)
        finally:
            self._busy.discard(bucket)

    async def _try_to_acquire(self, bucket: int) -> None:
        async with self._acquisitions:
            await self.acquire(bucket)

    async def _release(self, bucket: int) -> None:
        """Clear a record that names this broker although no broker serves the bucket (placement.plan)."""
        current = await self._anchor.read(bucket)
        if name_of(current.record.owner) == name_of(self._me) and bucket not in self._held:
            await self._anchor.compare_and_set(
                bucket, current.version, without_owner(current.record)
            )

    def _put_off(self, bucket: int, error: OnewriterError) -> None:
        known = self._waiting.get(bucket)
        attempts = 1 if known is None else known.attempts + 1
        retry_at = _now() + backoff_seconds(attempts, self._randomness)
        self._waiting[bucket] = _Waiting(str(error), attempts, retry_at)
        if known is None or known.reason != str(error):
            _log.warning("bucket.waiting", bucket=bucket, reason=str(error))

    async def _read_records(self) -> None:
        """Read the record of every bucket; a bucket that cannot be read keeps its old record."""
        async with asyncio.TaskGroup() as tasks:
            for bucket in self._buckets:
                tasks.create_task(self._read_record(bucket))

    async def _read_record(self, bucket: int) -> None:
        try:
            async with self._reads:
                read_at = _now()
                current = await self._anchor.read(bucket)
        except OnewriterError as error:
            held = self._held.get(bucket)
            if held is None:
                self._unreadable[bucket] = str(error)
            else:  # continue: a holder needs the anchor for a transition only
                held.mark_stale()
            return
        self._unreadable.pop(bucket, None)
        self._records[bucket] = (read_at, current)
        held = self._held.get(bucket)
        if held is None or held.is_closing:  # a bucket that is being released has no owner
            return
        if current.version > held.version and not held.is_own(current.record):
            self._drop(held, LostReason.TAKEN)

    async def _record_noted(self) -> None:
        """Record the noted grants, at most once in each pause (RECORD_SECONDS, RECORD_PAUSES) for each bucket."""
        attempts, written_seconds = 0, 0.0
        while True:
            await self._has_unrecorded.wait()
            await asyncio.sleep(
                max(RECORD_SECONDS, RECORD_PAUSES * min(written_seconds, RECORD_SECONDS))
                + (attempts and backoff_seconds(attempts, self._randomness))
            )
            self._has_unrecorded.clear()
            noted, self._unrecorded = sorted(self._unrecorded), set()
            began_at = _now()
            failures = await asyncio.gather(*(self._record_bucket(bucket) for bucket in noted))
            written_seconds = _now() - began_at
            attempts = attempts + 1 if any(failures) else 0

    async def _record_bucket(self, bucket: int) -> bool:
        """Record the newest grant of a bucket; whether that failed and is to be repeated."""
        held = self._held.get(bucket)
        if held is None or held.is_closing:
            return False  # its release records the newest grant
        try:
            await self._changing(held, held.record_grant(held.granted))
        except Unavailable as error:
            if self._held.get(bucket) is not held or held.is_closing:
                return False
            _log.warning("bucket.grants_unrecorded", bucket=bucket, reason=str(error))
            self._unrecorded.add(bucket)
            self._has_unrecorded.set()
            return True
        return False

    async def _refill_low(self) -> None:
        """Reserve the next block of ledgers before the present one is used up."""
        attempts = 0
        while True:
            await self._has_low.wait()
            self._has_low.clear()
            for bucket in sorted(self._low):
                self._low.discard(bucket)
                held = self._held.get(bucket)
                if held is None:
                    continue
                try:
                    await self._changing(held, held.refill())
                    attempts = 0
                except OnewriterError as error:
                    _log.warning("bucket.no_ledgers", bucket=bucket, reason=str(error))
                    attempts += 1
                    await asyncio.sleep(backoff_seconds(attempts, self._randomness))


def _now() -> float:
    return asyncio.get_running_loop().time()
