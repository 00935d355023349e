"""Which topics exist: each bucket's catalog in the store, and its cache at the bucket's owner.

An entry has the number of partitions of a topic, and the logs that exist for it. A deleted topic leaves a
tombstone. The states of its logs keep epoch and ledger floor, so that neither ever decreases.

Only ``Catalogs.change`` changes an entry: one change after the other, each based on what the store has at that
time. Former owners cannot change it, because the store rejects a binding that was replaced. A call of this
broker without an answer may still be executed, but only before later writes of this broker (LogStore; for a new
connection, the server drops the old one first). Reads use another path, and may be answered before such a call
is executed. So after such a call, no read is valid until a later write was answered. From then on, the lost
call cannot change the entry any more.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import MappingProxyType
from weakref import WeakValueDictionary

import structlog

from onewriter_broker.log.store.api import Binding, BrokenKey, LogStore, Outcome
from onewriter_broker.log.store.keys import Keys
from onewriter_broker.ticks import Ticks
from onewriter_core.api import ExclusiveTopic
from onewriter_core.errors import OnewriterError, Refused, ServerError, Unavailable
from onewriter_core.ids import (
    NUMBER_MAX,
    InvalidTopicName,
    TopicName,
    bucket_of,
    bucket_without_tags,
    escaped,
    is_printable,
)
from onewriter_core.topic.model import WHOLE

NAMES_PER_STEP = 1_000
"""Topics processed between two yields to the event loop."""

UNREADABLE_SHOWN_MAX = 40
"""Characters of an unreadable entry that a message shows."""

UNREADABLE_SECONDS = 2.0
"""Time after which a catalog with an unreadable entry is read again for a request for that topic."""

UNREADABLE_NAMES_MAX = 1_000
"""Unreadable names that are logged, each once."""

log = structlog.get_logger(__name__)

_NONE_SET: Mapping[str, object] = MappingProxyType({})
_NONE_MADE: Mapping[str, int] = MappingProxyType({})

CREATORS_KEPT_MAX = 1_000
"""Creators of topics that are in memory once: most topics are made by few clients."""


@lru_cache(CREATORS_KEPT_MAX)
def _made(made_by: tuple[tuple[str, int], ...]) -> Mapping[str, int]:
    """How many logs each client created. Equal values are one object."""
    return MappingProxyType(dict(made_by))


class Undivided(Refused):
    """Partitions were requested for a topic that has a log without partitions. Its messages would be unreachable."""

    def __init__(self) -> None:
        text = "the topic is there without partitions, and gets none while it is: delete it first"
        super().__init__(ServerError.NOT_ALLOWED_ERROR, text)


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One topic. ``log_numbers`` name its logs: WHOLE, or partition numbers.

    ``policies`` are the topic's own policies, by their paths in the admin API. ``declared_by`` is the
    Kubernetes namespace that declared the topic first. It is empty if none did, or if namespaces do not matter
    here. ``made_by`` has the number of logs that each client created by use (``quotas.book.subject_of``).
    ``unreadable``: why the stored entry cannot be read; the topic is then broken. Empty: it can.
    """

    partitions: int = 0
    log_numbers: tuple[int, ...] = ()
    is_deleted: bool = False
    policies: Mapping[str, object] = field(default_factory=lambda: _NONE_SET, hash=False)
    declared_by: str = ""
    made_by: Mapping[str, int] = field(default_factory=lambda: _NONE_MADE, hash=False)
    unreadable: str = ""

    def encode(self) -> str:
        """The stored form of the entry."""
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
        """The inverse of ``encode``. An entry that no broker wrote is ``unreadable``."""
        try:
            fields = json.loads(text)
            policies = fields.get("policies", _NONE_SET)
            entry = cls(
                fields["partitions"],
                tuple(fields["slots"]),
                fields["deleted"],
                policies,
                fields.get("declaredBy", ""),
                _made(tuple(fields.get("madeBy", _NONE_MADE).items())),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return cls(unreadable=f"it is {text[:UNREADABLE_SHOWN_MAX]!r}")
        return (
            entry if entry._is_valid else cls(unreadable=f"it is {text[:UNREADABLE_SHOWN_MAX]!r}")
        )

    @property
    def _is_valid(self) -> bool:
        """Whether all values have the types that the annotations name."""
        numbers = (self.partitions, *self.made_by.values())
        return (
            all(type(each) is int and 0 <= each <= NUMBER_MAX for each in numbers)
            and all(type(each) is int and each >= WHOLE for each in self.log_numbers)
            and type(self.is_deleted) is bool
            and isinstance(self.policies, Mapping)
            and isinstance(self.declared_by, str)
        )

    @property
    def logs(self) -> int:
        """The number of its logs."""
        return 0 if self.is_deleted else len(self.log_numbers)

    def with_log(self, number: int) -> CatalogEntry:
        return (
            self
            if number in self.log_numbers
            else replace(self, log_numbers=(*self.log_numbers, number))
        )

    def with_made(self, creator: str, logs: int) -> CatalogEntry:
        """The entry after ``creator`` made ``logs`` more logs."""
        made_by = {**self.made_by, creator: self.made_by.get(creator, 0) + logs}
        return replace(self, made_by=_made(tuple(made_by.items())))

    def with_policy(self, name: str, value: object) -> CatalogEntry:
        """The entry with one policy set. None removes it."""
        others = {key: kept for key, kept in self.policies.items() if key != name}
        return replace(self, policies=others if value is None else {**others, name: value})

    @property
    def is_undivided(self) -> bool:
        """Whether the topic is one log with the topic's own name. Such a topic never gets partitions."""
        return self.partitions == 0 and WHOLE in self.log_numbers and not self.is_deleted

    def grown(self, partitions: int) -> CatalogEntry:
        """The entry with that number of partitions. Raises Undivided; Refused if it has more."""
        if partitions and self.is_undivided:
            raise Undivided
        if partitions < self.partitions:
            raise Refused(ServerError.NOT_ALLOWED_ERROR, "partitions cannot be taken away")
        numbers = tuple(sorted({*self.log_numbers, *range(partitions)}))
        return replace(self, partitions=partitions, log_numbers=numbers)

    def with_declared(self, declared: ExclusiveTopic | None) -> CatalogEntry:
        """The entry with the partitions of the topic's declaration. An undivided topic stays undivided."""
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
    """The number of logs in the entries of one bucket: by namespace, and by creator."""

    namespaces: Counter[str] = field(default_factory=Counter)
    makers: Counter[str] = field(default_factory=Counter)

    def add(self, name: str, entry: CatalogEntry, times: int = 1) -> None:
        """Count an entry. With ``times`` -1, remove it from the count."""
        self.namespaces[_namespace_of(name)] += times * entry.logs
        for creator, logs in entry.made_by.items():
            self.makers[creator] += times * logs


@dataclass(slots=True, eq=False)
class _Copy:
    """The cached catalog of a bucket, while this broker holds the bucket under one binding.

    An emptied copy is never filled again. Another copy replaces it, so that a reader with a late answer fills a
    copy that is not used any more.
    """

    binding: Binding
    is_in_doubt: bool
    """Whether the store may still execute a call that was sent."""
    entries: dict[str, CatalogEntry] | None = None
    """None: they were not read yet."""
    usage: _Usage = field(default_factory=_Usage)
    reading: asyncio.Future[None] | None = None
    """The first reading, which is under way."""
    read_at: float = 0.0
    """When the entries were read, in seconds of the event loop's clock."""

    def fill(self, entries: dict[str, CatalogEntry]) -> None:
        """Cache the entries that were read."""
        self.entries = entries
        self.read_at = asyncio.get_running_loop().time()
        for name, entry in entries.items():
            self.usage.add(name, entry)

    def put(self, name: str, entry: CatalogEntry, entries: dict[str, CatalogEntry]) -> None:
        """Cache a changed entry."""
        former = entries.get(name)
        if former is not None:
            self.usage.add(name, former, -1)
        self.usage.add(name, entry)
        entries[name] = entry


def _namespace_of(base: str) -> str:
    """``tenant/namespace`` of a topic's full name."""
    return "/".join(base.partition("://")[2].split("/", 2)[:2])


def existing(known: CatalogEntry | None) -> CatalogEntry:
    """The entry of a topic that is served. Raises Unavailable if the topic was deleted meanwhile."""
    if known is None:
        raise Unavailable("the topic was deleted during the request; retry")
    return known


def _check_new(base: TopicName) -> None:
    """Raise Refused for a name that no new topic may have."""
    if not is_printable(str(base)):
        text = f"the name of a new topic has no control characters: {str(base)!a}"
        raise Refused(ServerError.INVALID_TOPIC_NAME, text)
    if TopicName.parse(str(base), is_stored=True) != base:
        text = f"{base} is the name of one partition: a topic of that name, or with partitions, is none"
        raise Refused(ServerError.INVALID_TOPIC_NAME, text)


class Catalogs:
    """The catalogs of all buckets: cached for those that this broker owns, read for the others.

    A parameter ``binding`` is the binding under which this broker holds the bucket. None: it does not hold it.
    """

    def __init__(self, store: LogStore, buckets: int) -> None:
        self.buckets = buckets
        self._store = store
        self._copies: dict[int, _Copy] = {}
        self._elsewhere: dict[int, _Usage] = {}
        """Usage in buckets that other brokers hold, as of the last read."""
        self._changing: WeakValueDictionary[TopicName, asyncio.Lock] = WeakValueDictionary()
        self._unreadable: set[str] = set()
        self._totals: _Usage | None = None
        """The sums of ``_usages``. None: they must be added up again."""
        self._changes = 0
        """Increases when other buckets are held, or a copy is replaced."""
        self._learned_at = -1
        """``_changes`` when all held buckets were read."""

    def holdings_changed(self) -> None:
        """Note that this broker holds other buckets, or holds one under another binding."""
        self._changes += 1

    def _replace(self, bucket: int, copy: _Copy) -> None:
        self._copies[bucket] = copy
        self._totals = None
        self._changes += 1

    def forget(self, bucket: int) -> None:
        """Read the bucket's catalog again after all calls that were sent.

        The reason is that the bucket was lost, or that a call had no answer.
        """
        if bucket in self._copies:
            self._replace(bucket, _Copy(self._copies[bucket].binding, is_in_doubt=True))

    async def bucket(self, bucket: int, binding: Binding | None) -> Mapping[str, CatalogEntry]:
        """All entries of a bucket, including tombstones. Raises Undecided."""
        if binding is None:
            return await self._read(bucket)
        while (copy := self._copy(binding)).entries is None:
            if copy.reading is None:
                return await self._fill(copy)
            await asyncio.shield(copy.reading)  # thousands of topics may be loaded at once
        return copy.entries

    async def _fill(self, copy: _Copy) -> Mapping[str, CatalogEntry]:
        """Read the entries of a bucket for all callers that wait for them. They share an error, too."""
        reading = copy.reading = asyncio.get_running_loop().create_future()
        try:
            return await self._read_copy(copy)
        except OnewriterError as error:
            reading.set_exception(error)
            reading.exception()  # perhaps no other caller waits
            raise
        finally:
            copy.reading = None
            if not reading.done():
                reading.set_result(None)

    async def _read_copy(self, copy: _Copy) -> Mapping[str, CatalogEntry]:
        binding = copy.binding
        bucket = binding.bucket
        if copy.is_in_doubt:  # until a later write, even one without changes, is answered
            copy.is_in_doubt = await self._store.set_catalog(binding, {}) is not Outcome.DONE
        entries = await self._read(bucket, binding.replid)
        if copy.is_in_doubt:
            return entries  # the binding is no longer valid
        # Otherwise another reader's answer has been cached, and perhaps changed since.
        if copy.entries is None:
            copy.fill(entries)
            self._totals = None
        return entries if copy.entries is None else copy.entries

    async def learn(self, binding_of: Callable[[int], Binding | None], *, elsewhere: bool) -> None:
        """Read the catalogs that ``usage`` counts: those of held buckets, and with ``elsewhere`` all others.

        ``usage`` keeps the counts of other brokers' buckets as of the last read. A bucket that cannot be read
        is left out. Nothing is done, without ``elsewhere``, if all held buckets were read and none changed: thousands
        of topics may be created in a second.
        """
        changes, failures = self._changes, 0
        if changes == self._learned_at and not elsewhere:
            return
        for bucket in range(self.buckets):
            binding = binding_of(bucket)
            copy = self._copies.get(bucket)
            try:
                if binding is not None:
                    if copy is None or copy.entries is None or copy.binding != binding:
                        await self.bucket(bucket, binding)
                    if self._elsewhere.pop(bucket, None) is not None:
                        self._totals = None
                elif elsewhere:
                    usage = _Usage()
                    for name, entry in (await self._read(bucket)).items():
                        usage.add(name, entry)
                    self._elsewhere[bucket] = usage
                    self._totals = None
            except OnewriterError as error:
                failures += 1
                log.info("catalog.uncounted", bucket=bucket, reason=str(error))
        if not failures and changes == self._changes:
            self._learned_at = changes

    def logs_in(self, namespace: str) -> int:
        """The number of logs of a namespace in the buckets whose catalogs were read."""
        return self._sums().namespaces[namespace]

    def made_by(self, creator: str) -> int:
        """Number of logs that ``creator`` made, in the buckets whose catalogs were read."""
        return self._sums().makers[creator]

    def usage(self) -> tuple[Counter[str], Counter[str]]:
        """The numbers of logs of all namespaces, and of all creators."""
        sums = self._sums()
        return Counter(sums.namespaces), Counter(sums.makers)

    def _sums(self) -> _Usage:
        totals = self._totals
        if totals is None:
            totals = self._totals = _Usage()
            for usage in self._usages():
                totals.namespaces.update(usage.namespaces)
                totals.makers.update(usage.makers)
        return totals

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
        if copy is None or (copy.binding is not binding and copy.binding != binding):
            # If the binding was replaced, the result of the last calls under the former one is unknown here.
            copy = _Copy(binding, is_in_doubt=copy is not None)
            self._replace(binding.bucket, copy)
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
        """All topics whose names begin with ``prefix``, from all buckets. Raises Undecided.

        Topics with unreadable names or entries are left out. ``with_long_names``: include names that are too long for a
        new topic, which earlier versions stored. Such topics can only be deleted.
        """
        found: dict[str, CatalogEntry] = {}
        ticks = Ticks(NAMES_PER_STEP)
        for bucket in range(self.buckets):
            await asyncio.sleep(0)  # there may be many buckets, all in memory
            entries = await self.bucket(bucket, binding_of(bucket))
            for name, entry in list(entries.items()):
                if not name.startswith(prefix) or entry.is_deleted or entry.unreadable:
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
        """A topic's entry. None: the topic does not exist or was deleted. Raises Undecided, BrokenKey."""
        entries = await self.bucket(bucket_of(base, self.buckets), binding)
        return self._existing(base, entries.get(str(base)))

    def _existing(self, base: TopicName, present: CatalogEntry | None) -> CatalogEntry | None:
        """The entry, unless the topic was deleted. Raises BrokenKey."""
        if present is not None:
            self._check_readable(base, present)
        return None if present is None or present.is_deleted else present

    def _check_readable(self, base: TopicName, entry: CatalogEntry) -> None:
        """Raise BrokenKey for an unreadable entry. Later requests read it again, because a person may repair it."""
        if not entry.unreadable:
            return
        bucket = bucket_of(base, self.buckets)
        copy = self._copies.get(bucket)
        if copy is not None and copy.entries is not None:
            age = asyncio.get_running_loop().time() - copy.read_at
            if age >= UNREADABLE_SECONDS:
                self.forget(bucket)
        key = Keys(self.buckets).topics(bucket)
        raise BrokenKey(f"{key}: the entry of {base} is unreadable: {entry.unreadable}")

    async def change(
        self,
        binding: Binding,
        base: TopicName,
        change: Callable[[CatalogEntry | None], CatalogEntry],
    ) -> CatalogEntry:
        """Store the result of ``change`` for a topic's entry in an owned bucket, and return the entry.

        ``change`` gets the stored entry, or None if the topic does not exist or was deleted. No other call
        changes the entry meanwhile. If ``change`` returns the same object, nothing is written, and the store
        does not check whether the binding is still valid.

        Raises what ``change`` raises; then nothing has changed. Raises BrokenKey for an unreadable entry, Unavailable if the binding is no longer
        valid, and Refused for a new topic that an earlier version placed elsewhere. If the store gave no
        answer, it raises Undecided or is cancelled, and the entry may have changed. The next read or change of
        the entry then finds one of the two results, which is final.
        """
        copy = self._copy(binding)
        if copy.entries is not None and base not in self._changing:
            # Nothing waits before the lock is taken: no other call has it, so it is free.
            present = copy.entries.get(str(base))
            known = self._existing(base, present)
            entry = change(known)
            if entry is known:
                return entry
            async with self._changing.setdefault(base, asyncio.Lock()):
                return await self._store_entry(binding, base, present, entry)
        async with self._changing.setdefault(base, asyncio.Lock()):
            present = (await self.bucket(binding.bucket, binding)).get(str(base))
            known = self._existing(base, present)
            entry = change(known)
            if entry is known:
                return entry
            return await self._store_entry(binding, base, present, entry)

    async def _store_entry(
        self, binding: Binding, base: TopicName, present: CatalogEntry | None, entry: CatalogEntry
    ) -> CatalogEntry:
        """Store a changed entry. The caller has the lock of the topic. Raises as ``change``."""
        bucket = binding.bucket
        if present is None or present.is_deleted:
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
            raise Unavailable(
                f"this broker no longer owns bucket {bucket} ({outcome.value}); retry"
            )
        entries = self._copy(binding).entries
        if entries is None:  # forgotten meanwhile: a read in progress may not have this change
            self.forget(bucket)
        else:
            former = entries.get(str(base))
            self._copy(binding).put(str(base), entry, entries)
            if self._totals is not None:
                if former is not None:
                    self._totals.add(str(base), former, -1)
                self._totals.add(str(base), entry)
        return entry

    async def _check_not_elsewhere(self, base: TopicName) -> None:
        """Raise Refused for a topic that a version without hash tags placed elsewhere.

        It must not start again, empty and with lower epochs.
        """
        former = bucket_without_tags(base, self.buckets)
        if former == bucket_of(base, self.buckets):
            return
        if str(base) in await self.bucket(former, None):
            raise Refused(
                ServerError.NOT_ALLOWED_ERROR,
                f"{base} is in bucket {former}, where a version without hash tags placed it:"
                " use another name, and copy its messages with that version",
            )
