"""One rollout at a time: store and brokers are never replaced at the same time.

A broker that stops needs the store to release its buckets. If the store is down then, the buckets are
not released in order, and their writers lose their epochs: safe, but without need.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

Json = Mapping[str, Any]

KIND: Final = "StatefulSet"


def is_rolling(stateful_set: Json) -> bool:
    """Whether its pods are being replaced: the controller's revisions differ until all are ready.

    A StatefulSet that is merely not ready replaces no pods. One without a status does not run yet.
    """
    status = stateful_set.get("status") or {}
    if "observedGeneration" not in status:
        return False
    is_behind = status["observedGeneration"] < stateful_set["metadata"].get("generation", 0)
    return is_behind or status.get("currentRevision") != status.get("updateRevision")


def waits_for(document: Json, others: Sequence[Json]) -> str:
    """Why a change of this object has to wait; empty if it does not.

    ``others``: the other StatefulSets of the installation, as they are now. The reason changes with
    the progress of the other rollout.
    """
    if document["kind"] != KIND:
        return ""
    rolling = [each for each in others if is_rolling(each)]
    return _progress(rolling[0]) if rolling else ""


def _progress(stateful_set: Json) -> str:
    name, status = stateful_set["metadata"]["name"], stateful_set["status"]
    updated, ready = status.get("updatedReplicas", 0), status.get("readyReplicas", 0)
    return f"the pods of {name} are being replaced: {updated} are new, {ready} are ready"
