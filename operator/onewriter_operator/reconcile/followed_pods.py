"""Pods that a leader's Service leads to and that carry no label: each is followed by its name.

The labelled ones are watched all together, for little. For the few others a watch of each costs less
than one of every pod of the cluster, and shows at once that one of them is going.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Final, NamedTuple

import structlog

from onewriter_operator.kinds import POD, Json, Key
from onewriter_operator.kube import ApiRefused, ApiUnreachable, Kube
from onewriter_operator.objects import parse_pod
from onewriter_operator.plan.facts import PodFacts
from onewriter_operator.reconcile import removal

FOLLOWED_MAX: Final = 100
"""Pods that are followed at the same time; further ones are looked at with each visit only."""

RETRY_SECONDS: Final = 10.0
"""What could not be followed is tried again after so long; until then it counts as not followed."""

AGAIN_SECONDS: Final = 1.0
"""A stream that has ended begins anew after so long."""

log = structlog.get_logger(__name__)


class Pod(NamedTuple):
    """One pod, and no successor of its name."""

    namespace: str
    name: str
    uid: str


class FollowedPods:
    """``changed`` is told the uid of each that is another than it was, or going, or gone."""

    def __init__(self, kube: Kube, changed: Callable[[str], None]) -> None:
        self._kube = kube
        self._changed = changed
        self._wanted: dict[Key, Pod] = {}
        self._facts: dict[str, PodFacts] = {}
        self._is_other = asyncio.Event()

    def want(self, topic: Key, pod: Pod | None) -> None:
        """A topic leads to this pod now, or to none that has to be followed."""
        if self._wanted.get(topic) == pod:
            return
        if pod is None:
            del self._wanted[topic]
        else:
            self._wanted[topic] = pod
        self._is_other.set()

    def facts(self, uid: str) -> PodFacts | None:
        """A pod as it is now; None when it is not followed."""
        return self._facts.get(uid)

    async def run(self) -> None:
        """Follow what is wanted until cancelled."""
        tasks: dict[Pod, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            while True:
                await self._is_other.wait()
                self._is_other.clear()
                wanted = dict.fromkeys(self._wanted.values())
                for pod in [each for each in tasks if each not in wanted]:
                    tasks.pop(pod).cancel()
                    self._facts.pop(pod.uid, None)
                for pod in wanted:
                    if pod not in tasks and len(tasks) < FOLLOWED_MAX:
                        tasks[pod] = group.create_task(self._follow(pod))

    async def _follow(self, pod: Pod) -> None:
        """Follow one until it is gone: what is gone never comes back."""
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
