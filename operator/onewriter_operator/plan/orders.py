"""Orders of a person: annotations that name the epoch which is to end, and no later one. Pure."""

from __future__ import annotations

from typing import Final

from onewriter_operator.documents import FENCE, HANDOVER, annotation
from onewriter_operator.plan.actions import Action, EventReason, Fence, HandOver, Tell, Visit
from onewriter_operator.plan.facts import Ordered, TopicFacts

RETRY_SECONDS: Final = 5.0
"""An order that no broker could be asked for is tried again after so long."""

EPOCH_DIGITS_MAX: Final = 16


def plan_orders(facts: TopicFacts) -> list[Action]:
    """Fences and handovers that are ordered and not done yet, and what came of those that are."""
    return [*_fence(facts), *_handover(facts)]


def order(epoch: int, to: str = "") -> str:
    """What an answer is an answer to."""
    return f"{epoch} {to}".strip()


def _fence(facts: TopicFacts) -> list[Action]:
    epoch = _epoch(annotation(facts.document, FENCE).strip())
    if epoch is None:
        return []
    answer = facts.fence_answer
    if answer is not None and answer.order == order(epoch):
        return _told("FencedByOrder", f"Epoch {epoch} was to be fenced", answer)
    return [Fence(facts.standing.topic, epoch)] if _is_due(facts, epoch) else []


def _handover(facts: TopicFacts) -> list[Action]:
    """EPOCH, or EPOCH and the name of a waiting producer or its claim."""
    number, _, name = annotation(facts.document, HANDOVER).strip().partition(" ")
    epoch, to = _epoch(number), name.strip()
    if epoch is None:
        return []
    answer = facts.handover_answer
    if answer is not None and answer.order == order(epoch, to):
        what = f"Epoch {epoch} was to be handed over{f' to {to}' if to else ''}"
        return _told("HandedOverByOrder", what, answer)
    return [HandOver(facts.standing.topic, epoch, to)] if _is_due(facts, epoch) else []


def _epoch(text: str) -> int | None:
    is_number = text.isascii() and text.isdecimal() and len(text) <= EPOCH_DIGITS_MAX
    return int(text) if is_number else None


def _is_due(facts: TopicFacts, epoch: int) -> bool:
    view = facts.view
    return view is not None and view.get("epoch") == epoch and bool(view.get("holder"))


def _told(reason: EventReason, what: str, answer: Ordered) -> list[Action]:
    """What came of it, said once: a warning is a definite no."""
    is_refused = bool(answer.refusal) and not answer.is_open
    told = Tell(reason, f"{what} (annotation): {answer.refusal or 'done'}", is_warning=is_refused)
    return [
        *([told] if answer.is_news else []),
        *([Visit(RETRY_SECONDS)] if answer.is_open else []),
    ]
