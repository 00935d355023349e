"""Reconciles the objects that the operator installs: store, brokers, and their parts.

It reads each object, compares it with the wanted one, and applies it if it differs. An installation
without changes causes no writes. Watches report each change of an installed object, so that a change
by others is repaired at once.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import structlog

from onewriter_core.json_values import Json, mapping, number
from onewriter_core.kubernetes.kinds import (
    CONFIG_MAP,
    FIELD_MANAGER,
    MANAGED_BY,
    SECRET,
    Kind,
    key_of,
    named,
)
from onewriter_core.kubernetes.objects import KubeObject, parse
from onewriter_operator import installation
from onewriter_operator.configuration import Configuration
from onewriter_operator.events import Recorder
from onewriter_operator.installation import names
from onewriter_operator.installation.broker_authority import AUTHORITY_BYTES_MAX
from onewriter_operator.installation.names import INSTANCE_LABEL
from onewriter_operator.kube import ApiRefused, ApiUnreachable, Kube
from onewriter_operator.metrics import Metrics
from onewriter_operator.plan import rollout
from onewriter_operator.plan.actions import EmitEvent
from onewriter_operator.plan.difference import content, difference, digest, exact
from onewriter_operator.reconcile.api_calls import enforce
from onewriter_operator.reconcile.installed_watch import InstalledWatch
from onewriter_operator.reconcile.one_writer import InstallationState, OneWriterReconciler
from onewriter_operator.reconcile.repairs import RepairLimit

EVERY_SECONDS: Final = 60.0
"""Longest interval between two reconciles, jittered: no watch reports a renewed CA file."""

SPACING_SECONDS: Final = 1.0
"""Least interval between two reconciles, however often the installed objects change."""

GATHER_SECONDS: Final = 0.1
"""Changes are collected for this time."""

RETRY_SECONDS_MIN: Final = 5.0
RETRY_SECONDS_MAX: Final = 60.0
RETRY_DOUBLINGS_MAX: Final = 8
"""Bounds of the delay after a failed reconcile, which doubles with each failure."""

ROLLOUT_POLL_SECONDS: Final = 2.0
"""Interval between two reconciles while one rollout waits for another."""

ROLLOUT_WAIT_SECONDS_MAX: Final = 120.0
"""Longest wait for another rollout that makes no progress: the waiting change may be the repair."""

KINDS: Final[Mapping[str, Kind]] = {
    kind.kind: kind
    for kind in (
        CONFIG_MAP,
        SECRET,
        Kind("", "v1", "Service", "services"),
        Kind("apps", "v1", "StatefulSet", "statefulsets"),
        Kind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets"),
        Kind("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies"),
    )
}

REMOVABLE: Final = ("PodDisruptionBudget", "NetworkPolicy")
"""Kinds that a change of the configuration may remove. It never removes store and brokers: their
names do not depend on the configuration."""

log = structlog.get_logger(__name__)


class InstallationReconciler:
    """Keeps the installed objects as the configuration declares them."""

    def __init__(
        self,
        kube: Kube,
        configuration: Configuration,
        recorder: Recorder,
        metrics: Metrics,
        one_writer: OneWriterReconciler,
        now: Callable[[], float] = time.monotonic,
        *,
        every_seconds: float = EVERY_SECONDS,
    ) -> None:
        self._every_seconds = every_seconds
        self._one_writer = one_writer
        self._brokers_ready = 0
        self._kube = kube
        self._broker_set = names.component(configuration, names.BROKER)
        self._changed = asyncio.Event()
        self._failures = 0
        self._repairs = RepairLimit(now)
        self._configuration = configuration
        self._recorder = recorder
        self._metrics = metrics
        self._applied: dict[str, tuple[str, str]] = {}
        self._owner: KubeObject | None = None
        self._is_resting = False
        self._now = now
        self._delays: list[float] = []
        self._waits_for = ""
        self._waits_since = 0.0
        """What a rollout waits for, and since when."""

    async def run(self) -> None:
        """Reconcile, and watch the installed objects, until cancelled."""
        watch = InstalledWatch(
            self._kube,
            self._configuration.namespace,
            [kind for kind in KINDS.values() if kind is not SECRET],
            _labels(self._configuration),
            [key_of(each).name for each in installation.created_once(self._configuration)],
            self._changed.set,
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(watch.run())
            group.create_task(self._reconcile_for_ever())

    async def _reconcile_for_ever(self) -> None:
        while True:
            self._changed.clear()
            later, firm = await self._reconcile_once()
            await asyncio.sleep(max(SPACING_SECONDS, firm))
            try:
                async with asyncio.timeout(later):
                    await self._changed.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(GATHER_SECONDS)

    async def _reconcile_once(self) -> tuple[float, float]:
        """Reconcile; the longest delay of the next reconcile, and the delay that no change shortens."""
        spread = random.uniform(0.9, 1.1)  # noqa: S311 - spreads load
        try:
            later = await self.reconcile()
        except (ApiRefused, ApiUnreachable) as error:
            log.warning("installation.incomplete", reason=str(error))
            delay = min(RETRY_SECONDS_MIN * 2**self._failures, RETRY_SECONDS_MAX) * spread
            self._failures = min(self._failures + 1, RETRY_DOUBLINGS_MAX)
            self._one_writer.installed(self._state(error))
            if not isinstance(error, ApiRefused):
                return delay, 0.0
            note = f"The installation is incomplete: {error.reason}"
            self._emit(EmitEvent("InstallationIncomplete", note, is_warning=True))
            return delay, error.retry_after_seconds or 0.0
        self._failures = 0
        self._one_writer.installed(self._state())
        return self._every_seconds * spread if later is None else later, 0.0

    def _state(self, error: ApiRefused | ApiUnreachable | None = None) -> InstallationState:
        problem = "" if error is None else str(error)
        is_permanent = isinstance(error, ApiRefused) and 400 <= error.status < 500
        return InstallationState(
            is_applied=error is None and not self._is_resting,
            problem=problem,
            is_permanent=is_permanent and not _is_busy(error),
            waits_for=self._waits_for,
            brokers_ready=self._brokers_ready,
            owner=self._owner,
        )

    async def reconcile(self) -> float | None:
        """Repair differing objects; the seconds until the next reconcile if one of them has to wait.

        Raises ApiRefused, ApiUnreachable.

        An object that the API server refuses does not hold back the others.
        """
        self._delays.clear()
        name, namespace = f"{self._configuration.release}-config", self._configuration.namespace
        # Read each time: Kubernetes would delete objects whose owner is gone, again and again.
        owner = await self._kube.get(CONFIG_MAP, namespace, name)
        if owner is None and self._owner is not None:
            if not self._is_resting:  # reported once: the deletion of each object causes a visit
                log.warning("installation.rests", reason=f"ConfigMap {name} is gone")
            self._is_resting = True
            return None  # it is being uninstalled: its objects must not be created again
        self._is_resting = False
        self._owner = None if owner is None else parse(owner)
        for document in installation.created_once(self._configuration, owner):
            await self._create(document)
        authority = await self._read_authority()
        stores = await self._installed_stores()
        self._refuse_other_layout(stores)
        wanted = installation.objects(self._configuration, owner, authority)
        if await self._stop_for_other_tls(stores, wanted):
            self._waits_for = (
                "the store's pods stop: processes with and without TLS form no cluster"
            )
            return ROLLOUT_POLL_SECONDS
        refusals: list[ApiRefused] = []
        waiting = ""
        for document in wanted:
            try:
                waiting = await self._apply(document, wanted) or waiting
            except ApiRefused as refused:
                title = named(key_of(document))
                after = refused.retry_after_seconds
                refusals.append(ApiRefused(refused.status, f"{title}: {refused.reason}", after))
        self._waits_for = waiting
        if refusals:
            raise next((each for each in refusals if each.status == 429), refusals[0])
        await self._remove_others(wanted)
        return min(self._delays, default=None)

    async def _installed_stores(self) -> list[Json]:
        """The StatefulSets of the installed store as they are; none if it is not used."""
        configuration = self._configuration
        if configuration.external_store.is_used:
            return []
        labels = {**names.selector(configuration, names.VALKEY), MANAGED_BY: FIELD_MANAGER}
        selected = ",".join(f"{label}={value}" for label, value in labels.items())
        listed = await self._kube.list(KINDS["StatefulSet"], configuration.namespace, selected)
        return [each for each in listed if labels.items() <= parse(each).labels.items()]

    async def _stop_for_other_tls(self, stores: list[Json], objects: list[Json]) -> bool:
        """Stop a cluster with TLS that shall have none, or one without; whether pods of it still run.

        The processes of one cluster talk to each other either with TLS or without: pods that are replaced one by one would
        never be ready. The stopped StatefulSets have the pods of ``objects`` already, because the admission policy allows no
        change of one with another certificate. Raises ApiRefused if the data would go with the pods.
        """
        configuration = self._configuration
        wanted = bool(configuration.store.tls.secret_name)
        others = [
            each for each in stores if (parse(each).annotation(names.STORE_TLS) == "true") != wanted
        ]
        if not configuration.has_cluster or not others:
            return False
        if not configuration.valkey.storage.size:
            raise ApiRefused(
                422,
                "store.tls changes, which stops all pods of the store, and without volumes (valkey.storage.size) their data"
                " would be lost: set it back, or install again",
            )
        templates = {
            key_of(each): each["spec"]["template"]
            for each in objects
            if each["kind"] == rollout.KIND
        }
        for each in others:
            key = key_of(each)
            if each["spec"]["replicas"]:
                log.info("installation.stops_store", object=key.name, with_tls=wanted)
                change = {"spec": {"replicas": 0, "template": templates[key]}}
                await self._kube.merge(KINDS[rollout.KIND], key, change)
        return any(_has_pods(each) for each in others)

    def _refuse_other_layout(self, stores: list[Json]) -> None:
        """Raise ApiRefused if the store runs in another layout: its data would be left behind."""
        configuration = self._configuration
        wanted = str(configuration.store.shards)
        others = sorted(
            each.key.name
            for each in map(parse, stores)
            if each.key.name not in names.store_sets(configuration)
            or (each.annotation(names.SHARDS) or wanted) != wanted
        )
        if others:
            raise ApiRefused(
                422,
                f"the StatefulSets {', '.join(others)} have the store's data, and their number of shards is not"
                f" store.shards {wanted}: an installation keeps its number of shards. Set it back, or move the topics to another installation",
            )

    async def _read_authority(self) -> str:
        """The brokers' CA as the kubelet mounts it now; empty to keep the published one."""
        file = self._configuration.operator.broker_ca_file
        if not file:
            return ""
        try:
            return await asyncio.to_thread(_beginning, Path(file))
        except (OSError, UnicodeDecodeError) as error:
            log.warning("authority.unreadable", file=file, reason=str(error))
            return ""

    async def _create(self, document: Json) -> None:
        key = key_of(document)
        kind = KINDS[key.kind]
        if await self._kube.get(kind, key.namespace, key.name) is not None:
            return
        try:
            await self._kube.create(kind, document)
        except ApiRefused as refused:
            if refused.status != 409:  # another operator created it
                raise

    async def _apply(self, document: Json, wanted: list[Json]) -> str:
        """Write an object if it differs; the reason if the write has to wait."""
        key = key_of(document)
        kind, name = KINDS[key.kind], named(key)
        found = await self._kube.get(kind, key.namespace, key.name)
        if kind.kind == "StatefulSet" and name == f"StatefulSet/{self._broker_set}":
            status = mapping((found or {}).get("status"))
            self._brokers_ready = number(status.get("readyReplicas"))
        what = difference(exact(document, found), found)
        there = "" if found is None else content(found, document)
        known = self._applied.get(name)
        if not what or known == (digest(document), there):
            # A remaining difference is the API server's own notation of the same value.
            self._applied[name] = (digest(document), there)
            return ""
        if (
            found is not None
            and _has_pods(found)
            and (reason := await self._rollout_wait(document, wanted))
        ):
            self._delays.append(ROLLOUT_POLL_SECONDS)
            return reason
        if known is not None and known[0] == digest(document):
            delay = self._repairs.delay_seconds(name)
            if delay > 0:
                self._delays.append(delay)
                return ""
            self._repairs.repaired(name)
            change = f"{name} was {f'changed ({what})' if found else 'deleted'} and was restored"
            log.warning("installation.drifted", object=name, path=what)
            self._metrics.drift.labels("Installation").inc()
            self._emit(EmitEvent("DriftRepaired", change))
            self._one_writer.drifted(change)
        written = await enforce(self._kube, kind, document)
        self._applied[name] = (digest(document), content(written, document))
        log.info("installation.applied", object=name, path=what)
        return ""

    async def _rollout_wait(self, document: Json, wanted: list[Json]) -> str:
        """Why a change of this object has to wait; see plan/rollout.py."""
        if document["kind"] != rollout.KIND:
            return ""
        others = [each for each in wanted if each["kind"] == rollout.KIND and each is not document]
        keys = [key_of(each) for each in others]
        kind = KINDS[rollout.KIND]
        found = [await self._kube.get(kind, each.namespace, each.name) for each in keys]
        reason = rollout.waits_for(document, [each for each in found if each is not None])
        if reason and reason != self._waits_for:
            self._waits_since = self._now()
            log.info("installation.waits", object=key_of(document).name, reason=reason)
        if reason and self._now() - self._waits_since >= ROLLOUT_WAIT_SECONDS_MAX:
            log.warning(
                "installation.waits_no_longer", reason=reason, seconds=ROLLOUT_WAIT_SECONDS_MAX
            )
            return ""
        return reason

    async def _remove_others(self, wanted: list[Json]) -> None:
        """Delete objects of a former configuration that this one lacks."""
        kept = {key_of(each) for each in wanted}
        labels = _labels(self._configuration)
        for name in REMOVABLE:
            kind = KINDS[name]
            listed = await self._kube.list(kind, self._configuration.namespace, labels)
            for found in map(parse, listed):
                if found.key in kept or not found.labels:
                    continue
                log.info("installation.removed", object=named(found.key))
                key = found.key
                await self._kube.delete(kind, key.namespace, key.name, found.uid)

    def _emit(self, event: EmitEvent) -> None:
        subject = self._one_writer.subject() or self._owner
        if subject is not None:
            self._recorder.emit(subject, event)


def _is_busy(error: ApiRefused | ApiUnreachable | None) -> bool:
    return isinstance(error, ApiRefused) and error.status in {409, 429}


def _has_pods(document: Json) -> bool:
    """False for a StatefulSet that was stopped: it wants no pods, and its last one has ended."""
    if document["kind"] != rollout.KIND or document["spec"].get("replicas", 1):
        return True
    status = mapping(document.get("status"))
    has_seen = status.get("observedGeneration", 0) >= document["metadata"].get("generation", 0)
    return not has_seen or bool(number(status.get("replicas")))


def _beginning(file: Path) -> str:
    with file.open("rb") as stream:
        return stream.read(AUTHORITY_BYTES_MAX).decode("ascii")


def _labels(configuration: Configuration) -> str:
    """The label selector of all objects that the operator installs for this release."""
    return f"{INSTANCE_LABEL}={configuration.release},{MANAGED_BY}={FIELD_MANAGER}"
