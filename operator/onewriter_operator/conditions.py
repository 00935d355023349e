"""Conditions in Kubernetes' form, and every reason that the operator uses.

Conventions: all conditions of a kind exist from the first reconcile; one summary, ``Ready``;
``Conflict``, ``Drifted``, ``Reconciling`` and ``Stalled`` are abnormal when True (kstatus);
``lastTransitionTime`` changes only with the status. ``plan`` decides which condition is true.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from onewriter_core.json_values import Json
from onewriter_core.kubernetes.kinds import timestamp
from onewriter_core.kubernetes.objects import NO_CONDITION, Conditions

MESSAGE_LENGTH_MAX: Final = 1_000
"""Longest message in characters; the rest is cut off."""

Status = Literal["True", "False", "Unknown"]

_CANNOT: Final = frozenset({"Invalid", "RefusedByBroker"})
_FOREIGN: Final = frozenset({"NotThisTenant", "DeclaredElsewhere"})
_BROKERS: Final = frozenset({"BrokersUnreachable"})
_STORE: Final = frozenset(
    {"StoreUnknown", "StoreForming", "StoreDegraded", "StoreMisplaced", "StoreStuck"}
)
_OBSTACLES: Final = frozenset({"ServiceTaken", "ServiceRefused", "ServiceNotEnabled", "Undivided"})

TOPIC_REASONS: Final[Mapping[str, frozenset[str]]] = {
    "Ready": frozenset(
        {"Ready", "ResourceConflict", "Pending", "Paused", "Unmanaged", "Deleting", "BucketWaiting"}
        | {"StoreUnreachable", "StoreFault", "StoreFull", "QuotaExceeded"}
        | _OBSTACLES
        | _FOREIGN
        | _CANNOT
        | _BROKERS
    ),
    "Serving": frozenset(
        {"Served", "Idle", "BucketWaiting", "ResourceConflict", "Pending", "Deleting", "Unmanaged"}
        | {"StoreUnreachable", "StoreFault", "StoreFull", "QuotaExceeded"}
        | _FOREIGN
        | _CANNOT
        | _BROKERS
    ),
    "WriterActive": frozenset(
        {"Held", "Shared", "Vacant", "TakingOver", "NotServed", "Unmanaged"} | _BROKERS
    ),
    "PolicyApplied": frozenset(
        {"Applied", "Adopted", "Pending", "Paused", "Unmanaged", "Deleting", "ResourceConflict"}
        | _OBSTACLES
        | _FOREIGN
        | _CANNOT
        | _BROKERS
    ),
    "Conflict": frozenset({"ResourceConflict", "NoConflict"}),
    "Drifted": frozenset({"Repaired", "NoDrift"}),
    "Reconciling": frozenset({"Progressing", "Settled"}),
    "Stalled": frozenset({"ResourceConflict", "Settled"} | _OBSTACLES | _FOREIGN | _CANNOT),
}
"""The conditions of an ExclusiveTopic, in the order in which they are written, and their reasons."""

CLAIM_REASONS: Final[Mapping[str, frozenset[str]]] = {
    "Ready": frozenset(
        {"Ready", "TopicMissing", "TopicNotServed", "Pending", "Paused", "Unmanaged"}
        | _CANNOT
        | _BROKERS
    ),
    "Granted": frozenset(
        {"Granted", "Idle", "Waiting", "Fenced", "Rejected", "Unmanaged"} | _BROKERS
    ),
    "FencedPodEvicted": frozenset(
        {"Evicted", "PodGone", "Pending", "BlockedByPDB", "EvictionFailed", "NotRequested"}
    ),
    "Reconciling": frozenset({"Progressing", "Settled"}),
    "Stalled": frozenset({"Settled"} | _CANNOT),
}
"""The conditions of a ProducerClaim and their reasons."""


ONE_WRITER_REASONS: Final[Mapping[str, frozenset[str]]] = {
    "Ready": frozenset(
        {"Ready", "InstallationIncomplete", "Pending", "RolloutWaits", "BrokersNotReady"}
        | {"StoreUnreachable", "StoreFault", "StoreFull", "BucketsWaiting", "CertificateExpired"}
        | (_STORE - {"StoreMisplaced"})
        | _BROKERS
    ),
    "Installed": frozenset({"Installed", "InstallationIncomplete", "Pending", "RolloutWaits"}),
    "BrokersReady": frozenset({"BrokersReady", "BrokersNotReady"} | _BROKERS),
    "StoreReachable": frozenset({"StoreReachable", "StoreUnreachable", "NotReported"} | _BROKERS),
    "StoreHealthy": frozenset(
        {"StoreHealthy", "StoreFault", "StoreFull", "NotReported"} | _BROKERS
    ),
    "StoreComplete": frozenset({"StoreComplete", "NotACluster"} | _STORE),
    "BucketsServed": frozenset({"AllServed", "BucketsWaiting", "NotReported"} | _BROKERS),
    "CertificatesValid": frozenset(
        {"Valid", "NoCertificates", "CertificateExpires", "CertificateExpired", "NotReported"}
        | _BROKERS
    ),
    "Drifted": frozenset({"Repaired", "NoDrift"}),
    "Reconciling": frozenset({"Progressing", "Settled"}),
    "Stalled": frozenset({"InstallationIncomplete", "StoreStuck", "Settled"}),
}
"""The conditions of a OneWriter and their reasons."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One condition, as a plan judges it."""

    type: str
    status: Status
    reason: str
    message: str


def yes(kind: str, reason: str, message: str) -> Verdict:
    """A condition that holds."""
    return Verdict(kind, "True", reason, message)


def no(kind: str, reason: str, message: str) -> Verdict:
    """A condition that does not hold."""
    return Verdict(kind, "False", reason, message)


def unknown(kind: str, reason: str, message: str) -> Verdict:
    """A condition that the operator cannot judge at present."""
    return Verdict(kind, "Unknown", reason, message)


def written(
    verdicts: Iterable[Verdict], before: Conditions, generation: int, now: float
) -> list[Json]:
    """The conditions for the status. ``before``: the present conditions; ``now``: Unix time."""
    found = []
    for verdict in verdicts:
        former = before.get(verdict.type, NO_CONDITION)
        is_same = former.status == verdict.status and former.since
        found.append(
            {
                "type": verdict.type,
                "status": verdict.status,
                "observedGeneration": generation,
                "lastTransitionTime": former.since if is_same else timestamp(now),
                "reason": verdict.reason,
                "message": verdict.message[:MESSAGE_LENGTH_MAX],
            }
        )
    return found
