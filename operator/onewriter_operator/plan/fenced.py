"""Which pods of fenced writers are removed, when, and which are left in peace. Pure.

A pod is removed only if its writer was fenced as *stale* (silent, past its progress deadline, or
forced out without answering), if the fence is stored (a transition is shown only then), if the pod
has not registered for the topic again within ten seconds, and if it is still there by that uid. A
handover, a release, a plain disconnect and a takeover that the loser answered remove nobody.

What was decided is kept in ``status.fencedPods``: a new operator goes on from there, so that nothing
is forgotten when the story scrolls on, and nothing is decided twice. Before a pod is touched its
broker is asked once more (``RemovalAttempt``: ``CameBack``, ``Unconfirmed``), because a stream may be late.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from onewriter_core.api.status import FENCED_PODS_SHOWN_MAX
from onewriter_operator.documents import Json, metadata, seconds_of, status_of, timestamp
from onewriter_operator.plan.actions import Action, EmitEvent, LookUpPod, RemovePod, RequeueAfter
from onewriter_operator.plan.facts import RemovalAttempt, TopicFacts

STALE_CAUSES: Final = frozenset({"Silent", "ProgressDeadline", "Forced", "FencedByAdministrator"})
"""Causes of a transition that call the former writer's pod into question."""

GRACE_SECONDS: Final = 10.0
"""How long a fenced writer may take to register again and be left in peace."""

RETRY_SECONDS_MIN: Final = 5.0
RETRY_SECONDS_MAX: Final = 60.0
"""Between two attempts that a disruption budget forbids; the delay doubles from one to the other."""

FAILED_RETRY_SECONDS: Final = 60.0
"""Between two attempts that fail for another reason (two budgets, missing rights)."""

UNSEEN_RETRY_SECONDS: Final = 10.0
"""More wait than are shown: the pod may be among them, and is looked for again after so long."""

OPEN: Final = frozenset({"Pending", "BlockedByPDB", "EvictionFailed"})
"""Outcomes that are none yet."""


@dataclass(frozen=True, slots=True)
class FencedPlan:
    """The list as it goes into status, what to do, and when to look again."""

    pods: tuple[Json, ...]
    actions: tuple[Action, ...]


def identifier(pod: Mapping[str, Any]) -> str:
    """What tells one fence of one pod from every other: no pod writes twice under one epoch."""
    return f"{pod['podUID']}@{pod['epoch']}"


def known_pods(facts: TopicFacts) -> tuple[Json, ...]:
    """The fenced pods that status lists; what somebody else made of the list does not count."""
    if facts.status_editor and facts.fenced_before is not None:
        return facts.fenced_before
    return tuple(status_of(facts.document).get("fencedPods") or ())


def came_back(view: Mapping[str, Any] | None, pod: Mapping[str, Any]) -> bool:
    """Whether a fenced pod has registered again: it holds, shares or waits, or held later."""
    if view is None:
        return False
    uid = pod["podUID"]
    contenders: Iterable[Mapping[str, Any]] = (
        *(view.get("holders") or ()),
        *(view.get("waiters") or ()),
        *(view.get("sharedProducers") or ()),
    )
    if any(each.get("podUID") == uid for each in contenders):
        return True
    return any(
        (transition.get("holder") or {}).get("podUID") == uid and transition["epoch"] > pod["epoch"]
        for transition in view.get("transitions") or ()
    )


def _shows_all(view: Mapping[str, Any] | None) -> bool:
    """Whether the view names everybody who is registered: long lists are cut."""
    return view is None or not (view.get("waitersOmitted") or view.get("holdersOmitted"))


def open_fences(facts: TopicFacts) -> list[Json]:
    """The pods that are not dealt with yet, as far as status and story tell."""
    return [pod for pod in _known(facts) if pod["outcome"] in OPEN]


def plan_fenced(facts: TopicFacts) -> FencedPlan:
    """Go through the fenced pods, the oldest first; at most one is removed at a time."""
    policy = (facts.document.get("spec") or {}).get("fencing") or {}
    judge = _Judge(facts, policy.get("podPolicy", "Evict"), policy.get("minIntervalSeconds", 30))
    pods = [judge.judged(pod) for pod in _known(facts)]
    actions = list(judge.actions)
    if judge.soonest is not None:
        actions.append(RequeueAfter(max(0.1, judge.soonest)))
    return FencedPlan(tuple(_bounded(pods)), tuple(actions))


def _known(facts: TopicFacts) -> list[Json]:
    """What status already lists and what the story adds, oldest first."""
    found = {identifier(pod): dict(pod) for pod in known_pods(facts)}
    for transition in (facts.view or {}).get("transitions") or ():
        former = transition.get("previous") or {}
        if transition.get("cause") not in STALE_CAUSES or not former.get("podUID"):
            continue
        pod = {
            "podUID": former["podUID"],
            **{name: former[name] for name in ("pod", "claim") if former.get(name)},
            "epoch": former.get("epoch") or transition["epoch"],
            "cause": transition["cause"],
            "at": transition["at"],
            "outcome": "Pending",
            "since": timestamp(facts.now),
        }
        found.setdefault(identifier(pod), pod)
    return sorted(found.values(), key=lambda pod: (pod["epoch"], pod["podUID"]))


def _bounded(pods: list[Json]) -> list[Json]:
    """Newest first; of too many, the oldest that are settled go, then the oldest."""
    newest = pods[::-1]
    too_many = len(newest) - FENCED_PODS_SHOWN_MAX
    if too_many <= 0:
        return newest
    settled = [pod for pod in pods if pod["outcome"] not in OPEN]
    leaving = {identifier(pod) for pod in (*settled, *pods)[:too_many]}
    return [pod for pod in newest if identifier(pod) not in leaving][:FENCED_PODS_SHOWN_MAX]


class _Judge:
    """Judges one pod after the other; remembers what the next may do."""

    def __init__(self, facts: TopicFacts, policy: str, min_interval_seconds: float) -> None:
        self.actions: list[Action] = []
        self.soonest: float | None = None
        self._facts = facts
        self._policy = policy
        self._wait = self._interval_left(min_interval_seconds)

    def _interval_left(self, min_interval_seconds: float) -> float:
        """Seconds until another pod may be removed for this topic."""
        pods = known_pods(self._facts)
        moments = [seconds_of(pod.get("since")) for pod in pods if pod.get("outcome") == "Evicted"]
        last = max((moment for moment in moments if moment is not None), default=None)
        if any(attempt.answer == "Evicted" for attempt in self._facts.attempts.values()):
            return min_interval_seconds  # just now, and not in status yet
        if last is None:
            return 0.0
        # Both are this operator's own clock, or its predecessor's: bounded, should it be set back.
        return min(max(0.0, last + min_interval_seconds - self._facts.now), min_interval_seconds)

    def judged(self, pod: Json) -> Json:
        if pod["outcome"] not in OPEN:
            return pod
        if not pod.get("pod"):
            return self._settled(pod, "NotRequested", "its token names no pod")
        if self._policy == "None":
            return self._settled(pod, "NotRequested", "spec.fencing.podPolicy is None")
        attempt = self._facts.attempts.get(identifier(pod))
        if attempt is not None and attempt.answer in {"Evicted", "PodGone"}:
            return self._gone(pod, attempt)
        has_returned = attempt is not None and attempt.answer == "CameBack"
        if has_returned or came_back(self._facts.view, pod):
            return self._settled(pod, "CameBack", "")
        if self._facts.view is None and not self._facts.brokers.all_synced:
            return pod  # nobody can say whether it has registered again
        if not _shows_all(self._facts.view):
            self._look_again(UNSEEN_RETRY_SECONDS)
            return pod
        known = self._facts.pods.get(pod["podUID"])
        if known is not None and (not known.exists or known.is_going):
            message = "" if not known.exists else "it is being deleted already"
            return self._settled(pod, "PodGone", message)
        return self._due(pod, attempt)

    def _gone(self, pod: Json, attempt: RemovalAttempt) -> Json:
        if attempt.answer == "Evicted":
            note = (
                f"Pod {pod['pod']} was fenced at epoch {pod['epoch']} ({pod['cause']}) and evicted"
            )
            self.actions.append(EmitEvent("PodEvicted", note))
        return self._settled(pod, attempt.answer, attempt.message)

    def _due(self, pod: Json, attempt: RemovalAttempt | None) -> Json:
        """Still to be removed: now, or when?"""
        key = identifier(pod)
        grace = GRACE_SECONDS - self._facts.fenced_for.get(key, 0.0)
        if grace > 0:
            self._look_again(grace)
            return pod
        if attempt is not None:
            pod = self._blocked(pod, attempt)
            wait = _delay(attempt) - attempt.age_seconds
            if wait > 0:
                self._look_again(wait)
                return pod
        if self._wait > 0:
            self._look_again(self._wait)
            return pod
        namespace = metadata(self._facts.document)["namespace"]
        if pod["podUID"] not in self._facts.pods:
            self.actions.append(LookUpPod(namespace, pod["pod"], pod["podUID"]))
            return pod
        is_deletion = self._policy == "Delete" and self._facts.may_delete_pods
        self.actions.append(RemovePod(namespace, pod["pod"], pod["podUID"], key, is_deletion))
        self._wait = GRACE_SECONDS  # one at a time: the others are looked at again
        return pod

    def _blocked(self, pod: Json, attempt: RemovalAttempt) -> Json:
        if attempt.answer == "Unconfirmed":
            return pod
        if pod["outcome"] == attempt.answer and pod.get("message") == attempt.message:
            return pod
        note = f"Pod {pod['pod']}, fenced in epoch {pod['epoch']}, stays: {attempt.message}"
        self.actions.append(EmitEvent("EvictionBlocked", note, is_warning=True))
        return self._changed(pod, attempt.answer, attempt.message)

    def _settled(self, pod: Json, outcome: str, message: str) -> Json:
        return self._changed(pod, outcome, message)

    def _changed(self, pod: Json, outcome: str, message: str) -> Json:
        found = pod | {"outcome": outcome, "since": timestamp(self._facts.now)}
        found.pop("message", None)
        return found | ({"message": message} if message else {})

    def _look_again(self, seconds: float) -> None:
        self.soonest = seconds if self.soonest is None else min(self.soonest, seconds)


def _delay(attempt: RemovalAttempt) -> float:
    """Seconds between this attempt and the next one."""
    if attempt.retry_after_seconds is not None:
        return max(attempt.retry_after_seconds, RETRY_SECONDS_MIN)
    if attempt.answer == "EvictionFailed":
        return FAILED_RETRY_SECONDS
    doubled: float = RETRY_SECONDS_MIN * 2 ** min(attempt.count - 1, 8)
    return min(doubled, RETRY_SECONDS_MAX)
