"""Lists all objects: at the start to fill the operator's copy (store.py), later to find what a watch has missed.

kopf lists again when a watch has expired, but it reports no object that was deleted in between.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from onewriter_core.json_values import Json
from onewriter_core.kubernetes.kinds import Kind
from onewriter_core.kubernetes.names import GROUP
from onewriter_operator.brokers.delays import Backoff
from onewriter_operator.handlers import DELETED, WATCHED, Watched
from onewriter_operator.kube import ApiRefused, ApiUnreachable, Kube
from onewriter_operator.metrics import Metrics
from onewriter_operator.store import ObjectCopy

FIRST_SECONDS: Final = 10.0
"""Delay of the first sweep, which finds objects deleted between the first listing and the watches."""

RETRY_SECONDS_MIN: Final = 2.0
RETRY_SECONDS_MAX: Final = 30.0
"""Bounds of the delay while the API server does not answer or lacks the CRDs; it doubles with each attempt."""

log = structlog.get_logger(__name__)


class Sweeper:
    """Keeps the operator's copy of the objects complete. The time between two sweeps varies around ``every_seconds``."""

    def __init__(
        self,
        kube: Kube,
        store: ObjectCopy,
        metrics: Metrics,
        *,
        namespaces: Sequence[str],
        every_seconds: float,
    ) -> None:
        self._kube = kube
        self._store = store
        self._metrics = metrics
        self._namespaces = tuple(namespaces) or ("",)
        self._every_seconds = every_seconds

    def intake(self, kind: str, document: Json) -> None:
        """Apply a watch event to the copy."""
        self._metrics.watch_received(document["kind"])
        if kind == DELETED:
            self._store.remove(document)
        else:
            self._store.put(document)

    async def fill(self, report: Callable[[str], None]) -> None:
        """List all kinds, and repeat until the API server answers.

        ``report`` gets what only a person can resolve, and an empty text at the end. A CRD that is missing is not an
        empty list: brokers keep the declarations that they have until it is back.
        """
        reason = ""
        for watched in WATCHED:
            pause = Backoff(RETRY_SECONDS_MIN, RETRY_SECONDS_MAX)
            while True:
                try:
                    await self._sweep(watched)
                    break
                except (ApiRefused, ApiUnreachable) as error:
                    if reason != (reason := _why_unlisted(watched.kind, error)):
                        log.warning("list.failed", kind=watched.kind.kind, reason=reason)
                        report(reason if _is_permanent(error) else "")
                    await asyncio.sleep(pause.longer())
        report("")

    async def run(self) -> None:
        """Sweep until cancelled."""
        pause = min(FIRST_SECONDS, self._every_seconds)
        while True:
            spread = random.uniform(0.8, 1.2)  # noqa: S311 - spreads load, guards nothing
            await asyncio.sleep(pause * spread)
            pause = self._every_seconds
            for watched in WATCHED:
                try:
                    missed = await self._sweep(watched)
                except (ApiRefused, ApiUnreachable) as error:
                    log.warning("list.failed", kind=watched.kind.kind, reason=str(error))
                    continue
                if missed:
                    log.warning("watch.missed", kind=watched.kind.kind, objects=missed)

    async def _sweep(self, watched: Watched) -> int:
        """List one kind; how many objects the watch had missed."""
        before = self._store.versions(watched.kind.kind)
        listed: list[Json] = []
        selectors = (watched.labels, watched.listed) if watched.listed else (watched.labels,)
        for namespace in self._namespaces:
            for labels in selectors:
                listed += await self._kube.list(watched.kind, namespace, labels)
        missed = self._store.sweep(listed, before)
        self._metrics.watch_received(watched.kind.kind)
        return len(missed)


def _is_permanent(error: ApiRefused | ApiUnreachable) -> bool:
    return isinstance(error, ApiRefused) and 400 <= error.status < 500 and error.status != 429


def _why_unlisted(kind: Kind, error: ApiRefused | ApiUnreachable) -> str:
    if isinstance(error, ApiRefused) and error.is_gone and kind.group == GROUP:
        return (
            f"the CRD {kind.plural} is missing: run helm upgrade, or apply crds/{kind.plural}.yaml"
        )
    return f"{kind.plural} cannot be listed: {error}"
