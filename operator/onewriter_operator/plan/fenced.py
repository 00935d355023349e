"""Which pods of fenced writers the operator removes, and when. Pure.

The operator removes a pod only if all of these hold:

* Its writer was fenced as *stale*: silent, past its progress deadline, forced out without answering, or fenced by
  an administrator (``STALE_CAUSES``). Or it did not return after its topic had changed brokers (``BrokerChanged``).
* The fence is stored. A broker shows a transition only then.
* The pod has not registered for the topic again within ten seconds. After ``BrokerChanged`` it has 120 seconds, unless its
  node is not ready: a client may need a minute to notice that its broker is lost.
* A pod of that uid still exists.

A handover, a release, a plain disconnect and a takeover that the loser answered never cause a removal.

``status.fencedPods`` keeps the decisions, and a new operator continues from there. So no fence is forgotten when the
broker drops old transitions, and none is decided twice. Directly before a removal the operator asks the topic's broker
whether the pod has registered again, because the broker's reports may be late. The result is a ``RemovalAttempt``:
``CameBack`` if it has, ``Unconfirmed`` if no broker can say, otherwise what the API server answered.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from onewriter_core.api.status import FENCED_PODS_SHOWN_MAX
from onewriter_core.kubernetes.kinds import seconds_of, timestamp
from onewriter_core.kubernetes.objects import FencedPod
from onewriter_core.topic_view import TopicView
from onewriter_operator.plan.actions import (
    Action,
    EmitEvent,
    LookUpNode,
    LookUpPod,
    RemovePod,
    RequeueAfter,
)
from onewriter_operator.plan.facts import PlanLimits, RemovalAttempt, TopicFacts

STALE_CAUSES: Final = frozenset({"Silent", "ProgressDeadline", "Forced", "FencedByAdministrator"})
"""Causes of a transition after which the former writer's pod may have to be removed."""

BROKER_CHANGED: Final = "BrokerChanged"
"""The cause of a transition after which the former writer's pod may be alive: it lost its broker."""

UNSEEN_RETRY_SECONDS: Final = 10.0
"""Delay if the broker omits waiters from its list: the pod may be one of them."""

OPEN: Final = frozenset({"Pending", "BlockedByPDB", "EvictionFailed"})
"""Outcomes that are not final."""


@dataclass(frozen=True, slots=True)
class FencedPlan:
    """The list for the status, and the actions."""

    pods: tuple[FencedPod, ...]
    actions: tuple[Action, ...]


def pods_of_status(facts: TopicFacts) -> tuple[FencedPod, ...]:
    """The fenced pods of the status; a list that another field manager wrote does not count."""
    if facts.status_editor and facts.fenced_before is not None:
        return facts.fenced_before
    return facts.declared.status.fenced_pods


def came_back(view: TopicView | None, pod_uid: str, epoch: int) -> bool:
    """Whether a pod fenced at an epoch registered again: it holds, shares or waits, or held later."""
    if view is None:
        return False
    if any(each.pod_uid == pod_uid for each in view.producers):
        return True
    return any(
        each.holder is not None and each.holder.pod_uid == pod_uid and each.epoch > epoch
        for each in view.transitions
    )


def _shows_all(view: TopicView | None) -> bool:
    """Whether the view lists every registered producer: brokers cut long lists."""
    return view is None or not (view.waiters_omitted or view.holders_omitted)


def open_fences(facts: TopicFacts) -> list[FencedPod]:
    """The pods whose outcome is open, by status and transitions."""
    return [pod for pod in _all_fenced_pods(facts) if pod.outcome in OPEN]


def plan_fenced(facts: TopicFacts) -> FencedPlan:
    """Judge the fenced pods, the oldest first; at most one is removed at a time."""
    spec = facts.declared.spec
    judge = _Judge(facts, spec.pod_policy, spec.min_interval_seconds)
    pods = [judge.judged(pod) for pod in _all_fenced_pods(facts)]
    actions = list(judge.actions)
    if judge.soonest is not None:
        actions.append(RequeueAfter(max(0.1, judge.soonest)))
    return FencedPlan(tuple(_bounded(pods)), tuple(actions))


def _all_fenced_pods(facts: TopicFacts) -> list[FencedPod]:
    """The pods that the status lists and those that the view's transitions add, oldest first."""
    found = {pod.identifier: pod for pod in pods_of_status(facts)}
    for transition in () if facts.view is None else facts.view.transitions:
        former = transition.previous
        is_suspect = transition.cause in STALE_CAUSES or transition.cause == BROKER_CHANGED
        if not is_suspect or former is None or not former.pod_uid:
            continue
        pod = FencedPod(
            pod_uid=former.pod_uid,
            pod=former.pod,
            claim=former.claim,
            epoch=former.epoch or transition.epoch,
            cause=transition.cause,
            at=transition.at,
            outcome="Pending",
            since=timestamp(facts.now),
        )
        found.setdefault(pod.identifier, pod)
    return sorted(found.values(), key=lambda pod: (pod.epoch, pod.pod_uid))


def _bounded(pods: list[FencedPod]) -> list[FencedPod]:
    """Newest first; if there are too many, the oldest settled ones are dropped, then the oldest."""
    newest = pods[::-1]
    too_many = len(newest) - FENCED_PODS_SHOWN_MAX
    if too_many <= 0:
        return newest
    settled = [pod for pod in pods if pod.outcome not in OPEN]
    leaving = {pod.identifier for pod in (*settled, *pods)[:too_many]}
    return [pod for pod in newest if pod.identifier not in leaving][:FENCED_PODS_SHOWN_MAX]


class _Judge:
    """Judges one pod after the other, and remembers when the next may be removed."""

    def __init__(self, facts: TopicFacts, policy: str, min_interval_seconds: float) -> None:
        self.actions: list[Action] = []
        self.soonest: float | None = None
        self._facts = facts
        self._policy = policy
        self._wait = self._interval_left(min_interval_seconds)

    def _interval_left(self, min_interval_seconds: float) -> float:
        """Seconds until the operator may remove another pod for this topic."""
        pods = pods_of_status(self._facts)
        moments = [seconds_of(pod.since) for pod in pods if pod.outcome == "Evicted"]
        last = max((moment for moment in moments if moment is not None), default=None)
        if any(attempt.answer == "Evicted" for attempt in self._facts.attempts.values()):
            return min_interval_seconds  # the status does not show it yet
        if last is None:
            return 0.0
        # Both times come from this operator's clock or its predecessor's: bounded in case it was set back.
        return min(max(0.0, last + min_interval_seconds - self._facts.now), min_interval_seconds)

    def judged(self, pod: FencedPod) -> FencedPod:
        if pod.outcome not in OPEN:
            return pod
        if not pod.pod:
            return self._with_outcome(pod, "NotRequested", "its token names no pod")
        if self._policy == "None":
            return self._with_outcome(pod, "NotRequested", "spec.fencing.podPolicy is None")
        attempt = self._facts.attempts.get(pod.identifier)
        if attempt is not None and attempt.answer in {"Evicted", "PodGone"}:
            return self._gone(pod, attempt)
        has_returned = attempt is not None and attempt.answer == "CameBack"
        if has_returned or came_back(self._facts.view, pod.pod_uid, pod.epoch):
            return self._with_outcome(pod, "CameBack", "")
        if self._facts.view is None and not self._facts.brokers.all_synced:
            return pod  # no broker can say whether it has registered again
        if not _shows_all(self._facts.view):
            self._check_again(UNSEEN_RETRY_SECONDS)
            return pod
        pod_facts = self._facts.pods.get(pod.pod_uid)
        if pod_facts is not None and (not pod_facts.exists or pod_facts.is_going):
            message = "" if not pod_facts.exists else "it is being deleted already"
            return self._with_outcome(pod, "PodGone", message)
        return self._remove_or_wait(pod, attempt)

    def _gone(self, pod: FencedPod, attempt: RemovalAttempt) -> FencedPod:
        if attempt.answer == "Evicted":
            note = f"Pod {pod.pod} was fenced at epoch {pod.epoch} ({pod.cause}) and evicted"
            self.actions.append(EmitEvent("PodEvicted", note))
        return self._with_outcome(pod, attempt.answer, attempt.message)

    def _remove_or_wait(self, pod: FencedPod, attempt: RemovalAttempt | None) -> FencedPod:
        """Remove the pod now, or note when."""
        grace = self._facts.limits.grace_seconds - self._facts.fenced_seconds.get(
            pod.identifier, 0.0
        )
        if grace > 0:
            self._check_again(grace)
            return pod
        if pod.cause == BROKER_CHANGED and self._waits_for_return(pod):
            return pod
        if attempt is not None:
            pod = self._blocked(pod, attempt)
            wait = _delay(attempt, self._facts.limits) - attempt.age_seconds
            if wait > 0:
                self._check_again(wait)
                return pod
        if self._wait > 0:
            self._check_again(self._wait)
            return pod
        namespace = self._facts.declared.key.namespace
        if pod.pod_uid not in self._facts.pods:
            self.actions.append(LookUpPod(namespace, pod.pod, pod.pod_uid))
            return pod
        is_deletion = self._policy == "Delete" and self._facts.may_delete_pods
        self.actions.append(RemovePod(namespace, pod.pod, pod.pod_uid, pod.identifier, is_deletion))
        # One at a time: the others are looked at again.
        self._wait = self._facts.limits.grace_seconds
        return pod

    def _waits_for_return(self, pod: FencedPod) -> bool:
        """Whether a pod that lost its broker still has time; notes when to look at it again."""
        limits = self._facts.limits
        left = limits.away_seconds - self._facts.fenced_seconds.get(pod.identifier, 0.0)
        if left <= 0:
            return False
        pod_facts = self._facts.pods.get(pod.pod_uid)
        if pod_facts is None:
            self.actions.append(LookUpPod(self._facts.declared.key.namespace, pod.pod, pod.pod_uid))
            return True
        if pod_facts.node and pod_facts.node not in self._facts.nodes:
            self.actions.append(LookUpNode(pod_facts.node))
            return True
        if self._facts.nodes.get(pod_facts.node) is False:
            return False
        self._check_again(min(left, limits.node_seconds))
        return True

    def _blocked(self, pod: FencedPod, attempt: RemovalAttempt) -> FencedPod:
        if attempt.answer == "Unconfirmed":
            return pod
        if pod.outcome == attempt.answer and pod.message == attempt.message:
            return pod
        note = f"Pod {pod.pod}, fenced in epoch {pod.epoch}, stays: {attempt.message}"
        self.actions.append(EmitEvent("EvictionBlocked", note, is_warning=True))
        return self._with_outcome(pod, attempt.answer, attempt.message)

    def _with_outcome(self, pod: FencedPod, outcome: str, message: str) -> FencedPod:
        since = timestamp(self._facts.now)
        return replace(pod, outcome=outcome, since=since, message=message)

    def _check_again(self, seconds: float) -> None:
        self.soonest = seconds if self.soonest is None else min(self.soonest, seconds)


def _delay(attempt: RemovalAttempt, limits: PlanLimits) -> float:
    """Delay from this attempt to the next one."""
    if attempt.retry_after_seconds is not None:
        return max(attempt.retry_after_seconds, limits.eviction_retry_seconds_min)
    if attempt.answer == "EvictionFailed":
        return limits.eviction_failed_seconds
    doubled: float = limits.eviction_retry_seconds_min * 2 ** min(attempt.count - 1, 8)
    return min(doubled, limits.eviction_retry_seconds_max)
