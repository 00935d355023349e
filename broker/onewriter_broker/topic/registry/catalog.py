"""Which topics exist: each bucket's catalog in the store, and its cache at the bucket's owner.

An entry says how many partitions a topic has, and which logs exist for it. A deleted topic leaves
a tombstone: its logs' states keep epoch and ledger floor, so that neither ever goes back.

An entry is changed here alone (``Catalogs.change``): one change after the other, each made of what
the store has by then. Former owners cannot: the store refuses a binding that was replaced. A call of
our own that had no answer may still be executed, but only in front of our later writes (LogStore; a
new connection has the server drop the old one first). Reads go another way, and may be answered
before it is. So after such a call nothing that is read counts until a later write was answered:
whatever the entry says then, the lost call cannot change any more.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from weakref import WeakValueDictionary

import structlog

from onewriter_broker.log.store.api import Binding, LogStore, Outcome
from onewriter_broker.ticks import Ticks
from onewriter_core.api import ExclusiveTopic
from onewriter_core.errors import OnewriterError, Refused, ServerError, Unavailable
from onewriter_core.ids import (
    InvalidTopicName,
    TopicName,
    bucket_of,
    bucket_without_tags,
    escaped,
    is_printable,
)
from onewriter_core.topic.model import WHOLE

NAMES_PER_STEP = 1_000
"""Topics that are looked at before others may have the event loop."""

UNREADABLE_NAMES_MAX = 1_000
"""Names that cannot be read and are logged, each once."""

log = structlog.get_logger(__name__)

_NONE_SET: Mapping[str, object] = MappingProxyType({})
_NONE_MADE: Mapping[str, int] = MappingProxyType({})


class Undivided(Refused):
    """Partitions were asked for, of a topic that has a log without them: its messages would be out of reach."""

    def __init__(self) -> None:
        text = "the topic is there without partitions, and gets none while it is: delete it first"
        super().__init__(ServerError.NOT_ALLOWED_ERROR, text)


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One topic. ``log_numbers`` name its logs: WHOLE, or partition numbers.

    ``policies`` are those that were set for this topic, by their paths in the admin API.
    ``declared_by`` is the Kubernetes namespace that declared the topic first; empty when none did, or
    namespaces do not count here. ``made_by`` says of the logs that clients made by using them how many
    each made (``quotas.book.subject_of``).
    """

    partitions: int = 0
    log_numbers: tuple[int, ...] = ()
    is_deleted: bool = False
    policies: Mapping[str, object] = field(default_factory=lambda: _NONE_SET, hash=False)
    declared_by: str = ""
    made_by: Mapping[str, int] = field(default_factory=lambda: _NONE_MADE, hash=False)

    def encode(self) -> str:
        """The entry as the store keeps it."""
        fields = {
            "partitions": self.partitions,
            "slots": self.log_numbers,
            "deleted": self.is_deleted,
        }
        if self.policies:
            fields["policies"] = dict(self.policies)
        if self.declared_by:
            fields["declaredBy"] = self.declared_by
        if self.made_by:
            fields["madeBy"] = dict(self.made_by)
        return json.dumps(fields)

    @classmethod
    def decode(cls, text: str) -> CatalogEntry:
        """Read what ``encode`` wrote."""
        fields = json.loads(text)
        policies = fields.get("policies", _NONE_SET)
        return cls(
            fields["partitions"],
            tuple(fields["slots"]),
            fields["deleted"],
            policies,
            fields.get("declaredBy", ""),
            fields.get("madeBy", _NONE_MADE),
        )

    @property
    def logs(self) -> int:
        """How many logs it has."""
        return 0 if self.is_deleted else len(self.log_numbers)

    def with_log(self, number: int) -> CatalogEntry:
        return (
            self
            if number in self.log_numbers
            else replace(self, log_numbers=(*self.log_numbers, number))
        )

    def with_made(self, creator: str, logs: int) -> CatalogEntry:
        """The entry with so many logs more that ``creator`` made."""
        return replace(self, made_by={**self.made_by, creator: self.made_by.get(creator, 0) + logs})

    def with_policy(self, name: str, value: object) -> CatalogEntry:
        """The entry with one policy set; None removes it."""
        others = {key: kept for key, kept in self.policies.items() if key != name}
        return replace(self, policies=others if value is None else {**others, name: value})

    @property
    def is_undivided(self) -> bool:
        """Whether the topic is one log, of its own name: then it never gets partitions."""
        return self.partitions == 0 and WHOLE in self.log_numbers and not self.is_deleted

    def grown(self, partitions: int) -> CatalogEntry:
        """The entry with so many partitions. Raises Undivided; Refused where it has more."""
        if partitions and self.is_undivided:
            raise Undivided
        if partitions < self.partitions:
            raise Refused(ServerError.NOT_ALLOWED_ERROR, "partitions cannot be taken away")
        numbers = tuple(sorted({*self.log_numbers, *range(partitions)}))
        return replace(self, partitions=partitions, log_numbers=numbers)

    def with_declared(self, declared: ExclusiveTopic | None) -> CatalogEntry:
        """The entry with what the topic's manifest asks for; one that is undivided stays so."""
        if declared is None or self.is_undivided:
            return self
        wanted = declared.spec.partitions
        if wanted > self.partitions:
            return self.grown(wanted)
        return self if self.partitions else self.with_log(WHOLE)

    def log_names(self, base: TopicName) -> list[TopicName]:
        """The full names of the topic's logs."""
        return [
            base if number == WHOLE else base.with_partition(number) for number in self.log_numbers
        ]


@dataclass(slots=True, eq=False)
class _Usage:
    """How many logs the entries of one bucket name: by namespace, and by who made them."""

    namespaces: Counter[str] = field(default_factory=Counter)
    makers: Counter[str] = field(default_factory=Counter)

    def add(self, name: str, entry: CatalogEntry, times: int = 1) -> None:
        """Count an entry; -1 ``times``: no more."""
        self.namespaces[_namespace_of(name)] += times * entry.logs
        for creator, logs in entry.made_by.items():
            self.makers[creator] += times * logs


@dataclass(slots=True, eq=False)
class _Copy:
    """What is remembered of a bucket's catalog as long as the bucket is held by one binding.

    Never filled again once it was emptied: another one takes its place, so that a reader whose answer
    comes late fills what nobody looks at any more.
    """

    binding: Binding
    is_in_doubt: bool
    """A call may have been sent that the store has still to execute."""
    entries: dict[str, CatalogEntry] | None = None
    """None: nobody has read them yet."""
    usage: _Usage = field(default_factory=_Usage)

    def fill(self, entries: dict[str, CatalogEntry]) -> None:
        """Remember what was read."""
        self.entries = entries
        for name, entry in entries.items():
            self.usage.add(name, entry)

    def put(self, name: str, entry: CatalogEntry, entries: dict[str, CatalogEntry]) -> None:
        """Remember one that was changed."""
        former = entries.get(name)
        if former is not None:
            self.usage.add(name, former, -1)
        self.usage.add(name, entry)
        entries[name] = entry


def _namespace_of(base: str) -> str:
    """``tenant/namespace`` of a topic's full name."""
    return "/".join(base.partition("://")[2].split("/", 2)[:2])


def existing(known: CatalogEntry | None) -> CatalogEntry:
    """The entry as it is, of a topic that is served. Raises Unavailable when it was deleted meanwhile."""
    if known is None:
        raise Unavailable("the topic was deleted meanwhile; retry")
    return known


def _check_new(base: TopicName) -> None:
    """Raise Refused for a name that no new topic gets."""
    if not is_printable(str(base)):
        text = f"the name of a new topic has no control characters: {str(base)!a}"
        raise Refused(ServerError.INVALID_TOPIC_NAME, text)
    if TopicName.parse(str(base), is_stored=True) != base:
        text = f"{base} is the name of one partition: a topic of that name, or with partitions, is none"
        raise Refused(ServerError.INVALID_TOPIC_NAME, text)


class Catalogs:
    """The catalogs of all buckets: cached for those this broker owns, read for the others.

    ``binding``, where it is asked for: by what this broker holds the bucket, None if it does not.
    """

    def __init__(self, store: LogStore, buckets: int) -> None:
        self.buckets = buckets
        self._store = store
        self._copies: dict[int, _Copy] = {}
        self._elsewhere: dict[int, _Usage] = {}
        """Of buckets that other brokers hold, as it was read last."""
        self._changing: WeakValueDictionary[TopicName, asyncio.Lock] = WeakValueDictionary()
        self._unreadable: set[str] = set()

    def forget(self, bucket: int) -> None:
        """Read the bucket's catalog again, behind all that was sent: it was lost, or a call had no answer."""
        if bucket in self._copies:
            self._copies[bucket] = _Copy(self._copies[bucket].binding, is_in_doubt=True)

    async def bucket(self, bucket: int, binding: Binding | None) -> Mapping[str, CatalogEntry]:
        """All entries of a bucket, tombstones included. Raises Undecided."""
        if binding is None:
            return await self._read(bucket)
        copy = self._copy(binding)
        if copy.entries is not None:
            return copy.entries
        if copy.is_in_doubt:  # until a later write is answered, if only one that changes nothing
            copy.is_in_doubt = await self._store.set_catalog(binding, {}) is not Outcome.DONE
        entries = await self._read(bucket, binding.replid)
        if copy.is_in_doubt:
            return entries  # the binding holds no longer
        if copy.entries is None:  # else what was changed since another's answer stands in that one
            copy.fill(entries)
        return entries if copy.entries is None else copy.entries

    async def learn(self, binding_of: Callable[[int], Binding | None], *, elsewhere: bool) -> None:
        """Have ``usage`` count all held buckets, and as they are now those of other brokers if asked for.

        A bucket that cannot be read is left out.
        """
        for bucket in range(self.buckets):
            binding = binding_of(bucket)
            copy = self._copies.get(bucket)
            try:
                if binding is not None:
                    if copy is None or copy.entries is None or copy.binding != binding:
                        await self.bucket(bucket, binding)
                    self._elsewhere.pop(bucket, None)
                elif elsewhere:
                    usage = _Usage()
                    for name, entry in (await self._read(bucket)).items():
                        usage.add(name, entry)
                    self._elsewhere[bucket] = usage
            except OnewriterError as error:
                log.info("catalog.uncounted", bucket=bucket, reason=str(error))

    def logs_in(self, namespace: str) -> int:
        """How many logs a namespace has in the buckets that were looked at."""
        return sum(usage.namespaces[namespace] for usage in self._usages())

    def made_by(self, creator: str) -> int:
        """Number of logs that ``creator`` made, in the buckets whose catalogs were read."""
        return sum(usage.makers[creator] for usage in self._usages())

    def usage(self) -> tuple[Counter[str], Counter[str]]:
        """Both for all namespaces, and for all who made some."""
        namespaces, makers = Counter[str](), Counter[str]()
        for usage in self._usages():
            namespaces.update(usage.namespaces)
            makers.update(usage.makers)
        return namespaces, makers

    def _usages(self) -> Iterator[_Usage]:
        for bucket, copy in self._copies.items():
            if copy.entries is not None:
                yield copy.usage
            elif bucket in self._elsewhere:
                yield self._elsewhere[bucket]
        for bucket, usage in self._elsewhere.items():
            if bucket not in self._copies:
                yield usage

    def _copy(self, binding: Binding) -> _Copy:
        copy = self._copies.get(binding.bucket)
        if copy is None or copy.binding != binding:
            # Of one that is replaced nobody knows here what its last calls came to.
            copy = _Copy(binding, is_in_doubt=copy is not None)
            self._copies[binding.bucket] = copy
        return copy

    async def _read(self, bucket: int, replid: str = "") -> dict[str, CatalogEntry]:
        raw = await self._store.read_catalog(bucket, replid=replid)
        return {name: CatalogEntry.decode(text) for name, text in raw.items()}

    async def under(
        self,
        prefix: str,
        binding_of: Callable[[int], Binding | None],
        *,
        with_long_names: bool = False,
    ) -> dict[str, CatalogEntry]:
        """All topics whose names begin so, out of all buckets. Raises Undecided.

        Without those whose names cannot be read. ``with_long_names``: with names that are too long for
        a new topic, which earlier versions stored; they can be deleted, and nothing else.
        """
        found: dict[str, CatalogEntry] = {}
        ticks = Ticks(NAMES_PER_STEP)
        for bucket in range(self.buckets):
            await asyncio.sleep(0)  # there may be many, and all in memory
            entries = await self.bucket(bucket, binding_of(bucket))
            for name, entry in list(entries.items()):
                if not name.startswith(prefix) or entry.is_deleted:
                    continue
                if self._is_readable(name, is_stored=with_long_names):
                    found[name] = entry
                await ticks.step()
        return found

    def _is_readable(self, name: str, *, is_stored: bool) -> bool:
        try:
            TopicName.parse(name, is_stored=is_stored)
        except InvalidTopicName as error:
            if name not in self._unreadable and len(self._unreadable) < UNREADABLE_NAMES_MAX:
                self._unreadable.add(name)
                log.warning("catalog.name_unreadable", topic=escaped(name), reason=str(error))
            return False
        return True

    async def entry(self, base: TopicName, binding: Binding | None) -> CatalogEntry | None:
        """A topic's entry, None when it does not exist or was deleted. Raises Undecided."""
        entries = await self.bucket(bucket_of(base, self.buckets), binding)
        found = entries.get(str(base))
        return None if found is None or found.is_deleted else found

    async def change(
        self,
        binding: Binding,
        base: TopicName,
        change: Callable[[CatalogEntry | None], CatalogEntry],
    ) -> CatalogEntry:
        """Store what ``change`` makes of a topic's entry, in an owned bucket; the entry as it is then.

        It is given the entry that the store has, None when the topic does not exist or was deleted,
        and nobody changes that meanwhile. If it gives back the very same, nothing is written: then
        the store was not asked whether the binding still holds.

        Raises what ``change`` raises: then nothing has changed. Raises Unavailable when the binding
        holds no longer, Refused for a new topic that an earlier version has elsewhere. Raises
        Undecided, or is cancelled, when the store gave no answer: it may have changed, and whoever
        reads the entry or changes it next finds it one way or the other, for good.
        """
        bucket = bucket_of(base, self.buckets)
        async with self._changing.setdefault(base, asyncio.Lock()):
            present = (await self.bucket(bucket, binding)).get(str(base))
            known = None if present is None or present.is_deleted else present
            entry = change(known)
            if entry is known:
                return entry
            if known is None:
                _check_new(base)
            if present is None:
                await self._check_not_elsewhere(base)
            outcome = None
            try:
                outcome = await self._store.set_catalog(binding, {str(base): entry.encode()})
            finally:
                if outcome is not Outcome.DONE:
                    self.forget(bucket)
            if outcome is not Outcome.DONE:
                raise Unavailable(f"the catalog of bucket {bucket} has moved on: {outcome.value}")
            entries = self._copy(binding).entries
            if entries is None:  # forgotten meanwhile: whoever reads it now may not have seen this
                self.forget(bucket)
            else:
                self._copy(binding).put(str(base), entry, entries)
            return entry

    async def _check_not_elsewhere(self, base: TopicName) -> None:
        """A topic of a version without hash tags must not begin anew, empty and with lower epochs."""
        former = bucket_without_tags(base, self.buckets)
        if former == bucket_of(base, self.buckets):
            return
        if str(base) in await self.bucket(former, None):
            raise Refused(
                ServerError.NOT_ALLOWED_ERROR,
                f"{base} is in bucket {former}, where a version without hash tags placed it:"
                " use another name, and copy its messages with that version",
            )
