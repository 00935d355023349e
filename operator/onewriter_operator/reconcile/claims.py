"""Reconciles ProducerClaims: gathers the facts, writes the status."""

from __future__ import annotations

from typing import Final

from onewriter_core.kubernetes.kinds import (
    CLAIM,
    Key,
)
from onewriter_core.kubernetes.objects import ClaimObject, parse_claim_status
from onewriter_operator.plan.actions import EmitEvent, RequeueAfter
from onewriter_operator.plan.claim import plan_claim
from onewriter_operator.plan.facts import ClaimFacts
from onewriter_operator.reconcile import status
from onewriter_operator.reconcile.cache import ObjectCache
from onewriter_operator.reconcile.context import ReconcileContext
from onewriter_operator.workqueue import GONE

STATUS_FIELDS: Final = frozenset(
    {"observedGeneration", "topic", "epoch", "pod", "producers", "producersOmitted"}
)
"""Fields of the status that only the operator may write."""


class ClaimReconciler:
    """Reconciles one ProducerClaim at a time."""

    def __init__(self, context: ReconcileContext) -> None:
        self._context = context
        self._caches: dict[Key, tuple[str, ObjectCache]] = {}

    async def reconcile(self, key: Key) -> float | None:
        """Reconcile a claim; see workqueue.Reconcile."""
        context = self._context
        claim = context.store.claim(key)
        if claim is None:
            self._caches.pop(key, None)
            context.metrics.claim(key, "")
            return GONE
        cache = self._cache_of(claim)
        plan = plan_claim(self._facts(claim, cache))
        if plan.status is not None:
            shown = parse_claim_status(plan.status)
            left = await status.write(context.kube, context.store, CLAIM, claim, plan.status)
            cache.editor = left.status_editor(STATUS_FIELDS)
            context.metrics.claim(key, shown.condition("Granted").reason)
        for action in plan.actions:
            if isinstance(action, EmitEvent):
                context.recorder.emit(claim, action)
        after = [
            action.after_seconds for action in plan.actions if isinstance(action, RequeueAfter)
        ]
        return min(after, default=None)

    def _cache_of(self, claim: ClaimObject) -> ObjectCache:
        """The cache of this object. A deleted object with the same name had its own cache, which is dropped."""
        key, uid = claim.key, claim.uid
        if key not in self._caches or self._caches[key][0] != uid:
            self._caches[key] = (uid, ObjectCache())
        return self._caches[key][1]

    def _facts(self, claim: ClaimObject, cache: ObjectCache) -> ClaimFacts:
        context = self._context
        selected = context.declarations.selected(claim)
        return ClaimFacts(
            declared=claim,
            **context.facts(claim, cache, STATUS_FIELDS),
            topic=context.store.topic(claim.topic_key),
            pods_selected=None if selected is None else len(selected),
        )
