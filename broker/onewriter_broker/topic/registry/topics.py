"""The topics that this broker serves: loading, creating, adding partitions, deleting, unloading.

A topic is loaded at its first look-up on this broker. The load reads the topic's state and fences all its logs,
so that from then on this broker's token is the valid one. It restores the ownership from the markers, and the
subscriptions from their cursors. The topic is unloaded when its bucket leaves, or when no client has used it for some
time (``unused_topics.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

import structlog

from onewriter_broker.dispatch.subscriptions import Subscriptions
from onewriter_broker.log.store.api import Binding, BrokenKey, Outcome
from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_broker.ownership.acquisition import Holding
from onewriter_broker.ownership.bucket_events import LostReason, Refenced
from onewriter_broker.ownership.buckets import BucketOwnership
from onewriter_broker.ownership.owner_waits import OwnerWaits
from onewriter_broker.quotas.book import QuotaBook
from onewriter_broker.quotas.shares import StoreShares
from onewriter_broker.settings import Settings
from onewriter_broker.topic.dependencies import TopicDependencies
from onewriter_broker.topic.history.presence import FormerClock, absent_since, note_leaving
from onewriter_broker.topic.history.tenures import partition_of
from onewriter_broker.topic.registry import declarations as declaring
from onewriter_broker.topic.registry.broken_topics import BrokenTopics
from onewriter_broker.topic.registry.catalog import CatalogEntry, Catalogs, existing
from onewriter_broker.topic.registry.creation import Creations
from onewriter_broker.topic.registry.first_declarations import FirstDeclarations
from onewriter_broker.topic.registry.loaded_topic import LoadedTopic, Settling
from onewriter_broker.topic.registry.policies import (
    NamespacePolicies,
    NoPolicies,
    deduplicates,
    follow,
)
from onewriter_broker.topic.registry.resume_windows import Load, ResumeWindows
from onewriter_broker.topic.registry.stored_states import check_state
from onewriter_broker.topic.registry.unloaded_topics import UnloadedTopics
from onewriter_broker.topic.runner import TopicRunner
from onewriter_core.api import ExclusiveTopic
from onewriter_core.api.manifests import DesiredState
from onewriter_core.api.topic import Durability
from onewriter_core.errors import OnewriterError, Refused, ServerError, Unavailable, Undecided
from onewriter_core.ids import InvalidTopicName, TopicName, bucket_of
from onewriter_core.topic.events import PartitionsAdded
from onewriter_core.topic.lookups import with_reservation
from onewriter_core.topic.model import WHOLE, Partition, Topic

log = structlog.get_logger(__name__)


class Topics:
    """All topics of the buckets that this broker holds. Implements buckets.BucketEvents."""

    def __init__(
        self,
        settings: Settings,
        catalogs: Catalogs,
        subscriptions: Callable[[TopicLog, TopicRunner], Subscriptions],
        policies: NamespacePolicies | None = None,
        quotas: QuotaBook | None = None,
        shares: StoreShares | None = None,
    ) -> None:
        self.loaded: dict[str, LoadedTopic] = {}
        self.unloaded = UnloadedTopics()
        self.desired = DesiredState()
        self._settings = settings
        self._dependencies: TopicDependencies
        self.broken: BrokenTopics
        self._catalogs = catalogs
        self.shares = shares or StoreShares()
        self.creations: Creations
        self._quotas = quotas or QuotaBook()
        self._subscriptions = subscriptions
        self.namespaces = policies or NoPolicies()
        self._followed_version = 0
        self._loading: dict[str, asyncio.Future[LoadedTopic]] = {}
        self._load_places: dict[int, asyncio.Semaphore] = {}
        self.leaving: dict[
            str, Settling
        ] = {}  # topics that are not loaded any more; the next load waits for them
        self.promises = frozenset(Durability)
        """Durabilities that the store can provide. A topic that requires another one is refused."""
        self.ownership: BucketOwnership
        self.wanted = DesiredState()
        """All declarations; ``desired`` has those that apply."""
        self.first_declarations = FirstDeclarations(
            self, self._count_again, is_enforced=settings.tenancy_enforced
        )

    def serve_with(self, ownership: BucketOwnership, dependencies: TopicDependencies) -> None:
        """Complete the construction: bucket ownership reports to this object, and this object uses it."""
        self.ownership = ownership
        self.owner_waits = OwnerWaits(ownership)
        self._dependencies = dependencies
        self.creations = Creations(self._quotas, self._catalogs, self._binding, dependencies.now)
        self.broken = BrokenTopics(dependencies.now)
        self.resume_windows = ResumeWindows(self._settings.resume_window_seconds, dependencies.now)

    # ------------------------------------------------------------ BucketEvents

    def bucket_acquired(self, bucket: int, holding: Holding) -> None:
        """Begin to serve a bucket. Its stamp rejects the former owner, and its topics are fenced when they load."""
        self._catalogs.holdings_changed()
        self.resume_windows.bucket_acquired(bucket)
        self.first_declarations.check_again()
        log.debug("bucket.acquired", bucket=bucket, grants_known=holding.grants_known)

    def bucket_lost(self, bucket: int, reason: LostReason) -> None:
        """Unload the topics of a lost bucket. Their clients look them up again."""
        self._catalogs.holdings_changed()
        self._catalogs.forget(bucket)
        self.first_declarations.forget(lambda base: self.bucket_of(base) == bucket)
        self.broken.forget(lambda base: self.bucket_of(base) == bucket)
        for topic in [t for t in self.loaded.values() if t.bucket == bucket]:
            is_in_doubt = reason is not LostReason.GIVEN_BACK
            _report_acknowledged(topic.runner, self._dependencies, is_in_doubt=is_in_doubt)
            self._drop(topic, "the topic is moving to another broker")
        self._forget_unloaded(bucket)

    def _forget_unloaded(self, bucket: int) -> None:
        """Forget the unloaded topics of a bucket. What this broker acknowledged there is compared with the next dataset."""
        for each in self.unloaded.forget(bucket):
            self._dependencies.left(each.name, each.holding.binding, each.ends)

    def dataset_changed(self, bucket: int, holding: Holding) -> None:
        """Fence every loaded topic of the bucket again after a failover of the store."""
        log.warning("bucket.dataset_changed", bucket=bucket, replid=holding.binding.replid)
        self._catalogs.holdings_changed()
        self._forget_unloaded(bucket)
        for topic in [t for t in self.loaded.values() if t.bucket == bucket]:
            topic.runner.dataset_changed()

    def refenced(self, bucket: int, answer: Refenced) -> None:
        """Fence the topics of a bucket again after a rejected write, unless the bucket is lost."""
        if answer is Refenced.LOST:
            return  # bucket_lost was called
        for topic in [t for t in self.loaded.values() if t.bucket == bucket]:
            topic.runner.refence_where_refused()

    async def drain(self, bucket: int) -> None:
        """Save the cursors, unload the topics, and wait for their fences."""
        topics = [t for t in self.loaded.values() if t.bucket == bucket]
        for topic in topics:
            await self._save_notes(topic)
            _report_acknowledged(topic.runner, self._dependencies, is_in_doubt=False)
            self._drop(topic, "the topic is moving to another broker")
        for topic in topics:
            await topic.runner.settled()

    async def _save_notes(self, topic: LoadedTopic) -> None:
        """Save presence and cursors. The next broker delivers entries after an unsaved cursor again."""
        await note_leaving(topic.runner.topic, topic.runner.logs, self._dependencies, topic.bucket)
        for subscriptions in topic.subscriptions.values():
            try:
                await subscriptions.save()
            except OnewriterError as error:
                log.warning("cursors.unsaved", topic=str(topic.name), reason=str(error))

    # ------------------------------------------------------------ serving

    def bucket_of(self, name: TopicName) -> int:
        return bucket_of(name, self._catalogs.buckets)

    def resumable_until(self, bucket: int) -> float | None:
        """Until when returning holders have precedence over waiters in a bucket. None: no longer."""
        return self.resume_windows.until(bucket)

    def is_owned(self, name: TopicName) -> bool:
        """Whether this broker serves the topic's bucket now."""
        return self.ownership.holding(self.bucket_of(name)) is not None

    async def partitions_of(self, name: TopicName) -> int | None:
        """The number of partitions; 0: not partitioned; None: the topic does not exist. Raises Undecided."""
        entry = await self.entry_of(name)
        return None if entry is None else entry.partitions

    async def entry_of(self, name: TopicName) -> CatalogEntry | None:
        """The topic's entry with its declaration. None: the topic does not exist. Raises Undecided."""
        declared = self.desired.topic(name.base)
        entry = await self._catalogs.entry(name.base, self._binding(self.bucket_of(name)))
        if entry is None and declared is None:
            return None
        return (entry or CatalogEntry()).with_declared(declared)

    async def known_entry(self, name: TopicName) -> CatalogEntry | None:
        """The stored entry of a topic. None: never used, or deleted. Raises Undecided."""
        return await self._catalogs.entry(name.base, self._binding(self.bucket_of(name)))

    async def exists(self, name: TopicName) -> bool:
        """Whether the topic was created or declared. Raises Undecided."""
        return await self.partitions_of(name) is not None

    async def serve(self, name: TopicName, creator: str = "") -> LoadedTopic:
        """Load the topic. A missing topic is created, and counts for the quotas of ``creator``.

        The caller has checked that the topic may exist. Raises Unavailable if this broker does not hold the
        bucket; BrokenKey if the topic's keys in the store must be repaired first; Undecided if the store does
        not answer; Refused for a partition that the topic does not have; QuotaExceeded.
        """
        base = name.base
        key = str(base)
        topic = self.loaded.get(key)
        if topic is None:
            if refusal := self.refusal(base):
                raise Refused(ServerError.NOT_ALLOWED_ERROR, refusal)
            partition = WHOLE if name.partition is None else name.partition
            topic = await self._load_once(base, partition, creator)
        topic.unused_since = None
        partition = WHOLE if name.partition is None else name.partition
        if partition not in topic.subscriptions:
            await self._add_partition(topic, partition, creator)
        return topic

    def refusal(self, base: TopicName) -> str:
        """Why no broker with this store can serve the topic. Empty: the broker can serve it."""
        declared = self.desired.topic(base)
        return "" if declared is None else declaring.asks_too_much(declared, self.promises)

    def store_promises(self, promises: frozenset[Durability]) -> None:
        """Set the durabilities that the store can provide from now on."""
        if promises == self.promises:
            return
        self.promises = promises
        self._refuse_what_is_too_strong()

    def _refuse_what_is_too_strong(self) -> None:
        for topic in self.desired.topics:
            if refusal := declaring.asks_too_much(topic, self.promises):
                log.error("topic.refused", topic=str(topic.topic_name), reason=refusal)
                loaded = self.loaded.get(str(topic.topic_name))
                if loaded is not None:
                    self._drop(loaded, refusal)

    def resting(self, base: TopicName) -> Holding | None:
        """The right to serve an idle topic. None: it is in use, or this broker does not hold its bucket."""
        in_use = any(str(base) in busy for busy in (self.loaded, self._loading, self.leaving))
        return None if in_use else self.ownership.holding(self.bucket_of(base))

    async def _loaded(self, base: TopicName) -> LoadedTopic | None:
        """The loaded topic, after a load or a deletion in progress has ended. None: it is not loaded."""
        loading = self._loading.get(str(base))
        return self.loaded.get(str(base)) if loading is None else await asyncio.shield(loading)

    async def _load_once(self, base: TopicName, partition: int, creator: str = "") -> LoadedTopic:
        key = str(base)
        loading = self._loading.get(key)
        if loading is None:
            self.broken.check(base)
            if len(self.loaded) >= self._settings.topics_max:
                raise Unavailable(f"this broker serves {self._settings.topics_max} topics already")
            loading = asyncio.get_running_loop().create_future()
            self._loading[key] = loading
            self._dependencies.spawn(self._load_for(loading, base, partition, creator))
        return await asyncio.shield(loading)

    async def _load_for(
        self, loading: asyncio.Future[LoadedTopic], base: TopicName, partition: int, creator: str
    ) -> None:
        """Load a topic for all callers that wait for it. They get the result or the error."""
        try:
            loading.set_result(await self._load(base, partition, creator))
        except (OnewriterError, InvalidTopicName) as error:
            if isinstance(error, BrokenKey):
                self.broken.found(base, error)
            loading.set_exception(error)
            loading.exception()  # all waiting callers may be gone
        except Exception:
            log.exception("topic.failed", topic=str(base))
            loading.set_exception(Unavailable(f"{base} cannot be loaded: see the broker's log"))
            loading.exception()
        finally:
            del self._loading[str(base)]
            loading.cancel()

    async def _load(self, base: TopicName, partition: int, creator: str) -> LoadedTopic:
        load = self.resume_windows.load_began(self.bucket_of(base), base)
        try:
            async with self._load_place(self.bucket_of(base)):
                topic, opened = await self._open(load, base, partition, creator)
        except BaseException as error:
            # A broken key needs a repair, and says nothing about other topics.
            is_retried = isinstance(error, Unavailable | Undecided) and not isinstance(
                error, BrokenKey
            )
            self.resume_windows.load_failed(load, is_retried=is_retried)
            raise
        until = self.resume_windows.load_done(load)
        if until is not None:
            opened = tuple(with_reservation(partition, until) for partition in opened)
        self.loaded[str(base)] = topic
        self.unloaded.loaded(base, topic.bucket)
        self.broken.served(base)
        topic.runner.start(opened)
        log.debug("topic.loaded", topic=str(base), ledger=max(each.ledger for each in opened))
        declaring.say_undivided(topic)
        self._declare(topic)  # the declaration may have changed meanwhile
        self._dependencies.changed(base)
        return topic

    def _load_place(self, bucket: int) -> asyncio.Semaphore:
        """Limits the loads of a bucket that are under way. The others wait in the order of their requests."""
        found = self._load_places.get(bucket)
        if found is None:
            share = max(1, self._dependencies.limits.loads_max // self._catalogs.buckets)
            found = self._load_places[bucket] = asyncio.Semaphore(share)
        return found

    async def _open(
        self, load: Load, base: TopicName, partition: int, creator: str
    ) -> tuple[LoadedTopic, tuple[Partition, ...]]:
        """Read a topic and fence its logs. Returns the topic, which is not served yet, and its partitions."""
        bucket = self.bucket_of(base)
        before = self.leaving.pop(str(base), None)
        if before is not None:
            await before.settled()
        holding = self._holding(bucket)
        declared = self.desired.topic(base)

        def served(known: CatalogEntry | None) -> CatalogEntry:
            present = known or CatalogEntry()
            self.first_declarations.seen(base, present)
            if declared is not None and self.first_declarations.is_foreign(base):
                # The caller was admitted by a declaration that does not apply.
                raise Unavailable(f"{base} was declared by another namespace before: ask again")
            entry = self.first_declarations.with_first(base, present, declared)
            entry = entry.with_declared(declared)
            return entry if entry.partitions else entry.with_log(partition)

        await self._learn(base, partition, creator)
        with self.creations.counted(base, declared, creator, served) as checked:
            entry = await self._catalogs.change(holding.binding, base, checked)
        await self.namespaces.known()
        logs = {n: await self._read_log(base, n, declared, holding) for n in entry.log_numbers}
        # The reservation gets its end when the load is done.
        reserved_until = load.began_at if load.is_in_window else None
        partitions = tuple(
            self.unloaded.partition(base, each, logs[each.number], holding)
            for each in self._read_partitions(logs, holding, reserved_until)
        )
        machine = Topic(partitions, declaring.promotion_of(declared))
        is_on = deduplicates(base, entry, self.namespaces)
        runner = TopicRunner(base, bucket, machine, logs, self._dependencies, is_deduplicated=is_on)
        opened = await runner.open(partitions)
        # Read the entry again: it may have got partitions or policies meanwhile.
        entry = await self._catalogs.change(holding.binding, base, existing)
        if opened is None or self.ownership.holding(bucket) != holding:
            raise Unavailable(f"this broker no longer owns bucket {bucket}; retry")
        topic = LoadedTopic(base, bucket, entry, runner, {}, declared)
        for number, topic_log in logs.items():
            topic.subscriptions[number] = self._subscriptions(topic_log, runner)
        return topic, opened

    async def _learn(self, base: TopicName, partition: int, creator: str) -> None:
        """Read the usage for the quotas, if the load may create the topic or a partition."""
        if creator:
            known = await self.known_entry(base)
            if known is None or not (known.partitions or partition in known.log_numbers):
                await self.creations.learn(base.namespace_name, creator)

    async def _add_partition(self, topic: LoadedTopic, partition: int, creator: str) -> None:
        """Add a partition by name to a topic without declared partitions, or open one that was added."""

        def added(known: CatalogEntry | None) -> CatalogEntry:
            entry = existing(known)
            if partition == WHOLE or (entry.partitions and partition >= entry.partitions):
                text = f"{topic.name} has {entry.partitions} partitions"
                raise Refused(ServerError.TOPIC_NOT_FOUND, text)
            return entry.with_log(partition)

        await self.creations.learn(topic.name.namespace_name, creator)
        with self.creations.counted(topic.name, topic.declared, creator, added) as checked:
            await self.change_entry(topic.name, checked)
        await self._open_partitions(topic)

    async def _open_partitions(self, topic: LoadedTopic) -> None:
        """Open the logs in the topic's entry that are not open yet. One call at a time."""
        async with topic.growing:
            holding = self._holding(topic.bucket)
            self._check_serves(topic, holding)
            for number in topic.entry.log_numbers:
                if number not in topic.runner.logs:
                    await self._open_partition(topic, number, holding)

    async def _open_partition(self, topic: LoadedTopic, number: int, holding: Holding) -> None:
        topic_log = await self._read_log(topic.name, number, topic.declared, holding)
        until = self.resume_windows.until(topic.bucket, topic.name)
        partitions = self._read_partitions({number: topic_log}, holding, until)
        self._check_serves(topic, holding)
        topic.runner.logs[number] = topic_log
        try:
            opened = await topic.runner.open(partitions)
            self._check_serves(topic, holding)
            if opened is None:
                raise Unavailable(f"this broker no longer owns bucket {topic.bucket}; retry")
        except BaseException:  # the next request starts again
            del topic.runner.logs[number]
            topic_log.close()
            raise
        topic.subscriptions[number] = self._subscriptions(topic_log, topic.runner)
        topic.runner.post(PartitionsAdded(opened, self._dependencies.now()))

    def _check_serves(self, topic: LoadedTopic, holding: Holding) -> None:
        """Raise Unavailable if the topic was unloaded or its bucket's binding changed meanwhile."""
        is_loaded = self.loaded.get(str(topic.name)) is topic
        if not is_loaded or self.ownership.holding(topic.bucket) != holding:
            raise Unavailable(f"this broker no longer serves {topic.name}; retry")

    async def _read_log(
        self, base: TopicName, number: int, declared: ExclusiveTopic | None, holding: Holding
    ) -> TopicLog:
        """A log of the topic with its stored state. The log is not open yet."""
        topic_log = self._new_log(base, number, declared)
        state = await self._dependencies.store.read_state(
            topic_log.name, replid=holding.binding.replid
        )
        check_state(topic_log.name, state, self._catalogs.buckets)
        topic_log.load(state)
        self.unloaded.restore(base, number, topic_log, holding)
        self.broken.recall(base, topic_log)
        return topic_log

    def _read_partitions(
        self, logs: Mapping[int, TopicLog], holding: Holding, reserved_until: float | None
    ) -> tuple[Partition, ...]:
        """The topic's partitions, from the states of its logs."""
        now = self._dependencies.now()
        clock = FormerClock.of(holding, self._dependencies.wall_ms())
        return tuple(
            partition_of(
                number,
                topic_log.state,
                may_resume=holding.may_resume(int(topic_log.state.get("generation", "0"))),
                reserved_until=reserved_until,
                vacant_since=absent_since(topic_log.state, now, clock),
            )
            for number, topic_log in logs.items()
        )

    def _binding(self, bucket: int) -> Binding | None:
        holding = self.ownership.holding(bucket)
        return None if holding is None else holding.binding

    def _holding(self, bucket: int) -> Holding:
        holding = self.ownership.holding(bucket)
        if holding is None:
            raise Unavailable(f"bucket {bucket} is not served by this broker; retry")
        return holding

    def _new_log(
        self, base: TopicName, partition: int, declared: ExclusiveTopic | None
    ) -> TopicLog:
        name = base if partition == WHOLE else base.with_partition(partition)
        durability = declaring.durability_of(declared, self.promises)
        topic_log = TopicLog(
            name,
            self._dependencies.store,
            self._settings.tail_bytes_per_log,
            durability,
            limits=self._dependencies.limits.log,
        )
        topic_log.use_share(self.shares.of(base.namespace_name, is_declared=declared is not None))
        return topic_log

    # ------------------------------------------------------------ administration

    def apply(self, desired: DesiredState) -> None:
        """Apply the declarations. Loaded topics follow at once."""
        self.wanted = desired
        for topic in self.loaded.values():
            self.first_declarations.seen(topic.name, topic.entry)
        self._count_again()

    def _count_again(self) -> None:
        """Determine the declarations that apply, and let loaded topics follow them."""
        self.desired = self.first_declarations.counting(self.wanted)
        self._refuse_what_is_too_strong()
        for topic in list(self.loaded.values()):
            self._declare(topic)

    def _declare(self, topic: LoadedTopic) -> None:
        """Let a loaded topic follow its present declaration."""
        if declaring.declare(topic, self.desired.topic(topic.name), self._dependencies.now()):
            self._dependencies.changed(topic.name)
        is_declared = topic.declared is not None
        for topic_log in topic.runner.logs.values():
            topic_log.use_share(self.shares.of(topic.name.namespace_name, is_declared=is_declared))
        follow(topic, self.namespaces)
        if declaring.lacks_partitions(topic):
            self._dependencies.spawn(declaring.grow(topic, self.set_partitions, self.loaded))

    def follow_policies(self) -> None:
        """Let loaded topics follow policies that any broker set since the last call."""
        if self._followed_version != self.namespaces.version:
            self._followed_version = self.namespaces.version
            for topic in self.loaded.values():
                follow(topic, self.namespaces)

    async def set_partitions(self, base: TopicName, partitions: int, creator: str = "") -> None:
        """Create a partitioned topic, or add partitions to it; ``creator`` as for ``serve``.

        Raises Refused, Unavailable.
        """
        await self._loaded(base)  # or deleted: the catalog entry is about to change

        def grown(known: CatalogEntry | None) -> CatalogEntry:
            return (known or CatalogEntry()).grown(partitions)

        await self.creations.learn(base.namespace_name, creator)
        with self.creations.counted(base, self.desired.topic(base), creator, grown) as checked:
            await self.change_entry(base, checked)
        topic = await self._loaded(base)
        if topic is not None:
            await self._open_partitions(topic)

    async def reassign(self, base: TopicName, to: str, *, by: str, reason: str) -> str:
        """Assign the topic to another Kubernetes namespace, and return the former one.

        Raises Refused if topics belong to no namespace. Raises Unavailable or Undecided if the caller should
        retry.
        """
        if not self._settings.tenancy_enforced:
            text = "topics belong to no namespace here (setting tenancy_enforced is off)"
            raise Refused(ServerError.NOT_ALLOWED_ERROR, text)
        former = ""

        def changed(known: CatalogEntry | None) -> CatalogEntry:
            nonlocal former
            present = known or CatalogEntry()
            former = present.declared_by
            return replace(present, declared_by=to)

        await self.change_entry(base, changed)
        record = {
            "kind": "reassign",
            "topic": str(base),
            "from": former,
            "to": to,
            "by": by,
            "reason": reason,
            "broker": self._dependencies.incarnation,
            "t": str(self._dependencies.wall_ms()),
        }
        log.warning("topic.reassigned", **{name: record[name] for name in record if name != "t"})
        binding = self._holding(self.bucket_of(base)).binding
        outcome = await self._dependencies.store.write_audit(binding, record)
        if outcome is not Outcome.DONE:
            raise Unavailable(f"reassigned, but not written to the audit stream ({outcome.value})")
        self._dependencies.changed(base)
        return former

    async def change_entry(
        self, base: TopicName, change: Callable[[CatalogEntry | None], CatalogEntry]
    ) -> None:
        """Change the catalog entry of a topic (Catalogs.change). A loaded topic follows.

        Raises what ``change`` raises, Refused, Unavailable, Undecided.
        """
        binding = self._holding(self.bucket_of(base)).binding
        entry = await self._catalogs.change(binding, base, change)
        self.first_declarations.seen(base, None if entry.is_deleted else entry)
        topic = self.loaded.get(str(base))
        if topic is not None:
            topic.entry = entry
            follow(topic, self.namespaces)

    @asynccontextmanager
    async def shut(self, topic: LoadedTopic, reason: str) -> AsyncIterator[TopicRunner]:
        """Close the topic for clients. Its logs are fenced and open only for the caller.

        Producers and consumers are closed, and look-ups get a retryable error. Raises Unavailable or
        Undecided; then nothing else has happened.
        """
        await self._save_notes(topic)
        key = str(topic.name)
        if self.loaded.get(key) is not topic or key in self._loading:
            raise Unavailable(f"{key} is being loaded or closed")
        loading: asyncio.Future[LoadedTopic] = asyncio.get_running_loop().create_future()
        self._loading[key] = loading
        try:
            self._drop(topic, reason)
            await topic.runner.settled()
            yield await self._open_again(topic)
        finally:
            del self._loading[key]
            loading.set_exception(Unavailable(reason))
            loading.exception()  # perhaps no caller waits

    async def _open_again(self, topic: LoadedTopic) -> TopicRunner:
        """A separate runner for the logs of an unloaded topic."""
        holding = self._holding(topic.bucket)
        logs = {
            number: await self._read_log(topic.name, number, topic.declared, holding)
            for number in topic.entry.log_numbers
        }
        partitions = self._read_partitions(logs, holding, None)
        is_on = topic.runner.deduplications.is_on
        runner = TopicRunner(
            topic.name,
            topic.bucket,
            Topic(partitions),
            logs,
            self._dependencies,
            is_deduplicated=is_on,
        )
        if await runner.open(partitions) is None:
            raise Unavailable(f"this broker no longer owns bucket {topic.bucket}; retry")
        return runner

    async def serve_existing(self, base: TopicName) -> LoadedTopic:
        """Load the topic. Raises Refused if it does not exist."""
        if await self.partitions_of(base) is None:
            raise Refused(ServerError.TOPIC_NOT_FOUND, f"{base} does not exist")
        topic = self.loaded.get(str(base)) or await self._load_once(base, WHOLE)
        topic.unused_since = None
        return topic

    def failed(self, base: TopicName) -> None:
        """Unload a topic after an unexpected error. Its clients look it up again."""
        topic = self.loaded.get(str(base))
        if topic is not None:
            self._drop(topic, "the topic failed and is being loaded again")

    def met_broken_key(self, name: TopicName, error: BrokenKey) -> None:
        """Unload a topic with an unusable key. It is refused until the key is repaired."""
        topic = self.loaded.get(str(name.base))
        if topic is not None:
            self.broken.found(topic.name, error, topic.runner.logs.values())
            self._drop(topic, f"the store must be repaired first: {error}")

    async def unload(self, base: TopicName) -> None:
        """Unload a topic. The next look-up loads it again."""
        topic = self.loaded.get(str(base))
        if topic is not None:
            await self._save_notes(topic)
            self.resume_windows.unloaded(base)
            self._drop(topic, "the topic is being unloaded")

    def unload_unused(self, topic: LoadedTopic) -> bool:
        """Unload a topic that no client uses, and remember what the next load cannot read from the store.

        False: it stays loaded.
        """
        key, holding = str(topic.name), self.ownership.holding(topic.bucket)
        if holding is None or key in self._loading or self.loaded.get(key) is not topic:
            return False
        is_bound = all(each.binding == holding.binding for each in topic.runner.logs.values())
        if not is_bound or self.unloaded.is_full or not self.unloaded.add(topic, holding):
            return False
        self._drop(topic, "no client uses the topic")
        return True

    def _drop(self, topic: LoadedTopic, reason: str) -> None:
        if self.loaded.get(str(topic.name)) is not topic:
            return  # unloaded before; it may be loaded again by now
        del self.loaded[str(topic.name)]
        self._dependencies.changed(topic.name)
        topic.runner.unload(reason)
        self.leaving[str(topic.name)] = topic.runner
        self._dependencies.spawn(self._forget_when_settled(topic))
        for subscriptions in topic.subscriptions.values():
            self._dependencies.spawn(subscriptions.close(reason, save=False))

    async def _forget_when_settled(self, topic: LoadedTopic) -> None:
        await topic.runner.settled()
        if self.leaving.get(str(topic.name)) is topic.runner:
            del self.leaving[str(topic.name)]

    async def list(
        self, namespace: str | None, *, with_long_names: bool = False
    ) -> Mapping[str, CatalogEntry]:
        """All topics of ``tenant/namespace``, or of all namespaces, by base name, with declared topics.

        ``with_long_names`` as for ``Catalogs.under``.
        """
        found: dict[str, CatalogEntry] = {}
        prefix = "" if namespace is None else f"persistent://{namespace}/"
        for topic in self.desired.topics:
            name = topic.topic_name
            if namespace in {None, name.namespace_name}:
                found[str(name)] = CatalogEntry().with_declared(topic)
        return found | await self._catalogs.under(
            prefix, self._binding, with_long_names=with_long_names
        )


def _report_acknowledged(
    runner: TopicRunner, dependencies: TopicDependencies, *, is_in_doubt: bool
) -> None:
    """Report the acknowledged ends of the logs of a bucket that may be lost together with its dataset.

    This includes a bucket that the broker gives back in order, because it may still follow an old primary.
    """
    for topic_log in runner.logs.values():
        binding, ends = topic_log.binding, topic_log.kept_ends
        if binding is not None and ends:
            dependencies.left(topic_log.name, binding, ends)
            if is_in_doubt:
                log.warning("entries.in_doubt", topic=str(runner.name), last=str(ends[-1]))
