"""Visits to what the operator installs: store, brokers, and what belongs to them.

Level-based like all visits: each object is read, compared with what it ought to be, and applied
where it differs. Reading is cheap and writes nothing; an idle installation causes no write.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import structlog

from onewriter_operator import installation
from onewriter_operator.configuration import Configuration
from onewriter_operator.events import Recorder
from onewriter_operator.installation.broker_authority import AUTHORITY_BYTES_MAX
from onewriter_operator.installation.names import selector
from onewriter_operator.kinds import FIELD_MANAGER, MANAGED_BY, Json, Kind, key_of, named
from onewriter_operator.kube import ApiRefused, ApiUnreachable, Kube
from onewriter_operator.metrics import Metrics
from onewriter_operator.objects import KubeObject, parse
from onewriter_operator.plan import rollout
from onewriter_operator.plan.actions import EmitEvent
from onewriter_operator.plan.difference import difference, digest
from onewriter_operator.reconcile.api_calls import enforce

EVERY_SECONDS: Final = 60.0
"""Between two visits, jittered."""

RETRY_SECONDS: Final = 5.0
"""After a visit that failed."""

ROLLOUT_POLL_SECONDS: Final = 2.0
"""Between two visits while one rollout waits for another."""

ROLLOUT_WAIT_SECONDS_MAX: Final = 120.0
"""So long a rollout waits for another that makes no progress: what is stuck must not keep back what
would mend it."""

CONFIG_MAP: Final = Kind("", "v1", "ConfigMap", "configmaps")
SECRET: Final = Kind("", "v1", "Secret", "secrets")
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
"""Kinds of which a configuration may want none any more. Store and brokers are never taken away by
a change of configuration: their names do not depend on it."""

log = structlog.get_logger(__name__)


class InstallationReconciler:
    """Keeps the installed objects as the configuration says."""

    def __init__(
        self,
        kube: Kube,
        configuration: Configuration,
        recorder: Recorder,
        metrics: Metrics,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube = kube
        self._configuration = configuration
        self._recorder = recorder
        self._metrics = metrics
        self._applied: dict[str, tuple[str, str]] = {}
        self._owner: KubeObject | None = None
        self._now = now
        self._waits_for = ""
        self._waits_since = 0.0
        """What a rollout waits for, and since when that has been so."""

    async def run(self) -> None:
        """Visit for ever."""
        while True:
            pause = EVERY_SECONDS * random.uniform(0.9, 1.1)  # noqa: S311 - spreads load
            try:
                if await self.reconcile():
                    pause = ROLLOUT_POLL_SECONDS
            except (ApiRefused, ApiUnreachable) as error:
                log.warning("installation.incomplete", reason=str(error))
                pause = RETRY_SECONDS
                if isinstance(error, ApiRefused):
                    pause = max(RETRY_SECONDS, error.retry_after_seconds or 0.0)
                    note = f"The installation is incomplete: {error.reason}"
                    self._emit(EmitEvent("InstallationIncomplete", note, is_warning=True))
            await asyncio.sleep(pause)

    async def reconcile(self) -> bool:
        """Put right what differs. Raises ApiRefused, ApiUnreachable. True: something waits for its turn.

        An object that the API server refuses keeps no other back.
        """
        name, namespace = f"{self._configuration.release}-config", self._configuration.namespace
        # Read each time: what names an owner that is gone would be collected, again and again.
        owner = await self._kube.get(CONFIG_MAP, namespace, name)
        if owner is None and self._owner is not None:
            log.warning("installation.rests", reason=f"ConfigMap {name} is gone")
            return False  # it is being uninstalled: what belongs to it goes, and must not come back
        self._owner = None if owner is None else parse(owner)
        for document in installation.created_once(self._configuration, owner):
            await self._create(document)
        authority = await self._read_authority()
        wanted = installation.objects(self._configuration, owner, authority)
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
        return bool(waiting)

    async def _read_authority(self) -> str:
        """The brokers' authority as the kubelet shows it now; empty: what is published stays."""
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
            if refused.status != 409:  # another operator made it
                raise

    async def _apply(self, document: Json, wanted: list[Json]) -> str:
        """Write it where it differs; what keeps it waiting, if anything does."""
        key = key_of(document)
        kind, name = KINDS[key.kind], named(key)
        found = await self._kube.get(kind, key.namespace, key.name)
        what = difference(document, found)
        version = "" if found is None else parse(found).resource_version
        known = self._applied.get(name)
        if not what or known == (digest(document), version):
            # What may still differ is the API server's own way of writing the same.
            self._applied[name] = (digest(document), version)
            return ""
        if found is not None and (reason := await self._rollout_wait(document, wanted)):
            return reason
        if known is not None and known[0] == digest(document):
            change = f"{name} was changed outside and put right: {what}"
            log.warning("installation.drifted", object=name, path=what)
            self._metrics.drift.labels("Installation").inc()
            self._emit(EmitEvent("DriftRepaired", change))
        written = await enforce(self._kube, kind, document)
        self._applied[name] = (digest(document), parse(written).resource_version)
        log.info("installation.applied", object=name, path=what)
        return ""

    async def _rollout_wait(self, document: Json, wanted: list[Json]) -> str:
        """Why a change of this object is not written yet: see plan/rollout.py."""
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
        """Take away what a former configuration had and this one has not."""
        kept = {key_of(each) for each in wanted}
        own = selector(self._configuration, "")
        for name in REMOVABLE:
            kind = KINDS[name]
            labels = ",".join(f"{label}={value}" for label, value in _managed(own).items())
            listed = await self._kube.list(kind, self._configuration.namespace, labels)
            for found in map(parse, listed):
                if found.key in kept or not found.labels:
                    continue
                log.info("installation.removed", object=named(found.key))
                key = found.key
                await self._kube.delete(kind, key.namespace, key.name, found.uid)

    def _emit(self, event: EmitEvent) -> None:
        if self._owner is not None:
            self._recorder.emit(self._owner, event)


def _beginning(file: Path) -> str:
    with file.open("rb") as stream:
        return stream.read(AUTHORITY_BYTES_MAX).decode("ascii")


def _managed(own: Mapping[str, Any]) -> dict[str, str]:
    """The labels of everything that this operator installs for this release."""
    instance = "app.kubernetes.io/instance"
    return {
        instance: str(own[instance]),
        MANAGED_BY: FIELD_MANAGER,
    }
