"""Assembles the operator: the parts of every replica and the parts of the leader.

Every replica serves metrics, probes and admission. Only the leader watches, reconciles and writes. A
leader that loses the Lease ends its process at once; the next leader starts from the cluster's state.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

import structlog
from kubernetes.aio import client

from onewriter_core.command import DISTRIBUTION
from onewriter_core.kubernetes.kinds import LEASE, TOPIC, Key
from onewriter_core.kubernetes.names import FENCE
from onewriter_operator.brokers.client import Credentials
from onewriter_operator.brokers.fleet import Fleet, FleetLimits
from onewriter_operator.configuration import PORT_HTTP, PORT_HTTPS, Configuration
from onewriter_operator.controller import Controller
from onewriter_operator.declarations import Declarations
from onewriter_operator.election import Election, Timing
from onewriter_operator.engine import Engine
from onewriter_operator.events import Recorder
from onewriter_operator.installation import names
from onewriter_operator.kube import Kube, load_configuration
from onewriter_operator.metrics import Metrics
from onewriter_operator.plan.facts import PlanLimits
from onewriter_operator.reconcile.broker_pods import BrokerPods
from onewriter_operator.reconcile.claims import ClaimReconciler
from onewriter_operator.reconcile.context import ReconcileContext
from onewriter_operator.reconcile.followed_pods import FollowedPods
from onewriter_operator.reconcile.installation import EVERY_SECONDS, InstallationReconciler
from onewriter_operator.reconcile.lost_brokers import LostBrokers
from onewriter_operator.reconcile.one_writer import Certificates, OneWriterReconciler
from onewriter_operator.reconcile.store_formation import StoreClusterReconciler
from onewriter_operator.reconcile.topics import TopicReconciler
from onewriter_operator.settings import OperatorSettings
from onewriter_operator.sidecars import Sidecars
from onewriter_operator.store import ObjectCopy
from onewriter_operator.sweeper import Sweeper
from onewriter_operator.web import Web
from onewriter_operator.webhook import expiry
from onewriter_operator.workqueue import WorkQueue

SWEEP_SECONDS: Final = 300.0
"""Interval between two listings that look for objects which a watch has missed."""

log = structlog.get_logger(__name__)


def wall_clock() -> float:
    """Unix time, for times that people read."""
    return time.time()  # noqa: TID251 - the one place that reads it


def broker_urls(settings: OperatorSettings, configuration: Configuration) -> dict[str, str]:
    """The URL of each broker's HTTP interface, by name."""
    given = settings.brokers()
    if given:
        return given
    host = names.host(configuration, names.broker_pods(configuration))
    prefix = names.component(configuration, names.BROKER)
    scheme, port = "http", PORT_HTTP
    if configuration.operator.broker_ca_file:
        scheme, port = "https", PORT_HTTPS
    return {
        f"{prefix}-{number}": f"{scheme}://{prefix}-{number}.{host}:{port}"
        for number in range(configuration.brokers.replicas)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorLimits:
    """The times of an operator that are not settings. Tests pass other ones."""

    plan: PlanLimits = PlanLimits()
    fleet: FleetLimits = FleetLimits()
    installation_seconds: float = EVERY_SECONDS


class Operator:
    """One replica."""

    def __init__(
        self,
        settings: OperatorSettings,
        configuration: Configuration,
        limits: OperatorLimits = OperatorLimits(),
    ) -> None:
        self._limits = limits
        self._settings = settings
        self._configuration = configuration
        self.metrics = Metrics()
        self._queue: WorkQueue | None = None
        self._store: ObjectCopy | None = None
        self._web = Web(self.metrics, self._problems, self._refresh, settings.metrics_token_file)
        self._sidecars = Sidecars(settings, configuration)

    async def run(self) -> None:
        """Serve until cancelled, and lead while this replica holds the Lease.

        Raises an ExceptionGroup with LeadershipLost or EngineFailed when the process must end.
        """
        settings, configuration = self._settings, self._configuration
        await self._web.start(settings.host, settings.http_port)
        try:
            reach = await load_configuration(settings.kubeconfig)
            async with Kube(reach) as kube, asyncio.TaskGroup() as group:
                await self._sidecars.start(kube)
                log.info(
                    "operator.started",
                    name=settings.name,
                    version=metadata.version(DISTRIBUTION),
                    webhook_certificate_not_after=self._sidecars.certificate_not_after,
                )
                group.create_task(self._sidecars.run())
                lease = Key(
                    LEASE.kind, configuration.namespace, f"{configuration.release}-operator"
                )
                of = configuration.operator.lease
                timing = Timing(of.duration_seconds, of.renew_seconds, of.retry_seconds)
                election = Election(kube, lease, settings.name, timing, wall_clock)
                try:
                    await election.win()
                    self.metrics.is_leader.set(1)
                    async with asyncio.TaskGroup() as leading:
                        leading.create_task(election.keep())
                        leading.create_task(self._lead(kube, reach))
                finally:
                    self.metrics.is_leader.set(0)
                    await election.give_back()
        finally:
            await self._sidecars.stop()
            await self._web.stop()

    def _problems(self) -> list[str]:
        return [self._sidecars.problem] if self._sidecars.problem else []

    def _refresh(self) -> None:
        """Update the gauges that are computed on request."""
        if self._sidecars.certificate_not_after is not None:
            self.metrics.certificate(self._sidecars.certificate_not_after)
        if self._queue is None or self._store is None:
            return
        self.metrics.depth.set(self._queue.depth)
        topics = self._store.topics()
        self.metrics.fence_requested.set(sum(bool(each.annotation(FENCE)) for each in topics))

    # ------------------------------------------------------------ the leader's part

    async def _lead(self, kube: Kube, reach: client.Configuration) -> None:
        settings, configuration = self._settings, self._configuration
        options = configuration.operator
        store = self._store = ObjectCopy()
        declarations = Declarations(store, configuration.tenancy.rule)
        recorder = Recorder(kube, settings.name, wall_clock, self.metrics.events_dropped.inc)
        controller = Controller(store, declarations, self.metrics)
        authority = Path(options.broker_ca_file) if options.broker_ca_file else None
        fleet = Fleet(
            broker_urls(settings, configuration),
            Credentials(settings.token_file, authority),
            declarations,
            controller,
            self._limits.fleet,
        )
        followed = FollowedPods(kube, controller.pod_changed)
        context = ReconcileContext(
            kube,
            store,
            declarations,
            fleet,
            recorder,
            self.metrics,
            followed,
            wall_clock,
            options.leader_services,
            options.pod_deletion,
            lambda topic: controller.topic_changed(topic, None),
            self._limits.plan,
        )
        topics, claims = TopicReconciler(context), ClaimReconciler(context)

        async def reconcile(key: Key) -> float | None:
            reconciler = topics if key.kind == TOPIC.kind else claims
            return await reconciler.reconcile(key)

        self._queue = queue = WorkQueue(
            reconcile,
            workers=options.concurrency,
            resync_seconds=options.resync_seconds,
            observer=self.metrics,
        )
        one_writer = OneWriterReconciler(
            kube,
            configuration,
            fleet,
            wall_clock,
            metadata.version(DISTRIBUTION),
            lambda: self._certificates(authority),
        )
        controller.work_with(queue, fleet, topics, one_writer.changed)
        sweeper = Sweeper(
            kube,
            store,
            self.metrics,
            namespaces=options.namespaces,
            every_seconds=SWEEP_SECONDS,
        )
        is_in_cluster = settings.kubeconfig is None
        engine = Engine(sweeper.intake, None if is_in_cluster else reach, options.namespaces)
        async with asyncio.TaskGroup() as group:
            group.create_task(recorder.run())
            if settings.installs:
                # Not after the listing: store and brokers are maintained also while a CRD is missing.
                installation = InstallationReconciler(
                    kube,
                    configuration,
                    recorder,
                    self.metrics,
                    one_writer,
                    every_seconds=self._limits.installation_seconds,
                )
                group.create_task(installation.run())
                group.create_task(one_writer.run())
                pods = BrokerPods(kube, configuration, one_writer.brokers_failed)
                group.create_task(pods.run())
                if configuration.has_cluster:
                    cluster = StoreClusterReconciler(
                        kube, configuration, self.metrics, one_writer.store_planned
                    )
                    group.create_task(cluster.run())
            await sweeper.fill(one_writer.unlisted)
            log.info("operator.leads", topics=store.count(TOPIC.kind))
            controller.start()
            for part in (engine, fleet, queue, sweeper, followed):
                group.create_task(part.run())
            if settings.installs:
                lost = LostBrokers(kube, configuration.namespace, fleet, wall_clock)
                group.create_task(lost.run())

    async def _certificates(self, authority: Path | None) -> Certificates:
        """The certificates that this operator uses."""
        found: list[tuple[str, float]] = []
        if self._sidecars.certificate_not_after is not None:
            found.append(("webhook", self._sidecars.certificate_not_after))
        if authority is not None:
            not_after = await asyncio.to_thread(expiry, authority)
            found += [] if not_after is None else [("broker-ca", not_after)]
        return tuple(found)
