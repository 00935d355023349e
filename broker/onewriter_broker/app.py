"""The composition root of one broker process: its dependencies, its start and its stop."""

from __future__ import annotations

import asyncio
import os
import random
import time
import uuid
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass

import structlog

from onewriter_broker.anchor.api import Addresses, Anchor
from onewriter_broker.auth.authentication import Authenticator
from onewriter_broker.auth.authorization import Authorization
from onewriter_broker.auth.registrations import Registrations
from onewriter_broker.connection.clients import Clients, ConnectionLimits
from onewriter_broker.connection.listener import listen
from onewriter_broker.desired import Desired, Initial, tenancy_of
from onewriter_broker.dispatch.readers import ReadBudget
from onewriter_broker.dispatch.subscriptions import Subscriptions
from onewriter_broker.http.metrics import Metrics
from onewriter_broker.http.peers import Peers
from onewriter_broker.http.server import LIMITS as HTTP_LIMITS
from onewriter_broker.http.server import HttpServer
from onewriter_broker.http.site import Site
from onewriter_broker.http.watchers import Watchers
from onewriter_broker.log.appender import Appender, AppendPath
from onewriter_broker.log.bucket_appenders import BucketAppenders
from onewriter_broker.log.store.api import Binding, BrokenKey, LogStore, Outcome
from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_broker.log.topic_log.losses import LatestReports, Loss, RangeAtRisk
from onewriter_broker.namespaces import Namespaces
from onewriter_broker.ownership.bucket_events import Several
from onewriter_broker.ownership.buckets import BucketOwnership
from onewriter_broker.ownership.departure import leave
from onewriter_broker.ownership.membership import Membership
from onewriter_broker.ownership.placement import incarnation_of
from onewriter_broker.ownership.store_access import Ask, StoreAccessWatch
from onewriter_broker.quotas.book import Quota, QuotaBook
from onewriter_broker.quotas.shares import ShareLimits, ShareOf, StoreShares
from onewriter_broker.resources.dependencies import ResourceLimits
from onewriter_broker.resources.ownerships import Ownerships
from onewriter_broker.settings import Settings
from onewriter_broker.store_watch import StoreWatch
from onewriter_broker.topic.compaction.schedule import Compactions
from onewriter_broker.topic.dependencies import TopicDependencies
from onewriter_broker.topic.history.audit import AuditTail
from onewriter_broker.topic.limits import TopicLimits
from onewriter_broker.topic.producers.leader_loads import LeaderLoads
from onewriter_broker.topic.publish.atomic_publishes import AtomicPublishes
from onewriter_broker.topic.publish.publisher_records import PublisherLimits
from onewriter_broker.topic.publish.staging import Staging, StagingLimits
from onewriter_broker.topic.registry.accounting import Accounting
from onewriter_broker.topic.registry.catalog import Catalogs
from onewriter_broker.topic.registry.topics import Topics
from onewriter_broker.topic.retention.idle_topics import IdleTopics
from onewriter_broker.topic.retention.maintenance import Maintenance
from onewriter_broker.topic.retention.retention import RetentionLimits
from onewriter_broker.topic.retention.segments import SegmentIndexes, SegmentLimits
from onewriter_broker.topic.retention.sizes import Sizes
from onewriter_broker.topic.runner import TopicRunner
from onewriter_broker.topic.unused_topics import UnusedTopics
from onewriter_core.api.manifests import DesiredState
from onewriter_core.api.topic import Durability
from onewriter_core.errors import Unavailable, Undecided
from onewriter_core.ids import TopicName
from onewriter_core.topic.effects import Record
from onewriter_http.certificate import ServerCertificate
from onewriter_http.limits import Limits as HttpLimits

LOSSES_MAX = 100
"""The latest losses that this broker shows; the audit has all of them."""

AT_RISK_MAX = 1_000
"""The latest ranges at risk that this broker shows; the audit has all of them."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class BrokerLimits:
    """The limits of a broker's parts that are not settings. Tests pass smaller ones."""

    topic: TopicLimits = TopicLimits()
    connection: ConnectionLimits = ConnectionLimits()
    http: HttpLimits = HTTP_LIMITS
    retention: RetentionLimits = RetentionLimits()
    segments: SegmentLimits = SegmentLimits()
    staging: StagingLimits = StagingLimits()
    publishers: PublisherLimits = PublisherLimits()
    resources: ResourceLimits = ResourceLimits()


@dataclass(frozen=True, slots=True)
class Dependencies:
    """What a broker is composed of: its settings, its store, its anchor."""

    settings: Settings
    store: LogStore
    anchor: Anchor
    authenticator: Authenticator
    desired: Initial
    single_node: bool
    promises: frozenset[Durability] = frozenset(Durability)
    """The durability that the store was found to promise (server_checks.judge)."""
    declared: tuple[str, ...] = ()
    """What an administrator declared about the store and nothing checked."""
    certificate: ServerCertificate | None = None
    """The certificate of the TLS ports; None if the broker serves only the plain ports."""
    background_tasks: Sequence[Callable[[], Coroutine[object, object, None]]] = ()
    """Tasks of the dependencies that run as long as the broker."""
    through: Callable[[asyncio.BufferedProtocol], asyncio.BaseProtocol] = lambda inner: inner
    """Wraps the protocol of each client's socket, for tests that cut connections."""
    limits: BrokerLimits = BrokerLimits()
    token_seconds: Callable[[], float] | None = None
    """The clock by which tokens expire, in Unix seconds; None: the wall clock."""
    reaches_store: Ask | None = None
    """Asks another broker whether it reaches the store; None: over HTTP. Simulations have no HTTP."""


class Broker:
    """One broker process. ``run`` serves until cancelled or until ``stop`` is set.

    Simulations pass clocks, ``nonce`` (makes the incarnation unique; drawn if empty) and ``randomness``
    (jitter), so that two runs with the same seed are equal.
    """

    def __init__(
        self,
        dependencies: Dependencies,
        *,
        now: Callable[[], float] = time.monotonic,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        nonce: str = "",
        randomness: random.Random | None = None,
    ) -> None:
        self.settings = dependencies.settings
        self.store = dependencies.store
        self.now = now
        self.wall_ms = wall_ms
        self.incarnation = incarnation_of(dependencies.settings.name, nonce or uuid.uuid4().hex)
        self.is_ready = asyncio.Event()
        self.losses = LatestReports[Loss](LOSSES_MAX)
        self.at_risk = LatestReports[RangeAtRisk](AT_RISK_MAX)
        self._dependencies = dependencies
        self._tasks: asyncio.TaskGroup
        settings, parts = dependencies.settings, dependencies.limits
        host = settings.advertised_host or settings.host
        self.addresses = Addresses(
            f"pulsar://{host}:{settings.port}", f"http://{host}:{settings.http_port}"
        )
        append_path = BucketAppenders if dependencies.store.is_sharded else Appender
        self.appender: AppendPath = append_path(
            dependencies.store,
            now=now,
            wall_ms=wall_ms,
            deposed=self._deposed,
            broken=self._met_broken_key,
            limits=parts.topic.log,
        )
        self.namespaces = Namespaces(dependencies.store, settings.allow_undeclared.split(","))
        self.registrations = Registrations(
            dependencies.store, **({"make_key": lambda: nonce} if nonce else {})
        )
        self.catalogs = Catalogs(dependencies.store, settings.buckets)
        self.loads = LeaderLoads(lambda: self.membership.observer.leads)
        self.membership = Membership(
            dependencies.store,
            self.incarnation,
            self.addresses,
            clock=now,
            wall_ms=wall_ms,
            is_prepared=lambda: self.desired.is_known,
            leads=self.loads.for_brokers,
        )
        self.read_budget = ReadBudget()
        self.watchers = Watchers()
        limits = {quota: int(getattr(settings, quota.setting)) for quota in Quota}
        self.quotas = QuotaBook(limits)
        self.shares = StoreShares(
            ShareLimits(
                namespace_bytes=settings.quota_stored_bytes_per_namespace,
                namespace_share=settings.quota_store_share_per_namespace,
                undeclared_share=settings.undeclared_store_share,
                reserve_share=settings.store_reserve_share,
            )
        )
        self.topics = Topics(
            settings, self.catalogs, self._subscriptions, self.namespaces, self.quotas, self.shares
        )
        self.ownerships = Ownerships(
            self.topics,
            settings.buckets,
            settings.ownership_kept_days,
            self.membership.all_keep_floors,
            parts.resources,
        )
        self.ownership = BucketOwnership(
            me=self.incarnation,
            addresses=self.addresses,
            buckets=settings.buckets,
            anchor=dependencies.anchor,
            store=dependencies.store,
            events=Several((self.topics, self.ownerships)),
            single_node=dependencies.single_node,
            live_view=self.membership.view,
            last_seen_ms=self.membership.observer.last_seen_ms,
            clock_ahead_ms=self.membership.observer.clock_ahead_ms,
            is_late=self.membership.observer.is_late,
            wake=self.membership.changed,
            randomness=randomness,
        )
        peers = Peers(settings)
        self.store_access = StoreAccessWatch(
            self.membership,
            self.incarnation,
            dependencies.reaches_store or peers.reaches_store,
            owners=self.ownership.other_owners,
            now=now,
        )
        self.topics.promises = dependencies.promises
        self.accounting = Accounting(dependencies.anchor, dependencies.store, self._lost)
        topic_dependencies = TopicDependencies(
            store=dependencies.store,
            appender=self.appender,
            ownership=self.ownership,
            spawn=self.spawn,
            now=now,
            wall_ms=wall_ms,
            incarnation=self.incarnation,
            failed=self.topics.failed,
            broken=self.topics.met_broken_key,
            lost=self._lost,
            left=self.accounting.left,
            moved=self._moved,
            at_risk=self._at_risk,
            replicas=settings.redis_replicas,
            first_message=self._wrote_first,
            changed=self.watchers.changed,
            resumable_until=self.topics.resumable_until,
            audit_tail=AuditTail(dependencies.store, now),
            loads=self.loads,
            limits=parts.topic,
        )
        self.topics.serve_with(self.ownership, topic_dependencies)
        self.ownerships.serve_with(topic_dependencies)
        self.desired = Desired(dependencies.desired, self._apply, tenancy_of(settings))
        self.loads.follow(self.desired.state.topics)
        self.topics.apply(self.desired.state)
        self.clients = Clients(
            settings=settings,
            topics=self.topics,
            ownerships=self.ownerships,
            appender=self.appender,
            authenticator=dependencies.authenticator,
            addresses=self.addresses,
            incarnation=self.incarnation,
            authorization=Authorization(
                settings,
                self.namespaces,
                lambda: self.topics.desired,
                now,
                lambda: self.desired.is_known,
                wall_ms,
            ),
            now=now,
            wall_ms=wall_ms,
            token_seconds=dependencies.token_seconds or (lambda: wall_ms() / 1000),
            store=dependencies.store,
            registrations=self.registrations,
            has_declarations=self.desired.is_known,
            quotas=self.quotas,
            limits=parts.connection,
        )
        self.maintenance = Maintenance(
            self.topics, settings, wall_ms, self.appender, parts.retention
        )
        self.store_watch = StoreWatch(
            dependencies.store,
            dependencies.promises,
            replicas=settings.redis_replicas,
            filled=self.clients.store_filled,
            promised=self.topics.store_promises,
            dataset=self._dataset_seen,
            returned=self.topics.resume_windows.no_producer_could_resume,
            now=now,
            brokers=self.membership.brokers,
            on_observation=lambda _seen: self._update_shares(),
        )
        self._stored: Mapping[ShareOf, int] = {}
        self._rebinding: set[int] = set()
        self.compactions = Compactions(
            self.topics,
            settings,
            now=now,
            wall_ms=wall_ms,
            store=self.store_watch,
        )
        self.unused_topics = UnusedTopics(
            self.topics,
            self.maintenance,
            self.compactions,
            seconds=settings.unused_topic_seconds,
            now=now,
        )
        self.staging = Staging(
            dependencies.store,
            self.topics.bucket_of,
            lambda: sorted(self.ownership.held()),
            wall_ms,
            limits=parts.staging,
        )
        self.idle_topics = IdleTopics(
            self.topics, dependencies.store, wall_ms, limits=parts.retention
        )
        self.sizes = Sizes(self.topics, self._sizes_summed, self.staging.sizes, parts.retention)
        self.metrics = Metrics(
            self.clients,
            now,
            dependencies.certificate,
            self.compactions,
            self.store_watch.counted,
            is_store_reachable=lambda: self.store_access.is_reached,
            clocks_ahead_ms=lambda: self.membership.observer.clocks_ahead_ms,
        )
        self.http = HttpServer(
            Site(
                clients=self.clients,
                incarnation=self.incarnation,
                store=dependencies.store,
                membership=self.membership,
                store_access=self.store_access,
                namespaces=self.namespaces,
                metrics=self.metrics,
                losses=self.losses,
                at_risk=self.at_risk,
                declared=dependencies.declared,
                is_ready=self.is_ready,
                desired=self.desired,
                watchers=self.watchers,
                seen=lambda: self.store_watch.seen,
                seen_of=self.store_watch.seen_of,
                shards=self.store_watch.counted,
                store_problem=lambda: self.store_watch.problem,
                certificate=dependencies.certificate,
                compactions=self.compactions,
                staging=self.staging,
                publishing=AtomicPublishes(
                    dependencies.store,
                    self.appender,
                    self.staging,
                    is_full=lambda: self.clients.store_is_full,
                    standstill_seconds=settings.publish_standstill_seconds,
                    publisher_limits=parts.publishers,
                    log_limits=parts.topic.log,
                ),
                segments=SegmentIndexes(parts.segments),
                retention_limits=parts.retention,
                peers=peers,
            ),
            limits=parts.http,
        )

    def spawn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Run work that belongs to the whole broker; an unexpected error ends the broker.

        Raises RuntimeError while the broker ends because of such an error.
        """
        try:
            return self._tasks.create_task(work)
        except RuntimeError:
            work.close()  # Python before 3.13 would warn some time later that it never ran
            raise

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop``; then give the buckets back and stop in order."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                background = [
                    self.spawn(self.appender.run()),
                    self.spawn(self.membership.run()),
                    self.spawn(self.store_access.run()),
                    self.spawn(self._own_buckets()),
                    self.spawn(self.registrations.run()),
                    self.spawn(self.clients.watch_for_ever()),
                    self.spawn(self.clients.withdrawals.run()),
                    self.spawn(self.topics.first_declarations.run()),
                    self.spawn(self.maintenance.run()),
                    self.spawn(self.maintenance.sweep_for_ever()),
                    self.spawn(self.compactions.run()),
                    self.spawn(self.staging.run()),
                    self.spawn(self.idle_topics.run()),
                    self.spawn(self.unused_topics.run()),
                    self.spawn(self.namespaces.run()),
                    self.spawn(self.metrics.run()),
                    self.spawn(self.accounting.run()),
                    self.spawn(self.store_watch.run()),
                    self.spawn(self.sizes.run()),
                    self.spawn(self.sizes.measure()),
                    *(
                        self.spawn(background_task())
                        for background_task in self._dependencies.background_tasks
                    ),
                ]
                await self.http.start()
                servers = [
                    await listen(self.clients, self.spawn, through=self._dependencies.through)
                ]
                if (certificate := self._dependencies.certificate) is not None:
                    background.append(self.spawn(certificate.run()))
                    servers.append(await listen(self.clients, self.spawn, certificate))
                self.is_ready.set()
                url = self.clients.named(self.addresses).broker_url
                log.info("broker.listening", url=url, pid=os.getpid())
                await stop.wait()
                log.info("broker.stopping")
                await self._leave()
                for server in servers:
                    server.close()
                await self.http.stop()
                for task in background:
                    task.cancel()
                self.clients.close_all("the broker is stopping")
                raise asyncio.CancelledError  # cancels all tasks that still run
        except asyncio.CancelledError:
            if not stop.is_set():
                raise
        finally:
            await self.store.close()
            await self._dependencies.anchor.close()

    async def _own_buckets(self) -> None:
        """Acquire buckets. First wait for the key from which the broker computes the registrations of
        their holders.
        """
        await self.registrations.wait_for_key()
        await self.ownership.run()

    def reread(self) -> None:
        """Read the manifests again and apply them. During its start, the broker has just read them."""
        if self.is_ready.is_set():
            self.spawn(self.desired.reread())

    def _apply(self, state: DesiredState) -> None:
        """Apply a changed desired state."""
        self.loads.follow(state.topics)
        self.topics.apply(state)
        if not self.clients.has_declarations:
            self.topics.resume_windows.let_in()
            self.clients.has_declarations = True
        self.clients.declarations_changed()

    async def _leave(self) -> None:
        try:
            async with asyncio.timeout(self.settings.stop_seconds):
                await leave(self.membership, self.ownership)
        except (TimeoutError, Unavailable, Undecided) as error:
            log.warning("broker.left_in_a_hurry", reason=str(error) or "too slow")

    def _subscriptions(self, topic_log: TopicLog, runner: TopicRunner) -> Subscriptions:
        return Subscriptions(
            topic_log,
            spawn=runner.spawn,
            clock=self.now,
            wall_clock_ms=self.wall_ms,
            budget=self.read_budget,
            quotas=self.quotas,
        )

    def _sizes_summed(self, stored: Mapping[ShareOf, int]) -> None:
        self._stored = stored
        self._update_shares()

    def _update_shares(self) -> None:
        """Compare the stored bytes with the shares of the store, and resume topics that may write again."""
        seen = self.store_watch.seen
        used = 0 if seen is None else seen.memory_bytes_used
        limit = 0 if seen is None else seen.memory_bytes_max
        is_full = self.store_watch.is_full
        if not self.shares.update(used, limit, self._stored, is_nearly_full=is_full):
            return
        for topic in self.topics.loaded.values():
            for topic_log in topic.runner.logs.values():
                if topic_log.has_more:
                    self.appender.append_soon(topic_log)
        self.clients.shares_freed()

    def _deposed(self, bucket: int, outcome: Outcome) -> None:
        """Find out why the store refused a write to the bucket. Writes to other buckets continue
        meanwhile.
        """
        holding = self.ownership.holding(bucket)
        if holding is not None:
            self.spawn(self._refence(bucket, holding.binding, outcome))

    def _met_broken_key(self, name: TopicName, error: BrokenKey) -> None:
        self.topics.met_broken_key(name, error)

    def _dataset_seen(self, replid: str, buckets: Collection[int] | None) -> None:
        """Bind the buckets of another dataset again, also those that no client writes to.

        ``buckets``: those of this dataset; None: all.
        """
        for bucket, holding in self.ownership.held().items():
            if buckets is not None and bucket not in buckets:
                continue
            if holding.binding.replid != replid and bucket not in self._rebinding:
                self._rebinding.add(bucket)
                self.spawn(self._rebind(bucket, holding.binding))

    async def _rebind(self, bucket: int, binding: Binding) -> None:
        try:
            await self._refence(bucket, binding, Outcome.REFENCE)
        finally:
            self._rebinding.discard(bucket)

    async def _refence(self, bucket: int, binding: Binding, outcome: Outcome) -> None:
        try:
            answer = await self.ownership.refence(bucket, binding, outcome)
        except (Unavailable, Undecided) as error:
            log.warning("refence.failed", bucket=bucket, reason=str(error))
            return
        log.info("bucket.refenced", bucket=bucket, outcome=outcome.value, answer=answer.value)
        self.topics.refenced(bucket, answer)

    def _lost(self, loss: Loss) -> None:
        """Handle a loss of acknowledged entries: the store kept less than its profile promised."""
        self.metrics.lost(loss)
        self.losses.add(loss)
        log.critical(
            "entries.lost",
            topic=str(loss.topic),
            after=str(loss.after),
            last=str(loss.last),
            entries=loss.entries,
        )

    def _at_risk(self, found: RangeAtRisk) -> None:
        """Handle a range at risk: the store failed over together with the broker that knew what it acknowledged."""
        self.metrics.at_risk()
        self.at_risk.add(found)
        log.error(
            "entries.at_risk",
            topic=str(found.topic),
            after=str(found.after),
            ledger=found.ledger,
            durability=found.durability.value,
        )

    def _moved(self, name: TopicName, record: Record) -> None:
        """Record a transition of a topic."""
        del name  # series per topic are read from the topics themselves
        self.metrics.moved(record)

    def _wrote_first(self, cause: str, seconds: float) -> None:
        """Record the first message of a holder."""
        self.metrics.wrote_first(cause, seconds)
