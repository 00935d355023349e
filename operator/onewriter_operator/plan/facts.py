"""What a plan is made from: everything that was seen, as frozen values.

Times are Unix seconds (``now``) or ages in seconds by the operator's own monotonic clock, so that
other machines' clocks decide nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from onewriter_operator.documents import Json

Word = Literal[
    "Accepted", "Closing", "Invalid", "Unsupported", "ResourceConflict", "TopicMissing", "NotServed"
]

NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Standing:
    """Whether the brokers are to know of an object, and why not.

    ``Closing``: they know it, and are to let nobody in any more. ``topic`` is the Pulsar topic,
    empty when it cannot be told. ``rival`` is the object that has it instead.
    """

    word: Word = "Accepted"
    message: str = ""
    topic: str = ""
    rival: str = ""

    @property
    def is_passed_on(self) -> bool:
        return self.word in {"Accepted", "Closing"}


@dataclass(frozen=True, slots=True)
class Brokers:
    """The brokers as a whole. ``synced``: whose streams tell all they serve."""

    expected: int = 1
    synced: int = 1
    problems: tuple[str, ...] = ()

    @property
    def all_synced(self) -> bool:
        return self.synced >= self.expected > 0


@dataclass(frozen=True, slots=True)
class Applied:
    """What the brokers took over of an object as it is now.

    ``is_everywhere``: every broker that can be reached has it, and one can. ``refusal``: why they
    do not take it. ``is_held_back``: it is paused, and they have an earlier one.
    """

    brokers: int = 0
    is_everywhere: bool = False
    refusal: str = ""
    is_held_back: bool = False


@dataclass(frozen=True, slots=True)
class Stored:
    """What a broker said of a topic before it was declared, or while nobody had it loaded.

    ``is_known`` False: none could say.
    """

    exists: bool = False
    is_declared: bool = False
    epoch: int = 0
    is_known: bool = True


@dataclass(frozen=True, slots=True)
class PodFacts:
    """A pod by its uid; ``exists`` False: there is no pod of that uid (any more)."""

    exists: bool = True
    is_going: bool = False
    ip: str = ""
    node: str = ""


@dataclass(frozen=True, slots=True)
class Attempt:
    """The last answer to the wish to remove a pod; ``age_seconds`` ago, the ``count``-th."""

    answer: Literal["Evicted", "PodGone", "BlockedByPDB", "EvictionFailed"]
    count: int = 1
    age_seconds: float = 0.0
    retry_after_seconds: float | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Deletion:
    """What came of deleting the log."""

    answer: Literal["Deleted", "NotEmpty", "Failed"]
    message: str = ""


@dataclass(frozen=True, slots=True)
class Fenced:
    """What came of fencing an epoch by order: the broker's words, empty when it was done.

    ``is_news``: it was asked in this very visit.
    """

    epoch: int
    refusal: str = ""
    is_news: bool = False


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """All that is known about one ExclusiveTopic.

    ``view`` is what the broker that serves it says (``GET /onewriter/v1/topics/...``), None when
    none serves it; ``view_age_seconds`` how long it has been in that state. ``is_lost``: the broker
    that served it last cannot be followed. ``pending_seconds``: for how long the brokers have been
    meant to have the object as it is now. ``epoch_seen`` is the
    highest epoch this process was ever told. ``status_editor`` is who changed the status besides
    the operator, if somebody did. ``taken`` is what has a name that the leader's Service needs and belongs
    to somebody else, ``service`` and ``slices`` what is there under the leader
    Service's name, ``left_over`` what belongs to the topic under other names, ``written`` the digest
    of what this process wrote last, by ``kind/name``. ``fenced_for`` says for how long each fenced
    pod (``uid@epoch``) is known.
    """

    document: Json
    now: float
    standing: Standing = Standing()
    applied: Applied = Applied()
    brokers: Brokers = Brokers()
    view: Json | None = None
    view_age_seconds: float = 3600.0
    is_lost: bool = False
    pending_seconds: float = 3600.0
    stored: Stored | None = None
    epoch_seen: int = 0
    status_editor: str = ""
    pods: Mapping[str, PodFacts] = field(default_factory=lambda: NOTHING)
    fenced_for: Mapping[str, float] = field(default_factory=lambda: NOTHING)
    attempts: Mapping[str, Attempt] = field(default_factory=lambda: NOTHING)
    taken: str = ""
    service: Json | None = None
    slices: tuple[Json, ...] = ()
    left_over: tuple[Json, ...] = ()
    written: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    fence_answer: Fenced | None = None
    deletion: Deletion | None = None
    drift: tuple[str, ...] = ()

    @property
    def is_unserved(self) -> bool:
        """Whether it is known that no broker serves the topic just now."""
        return self.view is None and self.brokers.synced > 0 and not self.is_lost


@dataclass(frozen=True, slots=True)
class ClaimFacts:
    """All that is known about one ProducerClaim; ``topic`` is its ExclusiveTopic as declared."""

    document: Json
    now: float
    standing: Standing = Standing()
    applied: Applied = Applied()
    brokers: Brokers = Brokers()
    topic: Json | None = None
    view: Json | None = None
    is_lost: bool = False
    pending_seconds: float = 3600.0
    pods_selected: int | None = None
    status_editor: str = ""

    @property
    def is_unserved(self) -> bool:
        """Whether it is known that no broker serves the topic just now."""
        return self.view is None and self.brokers.synced > 0 and not self.is_lost


PATIENCE_SECONDS = 2.0
"""What the brokers take over this soon is not worth a write that says "not yet"."""


def settles_soon(applied: Applied, brokers: Brokers, pending_seconds: float) -> bool:
    """Whether it is too early to say that the brokers do not have the object."""
    return (
        not applied.is_everywhere
        and not applied.refusal
        and not applied.is_held_back
        and brokers.synced > 0
        and pending_seconds < PATIENCE_SECONDS
    )
