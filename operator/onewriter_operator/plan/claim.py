"""The plan of a ProducerClaim: its whole status. Pure; a claim needs no actions of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from onewriter_core.api.status import PRODUCERS_SHOWN_MAX
from onewriter_core.json_values import Json
from onewriter_core.kubernetes.names import PAUSED, UNMANAGED
from onewriter_core.kubernetes.objects import (
    ClaimedProducer,
    ClaimStatus,
    FencedPod,
    parse_claim_status,
)
from onewriter_core.topic_view import ProducerView
from onewriter_operator import conditions
from onewriter_operator.conditions import Verdict, no, unknown, yes
from onewriter_operator.plan.actions import Action, EmitEvent, RequeueAfter
from onewriter_operator.plan.facts import (
    SETTLING_SECONDS,
    ClaimFacts,
)
from onewriter_operator.plan.fenced import OPEN
from onewriter_operator.plan.topic import Plan
from onewriter_operator.plan.verdicts import unreachable

_REFUSING: Final = frozenset({"TopicMissing", "NotServed", "Invalid"})
"""Reasons with which the claim admits no producer."""


def plan_claim(facts: ClaimFacts) -> Plan:
    """Decide everything for one reconcile."""
    if facts.is_too_early:
        return Plan((RequeueAfter(SETTLING_SECONDS),), None)
    if facts.acceptance.is_passed_on and facts.is_moving:
        return Plan((RequeueAfter(facts.limits.moving_seconds),), None)
    producers, omitted = _producers(facts)
    before, generation = facts.declared.status, facts.declared.generation
    found: Json = {"observedGeneration": generation}
    if facts.acceptance.topic:
        found["topic"] = facts.acceptance.topic
    writer = _first(producers, "Granted")
    epochs = [each.epoch for each in producers if each.epoch is not None]
    if before.epoch is not None and not facts.status_editor:
        epochs.append(before.epoch)
    if epochs:
        found["epoch"] = max(epochs)
    if writer is not None and writer.pod:
        found["pod"] = writer.pod
    if producers:
        found["producers"] = [each.to_document() for each in producers[:PRODUCERS_SHOWN_MAX]]
    if omitted:
        found["producersOmitted"] = omitted
    found["conditions"] = conditions.written(
        _verdicts(facts, producers), before.conditions, generation, facts.now
    )
    if facts.acceptance.is_passed_on and facts.is_settling_soon:
        return Plan((RequeueAfter(facts.limits.patience_seconds),), None)
    return Plan(tuple(_events(before, parse_claim_status(found))), found)


def _first(producers: Sequence[ClaimedProducer], state: str) -> ClaimedProducer | None:
    """The first producer in a state."""
    return next((each for each in producers if each.state == state), None)


def _events(before: ClaimStatus, status: ClaimStatus) -> list[Action]:
    now, former = status.condition("Granted"), before.condition("Granted")
    is_known = former.status == "True" and before.epoch == status.epoch
    if now.status == "True" and not is_known:
        return [EmitEvent("ClaimGranted", now.message)]
    return []


# ------------------------------------------------------------ producers


def _producers(facts: ClaimFacts) -> tuple[list[ClaimedProducer], int]:
    """The writers, the queue in its order, the fenced writers; and how many are left out."""
    name, before = facts.declared.key.name, facts.declared.status
    if facts.view is None:
        if facts.is_unserved or not facts.acceptance.is_passed_on:
            return _fenced(facts, name), 0
        return list(before.producers), before.producers_omitted
    view = facts.view
    found = [_producer(each, "Granted", each.epoch) for each in view.holders if each.claim == name]
    found += [_producer(each, "Granted") for each in view.shared_producers if each.claim == name]
    waiters = [each for each in view.waiters if each.claim == name]
    found += [_producer(each, "Waiting", place=each.place) for each in waiters]
    found += _fenced(facts, name)
    omitted = max(0, len(found) - PRODUCERS_SHOWN_MAX)
    # The claims of waiters that the broker omits are unknown, so those waiters are not counted.
    return found[:PRODUCERS_SHOWN_MAX], omitted


def _fenced(facts: ClaimFacts, name: str) -> list[ClaimedProducer]:
    return [
        ClaimedProducer(pod.pod or pod.pod_uid, "Fenced", pod.pod, pod.pod_uid, pod.epoch or None)
        for pod in _fenced_pods(facts)
        if pod.outcome in OPEN and pod.claim == name
    ]


def _fenced_pods(facts: ClaimFacts) -> tuple[FencedPod, ...]:
    return () if facts.topic is None else facts.topic.status.fenced_pods


def _producer(
    found: ProducerView, state: str, epoch: int | None = None, place: int | None = None
) -> ClaimedProducer:
    return ClaimedProducer(
        found.producer_name, state, found.pod, found.pod_uid, epoch, place, found.priority
    )


# ------------------------------------------------------------ conditions


def _verdicts(facts: ClaimFacts, producers: list[ClaimedProducer]) -> list[Verdict]:
    if facts.declared.is_set(UNMANAGED):
        message = f"annotation {UNMANAGED}: brokers keep the last spec that they received"
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
    acceptance, applied = facts.acceptance, facts.applied
    if acceptance.reason == "TopicMissing":
        return no("Ready", "TopicMissing", acceptance.message)
    if acceptance.reason == "Invalid":
        return no("Ready", "Invalid", acceptance.message)
    if acceptance.reason == "NotServed":
        return no("Ready", "TopicNotServed", acceptance.message)
    if applied.is_held_back:
        return no("Ready", "Paused", f"annotation {PAUSED}: its spec waits")
    if applied.refusal:
        return no("Ready", "RefusedByBroker", applied.refusal)
    if applied.is_everywhere:
        return yes("Ready", "Ready", _who_may(facts))
    if facts.brokers.synced == 0:
        return unknown("Ready", "BrokersUnreachable", unreachable(facts.brokers))
    return no("Ready", "Pending", "not every broker has received it yet")


def _who_may(facts: ClaimFacts) -> str:
    if facts.pods_selected is None:
        return "the brokers know the claim"
    count = facts.pods_selected
    return f"the brokers know the claim; its podSelector selects {count} pods"


def _granted(facts: ClaimFacts, producers: list[ClaimedProducer], ready: Verdict) -> Verdict:
    is_refused = facts.acceptance.reason in _REFUSING and not facts.acceptance.is_kept
    if is_refused or facts.applied.refusal:
        return no("Granted", "Rejected", ready.message)
    if facts.view is None and not facts.is_unserved:
        return unknown("Granted", "BrokersUnreachable", unreachable(facts.brokers))
    writer = _first(producers, "Granted")
    if writer is not None:
        epoch = "" if writer.epoch is None else f", epoch {writer.epoch}"
        return yes("Granted", "Granted", f"{writer.producer_name} writes{epoch}")
    waiting = [each for each in producers if each.state == "Waiting"]
    if waiting:
        return no("Granted", "Waiting", f"{len(waiting)} in the queue")
    fenced = _first(producers, "Fenced")
    if fenced is not None:
        return no("Granted", "Fenced", f"{fenced.producer_name} was fenced as stale")
    unseen = 0 if facts.view is None else facts.view.waiters_omitted
    if unseen:
        message = (
            f"no producer of it writes; {unseen} wait for the topic behind those that are shown"
        )
        return no("Granted", "Waiting", message)
    return no("Granted", "Idle", "no producer uses the claim")


def _evicted(facts: ClaimFacts) -> Verdict:
    """The condition for the newest fenced pod of this claim, an open one first."""
    kind, name = "FencedPodEvicted", facts.declared.key.name
    pods = [pod for pod in _fenced_pods(facts) if pod.claim == name]
    if not pods:
        return no(kind, "NotRequested", "no pod was fenced as stale")
    pod = next((each for each in pods if each.outcome in OPEN), pods[0])
    what = f"pod {pod.pod or pod.pod_uid}, epoch {pod.epoch}, {pod.cause}"
    message = "; ".join(part for part in (what, pod.message) if part)
    match pod.outcome:
        case "Evicted" | "PodGone":
            return yes(kind, pod.outcome, message)
        case "CameBack":
            return no(kind, "NotRequested", f"{what}; it registered again and stays")
        case "NotRequested":
            return no(kind, "NotRequested", message)
        case _:
            return no(kind, pod.outcome, message)


def _reconciling(ready: Verdict) -> Verdict:
    if ready.reason in {"Pending", "BrokersUnreachable", "TopicMissing"}:
        return yes("Reconciling", "Progressing", ready.message)
    return no("Reconciling", "Settled", "")


def _stalled(facts: ClaimFacts) -> Verdict:
    if facts.acceptance.reason == "Invalid":
        return yes("Stalled", "Invalid", facts.acceptance.message)
    if facts.applied.refusal:
        return yes("Stalled", "RefusedByBroker", facts.applied.refusal)
    return no("Stalled", "Settled", "")
