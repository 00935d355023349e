"""The API server over HTTP, without a process per request.

``kubectl proxy`` listens on a unix socket: it reaches the lab's network and remote clusters alike, and
repeated requests are cheap.
"""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode

from tests.cluster.control_plane import Cluster, ClusterError

Json = dict[str, Any]

ANSWER_SECONDS = 120.0
"""Time for one request, and for repeating a read of a busy API server."""

LOG_SECONDS = 3.0
"""Time for a container's log: its node may be gone."""

SILENT_SECONDS = 30.0
"""Time limit between two lines of a log that is followed."""

START_SECONDS = 120.0
STOP_SECONDS = 20.0
RETRY_SECONDS = 0.5
TOO_BUSY = frozenset({429, 500, 502, 503, 504})

_GROUPS = {
    "configmaps": "api/v1",
    "nodes": "api/v1",
    "persistentvolumeclaims": "api/v1",
    "pods": "api/v1",
    "secrets": "api/v1",
    "services": "api/v1",
    "jobs": "apis/batch/v1",
    "cronjobs": "apis/batch/v1",
    "deployments": "apis/apps/v1",
    "statefulsets": "apis/apps/v1",
    "endpointslices": "apis/discovery.k8s.io/v1",
    "events": "apis/events.k8s.io/v1",
    "poddisruptionbudgets": "apis/policy/v1",
    "leases": "apis/coordination.k8s.io/v1",
    "exclusivetopics": "apis/onewriter.dev/v1alpha1",
    "producerclaims": "apis/onewriter.dev/v1alpha1",
    "bucketanchors": "apis/onewriter.dev/v1alpha1",
    "onewriters": "apis/onewriter.dev/v1alpha1",
}


def path(kind: str, namespace: str = "", name: str = "") -> str:
    """The URL path of a kind (plural)."""
    within = f"/namespaces/{namespace}" if namespace else ""
    return f"/{_GROUPS[kind]}{within}/{kind}" + (f"/{name}" if name else "")


class Api:
    """``with Api(...) as api``: access to the API server as an administrator."""

    def __init__(self, cluster: Cluster, address: Path) -> None:
        self._cluster = cluster
        self._address = address
        self._proxy: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._proxy = subprocess.Popen(
            [
                *self._cluster.enter(),
                str(self._cluster.tool("kubectl")),
                f"--kubeconfig={self._cluster.kubeconfig}",
                "proxy",
                f"--unix-socket={self._address}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + START_SECONDS
        while not self._address.exists():
            if self._proxy.poll() is not None or time.monotonic() > deadline:
                raise ClusterError("kubectl proxy does not start")
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        if self._proxy is not None:
            self._proxy.kill()
            self._proxy.wait(STOP_SECONDS)

    def ask(
        self,
        method: str,
        where: str,
        body: Any = None,
        kind: str = "application/json",
        seconds: float = ANSWER_SECONDS,
    ) -> tuple[int, str]:
        """Send one request; return status and text. Raises OSError."""
        connection = self._connection(seconds)
        try:
            content = None if body is None else json.dumps(body)
            connection.request(method, where, content, {"Content-Type": kind})
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace")
        finally:
            connection.close()

    def _read(self, where: str) -> tuple[int, str]:
        """Send a GET, repeated while the server is too busy. Raises OSError."""
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            status, text = self.ask("GET", where)
            if status not in TOO_BUSY or time.monotonic() > deadline:
                return status, text
            time.sleep(RETRY_SECONDS)

    def get(self, kind: str, namespace: str, name: str) -> Json | None:
        """Return an object, or None if it does not exist. Raises ClusterError, OSError."""
        status, text = self._read(path(kind, namespace, name))
        return None if status == 404 else _judged(status, text)

    def list(self, kind: str, namespace: str = "", **labels: str) -> list[Json]:
        """Return all objects of a kind that have these labels. Raises ClusterError, OSError."""
        wanted = ",".join(f"{name}={value}" for name, value in labels.items())
        query = f"?{urlencode({'labelSelector': wanted})}" if wanted else ""
        found = _judged(*self._read(path(kind, namespace) + query))
        return list(found["items"])

    def patch(self, kind: str, namespace: str, name: str, change: Json) -> Json:
        """Merge a change into an object. Raises ClusterError, OSError."""
        where = path(kind, namespace, name)
        return _judged(*self.ask("PATCH", where, change, "application/merge-patch+json"))

    def delete(self, kind: str, namespace: str, name: str, **options: Any) -> None:
        """Delete an object without waiting for its end. Raises ClusterError, OSError."""
        _judged(*self.ask("DELETE", path(kind, namespace, name), options or None))

    def log(
        self,
        namespace: str,
        pod: str,
        container: str,
        *,
        previous: bool = False,
        seconds: float = LOG_SECONDS,
        since_seconds: int | None = None,
    ) -> str:
        """Return a container's log; empty if its node does not answer within ``seconds``.

        ``since_seconds``: only the lines of this last time.
        """
        requests = {"container": container, "previous": str(previous).lower()}
        requests |= {} if since_seconds is None else {"sinceSeconds": str(since_seconds)}
        where = f"{path('pods', namespace, pod)}/log?{urlencode(requests)}"
        try:
            status, text = self.ask("GET", where, seconds=seconds)
        except OSError:
            return ""
        return text if status == 200 else ""

    def follow(
        self, namespace: str, pod: str, container: str, *, since_seconds: int
    ) -> Iterator[str]:
        """Yield the lines of a container's log as they are written, until it ends.

        Raises ClusterError, OSError, also if no line follows for a while: the node may be gone.
        """
        requests = {"container": container, "follow": "true", "sinceSeconds": str(since_seconds)}
        connection = self._connection(SILENT_SECONDS)
        try:
            connection.request("GET", f"{path('pods', namespace, pod)}/log?{urlencode(requests)}")
            answer = connection.getresponse()
            if answer.status != 200:
                raise ClusterError(f"HTTP {answer.status}: {answer.read(500)!r}")
            for line in answer:
                yield line.decode(errors="replace").rstrip()
        finally:
            connection.close()

    def _connection(self, seconds: float) -> http.client.HTTPConnection:
        """A connection to kubectl's proxy. Raises OSError."""
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.sock.settimeout(seconds)
        connection.sock.connect(str(self._address))
        return connection


def _judged(status: int, text: str) -> Json:
    if status >= 300:
        raise ClusterError(f"HTTP {status}: {text[:500]}")
    found: Json = json.loads(text)
    return found
