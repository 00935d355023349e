"""The input of a plan: everything that the operator observed, as frozen values.

Times are Unix seconds (``now``) or ages in seconds by the operator's own monotonic clock, so that the
clocks of other machines do not influence a plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal

from onewriter_core.kubernetes.objects import (
    ClaimObject,
    DeclaredObject,
    FencedPod,
    KubeObject,
    TopicObject,
)
from onewriter_core.topic_view import TopicView

AcceptanceReason = Literal[
    "Accepted",
    "Closing",
    "Invalid",
    "NotThisTenant",
    "DeclaredElsewhere",
    "ResourceConflict",
    "TopicMissing",
    "NotServed",
]

NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Whether the brokers receive an object; ``reason`` and ``message`` say why not.

    ``Closing``: the brokers have the object and must admit no producer any more. ``topic`` is the
    Pulsar topic, empty if unknown. ``rival`` is the object that declares the topic instead.
    ``is_kept``: the present spec is invalid, and the brokers keep the previous one.
    """

    reason: AcceptanceReason = "Accepted"
    message: str = ""
    topic: str = ""
    rival: str = ""
    is_kept: bool = False

    @property
    def is_passed_on(self) -> bool:
        return self.is_kept or self.reason in {"Accepted", "Closing"}


@dataclass(frozen=True, slots=True)
class FleetState:
    """All brokers together.

    ``expected``: the number of brokers. ``synced``: how many of them have reported all topics that they serve.
    ``is_settling``: the operator has just started, and not all brokers have answered yet.
    """

    expected: int = 1
    synced: int = 1
    problems: tuple[str, ...] = ()
    is_settling: bool = False

    @property
    def all_synced(self) -> bool:
        return self.synced >= self.expected > 0


@dataclass(frozen=True, slots=True)
class Applied:
    """How many brokers have the present version of an object.

    ``is_everywhere``: every reachable broker has it, and at least one is reachable. ``refusal``: why
    the brokers refuse it; empty if they do not. ``is_held_back``: the object is paused, and the brokers
    have an earlier version. ``is_catching_up``: a broker has just returned and receives the declarations.
    """

    brokers: int = 0
    is_everywhere: bool = False
    refusal: str = ""
    is_held_back: bool = False
    is_catching_up: bool = False


@dataclass(frozen=True, slots=True)
class StoredTopic:
    """A broker's answer about a topic that is not declared yet or that no broker has loaded.

    ``is_known`` False: no broker could answer. ``is_undivided``: the topic is a single log and gets
    no partitions. ``declared_by``: the first namespace that declared it; empty if none is known.
    """

    exists: bool = False
    is_declared: bool = False
    epoch: int = 0
    is_known: bool = True
    is_undivided: bool = False
    declared_by: str = ""


@dataclass(frozen=True, slots=True)
class PodFacts:
    """A pod by its uid; ``exists`` False: no pod has that uid (any more)."""

    exists: bool = True
    is_going: bool = False
    ip: str = ""
    node: str = ""


@dataclass(frozen=True, slots=True)
class RemovalAttempt:
    """The last attempt to remove a pod: the ``count``-th, ``age_seconds`` ago.

    ``CameBack``: the topic's broker reports that the pod has registered again. ``Unconfirmed``: no
    broker could answer, and the operator left the pod alone.
    """

    answer: Literal[
        "Evicted", "PodGone", "BlockedByPDB", "EvictionFailed", "CameBack", "Unconfirmed"
    ]
    count: int = 1
    age_seconds: float = 0.0
    retry_after_seconds: float | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class DeletionResult:
    """Result of deleting a topic's log."""

    answer: Literal["Deleted", "NotEmpty", "Failed"]
    message: str = ""


@dataclass(frozen=True, slots=True)
class OrderResult:
    """Result of an administrator's ``order`` (the annotation's text).

    ``refusal`` is the broker's error, empty on success. ``is_news``: this reconcile sent the order.
    ``is_open``: it is unknown whether the broker executed it.
    """

    order: str
    refusal: str = ""
    is_news: bool = False
    is_open: bool = False


MOVING_SECONDS: Final = 3.0
"""Time in which the writer of a topic that its broker released normally finds the next broker."""

PATIENCE_SECONDS: Final = 3.0
"""If the brokers accept an object within this time, the operator does not write "Pending" first."""

SETTLING_SECONDS: Final = 1.0
"""Delay before the operator plans again for an object whose broker has not answered since the operator started."""

GRACE_SECONDS: Final = 10.0
"""A fenced writer that registers again within this time keeps its pod."""

AWAY_SECONDS: Final = 120.0
"""If its topic's broker changed, a writer on a ready node has this time to register again: its client may take a
minute to notice that it lost the broker."""

NODE_SECONDS: Final = 10.0
"""Interval between two reads of a node whose pod has not registered again."""

EVICTION_RETRY_SECONDS_MIN: Final = 5.0
EVICTION_RETRY_SECONDS_MAX: Final = 60.0
"""Delays between attempts that a disruption budget forbids; the delay doubles each time."""

EVICTION_FAILED_SECONDS: Final = 60.0
"""Delay between attempts that fail for another reason (two budgets, missing rights)."""

AHEAD_SECONDS: Final = 30.0
"""If the Service names a later epoch than the operator knows, another operator may know that writer. After this time
the epoch counts as drift."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLimits:
    """The times of all plans. The constants above, with the same names, document them and are the defaults."""

    moving_seconds: float = MOVING_SECONDS
    patience_seconds: float = PATIENCE_SECONDS
    grace_seconds: float = GRACE_SECONDS
    away_seconds: float = AWAY_SECONDS
    node_seconds: float = NODE_SECONDS
    eviction_retry_seconds_min: float = EVICTION_RETRY_SECONDS_MIN
    eviction_retry_seconds_max: float = EVICTION_RETRY_SECONDS_MAX
    eviction_failed_seconds: float = EVICTION_FAILED_SECONDS
    ahead_seconds: float = AHEAD_SECONDS


@dataclass(frozen=True, slots=True)
class QuotaProblem:
    """A quota that refuses producers of a topic, and since when. ``holds``: messages of its writers wait, too."""

    reason: str
    since: str
    holds: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about any declared object."""

    declared: DeclaredObject
    now: float
    """Unix seconds."""
    acceptance: Acceptance = Acceptance()
    applied: Applied = Applied()
    brokers: FleetState = FleetState()
    view: TopicView | None = None
    """The report of the broker that serves the topic (``GET /onewriter/v1/topics/...``); None if no broker serves it."""
    view_age_seconds: float = 3600.0
    """Time since the state of ``view`` changed, or since the last broker stopped serving the topic."""
    bucket_waiting: str = ""
    """Why no broker serves the topic's bucket; empty if one does."""
    store_away: str = ""
    """A sentence if no broker reaches the store; otherwise empty."""
    store_fault: str = ""
    """A sentence if the store refuses all writes; otherwise empty."""
    store_full: str = ""
    """A sentence if brokers refuse new producers because the store is almost full; otherwise empty."""
    quota: QuotaProblem | None = None
    """The quota that refuses producers of the topic; None if none does."""
    durability_refusal: str | None = None
    """Why the store does not provide the declared durability; empty if it does; None if unknown."""
    is_lost: bool = False
    """Whether the operator has lost the stream of the broker that served the topic last."""
    pending_seconds: float = 3600.0
    """Time since the operator began to send the object in its present form."""
    status_editor: str = ""
    """Another field manager that changed the status; empty if none did."""
    limits: PlanLimits = PlanLimits()

    @property
    def was_used(self) -> bool:
        """Whether a producer held the topic, or used the claim, when the status was written."""
        return self.declared.was_used

    @property
    def refusal(self) -> str:
        """Why the brokers refuse the object as it is declared; empty: they do not."""
        if self.applied.refusal or not self.durability_refusal:
            return self.applied.refusal
        return f"it is declared with {self.durability_refusal}"

    @property
    def is_provided(self) -> bool:
        """Whether the store provides the declared durability, as far as is known."""
        return not self.durability_refusal

    @property
    def is_moving(self) -> bool:
        """Whether a broker has just released the topic, and its producers are finding the next one."""
        return (
            self.view is None
            and self.was_used
            and self.view_age_seconds < self.limits.moving_seconds
        )

    @property
    def is_unserved(self) -> bool:
        """Whether it is certain that no broker serves the topic at present.

        A producer of the last status may still be connected to a broker that the operator cannot reach.
        """
        if self.view is not None or self.is_lost or self.brokers.synced == 0:
            return False
        return not self.was_used or (self.brokers.all_synced and not self.is_moving)

    @property
    def is_settling_soon(self) -> bool:
        """Whether it is too early to report that the brokers lack the object."""
        applied = self.applied
        is_waiting = applied.is_catching_up or self.pending_seconds < self.limits.patience_seconds
        is_decided = applied.is_everywhere or applied.refusal or applied.is_held_back
        return self.brokers.synced > 0 and is_waiting and not is_decided

    @property
    def is_too_early(self) -> bool:
        """Whether a broker that the operator has not reached yet may serve the topic.

        The status stays as it is: an operator that starts must not rewrite every status twice.
        """
        is_new = self.declared.status.observed_generation < 0
        is_unheard = self.acceptance.is_passed_on and self.view is None
        return is_unheard and self.brokers.is_settling and not is_new


@dataclass(frozen=True, slots=True)
class BucketFacts:
    """The buckets of the installation: their number, and the reason of each one that no broker serves."""

    total: int
    waiting: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicFacts(Facts):
    """Facts about one ExclusiveTopic."""

    declared: TopicObject
    stored: StoredTopic | None = None
    epoch_seen: int = 0
    """The highest epoch that a broker reported to this process."""

    # The pods of fenced writers.
    fenced_before: tuple[FencedPod, ...] | None = None
    """The list of fenced pods that this process wrote last; None before it wrote one."""
    pods: Mapping[str, PodFacts] = field(default_factory=lambda: NOTHING)
    """By uid."""
    nodes: Mapping[str, bool | None] = field(default_factory=lambda: NOTHING)
    """Whether each node is ready, by name; None if the operator may not read it."""
    fenced_seconds: Mapping[str, float] = field(default_factory=lambda: NOTHING)
    """How long the operator has known each fenced pod, by ``uid@epoch``."""
    attempts: Mapping[str, RemovalAttempt] = field(default_factory=lambda: NOTHING)
    """The last attempt to remove each fenced pod, by ``uid@epoch``."""

    # The leader Service.
    name_conflict: str = ""
    """An object with a name that the leader Service needs and that the topic does not own: ``kind/name``."""
    write_refusals: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    """Why the API server refused to write an object, by ``kind/name``."""
    ahead_seconds: float = 0.0
    """How long Service and slices have named a later epoch than the operator knows."""
    service: KubeObject | None = None
    slices: tuple[KubeObject, ...] = ()
    """The EndpointSlices of the Service that the topic owns."""
    obsolete: tuple[KubeObject, ...] = ()
    """Services and EndpointSlices that the topic owns and no longer declares."""
    foreign_slices: tuple[KubeObject, ...] = ()
    """EndpointSlices of the Service that the topic does not own."""
    written_digests: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    """The digest of each object as this process wrote it last, by ``kind/name``."""

    fence_answer: OrderResult | None = None
    handover_answer: OrderResult | None = None
    deletion: DeletionResult | None = None
    drift: tuple[str, ...] = ()
    """Outside changes that no status has shown yet."""
    may_lead_services: bool = True
    """Whether the operator may write Services and EndpointSlices in the topic's namespace."""
    may_delete_pods: bool = True
    """Whether the operator may delete pods in the topic's namespace."""


@dataclass(frozen=True, slots=True)
class ClaimFacts(Facts):
    """Facts about one ProducerClaim; ``topic`` is its ExclusiveTopic.

    ``pods_selected``: number of pods that its podSelector selects, None without a podSelector.
    """

    declared: ClaimObject
    topic: TopicObject | None = None
    pods_selected: int | None = None
