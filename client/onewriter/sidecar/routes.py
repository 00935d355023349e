"""Who may call the sidecar: it proves no identity, so where it listens decides.

The API listens on the pod's loopback address and a unix socket in a volume of the pod, and refuses pages
in browsers (``onewriter_http.browsers``). Probes and metrics have a port that the kubelet reaches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from onewriter_http.routes import Callers, For, Routes

SidecarRoutes = Routes[For]
AddRoutes = Callable[[SidecarRoutes], None]
"""Registers what a part of the sidecar answers."""

OWN_POD: Final = For(
    Callers.POD, "it acts with the ServiceAccount of its pod, whose token every container may read"
)
PROBE: Final = For(Callers.EVERYBODY, "the kubelet proves no identity; the answer names no message")
METRICS: Final = For(Callers.EVERYBODY, "counts of this pod, without names of keys or contents")
