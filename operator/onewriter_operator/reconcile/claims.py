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
from onewriter_operator.plan.actions import Tell, Visit
from onewriter_operator.plan.claim import plan_claim, topic_of
from onewriter_operator.plan.facts import ClaimFacts
from onewriter_operator.reconcile import status
from onewriter_operator.reconcile.memory import Recollection
from onewriter_operator.reconcile.surroundings import Surroundings
from onewriter_operator.workqueue import GONE

STATUS_FIELDS: Final = frozenset(
    {"observedGeneration", "topic", "epoch", "pod", "producers", "producersOmitted"}
)
"""Fields of the status that nobody else may write."""


class ClaimVisitor:
    """Brings one ProducerClaim forward at a time."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._around = surroundings
        self._memories: dict[Key, tuple[str, Recollection]] = {}

    async def visit(self, key: Key) -> float | None:
        """One visit; see workqueue.Visit."""
        around = self._around
        document = around.store.get(key)
        if document is None:
            self._memories.pop(key, None)
            around.metrics.claim(key, "")
            return GONE
        memory = self._memory(key, document)
        plan = plan_claim(self._facts(document, memory))
        if plan.status is not None:
            await status.write(around.kube, around.store, CLAIM, document, plan.status)
            document = around.store.get(key) or document
            memory.editor = status_editor(document, STATUS_FIELDS)
            around.metrics.claim(key, str(condition(plan.status, "Granted").get("reason", "")))
        for action in plan.actions:
            if isinstance(action, Tell):
                around.recorder.tell(document, action)
        after = [action.after_seconds for action in plan.actions if isinstance(action, Visit)]
        return min(after, default=None)

    def _memory(self, key: Key, document: Json) -> Recollection:
        """What is remembered of this very object, and of none that had its name before."""
        uid = uid_of(document)
        if key not in self._memories or self._memories[key][0] != uid:
            self._memories[key] = (uid, Recollection())
        return self._memories[key][1]

    def _facts(self, document: Json, memory: Recollection) -> ClaimFacts:
        around = self._around
        topic = Key(TOPIC.kind, metadata(document)["namespace"], topic_of(document))
        selected = around.declarations.selected(document)
        return ClaimFacts(
            **around.facts(document, memory, STATUS_FIELDS),
            topic=around.store.get(topic),
            pods_selected=None if selected is None else len(selected),
        )
