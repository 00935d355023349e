"""Calls to the API server: one method per verb, every failure one of two exceptions.

This module decides nothing from an answer and repeats no call: the work queue repeats, and an
eviction's 429 is an answer, not a reason to retry at once.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from kubernetes.aio import client, config
from kubernetes.aio.client.exceptions import ApiException
from kubernetes.aio.dynamic import DynamicClient

from onewriter_core.json_values import Json
from onewriter_core.kubernetes.kinds import FIELD_MANAGER, Key, Kind

REQUEST_SECONDS: Final = 30.0
CONNECT_SECONDS: Final = 10.0

CONNECTIONS_MAX: Final = 160
"""Concurrent requests, including the streams of followed objects."""

FOLLOW_SECONDS: Final = 290
"""The API server ends a stream after this time."""

PAGE_OBJECTS: Final = 500
"""Objects in one page of a listing."""

REASON_LENGTH_MAX: Final = 500

LISTED: Final = "LISTED"
"""The first event of a stream: the objects as they are."""


class ApiRefused(Exception):
    """The API server answered with an error."""

    def __init__(self, status: int, reason: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(f"{status}: {reason}")
        self.status = status
        self.reason = reason
        self.retry_after_seconds = retry_after_seconds

    @property
    def is_gone(self) -> bool:
        """There is no such object."""
        return self.status == 404

    @property
    def is_conflict(self) -> bool:
        """The object has changed meanwhile. A JSON patch whose test fails is answered 422."""
        return self.status in {409, 422}


class ApiUnreachable(Exception):
    """The API server did not answer: the request may or may not have been executed."""


async def load_configuration(kubeconfig: Path | None) -> client.Configuration:
    """How to reach the API server: a kubeconfig file, or else the pod's own ServiceAccount.

    Raises kubernetes' ConfigException.
    """
    found = client.Configuration()
    if kubeconfig is None:
        config.load_incluster_config(client_configuration=found)  # type: ignore[no-untyped-call]
    else:
        await config.load_kube_config(  # type: ignore[no-untyped-call]
            config_file=str(kubeconfig), client_configuration=found, persist_config=False
        )
    found.connection_pool_maxsize = CONNECTIONS_MAX
    # By default the client looks for a proxy and for .netrc at every request, in a thread.
    found.proxy = found.proxy or _proxy_for(found.host)
    found.client_session_kwargs = {"trust_env": False}
    return found


def _proxy_for(url: str) -> str | None:
    """The proxy that the environment names for a URL."""
    parts = urlsplit(url)
    if not parts.hostname or proxy_bypass(parts.hostname):
        return None
    return getproxies().get(parts.scheme)


class _KnownKinds:
    """The discoverer that DynamicClient requires; the operator knows the paths of its kinds.

    The default discoverer reads every API group at the start and keeps a file of them; a small
    container with a read-only root should need neither.
    """

    def __init__(self, dynamic: DynamicClient, cache_file: str | None = None) -> None:
        del dynamic, cache_file

    def __await__(self) -> Any:
        async def ready() -> _KnownKinds:
            return self

        return ready().__await__()


class Kube:
    """A connection to the API server. Use as an asynchronous context manager."""

    def __init__(self, configuration: client.Configuration) -> None:
        self._configuration = configuration
        self._client: client.ApiClient
        self._dynamic: DynamicClient

    async def __aenter__(self) -> Self:
        self._client = client.ApiClient(self._configuration)
        self._dynamic = await DynamicClient(self._client, discoverer=_KnownKinds)  # type: ignore[no-untyped-call]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()  # type: ignore[no-untyped-call]

    # ------------------------------------------------------------ reading

    async def get(self, kind: Kind, namespace: str, name: str) -> Json | None:
        """An object, None when there is none. Raises ApiRefused, ApiUnreachable."""
        try:
            return await self._call("get", kind.path(namespace, name))
        except ApiRefused as refused:
            if refused.is_gone:
                return None
            raise

    async def list(self, kind: Kind, namespace: str = "", labels: str = "") -> list[Json]:
        """All objects of a kind, page by page. Raises ApiRefused, ApiUnreachable."""
        found: list[Json] = []
        token: str | None = None
        while True:
            page = await self._call(
                "get",
                kind.path(namespace),
                limit=PAGE_OBJECTS,
                label_selector=labels or None,
                _continue=token,
            )
            # Items of a list do not state their kind.
            found += [
                {"apiVersion": kind.api_version, "kind": kind.kind} | item for item in page["items"]
            ]
            token = (page.get("metadata") or {}).get("continue")
            if not token:
                return found

    async def follow(
        self, kind: Kind, namespace: str, name: str
    ) -> AsyncGenerator[Json | None, None]:
        """An object as it is, and after each change; None: it does not exist (any more).

        The stream ends from time to time: then call again. Raises ApiRefused, ApiUnreachable.
        """
        stream = self._watch(kind, namespace, field_selector=f"metadata.name={name}")
        async with contextlib.aclosing(stream) as events:
            async for event, document in events:
                if event == LISTED:
                    yield document["items"][0] if document["items"] else None
                else:
                    yield None if event == "DELETED" else document

    async def watch(
        self, kind: Kind, namespace: str, labels: str
    ) -> AsyncGenerator[tuple[str, Json], None]:
        """The type and the object of each event of the selected objects; the first is ``LISTED``, with a list of
        the present objects.

        The stream ends from time to time: then call again. Raises ApiRefused, ApiUnreachable.
        """
        stream = self._watch(kind, namespace, label_selector=labels)
        async with contextlib.aclosing(stream) as events:
            async for event in events:
                yield event

    async def _watch(
        self, kind: Kind, namespace: str, **selector: str
    ) -> AsyncGenerator[tuple[str, Json], None]:
        """A listing (``LISTED``), and then the events until the stream ends."""
        path = kind.path(namespace)
        found = await self._call("get", path, **selector)
        yield LISTED, found
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_SECONDS, sock_read=FOLLOW_SECONDS + REQUEST_SECONDS
        )
        with _failures():
            answer = await self._dynamic.request(
                *("get", path),
                serialize=False,
                _request_timeout=timeout,
                resource_version=found["metadata"]["resourceVersion"],
                timeout_seconds=FOLLOW_SECONDS,
                watch="true",
                **selector,
            )
        try:
            while True:
                with _failures():
                    line = await answer.content.readline()
                    event: Json = json.loads(line) if line else {"type": "ERROR"}
                if (
                    event["type"] == "ERROR"
                ):  # the stream has ended, or its resourceVersion is too old
                    return
                yield str(event["type"]), event["object"]
        finally:
            answer.close()

    async def version(self) -> tuple[int, int]:
        """The API server's version, major and minor. Raises ApiRefused, ApiUnreachable."""
        found = await self._call("get", "/version")
        numbers = [re.sub("[^0-9]", "", str(found.get(name, ""))) for name in ("major", "minor")]
        major, minor = (int(number or 0) for number in numbers)
        return major, minor

    # ------------------------------------------------------------ writing

    async def apply(self, kind: Kind, document: Mapping[str, Any]) -> Json:
        """Server-side apply of the operator's fields; fields of other managers stay.

        A ``resourceVersion`` in the document makes it conditional. Raises ApiRefused (409 when the
        object has changed), ApiUnreachable.
        """
        return await self._apply(kind, document, "")

    async def apply_status(self, kind: Kind, document: Mapping[str, Any]) -> Json:
        """Server-side apply of a status; the document names the object and has the whole status."""
        return await self._apply(kind, document, "status")

    async def _apply(self, kind: Kind, document: Mapping[str, Any], subresource: str) -> Json:
        about = document["metadata"]
        return await self._call(
            "patch",
            kind.path(about.get("namespace", ""), about["name"], subresource),
            body=dict(document),
            content_type="application/apply-patch+yaml",
            field_manager=FIELD_MANAGER,
            force_conflicts="true",
        )

    async def create(
        self, kind: Kind, document: Mapping[str, Any], *, is_trial: bool = False
    ) -> Json:
        """Create an object; as a trial the API server only validates it.

        Raises ApiRefused (409: it exists), ApiUnreachable.
        """
        return await self._call(
            "post",
            kind.path(document["metadata"].get("namespace", "")),
            body=dict(document),
            field_manager=FIELD_MANAGER,
            dry_run="All" if is_trial else None,
        )

    async def replace(self, kind: Kind, document: Mapping[str, Any]) -> Json:
        """Replace an object as it was read. Raises ApiRefused (409: it changed), ApiUnreachable."""
        about = document["metadata"]
        return await self._call(
            "put",
            kind.path(about.get("namespace", ""), about["name"]),
            body=dict(document),
            field_manager=FIELD_MANAGER,
        )

    async def merge(self, kind: Kind, key: Key, change: Mapping[str, Any]) -> Json:
        """A JSON merge patch. Raises ApiRefused, ApiUnreachable."""
        return await self._call(
            "patch",
            kind.path(key.namespace, key.name),
            body=dict(change),
            content_type="application/merge-patch+json",
            field_manager=FIELD_MANAGER,
        )

    async def set_finalizers(self, kind: Kind, document: Json, finalizers: Sequence[str]) -> Json:
        """Replace an object's finalizers, if it has not changed since it was read.

        A merge patch would restore what others removed meanwhile. Raises ApiRefused (``is_conflict``
        when it has changed), ApiUnreachable.
        """
        about = document["metadata"]
        had = "finalizers" in about
        patch = [
            {"op": "test", "path": "/metadata/resourceVersion", "value": about["resourceVersion"]},
            {
                "op": "replace" if had else "add",
                "path": "/metadata/finalizers",
                "value": list(finalizers),
            },
        ]
        return await self._call(
            "patch",
            kind.path(about.get("namespace", ""), about["name"]),
            body=patch,
            content_type="application/json-patch+json",
            field_manager=FIELD_MANAGER,
        )

    async def mend_status(self, kind: Kind, document: Json, patch: Sequence[Json]) -> Json:
        """A JSON patch of the status of an object that has not changed since it was read.

        For fields that server-side apply keeps because another manager wrote them. Raises ApiRefused
        (``is_conflict`` when it has changed), ApiUnreachable.
        """
        about = document["metadata"]
        test = {
            "op": "test",
            "path": "/metadata/resourceVersion",
            "value": about["resourceVersion"],
        }
        return await self._call(
            "patch",
            kind.path(about.get("namespace", ""), about["name"], "status"),
            body=[test, *patch],
            content_type="application/json-patch+json",
            field_manager=FIELD_MANAGER,
        )

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        """Delete the object of that uid and no successor. Raises ApiRefused, ApiUnreachable."""
        body = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        await self._call("delete", kind.path(namespace, name), body=body)

    async def evict(self, namespace: str, name: str, uid: str) -> None:
        """Evict the pod of that uid and no successor, as its disruption budget allows.

        Raises ApiRefused: 404 it is gone, 409 another pod has that name, 429 a budget forbids it,
        500 several budgets select it; ApiUnreachable.
        """
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/eviction"
        await self._call("post", path, body=body)

    # ------------------------------------------------------------ inside

    async def _call(self, method: str, path: str, **parameters: Any) -> Json:
        timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS, sock_connect=CONNECT_SECONDS)
        with _failures():
            answer = await self._dynamic.request(
                method, path, serialize=False, _request_timeout=timeout, **parameters
            )
            found: Json = await answer.json()
        return found


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    """Turn every failure of a call into ApiRefused or ApiUnreachable."""
    try:
        yield
    except ApiException as error:
        if not error.status:
            raise ApiUnreachable(str(error.reason)) from error
        raise _refused(error) from error
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise ApiUnreachable(str(error) or type(error).__name__) from error


def _refused(error: ApiException) -> ApiRefused:
    """The API server's message, and its Retry-After."""
    try:
        document = json.loads(error.body or "")
    except (TypeError, ValueError):
        document = {}
    if not isinstance(document, dict):
        document = {}
    reason = str(document.get("message") or error.reason or error.body)[:REASON_LENGTH_MAX]
    text = str((error.headers or {}).get("Retry-After", ""))
    seconds = text if text.isascii() and text.isdecimal() else None
    if seconds is None:
        seconds = (document.get("details") or {}).get("retryAfterSeconds")
    return ApiRefused(int(error.status), reason, None if seconds is None else float(seconds))
