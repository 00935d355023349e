"""Visits to ProducerClaims: gathers what is known of their producers, writes the status."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from onewriter_operator.brokers.fleet import Fleet
from onewriter_operator.conditions import condition
from onewriter_operator.declarations import Declarations
from onewriter_operator.documents import (
    CLAIM,
    TOPIC,
    Json,
    Key,
    metadata,
    status_editor,
    uid_of,
)
from onewriter_operator.events import Recorder
from onewriter_operator.kube import Kube
from onewriter_operator.metrics import Metrics
from onewriter_operator.plan.actions import Tell, Visit
from onewriter_operator.plan.claim import plan_claim, topic_of
from onewriter_operator.plan.facts import ClaimFacts
from onewriter_operator.reconcile import status
from onewriter_operator.store import Store
from onewriter_operator.workqueue import GONE

STATUS_FIELDS: Final = frozenset(
    {"observedGeneration", "topic", "epoch", "pod", "producers", "producersOmitted"}
)
"""Fields of the status that nobody else may write."""


class ClaimVisitor:
    """Brings one ProducerClaim forward at a time."""

    def __init__(
        self,
        kube: Kube,
        store: Store,
        declarations: Declarations,
        fleet: Fleet,
        recorder: Recorder,
        metrics: Metrics,
        wall_clock: Callable[[], float],
    ) -> None:
        self._kube = kube
        self._store = store
        self._declarations = declarations
        self._fleet = fleet
        self._recorder = recorder
        self._metrics = metrics
        self._wall_clock = wall_clock
        self._pieces: dict[Key, tuple[str, str, float]] = {}
        self._editors: dict[Key, tuple[str, str]] = {}

    async def visit(self, key: Key) -> float | None:
        """One visit; see workqueue.Visit."""
        document = self._store.get(key)
        if document is None:
            self._pieces.pop(key, None)
            self._editors.pop(key, None)
            self._metrics.claim(key, "")
            return GONE
        plan = plan_claim(self._facts(key, document))
        if plan.status is not None:
            await status.write(self._kube, self._store, CLAIM, document, plan.status)
            document = self._store.get(key) or document
            self._editors[key] = status_editor(document, STATUS_FIELDS)
            self._metrics.claim(key, str(condition(plan.status, "Granted").get("reason", "")))
        for action in plan.actions:
            if isinstance(action, Tell):
                self._recorder.tell(document, action)
        after = [action.after_seconds for action in plan.actions if isinstance(action, Visit)]
        return min(after, default=None)

    def _facts(self, key: Key, document: Json) -> ClaimFacts:
        now = asyncio.get_running_loop().time()
        standing = self._declarations.standing(key)
        view = self._fleet.view(standing.topic) if standing.is_passed_on else None
        piece = self._declarations.piece(key)
        applied = self._fleet.applied(key, piece)
        if self._declarations.is_held_back(document):
            applied = replace(applied, is_held_back=True)
        selected = self._declarations.selected(document)
        editor = status_editor(document, STATUS_FIELDS)
        return ClaimFacts(
            document=document,
            now=self._wall_clock(),
            standing=standing,
            applied=applied,
            brokers=self._fleet.state(),
            topic=self._store.get(
                Key(TOPIC.kind, metadata(document)["namespace"], topic_of(document))
            ),
            view=None if view is None else view.status,
            view_age_seconds=self._fleet.age_seconds(standing.topic),
            is_lost=self._fleet.is_lost(standing.topic),
            pending_seconds=self._pending_seconds(key, document, piece, now),
            pods_selected=None if selected is None else len(selected),
            status_editor=editor[0] if editor != self._editors.get(key) else "",
        )

    def _pending_seconds(self, key: Key, document: Json, piece: str, now: float) -> float:
        known = self._pieces.get(key)
        if known is None or known[:2] != (uid_of(document), piece):
            known = self._pieces[key] = (uid_of(document), piece, now)
        return now - known[2]
