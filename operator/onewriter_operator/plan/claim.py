"""One visit to a ProducerClaim: its whole status. Pure; a claim asks for no actions of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from onewriter_core.api.status import PRODUCERS_SHOWN_MAX
from onewriter_operator import conditions
from onewriter_operator.conditions import Verdict, no, unknown, yes
from onewriter_operator.documents import (
    UNMANAGED,
    Json,
    generation_of,
    is_set,
    metadata,
    spec_of,
    status_of,
)
from onewriter_operator.plan.actions import Action, EmitEvent, RequeueAfter
from onewriter_operator.plan.facts import (
    MOVING_SECONDS,
    PATIENCE_SECONDS,
    SETTLING_SECONDS,
    ClaimFacts,
)
from onewriter_operator.plan.fenced import OPEN
from onewriter_operator.plan.topic import Plan
from onewriter_operator.plan.verdicts import unreachable

_REFUSING: Final = frozenset({"TopicMissing", "NotServed", "Invalid"})
"""Standings under which nobody is let in by this claim."""


def plan_claim(facts: ClaimFacts) -> Plan:
    """Everything that one visit has to decide."""
    if facts.is_too_early:
        return Plan((RequeueAfter(SETTLING_SECONDS),), None)
    if facts.standing.is_passed_on and facts.is_moving:
        return Plan((RequeueAfter(MOVING_SECONDS),), None)
    producers, omitted = _producers(facts)
    before = status_of(facts.document)
    generation = generation_of(facts.document)
    found: Json = {"observedGeneration": generation}
    if facts.standing.topic:
        found["topic"] = facts.standing.topic
    writer = next((each for each in producers if each["state"] == "Granted"), None)
    epochs = [each["epoch"] for each in producers if each.get("epoch") is not None]
    if before.get("epoch") is not None and not facts.status_editor:
        epochs.append(int(before["epoch"]))
    if epochs:
        found["epoch"] = max(epochs)
    if writer is not None and writer.get("pod"):
        found["pod"] = writer["pod"]
    if producers:
        found["producers"] = producers[:PRODUCERS_SHOWN_MAX]
    if omitted:
        found["producersOmitted"] = omitted
    found["conditions"] = conditions.written(
        _verdicts(facts, producers), before.get("conditions") or (), generation, facts.now
    )
    if facts.standing.is_passed_on and facts.is_settling_soon:
        return Plan((RequeueAfter(PATIENCE_SECONDS),), None)
    return Plan(tuple(_news(before, found)), found)


def _news(before: Mapping[str, Any], status: Mapping[str, Any]) -> list[Action]:
    now = conditions.condition(status, "Granted")
    former = conditions.condition(before, "Granted")
    if now["status"] == "True" and (former.get("status"), before.get("epoch")) != (
        "True",
        status.get("epoch"),
    ):
        return [EmitEvent("ClaimGranted", str(now["message"]))]
    return []


# ------------------------------------------------------------ producers


def _producers(facts: ClaimFacts) -> tuple[list[Json], int]:
    """The writers, then the queue in its order, then the fenced; and how many are left out."""
    name = metadata(facts.document)["name"]
    before = status_of(facts.document)
    if facts.view is None:
        if facts.is_unserved or not facts.standing.is_passed_on:
            return _fenced(facts, name), 0
        return list(before.get("producers") or ()), int(before.get("producersOmitted", 0))
    view = facts.view
    found = [
        _producer(each, "Granted", epoch=each.get("epoch"))
        for each in view.get("holders") or ()
        if each.get("claim") == name
    ]
    found += [
        _producer(each, "Granted")
        for each in view.get("sharedProducers") or ()
        if each.get("claim") == name
    ]
    waiters = [each for each in view.get("waiters") or () if each.get("claim") == name]
    found += [_producer(each, "Waiting", place=each.get("place")) for each in waiters]
    found += _fenced(facts, name)
    omitted = max(0, len(found) - PRODUCERS_SHOWN_MAX)
    # Of waiters that the broker itself leaves out nobody knows the claim: they are not counted.
    return found[:PRODUCERS_SHOWN_MAX], omitted


def _fenced(facts: ClaimFacts, name: str) -> list[Json]:
    return [
        {
            "producerName": pod.get("pod") or pod["podUID"],
            "state": "Fenced",
            **{field: pod[field] for field in ("pod", "podUID", "epoch") if pod.get(field)},
        }
        for pod in _fenced_pods(facts)
        if pod["outcome"] in OPEN and pod.get("claim") == name
    ]


def _fenced_pods(facts: ClaimFacts) -> list[Json]:
    return list(status_of(facts.topic or {}).get("fencedPods") or ())


def _producer(
    found: Mapping[str, Any], state: str, *, epoch: int | None = None, place: int | None = None
) -> Json:
    result: Json = {"producerName": found["producerName"], "state": state}
    result |= {name: found[name] for name in ("pod", "podUID") if found.get(name)}
    if epoch is not None:
        result["epoch"] = epoch
    if place is not None:
        result["queuePosition"] = place
    if found.get("priority"):
        result["priority"] = found["priority"]
    return result


# ------------------------------------------------------------ conditions


def _verdicts(facts: ClaimFacts, producers: list[Json]) -> list[Verdict]:
    if is_set(facts.document, UNMANAGED):
        message = (
            "annotation onewriter.dev/unmanaged: brokers keep the last spec that they received"
        )
        return [
            unknown("Ready", "Unmanaged", message),
            unknown("Granted", "Unmanaged", message),
            _evicted(facts),
            no("Reconciling", "Settled", ""),
            no("Stalled", "Settled", ""),
        ]
    ready = _ready(facts)
    return [
        ready,
        _granted(facts, producers, ready),
        _evicted(facts),
        _reconciling(ready),
        _stalled(facts),
    ]


def _ready(facts: ClaimFacts) -> Verdict:
    standing, applied = facts.standing, facts.applied
    if standing.reason == "TopicMissing":
        return no("Ready", "TopicMissing", standing.message)
    if standing.reason == "Invalid":
        return no("Ready", "Invalid", standing.message)
    if standing.reason == "NotServed":
        return no("Ready", "TopicNotServed", standing.message)
    if applied.is_held_back:
        return no("Ready", "Paused", "annotation onewriter.dev/paused: its spec waits")
    if applied.refusal:
        return no("Ready", "RefusedByBroker", applied.refusal)
    if applied.is_everywhere:
        return yes("Ready", "Ready", _who_may(facts))
    if facts.brokers.synced == 0:
        return unknown("Ready", "BrokersUnreachable", unreachable(facts.brokers))
    return no("Ready", "Pending", "not every broker has taken it over yet")


def _who_may(facts: ClaimFacts) -> str:
    if facts.pods_selected is None:
        return "the brokers know the claim"
    count = facts.pods_selected
    return f"the brokers know the claim; its podSelector selects {count} pods"


def _granted(facts: ClaimFacts, producers: list[Json], ready: Verdict) -> Verdict:
    is_refused = facts.standing.reason in _REFUSING and not facts.standing.is_kept
    if is_refused or facts.applied.refusal:
        return no("Granted", "Rejected", ready.message)
    if facts.view is None and not facts.is_unserved:
        return unknown("Granted", "BrokersUnreachable", unreachable(facts.brokers))
    writer = next((each for each in producers if each["state"] == "Granted"), None)
    if writer is not None:
        epoch = f", epoch {writer['epoch']}" if writer.get("epoch") is not None else ""
        return yes("Granted", "Granted", f"{writer['producerName']} writes{epoch}")
    waiting = [each for each in producers if each["state"] == "Waiting"]
    if waiting:
        return no("Granted", "Waiting", f"{len(waiting)} in the queue")
    fenced = [each for each in producers if each["state"] == "Fenced"]
    if fenced:
        return no("Granted", "Fenced", f"{fenced[0]['producerName']} was fenced as stale")
    unseen = int((facts.view or {}).get("waitersOmitted") or 0)
    if unseen:
        message = (
            f"no producer of it writes; {unseen} wait for the topic behind those that are shown"
        )
        return no("Granted", "Waiting", message)
    return no("Granted", "Waiting", "no producer has used the claim")


def _evicted(facts: ClaimFacts) -> Verdict:
    """About the newest fence of a pod under this claim."""
    kind, name = "FencedPodEvicted", metadata(facts.document)["name"]
    pods = [pod for pod in _fenced_pods(facts) if pod.get("claim") == name]
    if not pods:
        return no(kind, "NotRequested", "no pod was fenced as stale")
    pod = next((each for each in pods if each["outcome"] in OPEN), pods[0])
    what = f"pod {pod.get('pod') or pod['podUID']}, epoch {pod['epoch']}, {pod['cause']}"
    message = "; ".join(part for part in (what, pod.get("message", "")) if part)
    match pod["outcome"]:
        case "Evicted" | "PodGone":
            return yes(kind, pod["outcome"], message)
        case "CameBack":
            return no(kind, "NotRequested", f"{what}; it registered again and stays")
        case "NotRequested":
            return no(kind, "NotRequested", message)
        case _:
            return no(kind, pod["outcome"], message)


def _reconciling(ready: Verdict) -> Verdict:
    if ready.reason in {"Pending", "BrokersUnreachable", "TopicMissing"}:
        return yes("Reconciling", "Progressing", ready.message)
    return no("Reconciling", "Settled", "")


def _stalled(facts: ClaimFacts) -> Verdict:
    if facts.standing.reason == "Invalid":
        return yes("Stalled", "Invalid", facts.standing.message)
    if facts.applied.refusal:
        return yes("Stalled", "RefusedByBroker", facts.applied.refusal)
    return no("Stalled", "Settled", "")


def topic_of(document: Mapping[str, Any]) -> str:
    """The name of the ExclusiveTopic that a claim is for."""
    return str((spec_of(document).get("topicRef") or {}).get("name", ""))
