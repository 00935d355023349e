"""The conditions of an ExclusiveTopic, judged from the facts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from onewriter_core.kubernetes.kinds import seconds_of
from onewriter_core.kubernetes.names import PAUSED, UNMANAGED
from onewriter_core.kubernetes.objects import Condition
from onewriter_operator.conditions import Verdict, no, unknown, yes
from onewriter_operator.plan.facts import FleetState, QuotaProblem, TopicFacts

DRIFT_SHOWN_SECONDS: Final = 3_600.0
"""How long the condition Drifted shows a repair."""

TAKING_OVER: Final = frozenset({"ChangingHands", "Reserved"})
"""States of a topic between two writers."""

WRITTEN: Final = frozenset({"Held", "Shared"})
"""States of a topic that producers write."""

OBSTACLES: Final = frozenset({"Invalid", "NotThisTenant", "DeclaredElsewhere", "ResourceConflict"})
"""Reasons that stay until a user changes an object, or an administrator reassigns the topic."""


SERVICE_TAKEN: Final = "ServiceTaken"
SERVICE_REFUSED: Final = "ServiceRefused"
SERVICE_NOT_ENABLED: Final = "ServiceNotEnabled"

UNDIVIDED: Final = "Undivided"
"""Reason for a topic that exists without partitions although its spec declares some."""


class ServiceProblem(NamedTuple):
    """Why the leader Service is not as the spec wants it: one of the reasons above, and a message."""

    reason: str
    message: str


def verdicts(
    facts: TopicFacts, service: ServiceProblem | None, drift: Sequence[str]
) -> list[Verdict]:
    """All conditions of an ExclusiveTopic."""
    serving = _serving(facts)
    applied = _applied(facts, service)
    return [
        _ready(facts, serving, applied),
        serving,
        _writer(facts, serving),
        applied,
        _conflict(facts),
        _drifted(facts, drift),
        _reconciling(facts, applied),
        _stalled(facts, service),
    ]


def unmanaged(facts: TopicFacts) -> list[Verdict]:
    """The conditions of an object with the annotation ``unmanaged``."""
    message = f"annotation {UNMANAGED}: brokers keep the last spec that they received"
    return [
        unknown("Ready", "Unmanaged", message),
        unknown("Serving", "Unmanaged", message),
        unknown("WriterActive", "Unmanaged", message),
        unknown("PolicyApplied", "Unmanaged", message),
        _conflict(facts),
        _drifted(facts, ()),
        no("Reconciling", "Settled", ""),
        no("Stalled", "Settled", ""),
    ]


def unreachable(brokers: FleetState) -> str:
    """How many brokers the operator can follow, and why it cannot follow the others."""
    known = f"{brokers.synced} of {brokers.expected} brokers can be followed"
    return "; ".join((known, *brokers.problems))


def _ready(facts: TopicFacts, serving: Verdict, applied: Verdict) -> Verdict:
    if facts.declared.is_going:
        return no("Ready", "Deleting", "the object is being deleted")
    for part in (serving, applied):
        if part.status != "True":
            return Verdict("Ready", part.status, part.reason, part.message)
    return yes("Ready", "Ready", "a writer holds the topic or may take it")


def _serving(facts: TopicFacts) -> Verdict:
    acceptance, view = facts.acceptance, facts.view
    if _is_write_refused(facts):
        return no("Serving", acceptance.reason, acceptance.message)
    if facts.declared.is_going:
        return no("Serving", "Deleting", "the topic is being deleted and admits no producer")
    is_written = view is not None and view.state in WRITTEN
    if facts.refusal and not (is_written and facts.is_provided):
        return no("Serving", "RefusedByBroker", facts.refusal)
    if facts.store_away:
        return no("Serving", "StoreUnreachable", facts.store_away)
    if facts.store_fault:
        return no("Serving", "StoreFault", facts.store_fault)
    if view is not None and (view.waiting_reason or not view.is_served):
        reason = view.waiting_reason or "no broker serves it just now"
        return no("Serving", "BucketWaiting", reason)
    if view is None and facts.bucket_waiting:
        return no("Serving", "BucketWaiting", facts.bucket_waiting)
    if facts.store_full and not is_written:
        return no("Serving", "StoreFull", facts.store_full)
    if facts.quota is not None:
        judge = yes if is_written and not facts.quota.holds else no
        return judge("Serving", "QuotaExceeded", _quota(facts.quota))
    if view is not None:
        return yes("Serving", "Served", f"served by {view.broker or 'a broker'}")
    if not facts.is_unserved:
        return unknown("Serving", "BrokersUnreachable", unreachable(facts.brokers))
    if not facts.applied.is_everywhere:
        return unknown("Serving", "Pending", "no broker has received it yet")
    return yes("Serving", "Idle", "no client uses it; its broker loads it for the first client")


def _quota(problem: QuotaProblem) -> str:
    who = "producers are refused and messages wait" if problem.holds else "producers are refused"
    return f"{who} since {problem.since}: {problem.reason}"


def _writer(facts: TopicFacts, serving: Verdict) -> Verdict:
    view = facts.view
    if _is_write_refused(facts):
        return unknown("WriterActive", "NotServed", facts.acceptance.message)
    if view is None:
        if facts.bucket_waiting:
            return no("WriterActive", "Vacant", f"no broker serves it: {facts.bucket_waiting}")
        if facts.is_unserved:
            return no("WriterActive", "Vacant", "no producer writes")
        return unknown("WriterActive", "BrokersUnreachable", serving.message)
    if view.state == "Held":
        writer = None if view.holder is None else view.holder.producer_name
        return yes("WriterActive", "Held", f"{writer} writes, epoch {view.epoch}")
    if view.state == "Shared":
        return yes("WriterActive", "Shared", "shared producers write")
    if view.state in TAKING_OVER:
        return no("WriterActive", "TakingOver", "the next writer is being granted the topic")
    return no("WriterActive", "Vacant", f"no producer holds the topic; {view.waiting} wait")


def _is_write_refused(facts: TopicFacts) -> bool:
    """Whether no producer gets the topic through this object until one of the OBSTACLES is removed."""
    return facts.acceptance.reason in OBSTACLES and not facts.acceptance.is_kept


def _applied(facts: TopicFacts, service: ServiceProblem | None) -> Verdict:
    acceptance, applied = facts.acceptance, facts.applied
    if acceptance.reason in OBSTACLES:
        return no("PolicyApplied", acceptance.reason, acceptance.message)
    if facts.declared.is_going:
        return no("PolicyApplied", "Deleting", "the object is being deleted")
    if applied.is_held_back:
        return no("PolicyApplied", "Paused", f"annotation {PAUSED}: its spec waits")
    if applied.refusal:
        return no("PolicyApplied", "RefusedByBroker", applied.refusal)
    if is_undivided(facts):
        return no("PolicyApplied", UNDIVIDED, _undivided(facts))
    if service is not None:
        return no("PolicyApplied", *service)
    if not applied.is_everywhere:
        if facts.brokers.synced == 0:
            return no("PolicyApplied", "BrokersUnreachable", unreachable(facts.brokers))
        return no("PolicyApplied", "Pending", "not every broker has received it yet")
    former = facts.declared.status.condition("PolicyApplied")
    if former.reason == "Adopted":
        return yes("PolicyApplied", "Adopted", former.message)
    if facts.stored is not None and facts.stored.exists and not facts.stored.is_declared:
        message = f"the topic was there before this object, at epoch {facts.stored.epoch}"
        return yes("PolicyApplied", "Adopted", message)
    # Without the number of brokers: a restart of a broker must not rewrite every status.
    return yes("PolicyApplied", "Applied", "every broker that can be reached has it")


def is_undivided(facts: TopicFacts) -> bool:
    """Whether the spec declares partitions for a topic that exists without them, and so gets none."""
    if not facts.declared.spec.partitions:
        return False
    if facts.view is not None:
        return facts.view.is_undivided
    return facts.stored is not None and facts.stored.is_undivided


def _undivided(facts: TopicFacts) -> str:
    wanted = facts.declared.spec.partitions
    return (
        f"the topic exists without partitions and stays so: it gets {wanted} once it is"
        " deleted, with its messages, by its administrator; or declare another one"
    )


def _conflict(facts: TopicFacts) -> Verdict:
    if facts.acceptance.reason == "ResourceConflict":
        return yes("Conflict", "ResourceConflict", facts.acceptance.message)
    return no("Conflict", "NoConflict", "")


def _drifted(facts: TopicFacts, drift: Sequence[str]) -> Verdict:
    return drift_verdict(facts.declared.status.condition("Drifted"), drift, facts.now)


def drift_verdict(former: Condition, drift: Sequence[str], now: float) -> Verdict:
    """The condition Drifted: an outside change stays visible for an hour."""
    if drift:
        return yes("Drifted", "Repaired", f"changed outside and repaired: {'; '.join(drift)}")
    if former.status != "True":
        return no("Drifted", "NoDrift", former.message)
    since = seconds_of(former.since)
    if since is not None and now - since < DRIFT_SHOWN_SECONDS:
        return yes("Drifted", "Repaired", former.message)
    return no("Drifted", "NoDrift", f"last: {former.message}"[:500])


def drift_left_seconds(drifted: Condition, now: float) -> float | None:
    """Seconds until the condition Drifted no longer shows a repair; None if it shows none."""
    since = seconds_of(drifted.since)
    if drifted.status != "True" or since is None:
        return None
    return max(1.0, since + DRIFT_SHOWN_SECONDS - now)


def _reconciling(facts: TopicFacts, applied: Verdict) -> Verdict:
    if facts.acceptance.reason in OBSTACLES:
        return no("Reconciling", "Settled", "")
    if applied.reason in {"Pending", "BrokersUnreachable", "Deleting"}:
        return yes("Reconciling", "Progressing", applied.message)
    return no("Reconciling", "Settled", "")


def _stalled(facts: TopicFacts, service: ServiceProblem | None) -> Verdict:
    if facts.acceptance.reason in OBSTACLES:
        return yes("Stalled", facts.acceptance.reason, facts.acceptance.message)
    if facts.refusal:
        return yes("Stalled", "RefusedByBroker", facts.refusal)
    if is_undivided(facts):
        return yes("Stalled", UNDIVIDED, _undivided(facts))
    if service is not None:
        return yes("Stalled", *service)
    return no("Stalled", "Settled", "")
