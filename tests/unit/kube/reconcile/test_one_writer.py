"""The installation's object: created, followed, written only on a change, and never needed."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from tests.unit.kube.installation_configurations import configured

from onewriter_core.kubernetes.kinds import CONFIG_MAP, ONE_WRITER, Key, Kind, key_of
from onewriter_core.kubernetes.objects import parse
from onewriter_operator.kube import ApiRefused, Kube
from onewriter_operator.plan.broker_report import BrokerReport, StoreReport
from onewriter_operator.plan.facts import BucketFacts, FleetState
from onewriter_operator.reconcile.one_writer import (
    EVERY_SECONDS,
    GROWTH_SECONDS_MIN,
    RETRY_SECONDS_MAX,
    InstallationState,
    MemoryGrowth,
    OneWriterReconciler,
)

pytestmark = pytest.mark.looptime

Json = dict[str, Any]

OBJECT = Key(ONE_WRITER.kind, "onewriter", "onewriter")
OWNER: Json = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "onewriter-config", "namespace": "onewriter", "uid": "owner-1"},
}
MIB = 1024 * 1024


class Server:
    """An API server that follows one object; ``has_crd``: whether it knows the kind."""

    def __init__(self) -> None:
        self.objects: dict[Key, Json] = {}
        self.has_crd = True
        self.created = 0
        self.statuses = 0
        self.lists = 0
        self.edit_after_write: Json | None = None
        """A status that another client writes before the operator has the answer to its own write."""
        self._version = 0
        self._watchers: list[asyncio.Queue[Json | None]] = []
        self.put(OWNER)

    def put(self, document: Json) -> Json:
        self._version += 1
        found = copy.deepcopy(document)
        found["metadata"] |= {"resourceVersion": str(self._version), "generation": 1}
        found["metadata"].setdefault("uid", f"uid-{self._version}")
        found.setdefault("status", {"observedGeneration": -1})
        self.objects[key_of(found)] = found
        if key_of(found) == OBJECT:
            self._report(found)
        return copy.deepcopy(found)

    def remove(self, key: Key) -> None:
        del self.objects[key]
        if key == OBJECT:
            self._report(None)

    def drop_crd(self) -> None:
        """Remove the CRD with its object."""
        self.has_crd = False
        self.objects.pop(OBJECT, None)
        for watcher in self._watchers:
            watcher.put_nowait(None)
        self._watchers.clear()

    def _report(self, found: Json | None) -> None:
        for watcher in self._watchers:
            watcher.put_nowait(copy.deepcopy(found))

    def _check(self) -> None:
        if not self.has_crd:
            raise ApiRefused(404, "the server could not find the requested resource")

    async def get(self, kind: Kind, namespace: str, name: str) -> Json | None:
        return copy.deepcopy(self.objects.get(Key(kind.kind, namespace, name)))

    async def follow(self, kind: Kind, namespace: str, name: str) -> AsyncIterator[Json | None]:
        self.lists += 1
        self._check()
        watcher: asyncio.Queue[Json | None] = asyncio.Queue()
        self._watchers.append(watcher)
        yield copy.deepcopy(self.objects.get(OBJECT))
        while self.has_crd:
            yield await watcher.get()

    async def create(self, kind: Kind, document: Json) -> Json:
        self._check()
        self.created += 1
        return self.put(document)

    async def apply_status(self, kind: Kind, document: Json) -> Json:
        self._check()
        found = self.objects[key_of(document)]
        if document["metadata"]["resourceVersion"] != found["metadata"]["resourceVersion"]:
            raise ApiRefused(409, "the object has been modified")
        self.statuses += 1
        written = self.put(found | {"status": document["status"]})
        if self.edit_after_write is not None:
            self.put(found | {"status": self.edit_after_write})
            self.edit_after_write = None
            await asyncio.sleep(0.1)  # the watch is faster than the answer
        return written


class Brokers:
    """Three brokers that report one store."""

    def __init__(self) -> None:
        self.used = 100 * MIB
        self.buckets_waiting: tuple[str, ...] = ()

    def state(self) -> FleetState:
        return FleetState(expected=3, synced=3)

    def reports(self) -> dict[str, BrokerReport]:
        store = StoreReport("redis://store:6379", "Single", True, "Local", self.used, 1000 * MIB)
        return {f"broker-{number}": BrokerReport("0.1.0", store) for number in range(3)}

    def buckets(self) -> BucketFacts | None:
        return BucketFacts(64, self.buckets_waiting)


class World:
    def __init__(self) -> None:
        self.server, self.brokers = Server(), Brokers()
        self.reconciler = OneWriterReconciler(
            cast("Kube", self.server),
            configured(namespace="onewriter"),
            self.brokers,
            lambda: 1_000_000.0 + asyncio.get_running_loop().time(),
            "0.2.0",
        )
        owner = parse(self.server.objects[Key(CONFIG_MAP.kind, "onewriter", "onewriter-config")])
        state = InstallationState(is_applied=True, brokers_ready=3, owner=owner)
        self.reconciler.installed(state)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[World]:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self.reconciler.run())
            await asyncio.sleep(2 * EVERY_SECONDS)
            yield self
            task.cancel()

    @property
    def status(self) -> Json:
        found: Json = self.server.objects[OBJECT]["status"]
        return found

    @property
    def ready(self) -> str:
        (found,) = [each for each in self.status["conditions"] if each["type"] == "Ready"]
        return f"{found['status']}/{found['reason']}"


async def test_the_object_is_created_and_shows_the_installation() -> None:
    async with World().running() as world:
        found = world.server.objects[OBJECT]
        assert found["metadata"]["ownerReferences"][0]["uid"] == "owner-1"
        assert "spec" not in found
        assert world.ready == "True/Ready"
        assert world.status["store"]["memory"]["summary"] == "10%"


async def test_nothing_is_written_at_rest() -> None:
    async with World().running() as world:
        written = world.server.statuses
        for minute in range(180):
            world.brokers.used = 100 * MIB + minute % 3 * MIB  # it wavers, as every store's memory
            await asyncio.sleep(60.0)
        assert world.server.statuses <= written + 1  # once the growth is known
        assert world.status["store"]["memory"]["growthBytesPerHour"] == 0


async def test_a_change_is_written_at_once() -> None:
    async with World().running() as world:
        world.brokers.buckets_waiting = ("another dataset",)
        world.reconciler.changed()
        await asyncio.sleep(2.0)
        assert world.ready == "False/BucketsWaiting"


async def test_a_broker_that_cannot_start_is_written_with_its_reason() -> None:
    async with World().running() as world:
        world.reconciler.installed(InstallationState(is_applied=True, brokers_ready=2))
        world.reconciler.brokers_failed({"onewriter-broker-1": "the store does not answer"})
        await asyncio.sleep(2.0)
        (found,) = [each for each in world.status["conditions"] if each["type"] == "Ready"]
        assert found["message"] == (
            "2 of 3 brokers are ready; onewriter-broker-1: the store does not answer"
        )


async def test_a_deleted_object_comes_back() -> None:
    async with World().running() as world:
        world.server.remove(OBJECT)
        await asyncio.sleep(5.0)
        assert world.ready == "True/Ready"
        assert world.server.created == 2


async def test_an_edit_that_the_watch_delivers_before_the_answer_is_restored() -> None:
    async with World().running() as world:
        world.server.edit_after_write = world.status | {"brokers": {"summary": "9/9"}}
        world.brokers.buckets_waiting = ("another dataset",)
        world.reconciler.changed()
        await asyncio.sleep(5.0)
        assert world.status["brokers"]["summary"] == "3/3"


async def test_an_edited_status_is_restored() -> None:
    async with World().running() as world:
        edited = copy.deepcopy(world.server.objects[OBJECT])
        edited["status"]["brokers"]["summary"] = "9/9"
        world.server.put(edited)
        await asyncio.sleep(5.0)
        assert world.status["brokers"]["summary"] == "3/3"


async def test_without_its_crd_nothing_else_is_missing() -> None:
    async with World().running() as world:
        world.server.drop_crd()
        world.reconciler.changed()
        await asyncio.sleep(3600.0)
        listed = world.server.lists
        await asyncio.sleep(3600.0)
        assert world.server.lists - listed <= 3600 / (RETRY_SECONDS_MAX / 2) + 1, (
            "with growing delays"
        )
        subject = world.reconciler.subject()
        assert subject is not None
        assert subject.key.kind == CONFIG_MAP.kind, "Events are about the ConfigMap meanwhile"
        world.server.has_crd = True
        await asyncio.sleep(RETRY_SECONDS_MAX + EVERY_SECONDS)
        assert world.ready == "True/Ready"


async def test_an_uninstallation_does_not_bring_the_object_back() -> None:
    async with World().running() as world:
        world.server.remove(Key(CONFIG_MAP.kind, "onewriter", "onewriter-config"))
        world.server.remove(OBJECT)  # the garbage collection deletes it with its owner
        await asyncio.sleep(600.0)
        assert OBJECT not in world.server.objects


async def test_a_repair_is_shown_and_later_not() -> None:
    async with World().running() as world:
        world.reconciler.drifted("Service/a was deleted and was restored")
        await asyncio.sleep(5.0)

        def drifted() -> str:
            (found,) = [each for each in world.status["conditions"] if each["type"] == "Drifted"]
            return str(found["status"])

        assert drifted() == "True"
        await asyncio.sleep(3_700.0)
        assert drifted() == "False"


async def test_the_growth_is_measured_over_the_last_hour() -> None:
    growth = MemoryGrowth()
    assert growth.bytes_per_hour() is None
    for minute in range(121):
        growth.note(minute * MIB, minute * 60.0)
        is_known = minute * 60.0 >= GROWTH_SECONDS_MIN
        assert (growth.bytes_per_hour() is not None) is is_known
    assert growth.bytes_per_hour() == pytest.approx(60 * MIB)
    for minute in range(121, 182):
        growth.note(120 * MIB, minute * 60.0)
    assert growth.bytes_per_hour() == pytest.approx(0.0)
    growth.note(None, 200 * 60.0)
    assert growth.bytes_per_hour() is None
