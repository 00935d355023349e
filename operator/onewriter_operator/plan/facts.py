"""The input of a plan: everything that the operator observed, as frozen values.

Times are Unix seconds (``now``) or ages in seconds by the operator's own monotonic clock, so that the
clocks of other machines do not influence a plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal

from onewriter_operator.objects import (
    ClaimObject,
    DeclaredObject,
    FencedPod,
    KubeObject,
    TopicObject,
)
from onewriter_operator.plan.view import TopicView

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
    """All brokers together. ``synced``: brokers whose stream has reported all topics that they serve.

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
    the brokers refuse it. ``is_held_back``: the object is paused, and the brokers have an earlier
    version. ``is_catching_up``: a broker has just returned and receives the declarations.
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

    ``refusal`` is the broker's error, empty on success. ``is_news``: the order was sent in this
    reconcile. ``is_open``: it is unknown whether the broker executed it.
    """

    order: str
    refusal: str = ""
    is_news: bool = False
    is_open: bool = False


MOVING_SECONDS: Final = 3.0
"""Within this time, the writer of a topic that its broker released finds the next broker."""

PATIENCE_SECONDS: Final = 3.0
"""If the brokers accept an object within this time, the operator does not write "Pending" first."""

SETTLING_SECONDS: Final = 1.0
"""Delay of an object whose broker has not answered yet, while the operator is still settling."""


GRACE_SECONDS: Final = 10.0
"""A fenced writer that registers again within this time keeps its pod."""

EVICTION_RETRY_SECONDS_MIN: Final = 5.0
EVICTION_RETRY_SECONDS_MAX: Final = 60.0
"""Delays between attempts that a disruption budget forbids; the delay doubles each time."""

EVICTION_FAILED_SECONDS: Final = 60.0
"""Delay between attempts that fail for another reason (two budgets, missing rights)."""

AHEAD_SECONDS: Final = 30.0
"""Within this time another operator shows the later writer that it knows of; afterwards an unknown
epoch in the Service counts as drift."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLimits:
    """The times of all plans: see the constants."""

    moving_seconds: float = MOVING_SECONDS
    patience_seconds: float = PATIENCE_SECONDS
    grace_seconds: float = GRACE_SECONDS
    eviction_retry_seconds_min: float = EVICTION_RETRY_SECONDS_MIN
    eviction_retry_seconds_max: float = EVICTION_RETRY_SECONDS_MAX
    eviction_failed_seconds: float = EVICTION_FAILED_SECONDS
    ahead_seconds: float = AHEAD_SECONDS


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about any declared object.

    ``view`` is the report of the broker that serves the topic (``GET /onewriter/v1/topics/...``), None
    if no broker serves it; ``view_age_seconds`` is the time since its state changed, or since the last
    broker stopped serving it. ``bucket_waiting``: why no broker serves the topic's bucket, empty if
    one does. ``durability_refusal``: why the store does not provide the declared durability; empty: it does; None:
    unknown. ``is_lost``: the operator cannot follow the broker that served the topic last.
    ``pending_seconds``: the time since the operator began to send the object in its present form.
    ``status_editor``: another field manager that changed the status, empty if none did.
    """

    declared: DeclaredObject
    now: float
    acceptance: Acceptance = Acceptance()
    applied: Applied = Applied()
    brokers: FleetState = FleetState()
    view: TopicView | None = None
    view_age_seconds: float = 3600.0
    bucket_waiting: str = ""
    durability_refusal: str | None = None
    is_lost: bool = False
    pending_seconds: float = 3600.0
    status_editor: str = ""
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
    """Facts about one ExclusiveTopic.

    ``epoch_seen``: the highest epoch that a broker reported to this process. ``fenced_before``: the
    list of fenced pods that the operator wrote last. ``taken``: an object that has a name which the
    leader Service needs and that the topic does not own. ``refused``: why the API server refused to
    write an object, by ``kind/name``. ``service``, ``slices``: the objects with the leader Service's
    name. ``ahead_seconds``: how long they have named a later epoch than the known one. ``left_over``:
    objects of the topic with other names. ``foreign_slices``: slices of the leader Service that the topic
    does not own. ``written``: digest of each object as this process wrote it
    last, by ``kind/name``. ``fenced_for``: how long the operator has known each fenced pod
    (``uid@epoch``). ``may_lead_services``, ``may_delete_pods``: whether the operator has these rights
    in the topic's namespace.
    """

    declared: TopicObject
    stored: StoredTopic | None = None
    epoch_seen: int = 0
    fenced_before: tuple[FencedPod, ...] | None = None
    pods: Mapping[str, PodFacts] = field(default_factory=lambda: NOTHING)
    fenced_for: Mapping[str, float] = field(default_factory=lambda: NOTHING)
    attempts: Mapping[str, RemovalAttempt] = field(default_factory=lambda: NOTHING)
    taken: str = ""
    refused: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    ahead_seconds: float = 0.0
    service: KubeObject | None = None
    slices: tuple[KubeObject, ...] = ()
    left_over: tuple[KubeObject, ...] = ()
    foreign_slices: tuple[KubeObject, ...] = ()
    written: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    fence_answer: OrderResult | None = None
    handover_answer: OrderResult | None = None
    deletion: DeletionResult | None = None
    drift: tuple[str, ...] = ()
    may_lead_services: bool = True
    may_delete_pods: bool = True


@dataclass(frozen=True, slots=True)
class ClaimFacts(Facts):
    """Facts about one ProducerClaim; ``topic`` is its ExclusiveTopic.

    ``pods_selected``: number of pods that its podSelector selects, None without a podSelector.
    """

    declared: ClaimObject
    topic: TopicObject | None = None
    pods_selected: int | None = None
