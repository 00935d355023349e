"""One rollout at a time: a broker that leaves in order needs the store, and the next one finds it.

Where both are replaced at once, a broker may go while the store is away. Its buckets are then not
given back in order, and nobody who wrote there may go on under the epoch it had: safe, and for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

Json = Mapping[str, Any]

KIND: Final = "StatefulSet"


def is_rolling(stateful_set: Json) -> bool:
    """Whether its pods are being replaced: the controller's revisions differ until all are ready.

    One that merely is not ready replaces nothing, and one without a status does not run yet.
    """
    status = stateful_set.get("status") or {}
    if "observedGeneration" not in status:
        return False
    is_behind = status["observedGeneration"] < stateful_set["metadata"].get("generation", 0)
    return is_behind or status.get("currentRevision") != status.get("updateRevision")


def waits_for(document: Json, others: Sequence[Json]) -> str:
    """Why a change of this object waits for its turn; empty: it does not.

    ``others``: the other StatefulSets of the installation, as they are now. What is said changes
    as long as the other rollout goes on.
    """
    if document["kind"] != KIND:
        return ""
    rolling = [each for each in others if is_rolling(each)]
    return _progress(rolling[0]) if rolling else ""


def _progress(stateful_set: Json) -> str:
    name, status = stateful_set["metadata"]["name"], stateful_set["status"]
    updated, ready = status.get("updatedReplicas", 0), status.get("readyReplicas", 0)
    return f"the pods of {name} are being replaced: {updated} are new, {ready} are ready"
