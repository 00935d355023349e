"""A fleet that follows fake HTTP brokers, and a listener that records its reports."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from typing import Any

from tests.unit.kube.fake_broker import FakeBroker

from onewriter_core.kubernetes.kinds import Key
from onewriter_operator.brokers.client import Credentials
from onewriter_operator.brokers.fleet import Fleet, FleetLimits
from onewriter_operator.declarations import Declarations
from onewriter_operator.store import ObjectCopy

TOPIC = "persistent://shop/default/orders"


KEY = Key("ExclusiveTopic", "shop", "orders")


def topic(name: str = "orders", generation: int = 1, **spec: Any) -> dict[str, Any]:
    about = {"name": name, "namespace": "shop", "uid": f"uid-{name}", "generation": generation}
    return {
        "apiVersion": "onewriter.dev/v1alpha1",
        "kind": "ExclusiveTopic",
        "metadata": about,
        "spec": spec,
        "status": {"observedGeneration": 1},
    }


class Received:
    """A listener that records what it receives."""

    def __init__(self) -> None:
        self.topics: list[tuple[str, set[str] | None]] = []
        self.applied_keys: list[Key] = []
        self.fleet_changes = 0
        self.drifts: list[str] = []
        self.waiting: list[str] = []
        self.installation_changes = 0

    def topic_changed(self, topic: str, claims: Collection[str] | None) -> None:
        self.topics.append((topic, None if claims is None else set(claims)))

    def applied(self, keys: Collection[Key]) -> None:
        self.applied_keys += keys

    def fleet_changed(self) -> None:
        self.fleet_changes += 1

    def buckets_changed(self, topics_in: Callable[[Iterable[str]], Collection[str]]) -> None:
        self.waiting += topics_in([TOPIC])

    def installation_changed(self) -> None:
        self.installation_changes += 1

    def drifted(self, broker: str) -> None:
        self.drifts.append(broker)


QUICK = FleetLimits(
    retry_seconds_min=0.02, retry_seconds_max=0.1, gather_seconds=0.01, grace_seconds=0.3
)


class World:
    def __init__(
        self,
        *brokers: FakeBroker,
        credentials: Credentials | None = None,
        limits: FleetLimits = QUICK,
    ) -> None:
        self.store = ObjectCopy()
        self.declarations = Declarations(self.store)
        self.received = Received()
        urls = {broker.name: broker.url for broker in brokers}
        self.fleet = Fleet(
            urls, credentials or Credentials(None), self.declarations, self.received, limits
        )

    def declare(self, *documents: dict[str, Any]) -> None:
        for document in documents:
            self.store.put(document)
        self.fleet.declare()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[World]:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self.fleet.run())
            yield self
            task.cancel()

    def is_everywhere(self) -> bool:
        return self.fleet.applied(KEY, self.declarations.piece(KEY)).is_everywhere


async def until(holds: Callable[[], Any], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)
