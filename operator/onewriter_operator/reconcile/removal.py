"""Removing the pod of a fenced writer, and what the API server's answers mean (facts: eviction)."""

from __future__ import annotations

from typing import Final

from onewriter_operator.documents import POD, Json, is_going, spec_of, status_of, uid_of
from onewriter_operator.kube import ApiRefused, ApiUnreachable, Kube
from onewriter_operator.plan.actions import RemovePod
from onewriter_operator.plan.facts import PodFacts, RemovalAttempt

UNANSWERED_SECONDS: Final = 5.0
"""Nobody knows whether the pod was removed: it is looked at again after so long."""


def pod_facts(pod: Json) -> PodFacts:
    """A pod as plans see it."""
    ip = str(status_of(pod).get("podIP") or "")
    return PodFacts(True, is_going(pod), ip, str(spec_of(pod).get("nodeName") or ""))


async def look_up(kube: Kube, namespace: str, name: str, uid: str) -> PodFacts:
    """The pod of that uid; another pod of the same name is not it. Raises as Kube.get does."""
    found = await kube.get(POD, namespace, name)
    if found is None or uid_of(found) != uid:
        return PodFacts(exists=False)
    return pod_facts(found)


async def remove(kube: Kube, action: RemovePod, count: int) -> RemovalAttempt:
    """Evict or delete a pod; what came of it."""
    try:
        if action.is_deletion:
            await kube.delete(POD, action.namespace, action.name, action.uid)
        else:
            await kube.evict(action.namespace, action.name, action.uid)
    except ApiUnreachable as error:
        # It may have happened: then the pod is going when it is looked at the next time.
        return RemovalAttempt(
            "EvictionFailed", count, 0.0, UNANSWERED_SECONDS, f"no answer: {error}"
        )
    except ApiRefused as refused:
        return await _refused(kube, action, count, refused)
    return RemovalAttempt("Evicted", count)


async def _refused(
    kube: Kube, action: RemovePod, count: int, refused: ApiRefused
) -> RemovalAttempt:
    if refused.status == 404:
        return RemovalAttempt("PodGone", count)
    # The API server asks the budgets before it compares uids.
    if refused.status in {409, 429, 500} and not await _is_there(kube, action):
        return RemovalAttempt("PodGone", count, message="a later pod has its name, and stays")
    match refused.status:
        case 429:
            after = refused.retry_after_seconds
            return RemovalAttempt("BlockedByPDB", count, 0.0, after, refused.reason)
        case _:
            # 409: changed meanwhile; 500: several budgets select the pod; 403: the operator lacks the right.
            return RemovalAttempt("EvictionFailed", count, message=refused.reason)


async def _is_there(kube: Kube, action: RemovePod) -> bool:
    """Whether the pod of that uid still exists, or may exist: the API server need not tell."""
    try:
        return (await look_up(kube, action.namespace, action.name, action.uid)).exists
    except (ApiRefused, ApiUnreachable):
        return True
