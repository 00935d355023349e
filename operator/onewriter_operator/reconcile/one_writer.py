"""Keeps the installation's object (OneWriter): creates it, and writes its status when that changes.

The object is for people and tools only. Nothing depends on it: without it, or without its CRD, everything
else continues, and Events of the installation are about the chart's ConfigMap.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from onewriter_core.json_values import Json, mapping
from onewriter_core.kubernetes.kinds import CONFIG_MAP, ONE_WRITER
from onewriter_core.kubernetes.objects import KubeObject, OneWriterObject, parse_one_writer
from onewriter_operator.brokers.delays import Backoff
from onewriter_operator.configuration import Configuration
from onewriter_operator.installation import names, owner_reference
from onewriter_operator.kube import ApiRefused, ApiUnreachable, Kube
from onewriter_operator.plan.broker_report import BrokerReport
from onewriter_operator.plan.facts import BucketFacts, FleetState
from onewriter_operator.plan.installation import InstallationFacts, memory_used, plan_installation
from onewriter_operator.plan.store_shards import StorePlan
from onewriter_operator.reconcile.status import is_shown, put_status
from onewriter_operator.workqueue import RetryLater

EVERY_SECONDS: Final = 30.0
"""Longest interval between two plans: certificates expire, and the memory grows, without an event."""

SPACING_SECONDS: Final = 1.0
"""Least interval between two plans, and so between two writes."""

RETRY_SECONDS_MAX: Final = 120.0
"""Longest delay while the API server refuses the object, or lacks its CRD."""

SAMPLE_SECONDS: Final = 60.0
"""Interval between two samples of the store's memory."""

GROWTH_SECONDS: Final = 3_600.0
"""The growth is measured over this time."""

GROWTH_SECONDS_MIN: Final = 1_800.0
"""The growth is unknown until it was measured for this time."""

log = structlog.get_logger(__name__)

Certificates = tuple[tuple[str, float], ...]
"""Name and expiry (Unix time) of certificates."""


async def no_certificates() -> Certificates:
    """The operator uses no certificate."""
    return ()


@dataclass(frozen=True, slots=True)
class InstallationState:
    """What the reconcile of the installed objects knows; see plan.installation.InstallationFacts."""

    is_applied: bool = False
    problem: str = ""
    is_permanent: bool = False
    waits_for: str = ""
    brokers_ready: int = 0
    owner: KubeObject | None = None


class InstallationReporter(Protocol):
    """The part of the fleet that is used here."""

    def state(self) -> FleetState:
        """The state of all brokers together."""

    def reports(self) -> dict[str, BrokerReport]:
        """What they report about themselves."""

    def buckets(self) -> BucketFacts | None:
        """The buckets that wait."""


class MemoryGrowth:
    """The growth of the store's memory, from one sample per minute. No I/O."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def note(self, used: int | None, now: float) -> None:
        """Take a sample, if it is time for one. Unknown memory ends the measurement."""
        if used is None:
            self._samples.clear()
            return
        if self._samples and now - self._samples[-1][0] < SAMPLE_SECONDS:
            return
        self._samples.append((now, used))
        while now - self._samples[0][0] > GROWTH_SECONDS:
            self._samples.popleft()

    def bytes_per_hour(self) -> float | None:
        """The growth; None while it is unknown."""
        if not self._samples:
            return None
        (began, first), (ended, last) = self._samples[0], self._samples[-1]
        if ended - began < GROWTH_SECONDS_MIN:
            return None
        return (last - first) * 3600.0 / (ended - began)


class OneWriterReconciler:
    """Keeps the object of one installation. ``certificates``: those that the operator uses, with expiry."""

    def __init__(
        self,
        kube: Kube,
        configuration: Configuration,
        brokers: InstallationReporter,
        wall_clock: Callable[[], float],
        version: str = "",
        certificates: Callable[[], Awaitable[Certificates]] = no_certificates,
    ) -> None:
        self._kube = kube
        self._configuration = configuration
        self._brokers = brokers
        self._wall_clock = wall_clock
        self._version = version
        self._certificates = certificates
        self._growth = MemoryGrowth()
        self._changed = asyncio.Event()
        self._state = InstallationState()
        self._store_plan: StorePlan | None = None
        self._broker_problems: Mapping[str, str] = {}
        self._drift: tuple[str, ...] = ()
        self._unlisted = ""
        self._found: OneWriterObject | None = None
        self._is_listed = False
        """Whether the API server has said if the object exists."""
        self._problem = ""

    # ------------------------------------------------------------ what others call

    def changed(self) -> None:
        """Plan the status soon."""
        self._changed.set()

    def installed(self, state: InstallationState) -> None:
        """Note what the reconcile of the installed objects found."""
        if state != self._state:
            self._state = state
            self.changed()

    def store_planned(self, plan: StorePlan) -> None:
        """Note the last plan of the store's cluster."""
        before, self._store_plan = self._store_plan, plan
        if before is None or (before.state, before.message) != (plan.state, plan.message):
            self.changed()

    def brokers_failed(self, problems: Mapping[str, str]) -> None:
        """Note why brokers are not ready, by name."""
        self._broker_problems = problems
        self.changed()

    def unlisted(self, reason: str) -> None:
        """Note why topics, claims or pods cannot be listed until a person acts; empty: nothing is known."""
        self._unlisted = reason
        self.changed()

    def drifted(self, what: str) -> None:
        """Note that an installed object was changed by others and restored."""
        self._drift = tuple(dict.fromkeys((*self._drift, what)))[-8:]
        self.changed()

    def subject(self) -> KubeObject | None:
        """The object that Events of the installation are about; None if there is none."""
        return self._found or self._state.owner

    # ------------------------------------------------------------ running

    async def run(self) -> None:
        """Follow the object, and write its status, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow())
            group.create_task(self._write())

    async def _follow(self) -> None:
        pause = Backoff(seconds_max=RETRY_SECONDS_MAX)
        namespace, name = self._configuration.namespace, self._configuration.release
        while True:
            try:
                following = self._kube.follow(ONE_WRITER, namespace, name)
                async with contextlib.aclosing(following) as documents:
                    async for document in documents:
                        pause.reset()
                        self._take(document)
            except (ApiRefused, ApiUnreachable) as error:
                self._is_listed = False
                if isinstance(error, ApiRefused):
                    self._found = None
                self._report(error)
            await asyncio.sleep(pause.longer())

    def _take(self, document: Json | None) -> None:
        self._found = None if document is None else parse_one_writer(document)
        self._is_listed, self._problem = True, ""
        self.changed()

    def _report(self, error: ApiRefused | ApiUnreachable) -> None:
        """Log each problem once: nothing but the object itself is missing."""
        reason = str(error)
        if isinstance(error, ApiRefused) and error.is_gone:
            reason = f"the CRD {ONE_WRITER.plural} is missing: apply crds/{ONE_WRITER.plural}.yaml"
        if reason != self._problem:
            self._problem = reason
            log.warning("installation.object_unavailable", reason=reason)

    async def _write(self) -> None:
        pause = Backoff(seconds_max=RETRY_SECONDS_MAX)
        after = EVERY_SECONDS
        while True:
            try:
                async with asyncio.timeout(after):
                    await self._changed.wait()
            except TimeoutError:
                pass
            self._changed.clear()
            try:
                after = await self.reconcile()
                pause.reset()
                await asyncio.sleep(SPACING_SECONDS)
            except RetryLater as later:
                log.info("installation.object_later", reason=str(later))
                await asyncio.sleep(max(SPACING_SECONDS, later.after_seconds or 0.0))
                after = pause.longer()
            except (ApiRefused, ApiUnreachable) as error:
                self._report(error)
                await asyncio.sleep(max(SPACING_SECONDS, pause.longer()))
                after = 0.0

    # ------------------------------------------------------------ one reconcile

    async def reconcile(self) -> float:
        """Create the object or write its status; the seconds until the next reconcile.

        Raises RetryLater, ApiRefused, ApiUnreachable.
        """
        reports = self._brokers.reports()
        self._growth.note(memory_used(reports), asyncio.get_running_loop().time())
        if not self._is_listed:
            return EVERY_SECONDS
        if self._found is None:
            await self._create()
            return EVERY_SECONDS  # its stream reports the new object
        drift = self._drift
        found = self._found
        facts = self._facts(found, reports, await self._certificates(), drift)
        plan = plan_installation(facts)
        if plan.status is not None:
            if not is_shown(plan.status, mapping(found.document.get("status"))):
                written = await put_status(self._kube, ONE_WRITER, found, plan.status)
                if (
                    self._found is found
                ):  # otherwise the watch has delivered this state or a later one
                    self._found = parse_one_writer(written)
            self._drift = tuple(each for each in self._drift if each not in drift)
        return min(EVERY_SECONDS, plan.after_seconds or EVERY_SECONDS)

    async def _create(self) -> None:
        """Create the object. It belongs to the chart's ConfigMap: an uninstallation deletes both."""
        configuration, known = self._configuration, self._state.owner
        if not self._state.is_applied and known is None:
            return  # what is installed is not known yet
        about = names.metadata(configuration, configuration.release, names.OPERATOR)
        if known is not None:
            key = known.key
            owner = await self._kube.get(CONFIG_MAP, key.namespace, key.name)
            if owner is None:
                return  # onewriter is being uninstalled
            about["ownerReferences"] = [owner_reference(owner)]
        document = {
            "apiVersion": ONE_WRITER.api_version,
            "kind": ONE_WRITER.kind,
            "metadata": about,
        }
        try:
            await self._kube.create(ONE_WRITER, document)
        except ApiRefused as refused:
            if refused.status != 409:  # another operator created it
                raise

    def _facts(
        self,
        found: OneWriterObject,
        reports: dict[str, BrokerReport],
        certificates: Certificates,
        drift: tuple[str, ...],
    ) -> InstallationFacts:
        state = self._state
        return InstallationFacts(
            found,
            self._wall_clock(),
            self._version,
            is_applied=state.is_applied,
            problem=state.problem,
            is_permanent=state.is_permanent,
            unlisted=self._unlisted,
            waits_for=state.waits_for,
            brokers_ready=state.brokers_ready,
            brokers_desired=self._configuration.brokers.replicas,
            broker_problems=self._broker_problems,
            is_store_managed=not self._configuration.external_store.is_used,
            has_cluster=self._configuration.has_cluster,
            store_plan=self._store_plan,
            fleet=self._brokers.state(),
            reports=reports,
            buckets=self._brokers.buckets(),
            growth_bytes_per_hour=self._growth.bytes_per_hour(),
            certificates=certificates,
            drift=drift,
        )
