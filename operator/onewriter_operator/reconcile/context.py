"""The context of a reconcile: the parts of the operator that it uses, and the facts that they provide."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from typing import TypedDict

from onewriter_core.kubernetes.objects import DeclaredObject, TopicObject
from onewriter_core.topic_view import TopicView
from onewriter_operator.brokers.fleet import Fleet
from onewriter_operator.configuration import OptIn
from onewriter_operator.declarations import Declarations
from onewriter_operator.events import Recorder
from onewriter_operator.kube import Kube
from onewriter_operator.metrics import Metrics
from onewriter_operator.plan.facts import (
    Acceptance,
    Applied,
    FleetState,
    PlanLimits,
    QuotaProblem,
)
from onewriter_operator.reconcile.cache import ObjectCache
from onewriter_operator.reconcile.followed_pods import FollowedPods
from onewriter_operator.store import ObjectCopy


class CommonFacts(TypedDict):
    """The fields of ``plan.facts.Facts`` other than the object itself."""

    now: float
    acceptance: Acceptance
    applied: Applied
    brokers: FleetState
    view: TopicView | None
    view_age_seconds: float
    bucket_waiting: str
    store_away: str
    store_fault: str
    store_full: str
    quota: QuotaProblem | None
    durability_refusal: str | None
    is_lost: bool
    pending_seconds: float
    status_editor: str
    limits: PlanLimits


@dataclass(frozen=True, slots=True)
class ReconcileContext:
    """The parts of the operator that a reconcile needs. ``wall_clock``: Unix time."""

    kube: Kube
    store: ObjectCopy
    declarations: Declarations
    fleet: Fleet
    recorder: Recorder
    metrics: Metrics
    followed: FollowedPods
    wall_clock: Callable[[], float]
    leader_services: OptIn = OptIn(enabled=True)
    pod_deletion: OptIn = OptIn(enabled=True)
    changed: Callable[[str], None] = lambda _topic: None
    plan_limits: PlanLimits = PlanLimits()

    def note_declared_by(self, topic: str, namespace: str) -> None:
        """Record the first namespace that declared a topic: only an object of this namespace may declare it."""
        if self.declarations.declared_by(topic, namespace):
            self.fleet.declare()
            self.changed(topic)

    def facts(
        self, declared: DeclaredObject, cache: ObjectCache, fields: Container[str]
    ) -> CommonFacts:
        """The facts about a declared object. Only the operator may write these ``fields`` of the status."""
        key = declared.key
        acceptance = self.declarations.acceptance(key)
        found = self.fleet.view(acceptance.topic) if isinstance(declared, TopicObject) else None
        if found is not None and found.status.declared_by is not None:
            self.note_declared_by(acceptance.topic, found.status.declared_by)
            acceptance = self.declarations.acceptance(key)
        view = self.fleet.view(acceptance.topic) if acceptance.is_passed_on else None
        waiting = self.fleet.why_waiting(acceptance.topic) if acceptance.is_passed_on else ""
        refusal = None
        if acceptance.is_passed_on and isinstance(declared, TopicObject):
            refusal = self.fleet.why_not_durable(acceptance.topic, declared.spec.durability)
        piece = self.declarations.piece(key)
        applied = self.fleet.applied(key, piece)
        if self.declarations.is_held_back(declared):
            applied = replace(applied, is_held_back=True)
        editor = declared.status_editor(fields)
        return {
            "now": self.wall_clock(),
            "acceptance": acceptance,
            "applied": applied,
            "brokers": self.fleet.state(),
            "view": None if view is None else view.status,
            "view_age_seconds": self.fleet.age_seconds(acceptance.topic),
            "bucket_waiting": waiting,
            "store_away": self.fleet.store_away(),
            "store_fault": self.fleet.store_fault(),
            "store_full": self.fleet.store_full(),
            "quota": self.fleet.quota(acceptance.topic) if acceptance.is_passed_on else None,
            "durability_refusal": refusal,
            "is_lost": self.fleet.is_lost(acceptance.topic),
            "pending_seconds": cache.pending_seconds(piece, asyncio.get_running_loop().time()),
            "status_editor": editor[0] if editor != cache.editor else "",
            "limits": self.plan_limits,
        }
