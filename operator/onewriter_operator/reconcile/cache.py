"""State that a reconcile keeps for the next one. It may be lost: status and brokers provide the rest."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from typing import Final

from onewriter_core.kubernetes.objects import FencedPod
from onewriter_operator.plan.facts import (
    DeletionResult,
    OrderResult,
    PodFacts,
    RemovalAttempt,
    StoredTopic,
)

POD_SECONDS: Final = 60.0
"""A pod that is not watched is read again after this time."""

NODE_SECONDS: Final = 5.0
"""A node is read again after this time."""

REFUSED_WRITE_SECONDS_MAX: Final = 300.0
"""Longest delay before a refused write is repeated; it doubles with each refusal."""

DELETION_SECONDS: Final = 5.0
"""A failed deletion of a log is repeated after this time."""

DOUBLINGS_MAX: Final = 16

PODS_MAX: Final = 64
"""Pods kept per topic."""


@dataclass(frozen=True, slots=True)
class RefusedWrite:
    """A write of a topic's object that failed: the reason, and until when the operator does not try again.

    ``is_foreign``: an object that the topic does not own has the name.
    """

    message: str
    until: float
    is_foreign: bool = False


@dataclass(slots=True)
class ObjectCache:
    """State of any declared object, by uid. Times are the event loop's.

    ``piece``: the digest of the object as the brokers should have it, and since when. ``editor``: the other field
    manager that had written the status when the operator last wrote it, and when.
    """

    editor: tuple[str, str] = ("", "")
    piece: tuple[str, float] = ("", 0.0)

    def pending_seconds(self, piece: str, now: float) -> float:
        """Seconds since the operator began to send the object with this digest."""
        if self.piece[0] != piece:
            self.piece = (piece, now)
        return now - self.piece[1]


@dataclass(slots=True)
class TopicCache(ObjectCache):
    """State of an ExclusiveTopic.

    ``failures``: consecutive failed writes of an object, by kind/name. ``foreign_until``: until when slices of
    others are removed from the leader Service.
    """

    stored: StoredTopic | None = None
    epoch_seen: int = 0
    pods: dict[str, tuple[PodFacts, float]] = field(default_factory=dict)
    nodes: dict[str, tuple[bool | None, float]] = field(default_factory=dict)
    fenced_since: dict[str, float] = field(default_factory=dict)
    attempts: dict[str, tuple[RemovalAttempt, float]] = field(default_factory=dict)
    written: dict[str, str] = field(default_factory=dict)
    refused_writes: dict[str, RefusedWrite] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    generation: int = 0
    foreign_until: float = 0.0
    fenced_pods: tuple[FencedPod, ...] | None = None
    ahead_since: float | None = None
    fence: OrderResult | None = None
    handover: OrderResult | None = None
    deletion: tuple[DeletionResult, float] | None = None
    drift: tuple[str, ...] = ()
    reconcile_at: str = ""

    def ahead_seconds(self, now: float, *, is_ahead: bool) -> float:
        """Seconds for which Service or EndpointSlice have named a later epoch than the one that the operator knows."""
        if not is_ahead:
            self.ahead_since = None
            return 0.0
        self.ahead_since = now if self.ahead_since is None else self.ahead_since
        return now - self.ahead_since

    def note_refused_write(
        self, name: str, message: str, now: float, seconds: float
    ) -> RefusedWrite:
        """Note a failed write: the delay before the next one doubles with each failure."""
        count = self.failures.get(name, 0)
        self.failures[name] = count + 1
        delay = min(seconds * 2 ** min(count, DOUBLINGS_MAX), REFUSED_WRITE_SECONDS_MAX)
        found = RefusedWrite(message, now + delay)
        self.refused_writes[name] = found
        return found

    def forget_refused_writes(self) -> None:
        """Try everything again at once."""
        self.refused_writes.clear()
        self.failures.clear()

    def keep_refused_writes(self, names: Container[str]) -> None:
        """Drop the refused writes of objects that neither exist nor are wanted any more."""
        self.refused_writes = {
            name: each for name, each in self.refused_writes.items() if name in names
        }

    def present_refused_writes(self, now: float) -> dict[str, RefusedWrite]:
        """The refused writes that still count, by kind/name."""
        self.refused_writes = {
            name: each for name, each in self.refused_writes.items() if each.until > now
        }
        return self.refused_writes

    def remember_pod(self, uid: str, facts: PodFacts, now: float) -> None:
        """Keep a pod that was read."""
        self.pods[uid] = (facts, now)
        while len(self.pods) > PODS_MAX:
            del self.pods[next(iter(self.pods))]

    def remember_node(self, name: str, now: float, *, is_ready: bool | None) -> None:
        """Keep whether a node is ready; the results of other looks that are too old are dropped."""
        self.nodes = {
            other: found for other, found in self.nodes.items() if now - found[1] < NODE_SECONDS
        }
        self.nodes[name] = (is_ready, now)

    def known_nodes(self, now: float) -> dict[str, bool | None]:
        """Whether each node is ready that was read recently."""
        return {
            name: is_ready for name, (is_ready, at) in self.nodes.items() if now - at < NODE_SECONDS
        }

    def known_pod(self, uid: str, now: float) -> PodFacts | None:
        """A pod as it was read, if recent enough; a pod that is gone never returns under its uid."""
        found = self.pods.get(uid)
        if found is None or (found[0].exists and now - found[1] > POD_SECONDS):
            return None
        return found[0]
