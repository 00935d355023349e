"""Follows the brokers' pods, and reports why they are not ready: brokers that cannot start report nothing themselves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from onewriter_core.json_values import Json, mapping, mappings, text
from onewriter_core.kubernetes.kinds import POD
from onewriter_operator.brokers.delays import Backoff
from onewriter_operator.configuration import Configuration
from onewriter_operator.installation import names
from onewriter_operator.kube import LISTED, ApiRefused, ApiUnreachable, Kube
from onewriter_operator.plan.pod_problems import pod_problem

RETRY_SECONDS_MAX: Final = 60.0
"""Longest delay before a stream that failed is opened again."""

log = structlog.get_logger(__name__)


class BrokerPods:
    """Calls ``changed`` with the problem of each broker's pod that has one, by name, whenever one changes."""

    def __init__(
        self,
        kube: Kube,
        configuration: Configuration,
        changed: Callable[[Mapping[str, str]], None],
    ) -> None:
        self._kube = kube
        self._namespace = configuration.namespace
        self._labels = ",".join(
            f"{label}={value}"
            for label, value in names.selector(configuration, names.BROKER).items()
        )
        self._changed = changed
        self._problems: dict[str, str] = {}

    async def run(self) -> None:
        """Follow until cancelled. While the pods cannot be followed, the last known problems stay."""
        pause = Backoff(seconds_max=RETRY_SECONDS_MAX)
        while True:
            try:
                following = self._kube.watch(POD, self._namespace, self._labels)
                async with contextlib.aclosing(following) as events:
                    async for event, document in events:
                        pause.reset()
                        self._take(event, document)
            except (ApiRefused, ApiUnreachable) as error:
                log.warning("brokers.pods_unwatched", reason=str(error))
            await asyncio.sleep(pause.longer())

    def _take(self, event: str, document: Json) -> None:
        found = dict(self._problems)
        pods = [document]
        if event == LISTED:
            found.clear()
            pods = mappings(document.get("items"))
        for pod in pods:
            name = text(mapping(pod.get("metadata")).get("name"))
            problem = "" if event == "DELETED" else pod_problem(pod)
            if problem:
                found[name] = problem
            else:
                found.pop(name, None)
        if found != self._problems:
            self._problems = found
            self._changed(dict(found))
