"""Actions of a plan. ``reconcile`` performs them; an action with an answer names the facts it fills."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from onewriter_core.kubernetes.kinds import Key, Kind


@dataclass(frozen=True, slots=True)
class SetFinalizers:
    """Replace the object's finalizers, if it has not changed since."""

    finalizers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LookUpTopic:
    """Ask a broker about a topic that no broker has loaded. Answer: facts.stored."""

    topic: str


@dataclass(frozen=True, slots=True)
class LookUpPod:
    """Read a pod that is not watched. Answer: facts.pods."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class LookUpNode:
    """Ask whether a node is ready. Answer: facts.nodes."""

    name: str


@dataclass(frozen=True, slots=True)
class Fence:
    """Fence the holder of this epoch, and of no later one. Answer: facts.fence_answer.

    ``order`` is the text of the annotation.
    """

    topic: str
    epoch: int
    order: str


@dataclass(frozen=True, slots=True)
class HandOver:
    """Hand the topic over from the holder of this epoch to ``to``; if empty, to the first waiter.

    Answer: facts.handover_answer. ``order`` is the text of the annotation.
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
    """Evict or delete the pod of that uid, and no successor. Answer: facts.attempts.

    ``fence`` identifies the fence that causes the removal.
    """

    namespace: str
    name: str
    uid: str
    fence: str
    is_deletion: bool


@dataclass(frozen=True, slots=True)
class Apply:
    """Write an object that the declared one owns; ``version``: only if it has this resourceVersion."""

    kind: Kind
    document: dict[str, Any]
    version: str = ""


@dataclass(frozen=True, slots=True)
class Remove:
    """Delete an owned object that the declared one no longer needs."""

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
    """Write a Kubernetes Event about the declared object.

    ``is_answer``: an administrator waits for it, so the Event is written at once, even when repeated.
    """

    reason: EventReason
    note: str
    is_warning: bool = False
    is_answer: bool = False


@dataclass(frozen=True, slots=True)
class RequeueAfter:
    """Reconcile the object again after this time."""

    after_seconds: float


Action = (
    SetFinalizers
    | LookUpTopic
    | LookUpPod
    | LookUpNode
    | Fence
    | HandOver
    | DeleteLog
    | RemovePod
    | Apply
    | Remove
    | EmitEvent
    | RequeueAfter
)
