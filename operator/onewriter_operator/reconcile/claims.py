"""Visits to ProducerClaims: gathers what is known of their producers, writes the status."""

from __future__ import annotations

from typing import Final

from onewriter_operator.conditions import condition
from onewriter_operator.documents import (
    CLAIM,
    TOPIC,
    Json,
    Key,
    metadata,
    status_editor,
    uid_of,
)
from onewriter_operator.plan.actions import EmitEvent, RequeueAfter
from onewriter_operator.plan.claim import plan_claim, topic_of
from onewriter_operator.plan.facts import ClaimFacts
from onewriter_operator.reconcile import status
from onewriter_operator.reconcile.cache import ObjectCache
from onewriter_operator.reconcile.context import ReconcileContext
from onewriter_operator.workqueue import GONE

STATUS_FIELDS: Final = frozenset(
    {"observedGeneration", "topic", "epoch", "pod", "producers", "producersOmitted"}
)
"""Fields of the status that nobody else may write."""


class ClaimReconciler:
    """Brings one ProducerClaim forward at a time."""

    def __init__(self, context: ReconcileContext) -> None:
        self._context = context
        self._caches: dict[Key, tuple[str, ObjectCache]] = {}

    async def reconcile(self, key: Key) -> float | None:
        """One visit; see workqueue.Reconcile."""
        context = self._context
        document = context.store.get(key)
        if document is None:
            self._caches.pop(key, None)
            context.metrics.claim(key, "")
            return GONE
        cache = self._cache_of(key, document)
        plan = plan_claim(self._facts(document, cache))
        if plan.status is not None:
            await status.write(context.kube, context.store, CLAIM, document, plan.status)
            document = context.store.get(key) or document
            cache.editor = status_editor(document, STATUS_FIELDS)
            context.metrics.claim(key, str(condition(plan.status, "Granted").get("reason", "")))
        for action in plan.actions:
            if isinstance(action, EmitEvent):
                context.recorder.emit(document, action)
        after = [
            action.after_seconds for action in plan.actions if isinstance(action, RequeueAfter)
        ]
        return min(after, default=None)

    def _cache_of(self, key: Key, document: Json) -> ObjectCache:
        """What is remembered of this very object, and of none that had its name before."""
        uid = uid_of(document)
        if key not in self._caches or self._caches[key][0] != uid:
            self._caches[key] = (uid, ObjectCache())
        return self._caches[key][1]

    def _facts(self, document: Json, cache: ObjectCache) -> ClaimFacts:
        context = self._context
        topic = Key(TOPIC.kind, metadata(document)["namespace"], topic_of(document))
        selected = context.declarations.selected(document)
        return ClaimFacts(
            **context.facts(document, cache, STATUS_FIELDS),
            topic=context.store.get(topic),
            pods_selected=None if selected is None else len(selected),
        )
