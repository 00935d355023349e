"""One rollout at a time: a broker that leaves in order needs the store, and the next one finds it.

Where both are replaced at once, a broker may go while the store is away. Its buckets are then not
given back in order, and nobody who wrote there may go on under the epoch it had: safe, and for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

Json = Mapping[str, Any]

KIND: Final = "StatefulSet"


def rolling(workload: Json) -> str:
    """What is still to come until all its pods are new and ready; empty: it is at rest."""
    wanted = workload["spec"].get("replicas", 1)
    status = workload.get("status", {})
    if status.get("observedGeneration", 0) < workload["metadata"].get("generation", 0):
        return "not looked at since it changed"
    for count, word in (("updatedReplicas", "updated"), ("readyReplicas", "ready")):
        found = status.get(count, 0)
        if found < wanted:
            return f"{found} of {wanted} pods are {word}"
    return ""


def waits_for(document: Json, others: Sequence[Json]) -> str:
    """Why a change of this object waits for its turn; empty: it does not.

    ``others``: the other StatefulSets of the installation, as they are now.
    """
    if document["kind"] != KIND:
        return ""
    for each in others:
        # Without a status nothing runs of it yet: there is nothing that could be replaced.
        if each.get("status") and (what := rolling(each)):
            return f"{KIND}/{each['metadata']['name']}: {what}"
    return ""
