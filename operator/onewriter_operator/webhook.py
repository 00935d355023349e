"""The admission webhook: HTTPS for the API server, served by every replica.

Admission must not wait for an election, so every replica serves it. The webhook reads a renewed
certificate; ``admission`` decides what to inject.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import structlog
from aiohttp import web
from cryptography import x509

from onewriter_core.json_values import Json
from onewriter_http.certificate import ServerCertificate
from onewriter_http.limits import Limits
from onewriter_http.routes import Callers, For, Routes
from onewriter_http.server import Server
from onewriter_operator.admission import Injection, NotInjectable, patch_of

BODY_BYTES_MAX: Final = 3 * 1024 * 1024
"""Largest AdmissionReview: at most two copies of a pod."""

LIMITS: Final = Limits(body_bytes_max=BODY_BYTES_MAX)

INJECT: Final = For(
    Callers.API_SERVER,
    "the answer holds what was asked and the sidecar's image, and changes nothing",
)

log = structlog.get_logger(__name__)


class Webhook:
    """The server. ``injection`` returns what to inject now; it may raise NotInjectable."""

    def __init__(
        self, cert_file: Path, key_file: Path, injection: Callable[[], Awaitable[Injection]]
    ) -> None:
        self._cert_file = cert_file
        self._key_file = key_file
        self._injection = injection
        self.certificate: ServerCertificate | None = None
        """The served certificate; None before ``start``."""
        app = web.Application(client_max_size=BODY_BYTES_MAX)
        self.routes: Routes[For] = Routes(app.router)
        self.routes.add_post("/inject", self._inject, INJECT)
        self._server = Server(app, LIMITS, self.routes, name=__name__)

    @property
    def not_after(self) -> float | None:
        """Unix time at which the served certificate expires; None before ``start``."""
        return None if self.certificate is None else self.certificate.not_after

    @property
    def problem(self) -> str:
        """Why the present files are not served; empty if they are."""
        if self.certificate is None:
            return "the webhook has no certificate yet"
        problem = self.certificate.problem
        return f"the webhook's certificate cannot be used: {problem}" if problem else ""

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises UnusableCertificateError, and OSError if the address is in use."""
        certificate = await asyncio.to_thread(ServerCertificate, self._cert_file, self._key_file)
        await self._server.listen(host, port, **certificate.server_options())
        self.certificate = certificate

    async def run(self) -> None:
        """Serve renewed certificates until cancelled, after ``start``."""
        if self.certificate is not None:
            await self.certificate.run()

    async def stop(self) -> None:
        """Stop listening."""
        await self._server.stop()

    async def _inject(self, request: web.Request) -> web.Response:
        try:
            uid, pod, namespace = _review(await request.read())
        except ValueError as error:
            return web.json_response({"reason": f"not an AdmissionReview: {error}"}, status=400)
        return web.json_response(
            {
                "apiVersion": "admission.k8s.io/v1",
                "kind": "AdmissionReview",
                "response": {"uid": uid, **await self._answer(pod, namespace)},
            }
        )

    async def _answer(self, pod: Json, namespace: str) -> Json:
        try:
            patch = patch_of(pod, namespace, await self._injection())
        except NotInjectable as error:
            return _refused(422, f"onewriter: {error}")
        except (AttributeError, KeyError, TypeError, ValueError):  # other than the API server makes
            return _refused(400, "onewriter: the pod is malformed")
        found: dict[str, Any] = {"allowed": True}
        if patch:
            text = json.dumps(patch).encode()
            found |= {"patchType": "JSONPatch", "patch": base64.b64encode(text).decode()}
        return found


def expiry(file: Path) -> float | None:
    """The expiry of the last valid certificate in a PEM file; None if the file cannot be read.

    Blocks on the file system.
    """
    try:
        found = x509.load_pem_x509_certificates(file.read_bytes())
    except (OSError, ValueError) as error:
        log.warning("certificate.unreadable", file=str(file), reason=str(error))
        return None
    return max(each.not_valid_after_utc for each in found).timestamp()


def _review(body: bytes) -> tuple[str, Json, str]:
    """The uid, pod and namespace of an AdmissionReview. Raises ValueError."""
    try:
        review = json.loads(body)
        subject = review["request"]
        uid, pod, namespace = subject["uid"], subject["object"], subject.get("namespace", "")
    except (KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError("request.uid or request.object is missing") from None
    if not isinstance(uid, str) or not isinstance(pod, dict) or not isinstance(namespace, str):
        raise ValueError("request.uid, request.object or request.namespace has another type")  # noqa: TRY004 - as above
    return uid, pod, namespace


def _refused(code: int, message: str) -> Json:
    return {"allowed": False, "status": {"code": code, "message": message}}
