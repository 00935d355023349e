"""Pods behind a leader Service that lack the watched label: each is followed by its name.

One watch covers all labelled pods. For the few others, one watch each costs less than a watch of every
pod of the cluster, and shows at once that a pod is being deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Final, NamedTuple

import structlog

from onewriter_core.json_values import Json
from onewriter_core.kubernetes.kinds import POD, Key
from onewriter_core.kubernetes.objects import parse_pod
from onewriter_operator.kube import ApiRefused, ApiUnreachable, Kube
from onewriter_operator.plan.facts import PodFacts
from onewriter_operator.reconcile import removal

FOLLOWED_MAX: Final = 100
"""Pods that are followed at the same time; further ones are read with each reconcile only."""

RETRY_SECONDS: Final = 10.0
"""Delay before a pod that could not be followed is tried again."""

AGAIN_SECONDS: Final = 1.0
"""Delay before a stream that has ended is opened again."""

log = structlog.get_logger(__name__)


class Pod(NamedTuple):
    """One pod, and no successor of the same name."""

    namespace: str
    name: str
    uid: str


class FollowedPods:
    """Calls ``changed`` with the uid of each pod that changed, is being deleted, or is gone."""

    def __init__(
        self, kube: Kube, changed: Callable[[str], None], followed_max: int = FOLLOWED_MAX
    ) -> None:
        self._followed_max = followed_max
        self._kube = kube
        self._changed = changed
        self._wanted: dict[Key, Pod] = {}
        self._facts: dict[str, PodFacts] = {}
        self._wanted_changed = asyncio.Event()

    def want(self, topic: Key, pod: Pod | None) -> None:
        """Set the pod that a topic's Service leads to; None if there is none to follow."""
        if self._wanted.get(topic) == pod:
            return
        if pod is None:
            del self._wanted[topic]
        else:
            self._wanted[topic] = pod
        self._wanted_changed.set()

    def facts(self, uid: str) -> PodFacts | None:
        """A pod as it is now; None if it is not followed."""
        return self._facts.get(uid)

    async def run(self) -> None:
        """Follow the wanted pods until cancelled."""
        tasks: dict[Pod, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            while True:
                await self._wanted_changed.wait()
                self._wanted_changed.clear()
                wanted = dict.fromkeys(self._wanted.values())
                for pod in [each for each in tasks if each not in wanted]:
                    tasks.pop(pod).cancel()
                    self._facts.pop(pod.uid, None)
                for pod in wanted:
                    if pod not in tasks and len(tasks) < self._followed_max:
                        tasks[pod] = group.create_task(self._follow(pod))

    async def _follow(self, pod: Pod) -> None:
        """Follow one pod until it is gone."""
        while True:
            try:
                following = self._kube.follow(POD, pod.namespace, pod.name)
                async with contextlib.aclosing(following) as documents:
                    async for document in documents:
                        self._seen(pod, document)
                        if not self._facts[pod.uid].exists:
                            return
                await asyncio.sleep(AGAIN_SECONDS)
            except (ApiRefused, ApiUnreachable) as error:
                self._facts.pop(pod.uid, None)
                log.info("pod.not_followed", pod=pod.name, reason=str(error))
                spread = random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards nothing
                await asyncio.sleep(RETRY_SECONDS * spread)

    def _seen(self, pod: Pod, document: Json | None) -> None:
        found = PodFacts(exists=False)
        if document is not None:
            seen = parse_pod(document)
            found = removal.pod_facts(seen) if seen.uid == pod.uid else found
        if self._facts.get(pod.uid) != found:
            self._facts[pod.uid] = found
            self._changed(pod.uid)
