"""Acquisition of a bucket: the steps of the fencing protocol, in the order that makes them safe.

The anchor comes first, then the store; the compare-and-set, and only then the stamp. In any other order, a
broker with an old view could make a stale branch adoptable. adoption.py decides whether record and dataset
match. buckets.py and held_bucket.py handle acquired buckets.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from onewriter_broker.anchor.api import Addresses, Anchor, Record, Versioned
from onewriter_broker.log.store.api import Binding, LogStore, Observation, Outcome, Unit
from onewriter_broker.ownership.adoption import (
    LEDGERS_PER_BLOCK,
    Adopt,
    Refuse,
    Verdict,
    acquired,
    forced,
    incomplete_since,
    is_moved,
    is_restored,
    judge,
    needs_note,
    restored,
)
from onewriter_core.errors import Unavailable, Undecided
from onewriter_core.ids import NUMBER_MAX

ACQUIRE_ATTEMPTS_MAX = 5
"""Rounds of read, observe, compare-and-set in one acquisition before it is postponed."""

FORCE_ATTEMPTS_MAX = 5
"""Rounds of read, observe, compare-and-set before ``adopt`` gives a bucket up."""

REPLICATE_SECONDS_MAX = 10.0
"""Time that the replicas of a restarted primary, or of one that a slot moved to, get to copy a bucket's record."""

BACKOFF_SECONDS = 0.02
BACKOFF_SECONDS_MAX = 5.0
"""Pauses between attempts: they double from the first value to the second, with jitter."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Holding:
    """The right to serve one bucket.

    ``grants_known``: at this acquisition the dataset provably carried every grant ever answered.
    ``known_since``: the rule for each topic, see ``may_resume``. ``last_seen_ms``: the last heartbeat
    of the former owner, on its wall clock; None if unknown, or if there was no owner. ``clock_ahead_ms``: by how much that
    clock was ahead of this broker's; 0 if they agree, or if it is unknown.
    ``incomplete_since``: the newest registration of a dataset that may lack entries that a former owner acknowledged. 0:
    there is none, because this is the first dataset, or no copy can take its place. ``lacking_since``: the same for
    entries of any durability (Unit.lacks). ``ledgers_before``: no ledger above this one was reserved before this
    acquisition.
    """

    binding: Binding
    grants_known: bool
    known_since: int
    last_seen_ms: int | None = None
    clock_ahead_ms: int = 0
    incomplete_since: int = 0
    lacking_since: int = 0
    ledgers_before: int = 0

    def may_resume(self, marker_generation: int) -> bool:
        """Whether a producer may resume by the epoch in a topic's newest marker.

        False: the marker was written before a dataset's tail was lost, so a later grant may be
        missing; every producer with an older epoch is fenced and created again.
        """
        return marker_generation >= self.known_since


@dataclass(frozen=True, slots=True)
class Acquisition:
    """A bucket that was just acquired: its record, and the block of ledgers reserved with it.

    ``last_ledger`` is the highest ledger that anchor or dataset knew then.
    """

    holding: Holding
    current: Versioned
    ledgers: range
    last_ledger: int


class BucketRefused(Unavailable):
    """The store's dataset does not match the bucket's record; an administrator must decide."""

    def __init__(self, verdict: Refuse) -> None:
        super().__init__(verdict.text)
        self.verdict = verdict


def backoff_seconds(attempts: int, randomness: random.Random) -> float:
    """The pause after ``attempts`` (from 1) consecutive failures."""
    seconds = min(BACKOFF_SECONDS * 2.0 ** min(attempts - 1, 30), BACKOFF_SECONDS_MAX)
    return seconds * randomness.uniform(0.5, 1.0)


class Acquirer:
    """Acquires buckets for one broker process.

    ``me`` is its incarnation, ``single_node`` says that exactly one store is configured.
    """

    def __init__(
        self,
        me: str,
        addresses: Addresses,
        anchor: Anchor,
        store: LogStore,
        *,
        single_node: bool,
        randomness: random.Random,
        last_seen_ms: Callable[[str], int | None] = lambda _incarnation: None,
        clock_ahead_ms: Callable[[str], int] = lambda _incarnation: 0,
    ) -> None:
        self._me = me
        self._addresses = addresses
        self._anchor = anchor
        self._store = store
        self._single_node = single_node
        self._randomness = randomness
        self._last_seen_ms = last_seen_ms
        self._clock_ahead_ms = clock_ahead_ms
        self._birthmarks = 0

    async def acquire(
        self, bucket: int, is_free: Callable[[Record], bool], remembered: int | None = None
    ) -> Acquisition | None:
        """Acquire the bucket; None if it is not free according to its record.

        ``remembered``: as in ``judge``. Raises BucketRefused; Undecided or Unavailable if the anchor
        or the store is unavailable, or if the race was lost ACQUIRE_ATTEMPTS_MAX times.
        """
        problem = "other brokers keep changing its record"
        for attempt in range(ACQUIRE_ATTEMPTS_MAX):
            if attempt:
                await asyncio.sleep(backoff_seconds(attempt, self._randomness))
            current = await self._anchor.read(bucket)
            if not is_free(current.record):
                return None
            node = await self._store.observe([bucket])
            verdict = self._judged(current.record, bucket, node, remembered)
            if has_no_birthmark(node, bucket) and not isinstance(verdict, Refuse):
                await self._store.write_birthmark(bucket, self._new_birthmark())
                node = await self._store.observe([bucket])
                verdict = self._judged(current.record, bucket, node, remembered)
            if isinstance(verdict, Refuse):
                if not verdict.is_transient:
                    raise BucketRefused(verdict)
                problem = verdict.text
                continue
            desired = acquired(
                current.record, bucket, node, verdict, owner=self._me, addresses=self._addresses
            )
            is_older = isinstance(verdict, Adopt) and verdict.is_older
            if not await note_identity(self._store, bucket, desired, node, lacks=is_older):
                problem = "the store changed during the takeover"
                continue
            if self._store.is_sharded and isinstance(verdict, Adopt):
                await self._replicate(bucket, current.record, node)
                # A primary that restarted gets another id with its first replica. Its present id costs no second
                # registration.
                again = await self._store.observe([bucket])
                if again.replid != node.replid:
                    problem = "the store changed during the takeover"
                    continue
            version = await self._anchor.compare_and_set(bucket, current.version, desired)
            if version is None:
                continue
            binding = Binding(bucket, desired.replid, desired.generation, self._me, version)
            # The dataset rightly has no record: nothing was granted yet.
            birthmark = node.units.get(bucket, Unit()).birthmark
            if await self._stamp(binding, birthmark) is not Outcome.DONE:
                problem = "the store changed during the takeover"
                continue
            # A single process gets another identity with each restart. That is usual.
            is_usual = not isinstance(verdict, Adopt) or (
                self._single_node and verdict.grants_known
            )
            log = _log.debug if is_usual else _log.warning
            log(
                "bucket.acquired",
                bucket=bucket,
                verdict=type(verdict).__name__,
                generation=desired.generation,
                previous_owner=current.record.owner,
            )
            grants_known = not isinstance(verdict, Adopt) or verdict.grants_known
            high_water = desired.ledger_high_water
            unit = node.units.get(bucket, Unit())
            return Acquisition(
                Holding(
                    binding,
                    grants_known,
                    desired.known_since,
                    self._last_seen_ms(current.record.owner),
                    self._clock_ahead_ms(current.record.owner),
                    incomplete_since=incomplete_since(desired, single_node=self._single_node),
                    lacking_since=desired.generation if is_older else unit.lacks,
                    ledgers_before=high_water - LEDGERS_PER_BLOCK,
                ),
                Versioned(version, desired),
                range(high_water - LEDGERS_PER_BLOCK + 1, high_water + 1),
                max(unit.last_ledger, desired.last_ledger),
            )
        raise Unavailable(f"bucket {bucket} could not be taken yet: {problem}")

    def _judged(
        self, record: Record, bucket: int, node: Observation, remembered: int | None
    ) -> Verdict:
        return judge(
            record,
            bucket,
            node,
            records_every_grant=self._anchor.records_every_grant,
            single_node=self._single_node,
            sharded=self._store.is_sharded,
            remembered=remembered,
        )

    async def _replicate(self, bucket: int, record: Record, node: Observation) -> None:
        """Let the replicas of a moved bucket catch up before its dataset is registered.

        If the primary is lost right after the registration, the promoted replica must name it. A replica may be
        down, so this waits only for REPLICATE_SECONDS_MAX.
        """
        if not is_moved(record, node):
            return
        give_up_at = asyncio.get_running_loop().time() + REPLICATE_SECONDS_MAX
        while not await self._store.replicate(bucket):
            if asyncio.get_running_loop().time() >= give_up_at:
                _log.warning("bucket.replicas_behind", bucket=bucket)
                return
            await asyncio.sleep(BACKOFF_SECONDS)

    def _new_birthmark(self) -> str:
        self._birthmarks += 1
        return f"{self._me}/{self._birthmarks}"

    async def _stamp(self, binding: Binding, birthmark: str) -> Outcome:
        """Stamp, and repeat it if the store gave no answer: a stamp is idempotent."""
        for attempt in range(1, ACQUIRE_ATTEMPTS_MAX):
            try:
                return await self._store.stamp(binding, birthmark=birthmark)
            except Undecided:
                await asyncio.sleep(backoff_seconds(attempt, self._randomness))
        return await self._store.stamp(binding, birthmark=birthmark)


async def note_identity(
    store: LogStore, bucket: int, desired: Record, node: Observation, *, lacks: bool
) -> bool:
    """Note the identity that ``desired`` registers in the dataset itself; False if the dataset has another one by now.

    ``lacks``: as in LogStore.note_replid.

    The identity may change between the compare-and-set and the stamp: the process restarts, or its first replica
    connects. Then the note is the only proof that this is the dataset that was registered.
    """
    if not lacks and not needs_note(desired, bucket, node):
        return True
    seen = node.units.get(bucket, Unit()).generation
    outcome = await store.note_replid(bucket, desired.replid, seen, desired.generation, lacks=lacks)
    return outcome is Outcome.DONE


def still_holds(binding: Binding, node: Observation) -> bool:
    """Whether the present store would accept the binding's writes."""
    unit = node.units.get(binding.bucket, Unit())
    return (
        node.is_primary
        and node.replid == binding.replid
        and (unit.generation, unit.owner, unit.version)
        == (binding.generation, binding.owner, binding.version)
    )


def has_no_birthmark(node: Observation, bucket: int) -> bool:
    """Whether the bucket has neither a record nor the birthmark that its first stamp requires."""
    unit = node.units.get(bucket, Unit())
    return unit.generation == 0 and not unit.birthmark


@dataclass(frozen=True, slots=True)
class Forced:
    """The result of ``adopt`` for one bucket; ``problem`` is empty if it succeeded.

    ``is_unnecessary``: the bucket was left alone, because brokers do not refuse it.
    """

    bucket: int
    generation: int
    replid: str
    problem: str = ""
    is_unnecessary: bool = False


async def adopt_force(
    bucket: int,
    *,
    anchor: Anchor,
    store: LogStore,
    operator: str,
    reason: str,
    time_ms: int,
    single_node: bool,
) -> Forced:
    """Force an adoption: the present dataset of the store becomes the registered one, even if data was lost.

    Only for a bucket that brokers refuse; for any other it does nothing and reports that. ``operator``
    identifies this call (and is not a broker's incarnation); ``reason`` and ``time_ms`` go into the
    bucket's audit stream. Afterwards the bucket has no owner, brokers acquire it as usual, and no
    earlier epoch resumes. Raises Undecided or Unavailable; calling it again is safe.
    """
    for _ in range(FORCE_ATTEMPTS_MAX):
        current = await anchor.read(bucket)
        node = await store.observe([bucket])
        verdict = judge(
            current.record,
            bucket,
            node,
            records_every_grant=anchor.records_every_grant,
            single_node=single_node,
            sharded=store.is_sharded,
        )
        unchanged = Forced(bucket, current.record.generation, current.record.replid)
        if not isinstance(verdict, Refuse):
            text = "nothing to force: brokers can take this bucket as it is"
            return replace(unchanged, problem=text, is_unnecessary=True)
        if not node.is_primary:
            return _problem(unchanged, "the store that this broker reaches is not a primary")
        if has_no_birthmark(node, bucket):  # missing data is given up
            await store.write_birthmark(bucket, operator)
            node = await store.observe([bucket])
        desired = forced(current.record, bucket, node, owner=operator)
        if not await note_identity(store, bucket, desired, node, lacks=True):
            continue
        # A broker that acquires the bucket between both readings would look like a loss: decide again.
        version = await anchor.compare_and_set(bucket, current.version, desired)
        if version is not None:
            break
    else:
        return _problem(unchanged, "other processes keep changing the record; run adopt again")
    done = Forced(bucket, desired.generation, desired.replid)
    binding = Binding(bucket, desired.replid, desired.generation, operator, version)
    outcome = await store.stamp(binding, birthmark=node.units.get(bucket, Unit()).birthmark)
    if outcome is Outcome.DONE:
        outcome = await store.write_audit(
            binding,
            {
                "kind": "adopt",
                "reason": reason,
                "by": operator,
                "verdict": verdict.reason.value,
                "generation": str(desired.generation),
                "replid": desired.replid,
                "previous_replid": current.record.replid,
                "time": str(time_ms),
            },
        )
    await anchor.compare_and_set(bucket, version, without_owner(desired))
    if outcome is not Outcome.DONE:
        return _problem(done, f"adopted, but not written to the audit stream ({outcome.value})")
    return done


async def is_served(store: LogStore, bucket: int) -> bool:
    """Whether the store of a bucket answers."""
    try:
        await store.observe([bucket])
    except (Undecided, Unavailable):
        return False
    return True


async def adopt_restored(bucket: int, *, anchor: Anchor) -> Forced:
    """Note in the anchor that the bucket's data is about to be restored from an older copy.

    The caller calls it only while the bucket's store is down (``is_served``). The next owner lets no earlier epoch resume, and
    states a range at risk for each log. A living owner loses the bucket, and still reports what it knows to be missing.
    Raises Undecided or Unavailable if the anchor is unavailable. Calling it again is safe.
    """
    for _ in range(FORCE_ATTEMPTS_MAX):
        current = await anchor.read(bucket)
        record = current.record
        unchanged = Forced(bucket, record.generation, record.replid)
        if record.last_ledger == 0:
            return replace(unchanged, problem="it was never in use", is_unnecessary=True)
        if record.ledger_high_water > NUMBER_MAX - 2 * LEDGERS_PER_BLOCK:
            return _problem(unchanged, "it has used up its ledger numbers")
        if is_restored(record):
            return unchanged
        if await anchor.compare_and_set(bucket, current.version, restored(record)) is not None:
            return unchanged
    return _problem(unchanged, "other processes keep changing the record; run adopt again")


def without_owner(record: Record) -> Record:
    """The record without an owner."""
    return replace(record, owner="", addresses=Addresses())


def _problem(result: Forced, text: str) -> Forced:
    return replace(result, problem=text)
