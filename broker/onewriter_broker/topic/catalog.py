"""Which topics exist: each bucket's catalog in the store, and its cache at the bucket's owner.

An entry says how many partitions a topic has, and which logs exist for it. A deleted topic leaves
a tombstone: its logs' states keep epoch and ledger floor, so that neither ever goes back.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from weakref import WeakValueDictionary

from onewriter_broker.log.api import Binding, LogStore, Outcome
from onewriter_core.api import ExclusiveTopic
from onewriter_core.errors import Refused, ServerError, Unavailable
from onewriter_core.ids import TopicName, bucket_of, bucket_without_tags
from onewriter_core.topic.model import WHOLE

_NONE_SET: Mapping[str, object] = MappingProxyType({})


class Undivided(Refused):
    """Partitions were asked for, of a topic that has a log without them: its messages would be out of reach."""

    def __init__(self) -> None:
        text = "the topic is there without partitions, and gets none while it is: delete it first"
        super().__init__(ServerError.NOT_ALLOWED_ERROR, text)


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One topic. ``slots`` are its logs: WHOLE, or partition numbers.

    ``policies`` are those that were set for this topic, by their paths in the admin API.
    """

    partitions: int = 0
    slots: tuple[int, ...] = ()
    is_deleted: bool = False
    policies: Mapping[str, object] = field(default_factory=lambda: _NONE_SET, hash=False)

    def encode(self) -> str:
        """The entry as the store keeps it."""
        fields = {"partitions": self.partitions, "slots": self.slots, "deleted": self.is_deleted}
        if self.policies:
            fields["policies"] = dict(self.policies)
        return json.dumps(fields)

    @classmethod
    def decode(cls, text: str) -> CatalogEntry:
        """Read what ``encode`` wrote."""
        fields = json.loads(text)
        policies = fields.get("policies", _NONE_SET)
        return cls(fields["partitions"], tuple(fields["slots"]), fields["deleted"], policies)

    def with_slot(self, slot: int) -> CatalogEntry:
        return self if slot in self.slots else replace(self, slots=(*self.slots, slot))

    def with_policy(self, name: str, value: object) -> CatalogEntry:
        """The entry with one policy set; None removes it."""
        others = {key: kept for key, kept in self.policies.items() if key != name}
        return replace(self, policies=others if value is None else {**others, name: value})

    @property
    def is_undivided(self) -> bool:
        """Whether the topic is one log, of its own name: then it never gets partitions."""
        return self.partitions == 0 and WHOLE in self.slots and not self.is_deleted

    def grown(self, partitions: int) -> CatalogEntry:
        """The entry with at least so many partitions. Raises Undivided."""
        if partitions and self.is_undivided:
            raise Undivided
        partitions = max(self.partitions, partitions)
        slots = tuple(sorted({*self.slots, *range(partitions)}))
        return replace(self, partitions=partitions, slots=slots)

    def with_declared(self, declared: ExclusiveTopic | None) -> CatalogEntry:
        """The entry with what the topic's manifest asks for; one that is undivided stays so."""
        if declared is None or self.is_undivided:
            return self
        wanted = declared.spec.partitions
        if wanted > self.partitions:
            return self.grown(wanted)
        return self if self.partitions else self.with_slot(WHOLE)

    def log_names(self, base: TopicName) -> list[TopicName]:
        """The full names of the topic's logs."""
        return [base if slot == WHOLE else base.with_partition(slot) for slot in self.slots]


class Catalogs:
    """The catalogs of all buckets: cached for those this broker owns, read for the others."""

    def __init__(self, store: LogStore, buckets: int) -> None:
        self.buckets = buckets
        self._store = store
        self._cached: dict[int, dict[str, CatalogEntry]] = {}
        self._forgotten: dict[int, int] = {}
        self._writing: WeakValueDictionary[TopicName, asyncio.Lock] = WeakValueDictionary()

    def forget(self, bucket: int) -> None:
        """The bucket was lost or its dataset changed: read its catalog again."""
        self._cached.pop(bucket, None)
        self._forgotten[bucket] = self._forgotten.get(bucket, 0) + 1

    async def bucket(
        self, bucket: int, *, is_owned: bool, replid: str = ""
    ) -> dict[str, CatalogEntry]:
        """All entries of a bucket, tombstones included. Raises Undecided.

        ``replid``: the dataset they must come from; an owner names the one it holds.
        """
        if is_owned and bucket in self._cached:
            return self._cached[bucket]
        forgotten = self._forgotten.get(bucket, 0)
        raw = await self._store.read_catalog(bucket, replid=replid)
        entries = {name: CatalogEntry.decode(text) for name, text in raw.items()}
        if is_owned and forgotten == self._forgotten.get(bucket, 0):
            # Another's answer may have come first, and what was written since stands in that one.
            return self._cached.setdefault(bucket, entries)
        return entries

    async def under(self, prefix: str, owned: Container[int]) -> dict[str, CatalogEntry]:
        """All topics whose names begin so, out of all buckets. Raises Undecided."""
        found: dict[str, CatalogEntry] = {}
        for bucket in range(self.buckets):
            await asyncio.sleep(0)  # there may be many, and all in memory
            entries = await self.bucket(bucket, is_owned=bucket in owned)
            found |= {
                name: entry
                for name, entry in entries.items()
                if name.startswith(prefix) and not entry.is_deleted
            }
        return found

    async def entry(
        self, base: TopicName, *, is_owned: bool, replid: str = ""
    ) -> CatalogEntry | None:
        """A topic's entry, None when it does not exist or was deleted. Raises Undecided."""
        bucket = bucket_of(base, self.buckets)
        entries = await self.bucket(bucket, is_owned=is_owned, replid=replid)
        found = entries.get(str(base))
        return None if found is None or found.is_deleted else found

    async def write(self, binding: Binding, base: TopicName, entry: CatalogEntry) -> None:
        """Store an entry of an owned bucket.

        Raises Undecided, Unavailable; Undivided; Refused for a new one that an earlier version has elsewhere.
        """
        bucket = bucket_of(base, self.buckets)
        async with self._writing.setdefault(base, asyncio.Lock()):
            entries = await self.bucket(bucket, is_owned=True, replid=binding.replid)
            present = entries.get(str(base))
            if present is None:
                await self._check_not_elsewhere(base)
            elif not present.is_deleted:
                _check_follows(base, present, entry)
            fields, outcome = {str(base): entry.encode()}, None
            try:
                outcome = await self._store.set_catalog(binding, fields)
            finally:
                if outcome is not Outcome.DONE:  # also without an answer it may be stored
                    self.forget(bucket)
            if outcome is not Outcome.DONE:
                raise Unavailable(f"the catalog of bucket {bucket} has moved on: {outcome.value}")
            entries = await self.bucket(bucket, is_owned=True, replid=binding.replid)
            entries[str(base)] = entry

    async def _check_not_elsewhere(self, base: TopicName) -> None:
        """A topic of a version without hash tags must not begin anew, empty and with lower epochs."""
        former = bucket_without_tags(base, self.buckets)
        if former == bucket_of(base, self.buckets):
            return
        if str(base) in await self.bucket(former, is_owned=False):
            raise Refused(
                ServerError.NOT_ALLOWED_ERROR,
                f"{base} lies in bucket {former}, where a version that knew no hash tags put it:"
                " use another name, and copy its messages with that version",
            )


def _check_follows(base: TopicName, present: CatalogEntry, entry: CatalogEntry) -> None:
    """An entry was made of what the catalog said; somebody else may have changed that meanwhile."""
    if entry.partitions and present.is_undivided:
        raise Undivided
    if entry.partitions < present.partitions and not entry.is_deleted:
        raise Unavailable(f"{base} has got partitions meanwhile: come again")
