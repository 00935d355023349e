"""The brokers' anchor in a real API server: its rights, its requests, and an unavailable server.

tests/conformance/test_anchor.py checks the contract of every anchor.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.accounts import broker_account
from tests.cluster.control_plane import WAIT_SECONDS, ControlPlane

from onewriter_broker.anchor.api import Addresses, Record
from onewriter_broker.anchor.kubernetes import KubernetesAnchor
from onewriter_broker.kubernetes_api import Answer, ApiLimits, ApiServer, KubernetesApi
from onewriter_core.errors import Unavailable

RECORD = Record(
    generation=1,
    replid="a" * 40,
    owner="broker-0~1",
    addresses=Addresses("pulsar://broker-0:6650", "http://broker-0:8080"),
    ledger_high_water=64,
)


PATIENT = ApiLimits(request_seconds=float(WAIT_SECONDS), connect_seconds=float(WAIT_SECONDS))
"""A slow API server is not an unavailable one."""


class CountingApi(KubernetesApi):
    """Records its requests."""

    def __init__(self, server: ApiServer) -> None:
        super().__init__(server, limits=PATIENT)
        self.sent: list[str] = []

    async def send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        self.sent.append(method)
        return await super().send(method, path, body)


@pytest.fixture
async def api(
    api_server: ControlPlane, namespace: str, tmp_path: Path
) -> AsyncIterator[CountingApi]:
    api = CountingApi(broker_account(api_server, namespace, tmp_path))
    yield api
    await api.close()


async def test_a_takeover_of_all_buckets_is_one_write(
    api: CountingApi, api_server: ControlPlane, namespace: str
) -> None:
    anchor = KubernetesAnchor(api, "shard-0")
    await asyncio.gather(*(anchor.compare_and_set(bucket, 0, RECORD) for bucket in range(64)))
    api.sent.clear()
    successor = replace(RECORD, owner="broker-1~2", ledger_high_water=128)
    versions = await asyncio.gather(
        *(anchor.compare_and_set(bucket, 1, successor) for bucket in range(64))
    )
    assert versions == [2] * 64
    assert api.sent == ["PUT"]
    stored = api_server.get("bucketanchor", "shard-0", namespace=namespace)
    assert stored["summary"] == {"buckets": 64, "owners": 1, "generation": 1}
    assert {record["owner"] for record in stored["buckets"]} == {"broker-1~2"}


async def test_kubectl_shows_an_anchor_in_one_line(
    api: CountingApi, api_server: ControlPlane, namespace: str
) -> None:
    anchor = KubernetesAnchor(api, "shard-0")
    await anchor.compare_and_set(0, 0, RECORD)
    shown = api_server.kubectl("get", "xanchor", namespace=namespace).stdout.splitlines()
    assert shown[0].split() == ["NAME", "BUCKETS", "OWNERS", "GENERATION", "AGE"]
    assert shown[1].split()[:4] == ["shard-0", "1", "1", "1"]


async def test_labels_of_others_stay(
    api: CountingApi, api_server: ControlPlane, namespace: str
) -> None:
    anchor = KubernetesAnchor(api, "shard-0")
    await anchor.compare_and_set(0, 0, RECORD)
    api_server.kubectl("label", "xanchor", "shard-0", "team=a", namespace=namespace)
    assert await anchor.compare_and_set(0, 1, RECORD) == 2
    stored = api_server.get("bucketanchor", "shard-0", namespace=namespace)
    assert stored["metadata"]["labels"] == {"team": "a"}


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/namespaces/{namespace}/pods",
        "/api/v1/namespaces/{namespace}/secrets",
        "/apis/onewriter.dev/v1alpha1/namespaces/{namespace}/exclusivetopics",
        "/apis/onewriter.dev/v1alpha1/namespaces/default/bucketanchors/shard-0",
        "/apis/onewriter.dev/v1alpha1/namespaces/{namespace}/bucketanchors",
    ],
)
async def test_a_broker_may_see_nothing_else(api: CountingApi, namespace: str, path: str) -> None:
    with pytest.raises(Unavailable, match="forbidden"):
        await api.get(path.format(namespace=namespace))


async def test_a_server_that_goes_away_and_comes_back(
    another_api_server: Callable[[], ControlPlane], tmp_path: Path
) -> None:
    """Stored records are there again, calls without an answer were Unavailable, and versions continue."""
    cluster = another_api_server()
    api = KubernetesApi(broker_account(cluster, "default", tmp_path), limits=PATIENT)
    anchor = KubernetesAnchor(api, "shard-0")
    try:
        assert await anchor.compare_and_set(7, 0, RECORD) == 1
        await asyncio.to_thread(cluster.stop_api)
        with pytest.raises(Unavailable):
            await anchor.read(7)
        with pytest.raises(Unavailable):
            await anchor.compare_and_set(7, 1, replace(RECORD, last_ledger=9))
        await asyncio.to_thread(cluster.start_api)
        current = await anchor.read(7)
        assert current.record == RECORD, "the change was never sent"
        assert await anchor.compare_and_set(7, current.version, RECORD) == current.version + 1
    finally:
        await anchor.close()


async def test_without_the_crds_no_list_counts_as_empty(
    another_api_server: Callable[[], ControlPlane], tmp_path: Path
) -> None:
    cluster = another_api_server()
    account = broker_account(cluster, "default", tmp_path)
    cluster.kubectl("delete", "crd", "bucketanchors.onewriter.dev")
    listed = ("get", "--raw", "/apis/onewriter.dev/v1alpha1/bucketanchors")
    cluster.until(
        lambda: cluster.kubectl(*listed, check=False).returncode != 0, "the kind is still served"
    )
    anchor = KubernetesAnchor(KubernetesApi(account, limits=PATIENT), "shard-0")
    try:
        with pytest.raises(Unavailable, match="CustomResourceDefinitions"):
            await anchor.read(0)
    finally:
        await anchor.close()
