"""The webhook over HTTPS: reviews in, answers out, renewed certificates."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cryptography import x509
from tests.cluster.pki import Authority

from onewriter_core.kubernetes.names import INJECT_LABEL
from onewriter_operator.admission import Injection, NotInjectable
from onewriter_operator.webhook import Webhook
from onewriter_testing.ports import free_ports

Json = dict[str, Any]


def review(annotations: Json | None = None, labels: Json | None = None) -> Json:
    return {
        "request": {
            "uid": "r1",
            "namespace": "shop",
            "object": {
                "metadata": {
                    "labels": labels if labels is not None else {INJECT_LABEL: "true"},
                    "annotations": annotations or {},
                },
                "spec": {"containers": []},
            },
        }
    }


class World:
    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory / "pki")
        self.directory = self.authority.directory
        self.authority.server("webhook", ["localhost", "127.0.0.1"])
        self.port = free_ports(1)
        self.trouble = ""
        self.webhook = Webhook(
            self.directory / "webhook.crt", self.directory / "webhook.key", self._injection
        )

    async def _injection(self) -> Injection:
        if self.trouble:
            raise NotInjectable(self.trouble)
        return Injection("image", "Never", "pulsar://broker:6650")

    async def post(self, body: Any, path: str = "/inject") -> tuple[int, Json]:
        context = ssl.create_default_context(cafile=str(self.directory / "ca.crt"))
        async with (
            aiohttp.ClientSession() as session,
            session.post(
                f"https://localhost:{self.port}{path}", data=json.dumps(body), ssl=context
            ) as answer,
        ):
            return answer.status, await answer.json(content_type=None)

    def reload(self) -> None:
        assert self.webhook.certificate is not None
        self.webhook.certificate.reload_if_changed()

    async def serial(self) -> bytes:
        """The certificate that a new connection receives."""
        context = ssl.create_default_context(cafile=str(self.directory / "ca.crt"))
        _, writer = await asyncio.open_connection("localhost", self.port, ssl=context)
        try:
            found: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            return found
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


@contextlib.asynccontextmanager
async def running(directory: Path) -> AsyncIterator[World]:
    world = World(directory)
    await world.webhook.start("127.0.0.1", world.port)
    try:
        yield world
    finally:
        await world.webhook.stop()


async def test_a_pod_is_injected(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        status, answer = await world.post(review({"onewriter.dev/topic": "orders"}))
        assert status == 200
        assert answer["kind"] == "AdmissionReview"
        response = answer["response"]
        assert (response["uid"], response["allowed"]) == ("r1", True)
        assert response["patchType"] == "JSONPatch"
        patch = json.loads(base64.b64decode(response["patch"]))
        assert patch[0] == {"op": "add", "path": "/spec/initContainers", "value": []}


async def test_pods_without_the_label_are_admitted_unchanged(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        _, answer = await world.post(review(labels={}))
        assert answer["response"] == {"uid": "r1", "allowed": True}


async def test_a_pod_that_cannot_get_a_sidecar_is_refused_with_a_reason(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        _, answer = await world.post(review())
        assert answer["response"]["allowed"] is False
        assert "onewriter.dev/topic is missing" in answer["response"]["status"]["message"]
        world.trouble = "Kubernetes 1.28 has no native sidecars"
        _, answer = await world.post(review({"onewriter.dev/topic": "orders"}))
        assert world.trouble in answer["response"]["status"]["message"]


@pytest.mark.parametrize("body", [[], {}, {"request": {}}, "text", {"request": {"uid": "x"}}])
async def test_a_body_that_is_not_a_review_is_refused(tmp_path: Path, body: Any) -> None:
    async with running(tmp_path) as world:
        status, answer = await world.post(body)
        assert status == 400
        assert "AdmissionReview" in answer["reason"]


async def test_a_renewed_certificate_is_taken_over_without_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        first = await world.serial()
        world.authority.server("webhook", ["localhost", "127.0.0.1"])
        world.reload()
        second = await world.serial()
        assert second != first
        expires = x509.load_der_x509_certificate(second).not_valid_after_utc.timestamp()
        assert world.webhook.not_after == expires
        assert world.webhook.problem == ""


async def test_an_unreadable_certificate_is_reported_and_changes_nothing(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as world:
        first = await world.serial()
        (world.directory / "webhook.crt").write_text("nonsense")
        world.reload()
        assert "no certificate in PEM" in world.webhook.problem
        assert await world.serial() == first


async def test_half_of_a_renewal_changes_nothing_until_the_other_half_is_there(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as world:
        first, old_key = await world.serial(), (world.directory / "webhook.key").read_bytes()
        world.authority.server("webhook", ["localhost", "127.0.0.1"])
        new_key = (world.directory / "webhook.key").read_bytes()
        (world.directory / "webhook.key").write_bytes(old_key)
        world.reload()
        assert "webhook.crt" in world.webhook.problem
        assert await world.serial() == first
        (world.directory / "webhook.key").write_bytes(new_key)
        world.reload()
        assert world.webhook.problem == ""
        assert await world.serial() != first
