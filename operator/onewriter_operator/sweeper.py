"""Lists all objects: at the start to fill the operator's copy (store.py), later to find what a watch has missed.

kopf lists again when a watch has expired, but it reports no object that was deleted in between.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Final

import structlog

from onewriter_operator.handlers import DELETED, WATCHED, Watched
from onewriter_operator.kinds import Json
from onewriter_operator.kube import ApiRefused, ApiUnreachable, Kube
from onewriter_operator.metrics import Metrics
from onewriter_operator.store import ObjectCopy

FIRST_SECONDS: Final = 10.0
"""Delay of the first sweep, which finds objects deleted between the first listing and the watches."""

RETRY_SECONDS: Final = 2.0
"""Delay while the API server does not answer or lacks the CRDs."""

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

    async def fill(self) -> None:
        """List all kinds, and repeat until the API server answers."""
        for watched in WATCHED:
            while True:
                try:
                    await self._sweep(watched)
                    break
                except (ApiRefused, ApiUnreachable) as error:
                    log.warning("list.failed", kind=watched.kind.kind, reason=str(error))
                    await asyncio.sleep(RETRY_SECONDS)

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
