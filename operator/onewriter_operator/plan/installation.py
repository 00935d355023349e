"""The status of the installation's object (OneWriter), from what brokers, API server and files say. Pure.

Numbers that always change a little are rounded, and a rounded number changes only if the value has moved
by most of a step: an idle installation causes no write.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from onewriter_core.api.installation import CERTIFICATES_MAX, WAITING_REASONS_MAX
from onewriter_core.json_values import Json, present
from onewriter_core.kubernetes.kinds import seconds_of, timestamp
from onewriter_core.kubernetes.objects import (
    NO_CONDITION,
    OneWriterObject,
    OneWriterStatus,
    StoreMemory,
    StoreStatus,
    parse_conditions,
)
from onewriter_operator.conditions import Verdict, no, unknown, written, yes
from onewriter_operator.plan.broker_report import BrokerReport
from onewriter_operator.plan.facts import BucketFacts, FleetState
from onewriter_operator.plan.pod_problems import brokers_message
from onewriter_operator.plan.store_shards import StorePlan, StoreState
from onewriter_operator.plan.verdicts import drift_left_seconds, drift_verdict, unreachable

MEMORY_STEPS: Final = 100
"""The used memory is shown in this many steps of the limit."""

STEP_BYTES: Final = 16 * 1024 * 1024
"""The step without a limit."""

STEP_SHARE: Final = 0.75
"""A shown number changes if the value has moved by more than this share of a step."""

EXPIRES_SECONDS: Final = 14 * 86_400.0
"""A certificate that expires within this time is reported, as by the chart's alert."""

TEXT_LENGTH_MAX: Final = 1_000

_MEBIBYTE: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class InstallationFacts:
    """What is known about the installation.

    ``found``: the object. ``now``: Unix time. ``is_applied``: whether all installed objects were compared
    once. ``problem``: why an object could not be written, and ``is_permanent``: whether only a person can
    resolve that. ``unlisted``: why topics or claims cannot be listed until a person acts. ``waits_for``: the
    rollout that another change waits for. ``broker_problems``: why brokers are not ready, by name. ``has_cluster``: whether the installed store is a cluster;
    ``store_plan``: its last plan, None before the first. ``certificates``: name and expiry of those that the
    operator uses.
    """

    found: OneWriterObject
    now: float
    version: str = ""
    is_applied: bool = True
    problem: str = ""
    is_permanent: bool = False
    unlisted: str = ""
    waits_for: str = ""
    brokers_ready: int = 0
    brokers_desired: int = 0
    broker_problems: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    is_store_managed: bool = True
    has_cluster: bool = False
    store_plan: StorePlan | None = None
    fleet: FleetState = FleetState()
    reports: Mapping[str, BrokerReport] = field(default_factory=lambda: MappingProxyType({}))
    buckets: BucketFacts | None = None
    growth_bytes_per_hour: float | None = None
    certificates: tuple[tuple[str, float], ...] = ()
    drift: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class InstallationPlan:
    """The status to write, None to keep the present one; and when to plan again at the latest."""

    status: Json | None
    after_seconds: float | None = None


def plan_installation(facts: InstallationFacts) -> InstallationPlan:
    """Decide the whole status."""
    if facts.fleet.is_settling and not facts.unlisted:
        return InstallationPlan(None)  # an operator that starts does not know the brokers yet
    before = facts.found.status
    store = _store(facts, before.store)
    judged = _verdicts(facts, store, before)
    status: Json = {
        "observedGeneration": facts.found.generation,
        "brokers": {
            "summary": f"{facts.brokers_ready}/{facts.brokers_desired}",
            "ready": facts.brokers_ready,
            "desired": facts.brokers_desired,
            "followed": facts.fleet.synced,
        },
        "store": store.to_document(),
        **present(
            buckets=_buckets(facts),
            certificates=_certificates(facts)[:CERTIFICATES_MAX],
            versions=_versions(facts, before),
        ),
        "conditions": written(judged, before.conditions, facts.found.generation, facts.now),
    }
    shown = parse_conditions(status).get("Drifted", NO_CONDITION)
    return InstallationPlan(status, drift_left_seconds(shown, facts.now))


def steady(value: float, shown: int | None, step: float) -> int:
    """A rounded number: the shown one, unless the value has moved away from it."""
    if shown is not None and abs(value - shown) <= STEP_SHARE * step:
        return shown
    return round(round(value / step) * step)


# ------------------------------------------------------------ parts of the status


def _store(facts: InstallationFacts, before: StoreStatus) -> StoreStatus:
    stores = [report.store for report in facts.reports.values()]
    answers = [each.is_reachable for each in stores if each.is_reachable is not None]
    state = "Unknown"
    if answers:
        state = (
            "Reachable" if all(answers) else "PartlyReachable" if any(answers) else "Unreachable"
        )
    if not stores:
        # The last known values stay.
        return replace(before, state=state, is_managed=facts.is_store_managed)
    durabilities = {each.durability for each in stores if each.durability}
    return StoreStatus(
        state=state,
        is_managed=facts.is_store_managed,
        url=stores[0].url[:TEXT_LENGTH_MAX],  # a cluster's URL names every pod
        topology=stores[0].topology,
        durability=", ".join(sorted(durabilities)),
        memory=_memory(facts, before.memory),
    )


def _memory(facts: InstallationFacts, before: StoreMemory) -> StoreMemory:
    used = memory_used(facts.reports)
    if used is None:
        return before
    limits = [report.store.memory_bytes_max for report in facts.reports.values()]
    limit = max((each for each in limits if each), default=None)
    step = STEP_BYTES if limit is None else max(limit / MEMORY_STEPS, 1.0)
    former = before if before.limit_bytes == limit else StoreMemory()
    shown = steady(used, former.used_bytes, step)
    growth = former.growth_bytes_per_hour  # another operator may have measured it
    if facts.growth_bytes_per_hour is not None:
        growth = steady(facts.growth_bytes_per_hour, growth, step)
    summary = f"{round(100 * shown / limit)}%" if limit else f"{shown // _MEBIBYTE}Mi"
    return StoreMemory(summary, shown, limit, growth)


def memory_used(reports: Mapping[str, BrokerReport]) -> int | None:
    """The used memory of the store; None if no broker reports it."""
    found = [report.store.memory_bytes_used for report in reports.values()]
    return max((each for each in found if each is not None), default=None)


def _buckets(facts: InstallationFacts) -> Json:
    if facts.buckets is None:
        return {}
    reasons = Counter(each[:TEXT_LENGTH_MAX] for each in facts.buckets.waiting)
    first = sorted(reasons.items(), key=lambda each: (-each[1], each[0]))[:WAITING_REASONS_MAX]
    return {
        "total": facts.buckets.total,
        "waiting": len(facts.buckets.waiting),
        **present(reasons=[{"reason": reason, "buckets": count} for reason, count in first]),
    }


def _expiries(facts: InstallationFacts) -> list[tuple[float, str, str]]:
    """Expiry, name and user of each certificate; the first one expires first."""
    found = [(at, name, "operator") for name, at in facts.certificates]
    for broker, report in facts.reports.items():
        for name, text in report.certificates:
            at = seconds_of(text)
            if at is not None:
                found.append((at, name, broker))
    return sorted(found)


def _certificates(facts: InstallationFacts) -> list[Json]:
    return [
        {"name": name, "reportedBy": user, "notAfter": timestamp(at)}
        for at, name, user in _expiries(facts)
    ]


def _versions(facts: InstallationFacts, before: OneWriterStatus) -> Json:
    brokers = sorted({each.version for each in facts.reports.values() if each.version})
    known = before.broker_versions if not facts.reports else None
    return present(operator=facts.version, brokers=", ".join(brokers) or known)


# ------------------------------------------------------------ conditions


def _verdicts(
    facts: InstallationFacts, store: StoreStatus, before: OneWriterStatus
) -> list[Verdict]:
    parts = [
        _installed(facts),
        _brokers_ready(facts),
        _store_reachable(facts, store),
        _store_healthy(facts),
        _store_complete(facts),
        _buckets_served(facts),
        _certificates_valid(facts),
    ]
    return [
        _ready(parts),
        *parts,
        drift_verdict(before.condition("Drifted"), facts.drift, facts.now),
        _reconciling(facts),
        _stalled(facts),
    ]


def _ready(parts: list[Verdict]) -> Verdict:
    """The first condition that does not hold; warnings and what old brokers do not report do not count."""
    warnings = {"CertificateExpires", "StoreMisplaced", "NotReported"}
    counted = [each for each in parts if each.reason not in warnings]
    for status in ("False", "Unknown"):
        for each in counted:
            if each.status == status:
                return Verdict("Ready", each.status, each.reason, each.message)
    return yes("Ready", "Ready", "all brokers are ready, and every bucket is served")


def _installed(facts: InstallationFacts) -> Verdict:
    if facts.unlisted:
        return no("Installed", "InstallationIncomplete", facts.unlisted)
    if facts.problem:
        return no("Installed", "InstallationIncomplete", facts.problem)
    if not facts.is_applied:
        return unknown("Installed", "Pending", "the installed objects were not compared yet")
    if facts.waits_for:
        return no("Installed", "RolloutWaits", f"a change waits: {facts.waits_for}")
    return yes("Installed", "Installed", "all installed objects are as the chart's values say")


def _brokers_ready(facts: InstallationFacts) -> Verdict:
    message = f"{facts.brokers_ready} of {facts.brokers_desired} brokers are ready"
    if facts.brokers_ready < facts.brokers_desired:
        causes = brokers_message(facts.broker_problems)
        return no("BrokersReady", "BrokersNotReady", f"{message}; {causes}" if causes else message)
    if not facts.fleet.all_synced:
        return no("BrokersReady", "BrokersUnreachable", unreachable(facts.fleet))
    return yes("BrokersReady", "BrokersReady", message)


def _unheard(kind: str, facts: InstallationFacts) -> Verdict:
    if facts.fleet.synced == 0:
        return unknown(kind, "BrokersUnreachable", unreachable(facts.fleet))
    return unknown(
        kind, "NotReported", "no broker reports it: brokers of an earlier version do not"
    )


def _store_reachable(facts: InstallationFacts, store: StoreStatus) -> Verdict:
    if store.state == "Unknown":
        return _unheard("StoreReachable", facts)
    where = store.url or "the store"
    if store.state == "Reachable":
        return yes("StoreReachable", "StoreReachable", f"all brokers reach {where}")
    away = [n for n, each in sorted(facts.reports.items()) if each.store.is_reachable is False]
    reason = next(
        (facts.reports[n].store.problem for n in away if facts.reports[n].store.problem), ""
    )
    message = f"{where} does not answer {', '.join(away)}" + (f": {reason}" if reason else "")
    return no("StoreReachable", "StoreUnreachable", message)


def _store_healthy(facts: InstallationFacts) -> Verdict:
    """Whether the store takes writes and has room, and writes its files."""
    kind, stores = "StoreHealthy", [report.store for report in facts.reports.values()]
    faults = dict.fromkeys(fault for each in stores for fault in each.faults or ())
    if faults:
        return no(kind, "StoreFault", f"the store reports: {'; '.join(faults)}")
    if any(each.is_full for each in stores):
        return no(kind, "StoreFull", "the store is almost full: brokers refuse new producers")
    if all(each.is_full is None for each in stores):
        return _unheard(kind, facts)
    return yes(kind, "StoreHealthy", "the store has room and reports no fault")


def _store_complete(facts: InstallationFacts) -> Verdict:
    kind, plan = "StoreComplete", facts.store_plan
    if not facts.has_cluster:
        what = "one process" if facts.is_store_managed else "not managed by the operator"
        return yes(kind, "NotACluster", f"the store is {what}")
    if plan is None:
        return unknown(kind, "StoreUnknown", "the store was not asked yet")
    match plan.state:
        case StoreState.COMPLETE:
            return yes(kind, "StoreComplete", plan.message)
        case StoreState.UNKNOWN:
            return unknown(kind, "StoreUnknown", plan.message)
        case _:
            return no(kind, f"Store{plan.state.value}", plan.message)


def _buckets_served(facts: InstallationFacts) -> Verdict:
    if facts.buckets is None:
        return _unheard("BucketsServed", facts)
    waiting = facts.buckets.waiting
    if not waiting:
        return yes("BucketsServed", "AllServed", f"all {facts.buckets.total} buckets are served")
    (reason, _), *_ = Counter(waiting).most_common(1)
    message = f"{len(waiting)} of {facts.buckets.total} buckets wait: {reason}"
    return no("BucketsServed", "BucketsWaiting", message)


def _certificates_valid(facts: InstallationFacts) -> Verdict:
    kind, found = "CertificatesValid", _expiries(facts)
    if not found:
        if not facts.reports:
            return _unheard(kind, facts)
        return yes(kind, "NoCertificates", "no process uses a certificate")
    at, name, user = found[0]
    verb = "expired" if at <= facts.now else "expires"
    message = f"certificate {name} of {user} {verb} at {timestamp(at)}"
    if at <= facts.now:
        return no(kind, "CertificateExpired", message)
    if at - facts.now < EXPIRES_SECONDS:
        return no(kind, "CertificateExpires", message)
    return yes(kind, "Valid", message)


def _reconciling(facts: InstallationFacts) -> Verdict:
    if _person_needed(facts):
        return no("Reconciling", "Settled", "")
    for each in (_installed(facts), _brokers_ready(facts)):
        if each.status != "True":
            return yes("Reconciling", "Progressing", each.message)
    return no("Reconciling", "Settled", "")


def _stalled(facts: InstallationFacts) -> Verdict:
    if reason := _person_needed(facts):
        return yes("Stalled", "InstallationIncomplete", reason)
    store = _store_complete(facts)
    if store.reason == "StoreStuck":
        return yes("Stalled", store.reason, store.message)
    return no("Stalled", "Settled", "")


def _person_needed(facts: InstallationFacts) -> str:
    """What only a person can resolve; empty if nothing is."""
    return facts.unlisted or (facts.problem if facts.is_permanent else "")
