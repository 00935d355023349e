"""The pods of brokers are followed, and each change of a problem is reported once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, cast

import pytest
from tests.unit.kube.installation_configurations import configured

from onewriter_core.kubernetes.kinds import Kind
from onewriter_operator.kube import ApiUnreachable, Kube
from onewriter_operator.reconcile.broker_pods import BrokerPods

pytestmark = pytest.mark.looptime

Json = dict[str, Any]


def pod(name: str, message: str = "", *, restarts: int = 0) -> Json:
    ended = {"terminated": {"exitCode": 2, "message": message}} if message else {}
    container = {"state": ended, "restartCount": restarts}
    status = {
        "conditions": [{"type": "Ready", "status": "False"}],
        "containerStatuses": [container],
    }
    return {"metadata": {"name": name}, "status": status}


class FakeKube:
    """Streams of events, one after the other; then the API server is not reachable."""

    def __init__(self, *streams: list[tuple[str, Json]]) -> None:
        self.streams = list(streams)
        self.selected = ""

    async def watch(
        self, kind: Kind, namespace: str, labels: str
    ) -> AsyncIterator[tuple[str, Json]]:
        assert (kind.kind, namespace) == ("Pod", "onewriter")
        self.selected = labels
        if not self.streams:
            raise ApiUnreachable("refused")
        for event in self.streams.pop(0):
            yield event


async def reported(*streams: list[tuple[str, Json]]) -> list[Mapping[str, str]]:
    """What was reported within an hour."""
    found: list[Mapping[str, str]] = []
    kube = FakeKube(*streams)
    pods = BrokerPods(cast("Kube", kube), configured(namespace="onewriter"), found.append)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(pods.run())
        await asyncio.sleep(3600.0)
        task.cancel()
    assert "app.kubernetes.io/component=broker" in kube.selected
    return found


async def test_problems_are_reported_when_they_change() -> None:
    found = await reported(
        [
            ("LISTED", {"items": [pod("b-0", "no store"), pod("b-1")]}),
            ("MODIFIED", pod("b-0", "no store", restarts=1)),
            ("MODIFIED", pod("b-1", "port in use")),
            ("MODIFIED", pod("b-0")),
            ("DELETED", pod("b-1", "port in use")),
        ]
    )
    assert found == [
        {"b-0": "no store"},
        {"b-0": "no store", "b-1": "port in use"},
        {"b-1": "port in use"},
        {},
    ]


async def test_a_new_listing_replaces_what_was_known() -> None:
    found = await reported(
        [("LISTED", {"items": [pod("b-0", "no store")]})],
        [("LISTED", {"items": [pod("b-1", "no store")]})],
    )
    assert found == [{"b-0": "no store"}, {"b-1": "no store"}], "it stays while there is no answer"
