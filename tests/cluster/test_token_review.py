"""Projected tokens, reviewed by a real API server, and the behaviour while it is unavailable."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.accounts import (
    TOKEN_SECONDS,
    broker_account,
    delete_pod,
    make_pod,
    pod_token,
)
from tests.cluster.control_plane import WAIT_SECONDS, ControlPlane

from onewriter_broker.auth.token_review import (
    ANSWER_SECONDS,
    REFUSAL_SECONDS,
    REVIEWS,
    ClusterKeys,
    TokenReviewAuthenticator,
)
from onewriter_broker.kubernetes_api import Answer, ApiLimits, ApiServer, KubernetesApi
from onewriter_core.errors import Refused, ServerError, Unavailable

PATIENT = ApiLimits(request_seconds=float(WAIT_SECONDS), connect_seconds=float(WAIT_SECONDS))
"""A slow API server is not an unavailable one."""


class CountingApi(KubernetesApi):
    """Counts its reviews."""

    def __init__(self, server: ApiServer) -> None:
        super().__init__(server, limits=PATIENT)
        self.reviews = 0

    async def send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        self.reviews += path == REVIEWS
        return await super().send(method, path, body)


class Lab:
    """An authenticator of a broker's ServiceAccount, and clocks that a test controls."""

    def __init__(self, server: ApiServer) -> None:
        self.now = 1000.0
        self.later = 0.0
        self.api = CountingApi(server)
        self.keys = ClusterKeys(self.api)
        self.authenticator = TokenReviewAuthenticator(
            self.api,
            self.keys,
            "onewriter",
            is_required=True,
            now=lambda: self.now,
            unix_seconds=lambda: _unix_seconds() + self.later,
        )

    async def refusal(self, token: str) -> str:
        with pytest.raises(Refused) as found:
            await self.authenticator.authenticate("token", token.encode())
        assert found.value.code is ServerError.AUTHENTICATION_ERROR
        assert token not in found.value.message
        return found.value.message

    async def refused_in_the_end(self, token: str) -> None:
        """Wait for the refusal: the API server itself caches its last result for ten seconds."""
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                try:
                    await self.authenticator.authenticate("token", token.encode())
                except Refused:
                    return
                self.now += ANSWER_SECONDS
                await asyncio.sleep(0.5)


def _unix_seconds() -> float:
    return time.time_ns() / 1e9


@pytest.fixture
async def lab(api_server: ControlPlane, namespace: str, tmp_path: Path) -> AsyncIterator[Lab]:
    found = Lab(broker_account(api_server, namespace, tmp_path))
    yield found
    await found.api.close()


async def test_a_pods_token_names_account_pod_and_node(
    lab: Lab, api_server: ControlPlane, namespace: str
) -> None:
    api_server.apply(
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"node-{namespace}"}}
    )
    pod = make_pod(api_server, namespace, node=f"node-{namespace}")
    proof = await lab.authenticator.authenticate(
        "token", pod_token(api_server, namespace, pod).encode()
    )
    identity = proof.identity
    assert identity.subject == f"system:serviceaccount:{namespace}:writer"
    assert (identity.pod_uid, identity.pod, identity.node) == (
        pod.uid,
        pod.name,
        f"node-{namespace}",
    )
    assert proof.expires_at is not None
    assert 0 < proof.expires_at - _unix_seconds() <= TOKEN_SECONDS
    assert not proof.may_only_resume


async def test_two_pods_of_one_account_are_two(
    lab: Lab, api_server: ControlPlane, namespace: str
) -> None:
    pods = [make_pod(api_server, namespace) for _ in range(2)]
    first, second = [
        await lab.authenticator.authenticate(
            "token", pod_token(api_server, namespace, pod).encode()
        )
        for pod in pods
    ]
    assert first.identity.subject == second.identity.subject
    assert first.identity != second.identity


async def test_a_token_for_another_audience_is_refused(
    lab: Lab, api_server: ControlPlane, namespace: str
) -> None:
    pod = make_pod(api_server, namespace)
    other = pod_token(api_server, namespace, pod, audience="another-service")
    assert "audience" in await lab.refusal(other)


async def test_a_token_for_the_api_server_is_refused(
    lab: Lab, api_server: ControlPlane, namespace: str
) -> None:
    make_pod(api_server, namespace)
    plain = api_server.kubectl("create", "token", "writer", namespace=namespace).stdout.strip()
    assert "audience" in await lab.refusal(plain)


async def test_a_changed_token_is_refused(
    lab: Lab, api_server: ControlPlane, namespace: str
) -> None:
    token = pod_token(api_server, namespace, make_pod(api_server, namespace))
    head, payload, signature = token.split(".")
    await lab.refusal(f"{head}.{payload}.{signature[:-8]}AAAAAAAA")
    await lab.refusal("rubbish")


async def test_a_deleted_pods_token_is_refused_once_the_answer_is_old(
    lab: Lab, api_server: ControlPlane, namespace: str
) -> None:
    pod = make_pod(api_server, namespace)
    token = pod_token(api_server, namespace, pod)
    await lab.authenticator.authenticate("token", token.encode())
    delete_pod(api_server, namespace, pod)
    assert lab.api.reviews == 1
    lab.now += ANSWER_SECONDS - 1
    await lab.authenticator.authenticate("token", token.encode())
    assert lab.api.reviews == 1, "a cached answer counts for a minute and no longer"
    lab.now += 1
    await lab.refused_in_the_end(token)
    assert lab.api.reviews >= 2


async def test_a_refusal_is_believed_for_a_moment(
    lab: Lab, api_server: ControlPlane, namespace: str
) -> None:
    pod = make_pod(api_server, namespace)
    another, token = (pod_token(api_server, namespace, pod) for _ in range(2))
    delete_pod(api_server, namespace, pod)
    await lab.refused_in_the_end(another)  # the API server has noticed it
    lab.api.reviews = 0
    for _ in range(10):
        await lab.refusal(token)
    assert lab.api.reviews == 1
    lab.now += REFUSAL_SECONDS
    await lab.refusal(token)
    assert lab.api.reviews == 2


async def test_a_crowd_with_one_token_is_one_review(
    lab: Lab, api_server: ControlPlane, namespace: str
) -> None:
    token = pod_token(api_server, namespace, make_pod(api_server, namespace)).encode()
    proofs = await asyncio.gather(
        *(lab.authenticator.authenticate("token", token) for _ in range(200))
    )
    assert len(set(proofs)) == 1
    assert lab.api.reviews == 1


async def test_the_wrong_way_of_coming_in(lab: Lab) -> None:
    for method, data in (("", b""), ("none", b""), ("tls", b"x"), ("token", b"")):
        with pytest.raises(Refused):
            await lab.authenticator.authenticate(method, data)
    assert lab.api.reviews == 0


# The API server is unavailable.


@pytest.fixture
async def leaving(
    another_api_server: Callable[[], ControlPlane], tmp_path: Path
) -> AsyncIterator[tuple[Lab, ControlPlane]]:
    cluster = another_api_server()
    found = Lab(broker_account(cluster, "default", tmp_path))
    yield found, cluster
    await found.api.close()


async def test_without_the_api_server_a_pod_may_only_return(
    leaving: tuple[Lab, ControlPlane],
) -> None:
    lab, cluster = leaving
    pod = make_pod(cluster, "default")
    known, unseen = (pod_token(cluster, "default", pod) for _ in range(2))
    unbound = cluster.kubectl("create", "token", "writer", "--audience=onewriter").stdout.strip()
    foreign = pod_token(cluster, "default", pod, audience="another-service")
    online = await lab.authenticator.authenticate("token", known.encode())
    await lab.keys.refresh()
    await asyncio.to_thread(cluster.stop_api)

    assert await lab.authenticator.authenticate("token", known.encode()) == online
    lab.now += ANSWER_SECONDS
    for token in (known, unseen):
        proof = await lab.authenticator.authenticate("token", token.encode())
        assert proof.identity == online.identity
        assert (proof.identity.pod, proof.identity.node) == (pod.name, "")
        assert proof.may_only_resume
        assert proof.renew_at is not None

    assert "audience" in await lab.refusal(foreign)
    assert "key" in await lab.refusal(f"{known[:-8]}AAAAAAAA")
    with pytest.raises(Unavailable, match="bound to no pod"):
        await lab.authenticator.authenticate("token", unbound.encode())
    lab.later = TOKEN_SECONDS + 100
    with pytest.raises(Unavailable, match="the token has expired"):
        await lab.authenticator.authenticate("token", known.encode())
    lab.later = 0

    await asyncio.to_thread(cluster.start_api)
    delete_pod(cluster, "default", pod)
    await lab.refused_in_the_end(known)


async def test_without_keys_no_client_is_admitted(leaving: tuple[Lab, ControlPlane]) -> None:
    lab, cluster = leaving
    token = pod_token(cluster, "default", make_pod(cluster, "default"))
    await asyncio.to_thread(cluster.stop_api)
    with pytest.raises(Unavailable):
        await lab.keys.refresh()
    with pytest.raises(Unavailable, match="key of this token is not known"):
        await lab.authenticator.authenticate("token", token.encode())


async def test_a_token_of_another_cluster_is_refused(
    leaving: tuple[Lab, ControlPlane], api_server: ControlPlane, namespace: str
) -> None:
    lab, cluster = leaving
    foreign = pod_token(api_server, namespace, make_pod(api_server, namespace))
    await lab.refusal(foreign)
    await lab.keys.refresh()
    await asyncio.to_thread(cluster.stop_api)
    lab.now += REFUSAL_SECONDS
    with pytest.raises(Unavailable, match="key of this token is not known"):
        await lab.authenticator.authenticate("token", foreign.encode())
