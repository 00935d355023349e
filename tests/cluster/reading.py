"""Reads objects directly from the API server, many times faster than a kubectl for each read."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
from typing import Any

from tests.cluster.control_plane import HOST, ClusterError, ControlPlane

Json = dict[str, Any]

OURS = "/apis/onewriter.dev/v1alpha1"
PATHS = {
    "xt": (OURS, "exclusivetopics"),
    "pclaim": (OURS, "producerclaims"),
    "pod": ("/api/v1", "pods"),
    "service": ("/api/v1", "services"),
    "endpointslice": ("/apis/discovery.k8s.io/v1", "endpointslices"),
    "pdb": ("/apis/policy/v1", "poddisruptionbudgets"),
    "event": ("/apis/events.k8s.io/v1", "events"),
}


class Reader:
    """Reads from one API server, as its administrator."""

    def __init__(self, cluster: ControlPlane) -> None:
        self._cluster = cluster
        self._context: ssl.SSLContext | None = None

    def get(self, kind: str, namespace: str, name: str) -> Json | None:
        """Return an object, or None if it does not exist. Raises ClusterError."""
        return self._read(f"{_collection(kind, namespace)}/{name}")

    def list(self, kind: str, namespace: str) -> list[Json]:
        """Return all objects of a kind in a namespace. Raises ClusterError."""
        found = self._read(_collection(kind, namespace))
        return [] if found is None else list(found["items"])

    def _read(self, path: str) -> Json | None:
        if not hasattr(self._cluster, "authority"):  # an existing cluster: as kubectl may
            done = self._cluster.kubectl("get", "--raw", path, check=False)
            return None if done.returncode else json.loads(done.stdout)
        status, text = self._ask(path)
        if status == 404:
            return None
        if status != 200:
            raise ClusterError(f"GET {path}: {status}: {text[:500]!r}")
        found: Json = json.loads(text)
        return found

    def _ask(self, path: str) -> tuple[int, bytes]:
        if self._context is None:
            pki = self._cluster.authority.directory
            self._context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
            self._context.load_cert_chain(str(pki / "admin.crt"), str(pki / "admin.key"))
        connection = http.client.HTTPSConnection(
            HOST, self._cluster.port, timeout=120, context=self._context
        )
        with contextlib.closing(connection):
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()


def _collection(kind: str, namespace: str) -> str:
    root, plural = PATHS[kind]
    return f"{root}/namespaces/{namespace}/{plural}"
