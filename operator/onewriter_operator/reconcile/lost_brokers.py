"""Takes a lost broker out of its Services, long before Kubernetes marks its node.

Kubernetes notices a lost node after 40 seconds or more. Until then each new connection to the brokers' Service may lead
to the dead pod. The operator does earlier what the node controller would do: it sets the pod's condition Ready to
False, if the other brokers count the broker as dead and the broker does not answer the operator either.

The operator also counts the broker as lost, unless its stream continues within ten seconds: the stream of a lost node does
not end by itself.

The kubelet owns this condition. As long as it runs, it sets the condition as its probes find the pod, so a mistake of
the operator is corrected within seconds, and a node that returns needs no help. Without an operator everything is as
Kubernetes does it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import structlog

from onewriter_core.json_values import Json, mapping, mappings, text
from onewriter_core.kubernetes.kinds import POD, timestamp
from onewriter_operator.kube import ApiRefused, ApiUnreachable, Kube

POLL_SECONDS: Final = 1.0
"""Interval between two checks of all brokers."""

ANSWER_SECONDS: Final = 1.5
"""Time for a broker's answer."""

AGAIN_SECONDS: Final = 10.0
"""Shortest time between two readings of one dead broker's pod, and so between two changes of it. A write that met
another one, or no API server, is repeated at the next check."""

REASON: Final = "BrokerLost"

log = structlog.get_logger(__name__)


class BrokerReports(Protocol):
    """What the brokers report about each other, and whether they answer the operator."""

    async def members(self, seconds: float) -> Mapping[str, bool]:
        """Whether each broker is alive, as the first broker says that answers in time."""
        ...

    async def answers(self, name: str, seconds: float) -> bool:
        """Whether this broker answers the operator in time."""
        ...

    def suspect(self, name: str) -> None:
        """Count this broker as lost unless it reports something soon."""
        ...


class LostBrokers:
    """For the brokers of one installation, whose pods have the brokers' names."""

    def __init__(
        self,
        kube: Kube,
        namespace: str,
        brokers: BrokerReports,
        wall_clock: Callable[[], float],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube = kube
        self._namespace = namespace
        self._brokers = brokers
        self._wall_clock = wall_clock
        self._now = now
        self._read_pod_at: dict[str, float] = {}
        """When the pods of dead brokers were read, at most one for each broker that another one knows."""

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            await self.check()

    async def check(self) -> None:
        """Set the pod of each lost broker to not ready, which takes it out of its Services."""
        alive = await self._brokers.members(ANSWER_SECONDS)
        for name, is_alive in sorted(alive.items()):
            if is_alive:
                self._read_pod_at.pop(name, None)
                continue
            read_pod_at = self._read_pod_at.get(name)
            if read_pod_at is not None and self._now() - read_pod_at < AGAIN_SECONDS:
                continue
            if await self._brokers.answers(name, ANSWER_SECONDS):
                continue
            self._brokers.suspect(name)
            self._read_pod_at[name] = self._now()
            try:
                if await self._set_not_ready(name):
                    log.warning("broker.taken_out", broker=name)
            except (ApiRefused, ApiUnreachable) as error:
                if not isinstance(error, ApiRefused) or error.is_conflict:
                    del self._read_pod_at[name]  # the next check may succeed
                log.warning("broker.not_taken_out", broker=name, reason=str(error))

    async def _set_not_ready(self, name: str) -> bool:
        """Whether the pod counted as ready and does so no longer. Raises ApiRefused, ApiUnreachable."""
        pod = await self._kube.get(POD, self._namespace, name)
        change = not_ready(pod, self._wall_clock())
        if pod is None or not change:
            return False
        await self._kube.mend_status(POD, pod, change)
        return True


def not_ready(pod: Json | None, now: float) -> list[Json]:
    """The JSON patch of a pod's status that makes it not ready; empty if it is not ready, going, or not there."""
    if pod is None or mapping(pod.get("metadata")).get("deletionTimestamp"):
        return []
    conditions = mappings(mapping(pod.get("status")).get("conditions"))
    for number, condition in enumerate(conditions):
        if text(condition.get("type")) == "Ready" and text(condition.get("status")) == "True":
            changed = dict(condition) | {
                "status": "False",
                "reason": REASON,
                "message": "the other brokers and the operator get no answer from this broker",
                "lastTransitionTime": timestamp(now),
            }
            path = f"/status/conditions/{number}"
            return [{"op": "replace", "path": path, "value": changed}]
    return []
