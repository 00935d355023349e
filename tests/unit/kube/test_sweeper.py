"""Listings complete the store at the start, soon after it, and at intervals."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from onewriter_core.kubernetes.kinds import CLAIM, TOPIC, Key, Kind
from onewriter_operator.kube import ApiRefused, ApiUnreachable, Kube
from onewriter_operator.metrics import Metrics
from onewriter_operator.store import ObjectCopy
from onewriter_operator.sweeper import FIRST_SECONDS, Sweeper

pytestmark = pytest.mark.looptime

Json = dict[str, Any]

KEY = Key(TOPIC.kind, "shop", "orders")


class Server:
    """An API server that lists topics and fails as often as a test sets."""

    def __init__(self) -> None:
        self.topics: list[Json] = [
            {
                "kind": TOPIC.kind,
                "metadata": {
                    "name": "orders",
                    "namespace": "shop",
                    "uid": "u1",
                    "resourceVersion": "5",
                    "managedFields": [{"manager": "kubectl"}],
                },
            }
        ]
        self.failures = 0
        self.lists = 0
        self.refusal: ApiRefused | None = None

    async def list(self, kind: Kind, namespace: str = "", labels: str = "") -> list[Json]:
        self.lists += 1
        if self.refusal is not None and kind is CLAIM:
            raise self.refusal
        if self.failures:
            self.failures -= 1
            raise ApiUnreachable("away")
        return list(self.topics) if kind is TOPIC else []


def world() -> tuple[Server, ObjectCopy, Sweeper]:
    server, store = Server(), ObjectCopy()
    sweeper = Sweeper(cast("Kube", server), store, Metrics(), namespaces=(), every_seconds=300.0)
    return server, store, sweeper


async def test_the_store_is_filled_however_long_it_takes() -> None:
    server, store, sweeper = world()
    server.failures = 5
    await sweeper.fill(print)
    found = store.get(KEY)
    assert found is not None
    assert "managedFields" not in found.document["metadata"]


@pytest.mark.parametrize(
    ("refusal", "reported"),
    [
        (
            ApiRefused(404, "not found"),
            "the CRD producerclaims is missing: run helm upgrade, or apply crds/producerclaims.yaml",
        ),
        (ApiRefused(403, "forbidden"), "producerclaims cannot be listed: 403: forbidden"),
        (ApiRefused(503, "not yet"), ""),
        (ApiRefused(429, "too many"), ""),
    ],
)
async def test_a_missing_definition_is_reported_and_never_counts_as_no_objects(
    refusal: ApiRefused, reported: str
) -> None:
    server, _, sweeper = world()
    server.refusal = refusal
    reports: list[str] = []
    async with asyncio.TaskGroup() as group:
        filling = group.create_task(sweeper.fill(reports.append))
        await asyncio.sleep(600)
        assert not filling.done()
        assert reports == [reported]
        assert server.lists < 60, "the interval grows"
        server.refusal = None
        await filling
    assert reports == [reported, ""]


async def test_an_object_deleted_before_the_watch_is_found_soon() -> None:
    server, store, sweeper = world()
    await sweeper.fill(print)
    server.topics.clear()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(sweeper.run())
        await asyncio.sleep(2 * FIRST_SECONDS)
        assert store.get(KEY) is None
        task.cancel()


async def test_a_sweep_that_fails_is_made_good_by_the_next() -> None:
    server, store, sweeper = world()
    await sweeper.fill(print)
    server.topics.clear()
    server.failures = 1
    async with asyncio.TaskGroup() as group:
        task = group.create_task(sweeper.run())
        await asyncio.sleep(2 * FIRST_SECONDS)
        assert store.get(KEY) is not None
        await asyncio.sleep(2 * 300.0)
        assert store.get(KEY) is None
        task.cancel()


def test_events_are_taken_in() -> None:
    server, store, sweeper = world()
    sweeper.intake("ADDED", server.topics[0])
    assert store.get(KEY) is not None
    sweeper.intake("DELETED", server.topics[0])
    assert store.get(KEY) is None
