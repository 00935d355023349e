"""Orders of an administrator, as annotations. An order names the epoch that it ends, and affects no later one. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from onewriter_core.kubernetes.names import FENCE, HANDOVER
from onewriter_operator.plan.actions import (
    Action,
    EmitEvent,
    EventReason,
    Fence,
    HandOver,
    RequeueAfter,
)
from onewriter_operator.plan.facts import OrderResult, TopicFacts

RETRY_SECONDS: Final = 5.0
"""Delay before an order that no broker answered is sent again."""

EPOCH_DIGITS_MAX: Final = 16

MARK_LENGTH_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class _Order:
    """An annotation's value: ``EPOCH[#MARK] [NAME]``.

    The answer repeats the mark, which distinguishes a repeated order from the first one.
    """

    text: str
    epoch: int
    mark: str
    name: str


def plan_orders(facts: TopicFacts) -> list[Action]:
    """The ordered fences and handovers that are not executed yet, and the results of the others."""
    return [*_fence(facts), *_handover(facts)]


def _fence(facts: TopicFacts) -> list[Action]:
    order = _read(facts.declared.annotation(FENCE))
    if order is None or order.name:
        return []
    answer = facts.fence_answer
    if answer is not None and answer.order == order.text:
        return _reported("FencedByOrder", "fenced", order, answer)
    if not _is_due(facts, order):
        return []
    return [Fence(facts.acceptance.topic, order.epoch, order.text)]


def _handover(facts: TopicFacts) -> list[Action]:
    """The order may name the successor: a waiting producer or its claim."""
    order = _read(facts.declared.annotation(HANDOVER))
    if order is None:
        return []
    answer = facts.handover_answer
    if answer is not None and answer.order == order.text:
        to = f" to {order.name}" if order.name else ""
        return _reported("HandedOverByOrder", f"handed over{to}", order, answer)
    if not _is_due(facts, order):
        return []
    return [HandOver(facts.acceptance.topic, order.epoch, order.name, order.text)]


def _read(text: str) -> _Order | None:
    """The order of an annotation; None if the value is not an order."""
    head, _, name = text.strip().partition(" ")
    number, _, mark = head.partition("#")
    if not (number.isascii() and number.isdecimal() and len(number) <= EPOCH_DIGITS_MAX):
        return None
    return _Order(text.strip(), int(number), mark[:MARK_LENGTH_MAX], name.strip())


def _is_due(facts: TopicFacts, order: _Order) -> bool:
    view = facts.view
    return view is not None and view.epoch == order.epoch and view.holder is not None


def _reported(reason: EventReason, what: str, order: _Order, answer: OrderResult) -> list[Action]:
    """Report the result once, as a warning if the broker refused."""
    is_refused = bool(answer.refusal) and not answer.is_open
    source = f"annotation #{order.mark}" if order.mark else "annotation"
    note = f"Epoch {order.epoch} was to be {what} ({source}): {answer.refusal or 'done'}"
    event = EmitEvent(reason, note, is_warning=is_refused, is_answer=True)
    return [
        *([event] if answer.is_news else []),
        *([RequeueAfter(RETRY_SECONDS)] if answer.is_open else []),
    ]
