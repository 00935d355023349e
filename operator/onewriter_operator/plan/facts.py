"""What a plan is made from: everything that was seen, as frozen values.

Times are Unix seconds (``now``) or ages in seconds by the operator's own monotonic clock, so that
other machines' clocks decide nothing.
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

StandingReason = Literal[
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
class Standing:
    """Whether the brokers are to know of an object, and why not.

    ``Closing``: they know it, and are to let nobody in any more. ``topic`` is the Pulsar topic,
    empty when it cannot be told. ``rival`` is the object that has it instead. ``is_kept``: what it
    says now is wrong, and the brokers go on with what it said before.
    """

    reason: StandingReason = "Accepted"
    message: str = ""
    topic: str = ""
    rival: str = ""
    is_kept: bool = False

    @property
    def is_passed_on(self) -> bool:
        return self.is_kept or self.reason in {"Accepted", "Closing"}


@dataclass(frozen=True, slots=True)
class FleetState:
    """The brokers as a whole. ``synced``: whose streams tell all they serve.

    ``is_settling``: the operator has just begun to ask them, and not all have answered yet.
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
    """What the brokers took over of an object as it is now.

    ``is_everywhere``: every broker that can be reached has it, and one can. ``refusal``: why they
    do not take it. ``is_held_back``: it is paused, and they have an earlier one. ``is_catching_up``:
    one of them has just come back, and is being told.
    """

    brokers: int = 0
    is_everywhere: bool = False
    refusal: str = ""
    is_held_back: bool = False
    is_catching_up: bool = False


@dataclass(frozen=True, slots=True)
class StoredTopic:
    """What a broker said of a topic before it was declared, or while nobody had it loaded.

    ``is_known`` False: none could say. ``is_undivided``: it is one log, and gets no partitions.
    ``declared_by``: the namespace that declared it first; empty when none did, as far as is known.
    """

    exists: bool = False
    is_declared: bool = False
    epoch: int = 0
    is_known: bool = True
    is_undivided: bool = False
    declared_by: str = ""


@dataclass(frozen=True, slots=True)
class PodFacts:
    """A pod by its uid; ``exists`` False: there is no pod of that uid (any more)."""

    exists: bool = True
    is_going: bool = False
    ip: str = ""
    node: str = ""


@dataclass(frozen=True, slots=True)
class RemovalAttempt:
    """The last answer to the wish to remove a pod; ``age_seconds`` ago, the ``count``-th.

    ``CameBack``: its broker, asked before, knows it again. ``Unconfirmed``: no broker could say, and
    the pod was not touched.
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
    """What came of deleting the log."""

    answer: Literal["Deleted", "NotEmpty", "Failed"]
    message: str = ""


@dataclass(frozen=True, slots=True)
class OrderResult:
    """What came of a person's ``order``, the annotation's text: the broker's words, empty when done.

    ``is_news``: it was asked in this very visit. ``is_open``: nobody knows whether it was done.
    """

    order: str
    refusal: str = ""
    is_news: bool = False
    is_open: bool = False


MOVING_SECONDS: Final = 3.0
"""A topic that its broker let go of is looked up by its writer again, elsewhere, within this time."""

PATIENCE_SECONDS: Final = 3.0
"""What the brokers take over this soon is not worth a write that says "not yet"."""

SETTLING_SECONDS: Final = 1.0
"""While the brokers are still being found, an object whose broker has not spoken waits so long."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known about every declared object.

    ``view`` is what the broker that serves its topic says (``GET /onewriter/v1/topics/...``), None
    when none serves it; ``view_age_seconds`` how long it has been in that state, or nobody has served
    it. ``bucket_waiting``: why no broker serves its bucket, empty when one does.
    ``is_lost``: the broker that served it last cannot be followed. ``pending_seconds``: for how
    long the brokers have been meant to have the object as it is now. ``status_editor`` is who changed
    the status besides the operator, if somebody did.
    """

    declared: DeclaredObject
    now: float
    standing: Standing = Standing()
    applied: Applied = Applied()
    brokers: FleetState = FleetState()
    view: TopicView | None = None
    view_age_seconds: float = 3600.0
    bucket_waiting: str = ""
    is_lost: bool = False
    pending_seconds: float = 3600.0
    status_editor: str = ""

    @property
    def was_used(self) -> bool:
        """Whether somebody held the topic, or used the claim, when it was last seen."""
        return self.declared.was_used

    @property
    def is_moving(self) -> bool:
        """Whether its broker has just let go of the topic, with producers that will ask for it again."""
        return self.view is None and self.was_used and self.view_age_seconds < MOVING_SECONDS

    @property
    def is_unserved(self) -> bool:
        """Whether it is known that no broker serves the topic just now.

        Who was there when it was last seen may still be, at a broker that nobody can ask.
        """
        if self.view is not None or self.is_lost or self.brokers.synced == 0:
            return False
        return not self.was_used or (self.brokers.all_synced and not self.is_moving)

    @property
    def is_settling_soon(self) -> bool:
        """Whether it is too early to say that the brokers do not have the object."""
        applied = self.applied
        is_waiting = applied.is_catching_up or self.pending_seconds < PATIENCE_SECONDS
        is_decided = applied.is_everywhere or applied.refusal or applied.is_held_back
        return self.brokers.synced > 0 and is_waiting and not is_decided

    @property
    def is_too_early(self) -> bool:
        """Whether a broker that nobody has reached yet may be the one that serves the topic.

        What is shown stays: an operator that starts must not rewrite every status, twice.
        """
        is_new = self.declared.status.observed_generation < 0
        is_unheard = self.standing.is_passed_on and self.view is None
        return is_unheard and self.brokers.is_settling and not is_new


@dataclass(frozen=True, slots=True)
class TopicFacts(Facts):
    """All that is known about one ExclusiveTopic.

    ``epoch_seen`` is the highest epoch this process was ever told, ``fenced_before`` the list of
    fenced pods as the operator wrote it last. ``taken`` is what has a name that the leader's Service
    needs and belongs to somebody else, ``refused`` what the API server does not let us write and why,
    by ``kind/name``, ``service`` and ``slices`` what is there under the leader Service's name,
    ``ahead_seconds`` for how long that has spoken of a later epoch than is known, ``left_over`` what
    belongs to the topic under other names, ``written`` the digest of what this process wrote last, by
    ``kind/name``. ``fenced_for`` says for how long each fenced pod (``uid@epoch``) is known.
    ``may_lead_services`` and ``may_delete_pods``: whether the operator has these rights in the
    topic's namespace.
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
    written: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    fence_answer: OrderResult | None = None
    handover_answer: OrderResult | None = None
    deletion: DeletionResult | None = None
    drift: tuple[str, ...] = ()
    may_lead_services: bool = True
    may_delete_pods: bool = True


@dataclass(frozen=True, slots=True)
class ClaimFacts(Facts):
    """All that is known about one ProducerClaim; ``topic`` is its ExclusiveTopic as declared.

    ``pods_selected``: how many its podSelector selects, None without one.
    """

    declared: ClaimObject
    topic: TopicObject | None = None
    pods_selected: int | None = None
