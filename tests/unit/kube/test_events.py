"""The recorder of Events: few, aggregated, never blocking."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from onewriter_core.api.common import API_VERSION
from onewriter_core.kubernetes.kinds import Key
from onewriter_core.kubernetes.objects import parse
from onewriter_operator import events
from onewriter_operator.events import Recorder
from onewriter_operator.kube import ApiRefused, ApiUnreachable, Kube
from onewriter_operator.plan.actions import EmitEvent, EventReason

Json = dict[str, Any]

TOPIC = {
    "apiVersion": API_VERSION,
    "kind": "ExclusiveTopic",
    "metadata": {"name": "orders", "namespace": "shop", "uid": "u1", "resourceVersion": "7"},
}


class Server:
    """An API server that accepts Events or refuses them."""

    def __init__(self) -> None:
        self.created: list[Json] = []
        self.merged: list[tuple[str, Json]] = []
        self.failures: list[Exception] = []

    async def create(self, kind: Any, document: Json) -> Json:
        self._fail()
        self.created.append(document)
        return document

    async def merge(self, kind: Any, key: Key, change: Json) -> Json:
        self._fail()
        self.merged.append((key.name, change))
        return change

    def _fail(self) -> None:
        if self.failures:
            raise self.failures.pop(0)


class World:
    def __init__(self, **limits: int) -> None:
        self.server = Server()
        self.dropped = 0
        self.recorder = Recorder(
            cast("Kube", self.server), "operator-0", lambda: 1000.5, self._dropped, **limits
        )

    def _dropped(self) -> None:
        self.dropped += 1

    def report(
        self, reason: EventReason = "EpochAdvanced", note: str = "Epoch 3", **more: Any
    ) -> None:
        self.recorder.emit(parse(TOPIC), EmitEvent(reason, note, **more))


@contextlib.asynccontextmanager
async def running(**limits: int) -> AsyncIterator[World]:
    world = World(**limits)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(world.recorder.run())
        yield world
        task.cancel()


pytestmark = pytest.mark.looptime


async def test_an_event_names_its_object_and_reason() -> None:
    async with running() as world:
        world.report(is_warning=True)
        await asyncio.sleep(1)
        (event,) = world.server.created
        assert event["apiVersion"] == "events.k8s.io/v1"
        assert event["type"] == "Warning"
        assert (event["reason"], event["note"]) == ("EpochAdvanced", "Epoch 3")
        assert event["regarding"]["uid"] == "u1"
        assert event["metadata"]["namespace"] == "shop"
        assert event["eventTime"] == "1970-01-01T00:16:40.500000Z"
        assert event["reportingInstance"] == "operator-0"
        assert event["reportingController"] == "onewriter.dev/operator"
        assert "series" not in event


async def test_a_repeated_event_is_counted() -> None:
    async with running() as world:
        world.report()
        await asyncio.sleep(1)
        for _ in range(100):
            world.report()
            await asyncio.sleep(1)
        assert len(world.server.created) == 1
        assert 1 <= len(world.server.merged) <= 4
        name, change = world.server.merged[-1]
        assert name == world.server.created[0]["metadata"]["name"]
        assert 60 <= change["series"]["count"] <= 101


async def test_a_repeated_answer_is_counted_immediately() -> None:
    async with running() as world:
        for count in (1, 2, 3):
            world.report(is_warning=True, is_answer=True)
            await asyncio.sleep(1)
            assert len(world.server.created) == 1
            assert len(world.server.merged) == count - 1
        assert world.server.merged[-1][1]["series"]["count"] == 3


async def test_answers_are_not_among_what_is_left_out() -> None:
    async with running() as world:
        for number in range(3 * events.ALIKE_MAX):
            world.report(note=f"Epoch 3 ({number})", is_answer=True)
            await asyncio.sleep(1)
        notes = [event["note"] for event in world.server.created]
        assert notes == [f"Epoch 3 ({number})" for number in range(3 * events.ALIKE_MAX)]


async def test_after_a_while_a_new_one_begins() -> None:
    async with running() as world:
        world.report()
        await asyncio.sleep(events.SERIES_SECONDS + 1)
        world.report()
        await asyncio.sleep(1)
        assert len(world.server.created) == 2


async def test_many_alike_become_one() -> None:
    async with running() as world:
        for epoch in range(500):
            world.report(note=f"Epoch {epoch}")
            await asyncio.sleep(0.1)
        assert len(world.server.created) <= events.ALIKE_MAX
        assert world.server.created[-1]["note"].startswith("(and others alike)")
        world.report(reason="PodEvicted", note="Pod writer-0")
        await asyncio.sleep(1)
        assert world.server.created[-1]["reason"] == "PodEvicted"


async def test_an_expired_event_begins_a_new_series() -> None:
    async with running() as world:
        world.report()
        await asyncio.sleep(events.COUNT_SECONDS + 1)
        world.server.failures = [ApiRefused(404, "gone")]
        world.report()
        await asyncio.sleep(1)
        assert len(world.server.created) == 2
        assert world.server.created[1]["series"]["count"] == 2


async def test_a_busy_server_is_asked_again_and_then_no_more() -> None:
    async with running() as world:
        world.server.failures = [ApiRefused(429, "busy"), ApiUnreachable("away")]
        world.report()
        await asyncio.sleep(60)
        assert len(world.server.created) == 1
        world.server.failures = [ApiRefused(500, "x") for _ in range(events.ATTEMPTS_MAX)]
        world.report(note="another")
        await asyncio.sleep(60)
        assert world.dropped == 1


async def test_a_refusal_for_good_is_not_repeated() -> None:
    async with running() as world:
        world.server.failures = [ApiRefused(403, "forbidden")]
        world.report()
        await asyncio.sleep(60)
        assert world.server.created == []
        assert world.server.failures == []


async def test_events_beyond_the_bound_are_dropped_and_counted() -> None:
    world = World(alike_max=10_000)
    for number in range(events.WAITING_MAX + 5):
        world.report(note=str(number))
    assert world.dropped == 5


async def test_the_number_of_known_events_is_bounded() -> None:
    async with running(remembered_max=50) as world:
        for number in range(200):
            world.report(reason=cast("EventReason", f"Reason{number}"))
            await asyncio.sleep(0.1)
        assert len(world.recorder._series) <= 50
        assert len(world.recorder._recent) <= 50
