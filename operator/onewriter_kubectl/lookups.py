"""Reads the objects of a topic with the caller's rights."""

from __future__ import annotations

from typing import Final

from onewriter_core.errors import Refused
from onewriter_kubectl.installation import Installation
from onewriter_kubectl.kubectl import Forbidden, Json, Kubectl, Missing
from onewriter_kubectl.objects import CLAIM, INSTALLATION, TOPIC, metadata, seconds, spec, status
from onewriter_kubectl.reasons import OPEN
from onewriter_kubectl.views import event_time

EVENTS_SHOWN_MAX: Final = 10


def topic(kubectl: Kubectl, name: str) -> Json:
    """One ExclusiveTopic. Raises Missing and the other errors of kubectl."""
    return kubectl.json("get", TOPIC, name)


def topics(kubectl: Kubectl, *, everywhere: bool) -> list[Json]:
    """All ExclusiveTopics of the namespace, or of all. Raises the errors of kubectl."""
    return kubectl.items(TOPIC, namespace="*" if everywhere else None)


def installation(kubectl: Kubectl, found: Installation) -> Json:
    """The object of an installation. Raises Missing and the other errors of kubectl."""
    return kubectl.json("get", INSTALLATION, found.release, namespace=found.namespace)


def claims(kubectl: Kubectl, of: Json) -> list[Json]:
    """The ProducerClaims for a topic. Raises the errors of kubectl."""
    about = metadata(of)
    return [
        each
        for each in kubectl.items(CLAIM, namespace=str(about["namespace"]))
        if (spec(each).get("topicRef") or {}).get("name") == about["name"]
    ]


def events(kubectl: Kubectl, of: Json) -> list[Json]:
    """The newest Events about an object, oldest first; none if the caller lacks the right."""
    about = metadata(of)
    selector = f"involvedObject.name={about['name']},involvedObject.kind={of['kind']}"
    try:
        found = kubectl.items(
            "events", f"--field-selector={selector}", namespace=str(about["namespace"])
        )
    except Forbidden:
        return []
    found.sort(key=lambda each: seconds(event_time(each)) or 0.0)
    return found[-EVENTS_SHOWN_MAX:]


def budgets(kubectl: Kubectl, of: Json) -> list[Json] | None:
    """PodDisruptionBudgets of the namespace, if one blocks an eviction; None without the right."""
    if not any(pod.get("outcome") == "BlockedByPDB" for pod in _fenced(of)):
        return []
    try:
        return kubectl.items("poddisruptionbudgets", namespace=str(metadata(of)["namespace"]))
    except Forbidden:
        return None


def fenced_pods(kubectl: Kubectl, of: Json) -> dict[str, Json] | None:
    """Fenced pods that may still exist, by name; None without the right."""
    found = {}
    names = {str(pod["pod"]) for pod in _fenced(of) if pod.get("outcome") in OPEN and "pod" in pod}
    for name in sorted(names):
        try:
            found[name] = kubectl.json(
                "get", "pods", name, namespace=str(metadata(of)["namespace"])
            )
        except Missing:
            continue
        except Refused:
            return None
    return found


def _fenced(of: Json) -> list[Json]:
    return list(status(of).get("fencedPods") or ())
