"""The sentences of ``why``: who writes and why, who lost the topic, who is next, what needs attention.

Pure: facts in, sentences out. A sentence says so if a fact is uncertain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from onewriter_core.kubernetes.names import FENCE, HANDOVER, PAUSED, UNMANAGED
from onewriter_core.kubernetes.objects import ClaimObject, FencedPod, PodObject, TopicObject
from onewriter_core.tables import text
from onewriter_core.topic_view import ProducerView, TopicView, TransitionView
from onewriter_kubectl.objects import DisruptionBudget
from onewriter_kubectl.texts import age, duration, producer_text

WAITERS_SHOWN_MAX: Final = 20
FENCED_SHOWN_MAX: Final = 8
LOSSES_SHOWN_MAX: Final = 8

CAUSES: Final[Mapping[str, str]] = {
    "Initial": "the topic had no writer before",
    "Released": "{former} released the topic",
    "ConnectionLost": "the connection of {former} broke",
    "Silent": "{former} was silent: no byte came from it although it was pinged",
    "ProgressDeadline": "{former} published nothing within its progress deadline",
    "TakenOver": "the topic was taken over from {former}, which was notified and answered",
    "Forced": "the topic was taken over from {former}, which was notified and did not answer",
    "Handover": "{former} handed the topic over on request",
    "FencedByAdministrator": "a person fenced {former}",
    "BrokerChanged": "the topic moved to another broker and {former} did not resume in time",
    "GrantLost": "the store lost data, and perhaps the grant of {former} or of a later writer",
}
"""Why the former writer lost the topic, by the transition's cause."""

UNKNOWN_CAUSE: Final = "{former} lost the topic for a reason that this version does not know"

_EVICTION_PROBLEMS: Final = {
    "BlockedByPDB": "a PodDisruptionBudget forbids its eviction",
    "EvictionFailed": "its eviction fails",
}
"""Outcomes of fences that leave the pod where it is, in words."""

_SERVING: Final = ("Serving", "No broker serves it")
_QUOTA: Final = "QuotaExceeded"
"""The reason of Serving if a quota refuses producers; the condition is True while a writer continues."""

_STORE: Final = {
    "StoreFault": "It cannot be written",
    "StoreFull": "It admits no new producer",
    _QUOTA: "It admits no new producer",
}
"""The words for a reason that is about the store or a quota, and not about the topic's broker."""

_APPLIED: Final = ("PolicyApplied", "The brokers do not have its spec")


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about a topic. ``now`` is Unix time.

    ``budgets`` and ``pods`` (by name) are those of its namespace; None if the caller may not see them.
    ``live``: the report of the broker that serves it, None if it was not asked. ``operator``: why the
    operator does not lead, empty if it does, None if unknown.
    """

    topic: TopicObject
    now: float
    claims: Sequence[ClaimObject] = ()
    budgets: Sequence[DisruptionBudget] | None = ()
    pods: Mapping[str, PodObject] | None = field(default_factory=dict)
    live: TopicView | None = None
    operator: str | None = None


def why(facts: Facts) -> list[str]:
    """The sentences; empty ones separate groups."""
    groups = (
        _not_served(facts),
        _holder(facts),
        _history(facts),
        _queue(facts),
        _fenced_pods(facts),
        _losses(facts),
        _needs_attention(facts),
    )
    sentences: list[str] = []
    for group in groups:
        if group:
            sentences += [*([""] if sentences else []), *group]
    return sentences


# ------------------------------------------------------------ whether it can be written


def _not_served(facts: Facts) -> list[str]:
    """Why no producer can write now, even if the topic has a holder. It comes first."""
    serving = facts.topic.status.condition("Serving")
    if serving.status == "True" and serving.reason == _QUOTA:
        return [f"{_STORE[_QUOTA]} ({_QUOTA}): {text(serving.message)}."]
    return _failing(facts.topic, (_SERVING,)) if serving.status == "False" else []


# ------------------------------------------------------------ who writes


def _holder(facts: Facts) -> list[str]:
    key, status = facts.topic.key, facts.topic.status
    topic = f"{key} ({text(status.topic)})" if status.topic else str(key)
    active, holder, epoch = status.condition("WriterActive"), status.holder, status.epoch
    match active.status, active.reason:
        case "", _:
            sentence = f"{key} was not reconciled yet: its status is empty."
        case "Unknown", _:
            sentence = f"The writer of {topic} is unknown at the moment: {text(active.message)}."
            if holder is not None:
                sentence += f" The last known writer is {producer_text(holder)}, epoch {epoch}."
        case _, "Shared":
            sentence = f"{topic} is written by shared producers."
        case "True", _ if holder is not None:
            sentence = (
                f"{topic} is written by {_described(holder, facts.now)}, under epoch {epoch}."
            )
        case _, "TakingOver":
            sentence = f"{topic} is between two writers: the next one is being granted."
        case _:
            last_epoch = "" if epoch is None else f"; its last epoch is {epoch}"
            sentence = f"{topic} has no writer{last_epoch}."
    return [sentence]


def _described(holder: ProducerView, now: float) -> str:
    parts = [producer_text(holder)]
    parts += [f"claim {text(holder.claim)}"] if holder.claim else []
    parts += [f"on node {text(holder.node)}"] if holder.node else []
    if holder.since:
        ago = age(holder.since, now)
        parts.append(f"since {text(holder.since)}" + (f" ({ago})" if ago else ""))
    return ", ".join(parts)


# ------------------------------------------------------------ how it came to that


def _history(facts: Facts) -> list[str]:
    """The last transition, and the ones before."""
    status, changes = facts.topic.status, _changes(facts)
    if not changes:
        return ["No transition is recorded."] if status.epoch else []
    (last, former), *earlier = changes
    writes = status.holder is not None
    begins = "This began" if writes else "The last transition was"
    now = "has written since" if writes or last.holder is None else "wrote from then on"
    sentences = [f"{begins} at {text(last.at)}: {_cause(last, former, now)}."]
    sentences += [_gap(last)] if last.cause != "Initial" else []
    if earlier:
        before, former = earlier[0]
        cause = _cause(before, former, "wrote from then on")
        sentences.append(f"Before that, at {text(before.at)}: {cause}.")
    if len(earlier) > 1:
        oldest, key = changes[-1][0], facts.topic.key
        sentences.append(
            f"{len(changes)} transitions are recorded since {text(oldest.at)}"
            f" (kubectl onewriter history {key.name} has all of {key})."
        )
    return sentences


def _changes(facts: Facts) -> list[tuple[TransitionView, ProducerView | None]]:
    """The transitions, newest first, each with the former writer if known."""
    shown = facts.topic.status.transitions
    reported = facts.live.transitions if facts.live else ()
    known = {each.epoch: each.previous for each in reported if each.kind != "resume"}
    fenced = {(each.at, each.cause): each for each in facts.topic.status.fenced_pods}
    changes: list[tuple[TransitionView, ProducerView | None]] = []
    for index, each in enumerate(shown):
        if changes and each.holder is None and each.cause == changes[-1][0].cause:
            continue  # a fence whose successor is the previous sentence
        former = known.get(each.epoch) or _former(
            shown[index + 1 :], fenced.get((each.at, each.cause))
        )
        changes.append((each, former))
    return changes


def _former(earlier: Sequence[TransitionView], fenced: FencedPod | None) -> ProducerView | None:
    """The writer before a transition: by the pod that it fenced, or by the last grant before it."""
    before = next((each for each in earlier if each.holder is not None), None)
    holder = None if before is None else before.holder
    if fenced is not None and fenced.pod != (holder.pod if holder else ""):
        return ProducerView("", pod=fenced.pod, epoch=fenced.epoch)
    return None if before is None or holder is None else replace(holder, epoch=before.epoch)


def _cause(change: TransitionView, former: ProducerView | None, writes: str) -> str:
    words = CAUSES.get(change.cause, UNKNOWN_CAUSE).format(former=_former_text(former))
    new = producer_text(change.holder)
    return f"{words} ({text(change.cause)}); {new} {writes}, epoch {change.epoch}"


def _former_text(former: ProducerView | None) -> str:
    """A former writer: pod, producer and epoch, as far as known."""
    if former is None:
        return "the former writer"
    producer = f"producer {text(former.producer_name)}" if former.producer_name else ""
    epoch = "" if former.epoch is None else f"epoch {former.epoch}"
    names = [text(former.pod), producer] if former.pod else [producer or "the former writer"]
    first, *others = filter(None, [*names, epoch])
    return f"{first} ({', '.join(others)})" if others else first


def _gap(change: TransitionView) -> str:
    if change.holder is None:
        return "No producer was granted the topic since."
    if change.outage_ms is not None:
        return _outage(change)
    if change.leaderless_ms is None:
        return "The time without a writer is unknown."
    if change.leaderless_ms == 0 and change.cause in {"Handover", "Released"}:
        return "There was no gap between the two writers."
    return (
        f"The topic had no writer for {change.leaderless_ms} ms. How long the former writer was silent"
        " before is unknown."
    )


def _outage(change: TransitionView) -> str:
    """The outage with its parts, and the first message of the new writer."""
    if change.outage_ms == 0:
        sentence = "There was no gap between the two writers."
    else:
        sentence = (
            f"No producer could write for {change.outage_ms} ms: {change.detection_ms} ms from the former"
            f" writer's last sign of life to the fence, and {change.handover_ms} ms until the grant."
        )
    first = change.first_message_ms
    if first is None:
        return sentence
    return f"{sentence} The first message followed {first} ms after the grant."


# ------------------------------------------------------------ who is next


def _queue(facts: Facts) -> list[str]:
    waiting = facts.topic.status.waiting
    if not waiting:
        return ["No producer waits."]
    waiters = sorted(_waiters(facts), key=lambda each: each.place or 0)[:WAITERS_SHOWN_MAX]
    sentences = [f"{waiting} wait{'s' if waiting == 1 else ''}, in this order:"]
    sentences += [f"  {each.place or 0}. {_waiter_text(each)}" for each in waiters]
    if waiting > len(waiters):
        rest = f"  and {waiting - len(waiters)} without a claim, or too far behind to be listed"
        sentences.append(rest + ("." if facts.live else " (--live knows more)."))
    return sentences


def _waiters(facts: Facts) -> Sequence[ProducerView]:
    """The waiters that are known: from the broker if it was asked, otherwise from the claims."""
    if facts.live is not None:
        return facts.live.waiters
    return [
        ProducerView(
            each.producer_name,
            claim=claim.key.name,
            pod=each.pod,
            place=each.queue_position,
            priority=each.priority,
        )
        for claim in facts.claims
        for each in claim.status.producers
        if each.state == "Waiting" and each.queue_position is not None
    ]


def _waiter_text(waiter: ProducerView) -> str:
    parts = [producer_text(waiter)]
    parts += [f"claim {text(waiter.claim)}"] if waiter.claim else []
    parts += [f"priority {waiter.priority}"] if waiter.priority else []
    waited = waiter.waiting_seconds
    parts += [f"for {duration(waited)}"] if waited is not None else []
    return ", ".join(parts)


# ------------------------------------------------------------ pods that were fenced


def _fenced_pods(facts: Facts) -> list[str]:
    pods = facts.topic.status.fenced_pods
    sentences = [_fenced_pod(facts, pod) for pod in pods[:FENCED_SHOWN_MAX]]
    if len(pods) > FENCED_SHOWN_MAX:
        sentences.append(f"{len(pods) - FENCED_SHOWN_MAX} more pods were fenced before.")
    return sentences


def _fenced_pod(facts: Facts, pod: FencedPod) -> str:
    name, cause = text(pod.pod or pod.pod_uid), text(pod.cause)
    message = f": {text(pod.message)}" if pod.message else ""
    match pod.outcome:
        case "Evicted":
            outcome = "it was evicted"
        case "PodGone":
            outcome = "it ended by itself"
        case "CameBack":
            outcome = "it registered again and stays"
        case "NotRequested":
            outcome = f"it was not evicted{message}"
        case "BlockedByPDB":
            outcome = f"it still exists, because {_blocking_budgets(facts, pod)}"
        case "EvictionFailed":
            outcome = (
                f"it still exists, its eviction fails{message}; the operator retries each minute"
            )
        case "Pending" if pod.cause == "BrokerChanged":
            outcome = (
                "it will be evicted unless it registers again within two minutes, or within ten seconds"
                " if its node is not ready"
            )
        case "Pending":
            outcome = "it will be evicted unless it registers again within ten seconds"
        case _:
            outcome = text(pod.outcome) + message
    wrote = f"Pod {name} wrote under epoch {pod.epoch}"
    return f"{wrote} and was fenced ({cause}) at {text(pod.at)}; {outcome}."


def _blocking_budgets(facts: Facts, pod: FencedPod) -> str:
    """The PodDisruptionBudgets that protect a pod, as far as the caller may see them."""
    if facts.budgets is None or facts.pods is None:
        return "a PodDisruptionBudget forbids it (you may not see which one)"
    found = facts.pods.get(pod.pod)
    labels = found.labels if found else {}
    sentences = [_budget(each) for each in facts.budgets if each.selector.selects(labels)]
    return " and ".join(sentences) or f"a PodDisruptionBudget forbids it ({text(pod.message)})"


def _budget(budget: DisruptionBudget) -> str:
    healthy, desired = (
        "?" if each is None else each for each in (budget.current_healthy, budget.desired_healthy)
    )
    pods = "1 pod is" if healthy == 1 else f"{healthy} pods are"
    return (
        f"PodDisruptionBudget {text(budget.name)} allows {budget.disruptions_allowed} disruptions"
        f" ({pods} healthy, {desired} must be)"
    )


# ------------------------------------------------------------ what the store lost


def _losses(facts: Facts) -> list[str]:
    """What the broker found lost or at risk, the latest first, if it was asked."""
    if facts.live is None:
        return []
    sentences = [
        f"The store lost {each.entries} acknowledged entries of {text(each.log)}, after {text(each.after)}"
        f" up to {text(each.last)}."
        for each in reversed(facts.live.losses)
    ]
    sentences += [
        f"Entries of {text(each.log)} after {text(each.after)}, in ledgers up to {each.ledger}, may have been"
        " acknowledged and lost, because the store failed over together with the broker."
        for each in reversed(facts.live.at_risk)
    ]
    more = len(sentences) - LOSSES_SHOWN_MAX
    return [
        *sentences[:LOSSES_SHOWN_MAX],
        *([f"{more} more ranges are known."] if more > 0 else []),
    ]


# ------------------------------------------------------------ what needs attention


def _needs_attention(facts: Facts) -> list[str]:
    topic = facts.topic
    sentences = [*_annotations(topic), *_conditions(topic)]
    if topic.status.observed_generation < topic.generation:
        sentences.append("Its newest manifest was not reconciled yet.")
    for claim in facts.claims:
        ready = claim.status.condition("Ready")
        if ready.status == "False":
            refusal = f"Claim {text(claim.key.name)} admits no producer ({ready.reason})"
            sentences.append(f"{refusal}: {text(ready.message)}.")
    sentences += [
        f"Fenced pod {text(pod.pod or pod.pod_uid)} still exists: {_EVICTION_PROBLEMS[pod.outcome]}."
        for pod in topic.status.fenced_pods[:FENCED_SHOWN_MAX]
        if pod.outcome in _EVICTION_PROBLEMS
    ]
    if facts.operator:
        sentences.append(
            f"This may be outdated: {text(facts.operator)}. Writing and fencing continue without it."
        )
    return sentences or ([] if _not_served(facts) else ["Nothing needs attention."])


def _failing(topic: TopicObject, kinds: Sequence[tuple[str, str]]) -> list[str]:
    """A sentence for each condition that is not True."""
    sentences = []
    for kind, words in kinds:
        now = topic.status.condition(kind)
        if now.status not in {"", "True"}:
            doubt = "" if now.status == "False" else " as far as is known"
            what = _STORE.get(now.reason, words)
            sentences.append(f"{what}{doubt} ({now.reason}): {text(now.message)}.")
    return sentences


def _conditions(topic: TopicObject) -> list[str]:
    is_unknown = topic.status.condition("Serving").status == "Unknown"
    sentences = _failing(topic, (_SERVING, _APPLIED) if is_unknown else (_APPLIED,))
    for kind, words in (
        ("Conflict", "Another object has the topic"),
        ("Stalled", "It cannot continue until a user changes something"),
        ("Drifted", "An object that the operator manages was changed"),
    ):
        now = topic.status.condition(kind)
        if now.status == "True":
            sentences.append(f"{words} ({now.reason}): {text(now.message)}.")
    return sentences


def _annotations(topic: TopicObject) -> list[str]:
    """A deletion, and the annotations that change what the operator does."""
    sentences = []
    if topic.is_going:
        left = ", ".join(map(text, topic.finalizers))
        sentences.append(f"It is being deleted; held by {left or 'nothing'}.")
    if topic.is_set(UNMANAGED):
        sentences.append(f"Annotation {UNMANAGED}: the operator leaves it alone, its status rests.")
    elif topic.is_set(PAUSED):
        sentences.append(
            f"Annotation {PAUSED}: brokers keep the spec that they have, no pod is evicted."
        )
    for order, words in ((FENCE, "fenced"), (HANDOVER, "handed over")):
        head, _, name = topic.annotation(order).strip().partition(" ")
        number = head.partition("#")[0]
        if number == str(topic.status.epoch):
            to = f" to {text(name)}" if name else ""
            sentences.append(
                f"Epoch {number} is ordered to be {words}{to} (annotation) and has not been."
            )
    return sentences
