"""A held bucket's share of the anchor: its block of ledgers and the record of the last grant.

While a bucket is held, only this process changes its record, one change at a time. A change that
could not be confirmed leaves the record *stale*: the next change reads it again first. buckets.py
acquires and drops buckets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from onewriter_broker.anchor.api import Addresses, Anchor, Record
from onewriter_broker.ownership.acquisition import Acquisition
from onewriter_broker.ownership.adoption import LEDGERS_PER_BLOCK
from onewriter_core.errors import Unavailable
from onewriter_core.ids import NUMBER_MAX

UPDATE_ATTEMPTS_MAX = 5
"""Compare-and-set attempts of one change before it is postponed."""

BLOCK_MAX = 1_024
"""Ledgers of the largest block. A block that is used up before the next one is reserved doubles the size of the next
ones, because each block costs two syncs of the disk."""


class BucketTaken(Unavailable):
    """The record no longer names this process's binding: another process owns the bucket."""


class HeldBucket:
    """One acquisition of a bucket, from the stamp until it is dropped or acquired again."""

    def __init__(self, acquisition: Acquisition, anchor: Anchor) -> None:
        self.holding = acquisition.holding
        self.version = acquisition.current.version
        self.is_closing = False
        self.is_contested = False
        """This broker has begun a newer registration: this one is valid again only if the record names it."""
        self._record = acquisition.current.record
        self._ranges = [acquisition.ledgers]
        self._block = LEDGERS_PER_BLOCK
        self._granted = acquisition.last_ledger
        self._is_stale = False
        self._anchor = anchor
        self._lock = asyncio.Lock()

    @property
    def bucket(self) -> int:
        """The bucket's number."""
        return self.holding.binding.bucket

    @property
    def granted(self) -> int:
        """The highest ledger that may have been granted, in this process's memory."""
        return self._granted

    @property
    def is_low(self) -> bool:
        """Whether the next block should be reserved."""
        return self._left < self._block // 2

    @property
    def _left(self) -> int:
        return sum(len(ledgers) for ledgers in self._ranges)

    def names(self, record: Record) -> bool:
        """Whether ``record`` still gives the bucket to this acquisition."""
        binding = self.holding.binding
        return (record.owner, record.generation) == (binding.owner, binding.generation)

    def is_own(self, record: Record) -> bool:
        """Whether ``record`` names this process: by this acquisition, or by a newer one of the same bucket
        that is under way or was interrupted (BucketOwnership.refence).
        """
        binding = self.holding.binding
        return record.owner == binding.owner and record.generation >= binding.generation

    def take_ledger(self) -> int | None:
        """The next ledger of the block; None if the block is used up."""
        while self._ranges:
            ledgers = self._ranges.pop(0)
            if ledgers:
                self._ranges.insert(0, ledgers[1:])
                return ledgers[0]
        return None

    async def refill(self) -> None:
        """Reserve another block, unless enough is left. Raises BucketTaken or Unavailable."""
        async with self._lock:
            if not self.is_low:
                return
            size = self._block if self._left else min(2 * self._block, BLOCK_MAX)
            if self._record.ledger_high_water > NUMBER_MAX - size:
                raise Unavailable(f"bucket {self.bucket} has used up its ledger numbers")
            record = await self._update(
                lambda record: replace(record, ledger_high_water=record.ledger_high_water + size)
            )
            last = record.ledger_high_water
            self._ranges.append(range(last - size + 1, last + 1))
            self._block = size

    def note_grant(self, ledger: int) -> bool:
        """Remember a grant. Returns whether the anchor still has to record it."""
        self._granted = max(self._granted, ledger)
        return self._anchor.records_every_grant and self._record.last_ledger < ledger

    async def record_grant(self, ledger: int) -> None:
        """Record a grant in the anchor, if the anchor requires it; concurrent grants share a write.

        Raises BucketTaken or Unavailable; then the grant must not be answered.
        """
        if self.is_closing:
            raise Unavailable(f"bucket {self.bucket} is moving to another broker; retry later")
        self._granted = max(self._granted, ledger)
        if not self._anchor.records_every_grant:
            return
        async with self._lock:
            if self._is_stale or self._record.last_ledger < ledger:
                await self._update(lambda record: replace(record, last_ledger=self._granted))

    def mark_stale(self) -> None:
        """Let the next change read the record again first, because it could not be read now."""
        self._is_stale = True

    async def confirm(self) -> None:
        """Check that a grant can be recorded, unless the record is known to be current.

        Raises BucketTaken or Unavailable; then the caller should stop no writer.
        """
        if not self._anchor.records_every_grant:
            return
        async with self._lock:
            if self._is_stale:
                await self._update(
                    lambda record: replace(
                        record, last_ledger=max(record.last_ledger, self._granted)
                    )
                )

    async def record_use(self, ledger: int) -> None:
        """Record once that the bucket has data, so that an empty dataset is later detected as a loss.

        Raises BucketTaken or Unavailable; then the caller must not acknowledge anything in it.
        """
        async with self._lock:
            if self._record.last_ledger == 0:  # it never becomes 0 again
                self._granted = max(self._granted, ledger)
                await self._update(lambda record: replace(record, last_ledger=self._granted))

    async def release(self, *, is_drained: bool) -> None:
        """Release the bucket for its next owner. Raises BucketTaken or Unavailable.

        ``is_drained``: no grant can be missing from the record's ``last_ledger``.
        """
        async with self._lock:
            await self._update(
                lambda record: replace(
                    record,
                    owner="",
                    addresses=Addresses(),
                    clean=is_drained,
                    last_ledger=max(record.last_ledger, self._granted),
                )
            )

    async def _update(self, change: Callable[[Record], Record]) -> Record:
        for _ in range(UPDATE_ATTEMPTS_MAX):
            if self._is_stale:
                current = await self._anchor.read(self.bucket)
                if not self.names(current.record):
                    if self.is_own(current.record):
                        raise Unavailable(f"bucket {self.bucket} is being registered again")
                    raise BucketTaken(f"bucket {self.bucket} was taken by {current.record.owner!r}")
                self.version, self._record = current.version, current.record
                self._is_stale = False
            desired = change(self._record)
            self._is_stale = True
            version = await self._anchor.compare_and_set(self.bucket, self.version, desired)
            if version is not None:
                self.version, self._record = version, desired
                self._is_stale = False
                return desired
        raise Unavailable(
            f"the record of bucket {self.bucket} in the anchor changed {UPDATE_ATTEMPTS_MAX} times; retry later"
        )
