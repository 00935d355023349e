"""What a plan may ask for. Each is performed by ``reconcile``; those with an answer say which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from onewriter_operator.kinds import Key, Kind


@dataclass(frozen=True, slots=True)
class SetFinalizers:
    """Replace the object's finalizers, if it has not changed since."""

    finalizers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LookUpTopic:
    """Ask a broker what is stored of a topic that none of them has loaded. Answer: facts.stored."""

    topic: str


@dataclass(frozen=True, slots=True)
class LookUpPod:
    """Read a pod that is not watched. Answer: facts.pods."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Fence:
    """Fence the holder of this epoch and of no later one. Answer: facts.fence_answer.

    ``order`` is the text that a person gave.
    """

    topic: str
    epoch: int
    order: str


@dataclass(frozen=True, slots=True)
class HandOver:
    """Hand the topic over from the holder of this epoch, to ``to`` or, if that is empty, to the first
    who waits. Answer: facts.handover_answer. ``order`` is the text that a person gave.
    """

    topic: str
    epoch: int
    to: str
    order: str


@dataclass(frozen=True, slots=True)
class DeleteLog:
    """Delete the topic's log; its epochs survive. Answer: facts.deletion."""

    topic: str
    only_if_empty: bool


@dataclass(frozen=True, slots=True)
class RemovePod:
    """Evict, or delete, the pod of that uid and no successor. Answer: facts.attempts.

    ``fence`` is the identifier of the fence that it is about.
    """

    namespace: str
    name: str
    uid: str
    fence: str
    is_deletion: bool


@dataclass(frozen=True, slots=True)
class Apply:
    """Write an object that belongs to the declared one; ``version``: only if it is still that one."""

    kind: Kind
    document: dict[str, Any]
    version: str = ""


@dataclass(frozen=True, slots=True)
class Remove:
    """Delete an object that belonged to the declared one and is not wanted any more."""

    key: Key
    uid: str


EventReason = Literal[
    "ClaimGranted",
    "DeletionGivenUp",
    "DriftRepaired",
    "EpochAdvanced",
    "EvictionBlocked",
    "FencedByOrder",
    "HandedOverByOrder",
    "InstallationIncomplete",
    "PodEvicted",
    "ResourceConflict",
    "TopicAdopted",
    "TopicDeleted",
    "TopicRetained",
    "WriterFenced",
]


@dataclass(frozen=True, slots=True)
class EmitEvent:
    """An Event about the declared object.

    ``is_answer``: a person waits for it, so it is visible at once, however often the same was said.
    """

    reason: EventReason
    note: str
    is_warning: bool = False
    is_answer: bool = False


@dataclass(frozen=True, slots=True)
class RequeueAfter:
    """Come back after so many seconds."""

    after_seconds: float


Action = (
    SetFinalizers
    | LookUpTopic
    | LookUpPod
    | Fence
    | HandOver
    | DeleteLog
    | RemovePod
    | Apply
    | Remove
    | EmitEvent
    | RequeueAfter
)
