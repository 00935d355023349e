"""Removal of a fenced writer's pod, and the meaning of the API server's answers."""

from __future__ import annotations

from typing import Final

from onewriter_core.json_values import Json, mapping, mappings, text
from onewriter_core.kubernetes.kinds import POD
from onewriter_core.kubernetes.objects import PodObject, parse_pod
from onewriter_operator.kube import ApiRefused, ApiUnreachable, Kube
from onewriter_operator.plan.actions import RemovePod
from onewriter_operator.plan.facts import PodFacts, RemovalAttempt

UNANSWERED_SECONDS: Final = 5.0
"""Delay after an eviction without an answer, which may have removed the pod."""


def pod_facts(pod: PodObject) -> PodFacts:
    """The facts about a pod."""
    return PodFacts(True, pod.is_going, pod.ip, pod.node)


def is_ready(node: Json | None) -> bool:
    """Whether a node is ready. A node that does not exist is not."""
    conditions = mappings(mapping((node or {}).get("status")).get("conditions"))
    return any(
        text(each.get("type")) == "Ready" and text(each.get("status")) == "True"
        for each in conditions
    )


async def look_up(kube: Kube, namespace: str, name: str, uid: str) -> PodFacts:
    """The pod of that uid; a later pod of the same name does not count. Raises as Kube.get does."""
    document = await kube.get(POD, namespace, name)
    pod = None if document is None else parse_pod(document)
    if pod is None or pod.uid != uid:
        return PodFacts(exists=False)
    return pod_facts(pod)


async def remove(kube: Kube, action: RemovePod, count: int) -> RemovalAttempt:
    """Evict or delete a pod; the result."""
    try:
        if action.is_deletion:
            await kube.delete(POD, action.namespace, action.name, action.uid)
        else:
            await kube.evict(action.namespace, action.name, action.uid)
    except ApiUnreachable as error:
        # The pod may have been removed: then the next look-up shows it.
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
    # The API server checks the budgets before it compares uids.
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
    """Whether the pod of that uid still exists, or may exist if the API server does not answer."""
    try:
        return (await look_up(kube, action.namespace, action.name, action.uid)).exists
    except (ApiRefused, ApiUnreachable):
        return True
