"""Reads the objects of a topic with the caller's rights, as typed values."""

from __future__ import annotations

from typing import Final

from onewriter_core.errors import Refused
from onewriter_core.kubernetes.kinds import CLAIM, ONE_WRITER, TOPIC, seconds_of
from onewriter_core.kubernetes.objects import (
    ClaimObject,
    KubeObject,
    OneWriterObject,
    PodObject,
    TopicObject,
    parse_claim,
    parse_one_writer,
    parse_pod,
    parse_topic,
)
from onewriter_kubectl.installation import Installation
from onewriter_kubectl.kubectl import Forbidden, Kubectl, Missing
from onewriter_kubectl.objects import DisruptionBudget, Event, parse_budget, parse_event

EVENTS_SHOWN_MAX: Final = 10

NOT_FINAL: Final = frozenset({"Pending", "BlockedByPDB", "EvictionFailed"})
"""Outcomes of a fenced pod that may still change."""


def topic(kubectl: Kubectl, name: str) -> TopicObject:
    """One ExclusiveTopic. Raises Missing and the other errors of kubectl."""
    return parse_topic(kubectl.json("get", TOPIC.resource, name))


def topics(kubectl: Kubectl, *, everywhere: bool) -> list[TopicObject]:
    """All ExclusiveTopics of the namespace, or of all. Raises the errors of kubectl."""
    found = kubectl.items(TOPIC.resource, namespace="*" if everywhere else None)
    return [parse_topic(each) for each in found]


def installation(kubectl: Kubectl, found: Installation) -> OneWriterObject:
    """The object of an installation. Raises Missing and the other errors of kubectl."""
    arguments = ("get", ONE_WRITER.resource, found.release)
    return parse_one_writer(kubectl.json(*arguments, namespace=found.namespace))


def claims(kubectl: Kubectl, topic: TopicObject) -> list[ClaimObject]:
    """The ProducerClaims for a topic. Raises the errors of kubectl."""
    found = map(parse_claim, kubectl.items(CLAIM.resource, namespace=topic.key.namespace))
    return [each for each in found if each.topic_key == topic.key]


def events(kubectl: Kubectl, about: KubeObject) -> list[Event]:
    """The newest Events about an object, oldest first; none if the caller lacks the right."""
    key = about.key
    selector = f"--field-selector=involvedObject.name={key.name},involvedObject.kind={key.kind}"
    try:
        found = [parse_event(e) for e in kubectl.items("events", selector, namespace=key.namespace)]
    except Forbidden:
        return []
    found.sort(key=lambda each: seconds_of(each.last_seen) or 0.0)
    return found[-EVENTS_SHOWN_MAX:]


def budgets(kubectl: Kubectl, topic: TopicObject) -> list[DisruptionBudget] | None:
    """PodDisruptionBudgets of the namespace, if one blocks an eviction; None without the right."""
    if not any(pod.outcome == "BlockedByPDB" for pod in topic.status.fenced_pods):
        return []
    try:
        found = kubectl.items("poddisruptionbudgets", namespace=topic.key.namespace)
    except Forbidden:
        return None
    return [parse_budget(each) for each in found]


def fenced_pods(kubectl: Kubectl, topic: TopicObject) -> dict[str, PodObject] | None:
    """Fenced pods that may still exist, by name; None without the right."""
    found = {}
    names = {each.pod for each in topic.status.fenced_pods if each.outcome in NOT_FINAL}
    for name in sorted(filter(None, names)):
        try:
            found[name] = parse_pod(
                kubectl.json("get", "pods", name, namespace=topic.key.namespace)
            )
        except Missing:
            continue
        except Refused:
            return None
    return found
