"""Watches the installed objects of one release: one stream for each kind, and one for each Secret.

The operator may not list Secrets. It may follow each of its own by name.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import Final

import structlog

from onewriter_core.kubernetes.kinds import SECRET, Kind
from onewriter_operator.brokers.delays import Backoff
from onewriter_operator.kube import ApiRefused, ApiUnreachable, Kube

RETRY_SECONDS_MAX: Final = 60.0
"""Longest delay before a stream that failed is opened again."""

log = structlog.get_logger(__name__)


class InstalledWatch:
    """Calls ``changed`` when an installed object is created, changed or deleted.

    ``labels`` select the objects of ``kinds``; ``secrets`` are names.
    """

    def __init__(
        self,
        kube: Kube,
        namespace: str,
        kinds: Sequence[Kind],
        labels: str,
        secrets: Sequence[str],
        changed: Callable[[], None],
    ) -> None:
        self._kube = kube
        self._namespace = namespace
        self._kinds = kinds
        self._labels = labels
        self._secrets = secrets
        self._changed = changed

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            for kind in self._kinds:
                opens = partial(self._kube.watch, kind, self._namespace, self._labels)
                group.create_task(self._watch(kind.kind, opens))
            for name in self._secrets:
                opens_one = partial(self._kube.follow, SECRET, self._namespace, name)
                group.create_task(self._watch(f"{SECRET.kind}/{name}", opens_one))

    async def _watch(self, title: str, opens: Callable[[], AsyncGenerator[object, None]]) -> None:
        pause = Backoff(seconds_max=RETRY_SECONDS_MAX)
        while True:
            try:
                async with contextlib.aclosing(opens()) as events:
                    async for _ in events:
                        pause.reset()
                        self._changed()
            except (ApiRefused, ApiUnreachable) as error:
                log.warning("installation.unwatched", objects=title, reason=str(error))
            await asyncio.sleep(pause.longer())
