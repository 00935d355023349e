"""Access to the sidecar: callers prove no identity, so the listening address decides, and for a release the key.

The API listens on the pod's loopback address and on a unix socket in a volume of the pod, and rejects pages in
browsers (``onewriter_http.browsers``). Probes and metrics have a port that the kubelet can reach.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from onewriter_http.routes import Callers, For, Routes

SidecarRoutes = Routes[For]
AddRoutes = Callable[[SidecarRoutes], None]
"""Registers the routes of a part of the sidecar."""

OWN_POD: Final = For(
    Callers.POD, "it acts with the ServiceAccount of its pod, whose token every container may read"
)
WITH_KEY: Final = For(
    Callers.POD, "it needs the release key over TCP, and the permissions of the socket otherwise"
)
PROBE: Final = For(Callers.PUBLIC, "the kubelet proves no identity; the answer names no message")
METRICS: Final = For(Callers.PUBLIC, "counts of this pod, without names of keys or contents")
