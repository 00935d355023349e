"""The ownerships of one bucket, from the first request until the bucket leaves this broker.

Changes are made one at a time, and each is stored under the bucket's guard before it is visible. A grant opens a
ledger, as a topic's fence does. The anchor's record of the last ledger therefore covers the grant, and the broker
detects a dataset that lost one (``own.table.floor_of``). After a failover of the store, the broker writes the
records in memory to the new dataset before it grants anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

import structlog

from onewriter_broker.log.store.api import Binding, Outcome, OwnWrite
from onewriter_broker.ownership.acquisition import Holding
from onewriter_broker.ownership.bucket_events import Refenced
from onewriter_broker.resources.dependencies import ResourceDependencies, WantedResource
from onewriter_broker.resources.expiry import dropping, dropping_again, is_idle, oldest, returned
from onewriter_broker.resources.records import (
    OwnerEnd,
    OwnershipRecord,
    audit_fields,
    decode,
    unanswered_in,
)
from onewriter_core.api.topic import Durability
from onewriter_core.errors import ServerError, Unavailable, Undecided
from onewriter_core.own.floors import Floors, is_floor
from onewriter_core.own.floors import decode as decode_floors
from onewriter_core.own.names import split_field
from onewriter_core.own.table import (
    Owner,
    Ownership,
    OwnershipDenied,
    OwnershipGranted,
    OwnRequest,
    decide,
    floor_of,
)

RETRY_SECONDS = 0.2
"""Time between attempts of a step that must succeed before the broker answers a grant."""

log = structlog.get_logger(__name__)


class ResourceBucket:
    """See the module."""

    def __init__(self, bucket: int, dependencies: ResourceDependencies) -> None:
        self.bucket = bucket
        self.entries: dict[str, OwnershipRecord] = {}
        self._dependencies = dependencies
        self._limits = dependencies.limits
        self._lock = asyncio.Lock()
        self._bound: Binding | None = None
        self._is_closed = False
        self._is_unsure = False
        """Whether the result of a write is unknown. Then the records are read from the store first."""
        self._fields: dict[OwnerEnd, set[str]] = {}
        """Records by connection, so that a lost connection needs no scan of all records."""
        self.floors = Floors()
        """The floors above which resources without a record begin."""
        self._quiet_until = 0.0
        """Until when an owner whose grant the store has lost may still act."""

    @property
    def is_loaded(self) -> bool:
        """Whether ``entries`` is as new as the store, or newer."""
        return self._bound is not None

    # ------------------------------------------------------------ asking

    async def loaded(self) -> None:
        """Wait until the records are known. Raises Unavailable, Undecided, BrokenKey."""
        if self._bound is None:
            await self.bind()

    async def bind(self) -> None:
        """Make memory and store agree under the current binding. Raises as ``loaded``."""
        async with self._lock:
            await self._bind()

    async def own(
        self,
        asker: Owner,
        end: OwnerEnd,
        wanted: Sequence[WantedResource],
        *,
        only_returns: bool = False,
    ) -> list[OwnershipGranted | OwnershipDenied]:
        """Decide on each resource in order. At the return, grants are durable, and the former owners do not
        act any more (``Owner.serve_seconds``).

        Raises Unavailable if the bucket leaves, Undecided, and BrokenKey. The resources may be granted
        nevertheless. A retry with the same nonce returns the result.
        """
        async with self._lock:
            while True:
                await self._bind()
                if not only_returns:
                    await self._make_space(wanted)
                answers, before, after = self._decide(asker, wanted, only_returns=only_returns)
                changed = {field: each for field, each in after.items() if each.is_new}
                if changed:
                    self._is_unsure = True
                    is_done = await self._grant(changed, before)
                else:
                    is_done = not after or await self._prove()
                if is_done:
                    break
            for field, granted in after.items():
                self._apply(field, granted, end)
            self._is_unsure = False
            moments = [self.entries[field].answer_at for field in after]
            answer_at = max([*moments, self._quiet_until] if after else [0.0])
        while (seconds := answer_at - self._dependencies.now()) > 0:  # noqa: ASYNC110 - for a moment, not for news
            await asyncio.sleep(seconds)
        return answers

    async def disown(self, end: OwnerEnd, wanted: Sequence[WantedResource]) -> None:
        """Release those of the resources that ``end`` owns. Raises as ``own``."""
        async with self._lock:
            await self._bind()
            released: list[str] = []
            for each in wanted:
                entry = self.entries.get(each.field)
                is_its = entry is not None and entry.end is end
                if entry is not None and is_its and entry.ownership.generation == each.generation:
                    entry.ownership = entry.ownership.released()
                    self._connect(each.field, entry, None)
                    entry.left_at, entry.left_ms = (
                        self._dependencies.now(),
                        self._dependencies.wall_ms(),
                    )
                    released.append(each.field)
                    self._dependencies.deposed(self, each.field)
            while not await self._put(released, {}, is_grant=False):
                await self._bind()

    # ------------------------------------------------------------ leaving

    def left(self, end: OwnerEnd) -> None:
        """Handle a lost connection: its resources have no owner now."""
        left = self._fields.pop(end, None)
        if left is None:
            return
        for field in left:
            entry = self.entries[field]
            entry.end = None
            entry.ownership = entry.ownership.left()
            entry.left_at, entry.left_ms = self._dependencies.now(), self._dependencies.wall_ms()
        self._dependencies.spawn(self._note_left(sorted(left)))

    def close(self, message: str) -> None:
        """Notify all owners that the bucket leaves, so that they continue at the next broker."""
        self._is_closed = True
        owned, self._fields = self._fields, {}
        for end, fields in owned.items():
            for field in sorted(fields):
                entry = self.entries[field]
                entry.end = None
                end.ownership_lost(
                    field, entry.ownership.generation, message, current=None, is_moving=True
                )

    async def settled(self) -> None:
        """Wait until no change is under way."""
        async with self._lock:
            return

    async def _note_left(self, fields: Sequence[str]) -> None:
        """Record that owners left, so that the next broker does not wait for them. Best effort."""
        try:
            async with self._lock:
                await self._bind()
                still = [
                    field
                    for field in fields
                    if (entry := self.entries.get(field)) is not None and entry.end is None
                ]
                await self._put(still, {}, is_grant=False)
        except (Unavailable, Undecided) as error:
            log.debug("ownerships.unnoted", bucket=self.bucket, reason=str(error))

    # ------------------------------------------------------------ dropping

    async def drop(self, fields: Sequence[str]) -> list[str]:
        """Drop those of the records that have no owner, and return their names.

        Raises as ``own``, and Unavailable while a broker without support for floors may be running.
        """
        async with self._lock:
            if not self._dependencies.may_drop():
                raise Unavailable("not all brokers are known to be of a version that keeps floors")
            await self._bind()
            return await self._drop(fields, "ordered")

    async def _make_space(self, wanted: Sequence[WantedResource]) -> None:
        """If the bucket is full, drop records whose owners left long ago."""
        names = {each.field for each in wanted}
        new = names - self.entries.keys()
        surplus = len(self.entries) + len(new) - self._limits.records_per_bucket_max
        if not new or surplus <= 0 or not self._dependencies.may_drop():
            return
        count = max(surplus, self._limits.records_per_write_max)
        before_ms = self._dependencies.wall_ms() - int(self._dependencies.kept_seconds * 1000)
        now = self._dependencies.now()
        old = oldest(self.entries, count, now=now, before_ms=before_ms, spared=names)
        await self._drop(old, "room")

    async def _drop(self, fields: Sequence[str], cause: str) -> list[str]:
        gone: list[str] = []
        for start in range(0, len(fields), self._limits.records_per_write_max):
            binding, now = self._require().binding, self._dependencies.now()
            chunk = {
                field: entry.ownership.generation
                for field in fields[start : start + self._limits.records_per_write_max]
                if (entry := self.entries.get(field)) is not None and is_idle(entry, now)
            }
            if binding != self._bound or not chunk:
                continue
            floors, write = dropping(
                binding,
                self.floors,
                chunk,
                broker=self._dependencies.incarnation,
                cause=cause,
                time_ms=self._dependencies.wall_ms(),
            )
            self._is_unsure = (
                True  # after an unknown result, the records are read and written again first
            )
            outcome = await self._dependencies.store.own(write)
            self._is_unsure = False
            if outcome is not Outcome.DONE:
                await self._refused(binding, outcome)
                break
            self.floors = floors
            for field in chunk:
                del self.entries[field]
            gone += chunk
        if gone:
            log.info("ownerships.dropped", bucket=self.bucket, records=len(gone), cause=cause)
        return gone

    # ------------------------------------------------------------ deciding

    def _decide(
        self, asker: Owner, wanted: Sequence[WantedResource], *, only_returns: bool
    ) -> tuple[
        list[OwnershipGranted | OwnershipDenied], dict[str, Ownership], dict[str, OwnershipGranted]
    ]:
        """The answers, the present records, and the changes: at most one grant per record."""
        now = self._dependencies.now()
        known_since = self._require().known_since
        answers: list[OwnershipGranted | OwnershipDenied] = []
        before: dict[str, Ownership] = {}
        after: dict[str, OwnershipGranted] = {}
        space = self._limits.records_per_bucket_max - len(self.entries)
        for each in wanted:
            entry = self.entries.get(each.field)
            last = None if entry is None else entry.ownership.owner
            objection = each.objection(None if last is None else last.identity)
            if objection is not None:
                answers.append(OwnershipDenied(objection.code, objection.message, 0))
                continue
            if entry is None and each.field not in before:
                if space <= 0:
                    text = f"bucket {self.bucket} has {self._limits.records_per_bucket_max} ownerships already"
                    answers.append(OwnershipDenied(ServerError.NOT_ALLOWED_ERROR, text, 0))
                    continue
                space -= 1
            if each.field not in before:
                without_record = floor_of(Ownership(), registration=0, known_since=known_since)
                if entry is None:
                    before[each.field] = self.floors.begin(
                        split_field(each.field)[0], without_record
                    )
                else:
                    before[each.field] = entry.current(now)
            earlier = after.get(each.field)
            present = before[each.field] if earlier is None else earlier.after
            request = OwnRequest(asker, each.generation, only_returns, each.may_reset)
            answer = decide(present, request)
            answers.append(answer)
            if isinstance(answer, OwnershipGranted) and (earlier is None or answer.is_new):
                after[each.field] = answer
        return answers, before, after

    async def _grant(
        self, changed: Mapping[str, OwnershipGranted], before: Mapping[str, Ownership]
    ) -> bool:
        """Write grants. False: the binding changed meanwhile, so the caller must decide again."""
        time_ms = self._dependencies.wall_ms()
        audits = {
            field: audit_fields(
                field,
                granted,
                before[field],
                broker=self._dependencies.incarnation,
                time_ms=time_ms,
            )
            for field, granted in changed.items()
        }
        coming = {
            field: OwnershipRecord(granted.after, time_ms, waits_seconds=self._waits(field))
            for field, granted in changed.items()
        }
        is_first = not self.entries
        is_done = await self._put(list(changed), audits, coming=coming, is_grant=True)
        return is_done and (not is_first or await self._settle(self._require().binding))

    def _waits(self, field: str) -> float:
        """How long the last owner may still act as the owner."""
        entry = self.entries.get(field)
        if entry is None:
            return 0.0
        owner = entry.ownership.owner
        served = 0.0 if owner is None else owner.serve_seconds
        return max(served, entry.answer_at - self._dependencies.now())

    def _apply(self, field: str, granted: OwnershipGranted, end: OwnerEnd) -> None:
        """Apply a durable grant, and notify the former owner."""
        entry = self.entries.setdefault(field, OwnershipRecord(Ownership()))
        former, generation = entry.end, entry.ownership.generation
        if granted.is_new:
            entry.waits_seconds = self._waits(field)
            entry.answer_at = self._dependencies.now() + entry.waits_seconds
        entry.reserved_until = 0.0
        self._connect(field, entry, None if end.is_gone else end)
        entry.ownership = replace(granted.after, is_owned=entry.end is not None)
        if entry.end is None:
            entry.left_at, entry.left_ms = self._dependencies.now(), self._dependencies.wall_ms()
        if granted.is_new:
            entry.since_ms = self._dependencies.wall_ms()
            entry.registration = self._bound.generation if self._bound is not None else 0
        is_other = former is not None and former is not end
        if granted.is_new or is_other:
            self._dependencies.deposed(self, field)
        if former is not None and (granted.is_new or is_other):
            message = f"another owner has it: {granted.cause.value}"
            current = granted.after.generation
            former.ownership_lost(field, generation, message, current=current, is_moving=False)

    def _connect(self, field: str, entry: OwnershipRecord, end: OwnerEnd | None) -> None:
        """Set the connection that owns a record, or none."""
        if entry.end is not None:
            fields = self._fields[entry.end]
            fields.remove(field)
            if not fields:
                del self._fields[entry.end]
        entry.end = end
        if end is not None:
            self._fields.setdefault(end, set()).add(field)

    def _raise(self, field: str, found: OwnershipRecord) -> None:
        """Apply a stored grant whose caller got no answer. The record has no owner now. Its owner may return, and
        others get higher generations.
        """
        former = self.entries.get(field)
        end = None if former is None else former.end
        if former is not None:
            self._connect(field, former, None)
        self.entries[field] = found
        self._dependencies.deposed(self, field)
        if former is not None and end is not None:
            generation, current = former.ownership.generation, found.ownership.generation
            message = "another owner asked for it"
            end.ownership_lost(field, generation, message, current=current, is_moving=False)

    # ------------------------------------------------------------ storing

    def _require(self) -> Holding:
        holding = self._dependencies.ownership.holding(self.bucket)
        if holding is None or self._is_closed:
            raise Unavailable(f"bucket {self.bucket} is not served by this broker; retry")
        return holding

    async def _bind(self) -> None:
        while (holding := self._require()).binding != self._bound or self._is_unsure:
            binding = holding.binding
            everything = await self._dependencies.store.read_owned(
                self.bucket, replid=binding.replid
            )
            stored = {name: record for name, record in everything.items() if not is_floor(name)}
            floors = decode_floors({name: each.generation for name, each in everything.items()})
            self.floors = self.floors.joined(floors)
            if self._bound is None:
                until = self._dependencies.reserved_until(self.bucket)
                now = self._dependencies.now()
                if 0 < holding.known_since == binding.generation:
                    self._quiet_until = now + self._limits.quiet_seconds
                self.entries = {
                    field: decode(
                        record,
                        known_since=holding.known_since,
                        reserved_until=until,
                        now=now,
                        wall_ms=self._dependencies.wall_ms(),
                    )
                    for field, record in stored.items()
                }
            dropped = returned(stored, self.entries.keys(), self.floors)
            now, wall_ms = self._dependencies.now(), self._dependencies.wall_ms()
            unanswered = unanswered_in(stored, self.entries, dropped, now=now, wall_ms=wall_ms)
            forgotten = [
                field
                for field, entry in self.entries.items()
                if (found := stored.get(field)) is None
                or found.generation < entry.ownership.generation
            ]
            if self._require() == holding and await self._put(
                [*forgotten, *unanswered],
                {},
                coming=self.entries | unanswered,
                is_grant=True,
                binding=binding,
            ):
                for field, entry in unanswered.items():
                    self._raise(field, entry)
                # An empty bucket guards nothing, so reading it needs no write to the store.
                is_empty = not self.entries and self.floors == Floors()
                if await self._drop_again(binding, floors, dropped) and (
                    is_empty or await self._settle(binding)
                ):
                    self._bound, self._is_unsure = binding, False

    async def _drop_again(
        self, binding: Binding, stored: Floors, dropped: Mapping[str, int]
    ) -> bool:
        """Store all floors in the dataset and drop records again. ``stored``: the floors in the dataset."""
        names = list(dropped)
        for start in range(
            0, max(len(names), self.floors != stored), self._limits.records_per_write_max
        ):
            chunk = {
                name: dropped[name]
                for name in names[start : start + self._limits.records_per_write_max]
            }
            broker, time_ms = self._dependencies.incarnation, self._dependencies.wall_ms()
            write = dropping_again(binding, self.floors, chunk, broker=broker, time_ms=time_ms)
            outcome = await self._dependencies.store.own(write)
            if outcome is not Outcome.DONE:
                return await self._refused(binding, outcome)
        return True

    async def _settle(self, binding: Binding) -> bool:
        """Mark the records of this dataset as complete, so that they can guard writes."""
        outcome = await self._dependencies.store.own(OwnWrite(binding, settles=True))
        return outcome is Outcome.DONE or await self._refused(binding, outcome)

    async def _prove(self) -> bool:
        """Whether the store confirms that this broker still serves the bucket."""
        binding = self._require().binding
        outcome = await self._dependencies.store.own(OwnWrite(binding))
        return outcome is Outcome.DONE or await self._refused(binding, outcome)

    async def _put(
        self,
        fields: Sequence[str],
        audits: Mapping[str, Mapping[str, str]],
        *,
        is_grant: bool,
        coming: Mapping[str, OwnershipRecord] | None = None,
        binding: Binding | None = None,
    ) -> bool:
        """Write the ``coming`` or the present records. False: the binding changed meanwhile, start again."""
        bound = self._bound if binding is None else binding
        for start in range(0, len(fields), self._limits.records_per_write_max):
            chunk = fields[start : start + self._limits.records_per_write_max]
            ledger = (
                await self._dependencies.ownership.reserve_ledger(self.bucket) if is_grant else 0
            )
            current = self._require().binding
            if current != bound:
                return False
            records = {}
            for field in chunk:
                entry = self.entries[field] if coming is None else coming[field]
                entry.registration = current.generation
                records[field] = entry.encode(current.generation)
            lines = tuple(audits[field] for field in chunk if field in audits)
            write = OwnWrite(current, ledger, records, lines)
            is_kept = Durability.LOCAL in self._dependencies.promises()
            durability = Durability.LOCAL if is_kept else Durability.NONE
            outcome = await self._dependencies.appender.own(write, durability)
            if outcome is not Outcome.DONE:
                return await self._refused(current, outcome)
            if is_grant:
                await self._note(ledger)
            if self._require().binding != current:
                return False
        return True

    async def _refused(self, binding: Binding, outcome: Outcome) -> bool:
        """Learn why the store rejected a write. False: start again. Raises Unavailable if the bucket is lost."""
        answer = await self._dependencies.ownership.refence(self.bucket, binding, outcome)
        log.warning(
            "ownerships.refused", bucket=self.bucket, outcome=outcome.value, answer=answer.value
        )
        if answer is Refenced.LOST:
            raise Unavailable(f"bucket {self.bucket} is served elsewhere now")
        return False

    async def _note(self, ledger: int) -> None:
        """Record a grant in the anchor before it is visible. Retries until it succeeds."""
        ownership, is_logged = self._dependencies.ownership, False
        while True:
            try:
                await ownership.record_use(self.bucket, ledger)
                await ownership.record_grant(self.bucket, ledger)
            except Unavailable as unavailable:
                self._require()
                if not is_logged:
                    log.warning("ownership.unrecorded", bucket=self.bucket, reason=str(unavailable))
                    is_logged = True
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return
