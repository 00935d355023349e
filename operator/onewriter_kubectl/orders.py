"""``fence`` and ``handover``: orders for one epoch, and their results.

An order is an annotation of the ExclusiveTopic, so that the rights on that object decide who may give
it. The operator executes it for the named epoch and for no later one. Without an operator, the plugin
can send the order to a broker directly.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from dataclasses import dataclass, field
from typing import Final

from onewriter_core.broker_http import topic_path
from onewriter_core.errors import OnewriterError, Refused, ServerError, Unavailable, Undecided
from onewriter_core.json_values import Json
from onewriter_core.kubernetes.kinds import TOPIC
from onewriter_core.kubernetes.names import FENCE, HANDOVER
from onewriter_core.kubernetes.objects import TopicObject
from onewriter_core.topic_view import parse_producer
from onewriter_kubectl import lookups
from onewriter_kubectl.brokers import Brokers
from onewriter_kubectl.kubectl import Kubectl
from onewriter_kubectl.objects import Event
from onewriter_kubectl.texts import producer_text

POLL_SECONDS: Final = 0.5
"""Interval at which the result of an order is polled."""


@dataclass(frozen=True, slots=True)
class OrderKind:
    """A kind of order: its annotation, the cause of its transition, the reason of its Event."""

    verb: str
    done: str
    annotation: str
    cause: str
    event: str


FENCING: Final = OrderKind("fence", "fenced", FENCE, "FencedByAdministrator", "FencedByOrder")
HANDING_OVER: Final = OrderKind(
    "handover", "handed over", HANDOVER, "Handover", "HandedOverByOrder"
)


@dataclass(frozen=True, slots=True)
class Order:
    """An order to end ``epoch`` of ``topic``. ``to``: the successor of a handover, empty for the first waiter.

    ``mark`` distinguishes the order and its result from an earlier identical order.
    """

    kind: OrderKind
    topic: TopicObject
    epoch: int
    to: str = ""
    mark: str = field(default_factory=lambda: secrets.token_hex(4))

    @property
    def text(self) -> str:
        """The annotation's value."""
        return f"{self.epoch}#{self.mark} {self.to}".strip()


def judged(kind: OrderKind, topic: TopicObject, if_epoch: int | None, to: str = "") -> Order:
    """The order for a topic as it was read.

    Raises Refused if the topic has no holder, if its epoch is not ``if_epoch``, or if no producer waits
    for a handover.
    """
    status, current = topic.status, topic.status.epoch
    if current is None or status.holder is None:
        raise _refused(f"{topic.key} has no writer to {kind.verb}")
    if if_epoch is not None and if_epoch != current:
        raise _refused(f"the epoch of {topic.key} is {current}, not {if_epoch}")
    if kind is HANDING_OVER and not status.waiting:
        raise _refused(f"no producer waits for {topic.key}")
    return Order(kind, topic, current, to)


def question(order: Order) -> str:
    """The question that asks for a confirmation."""
    key, status = order.topic.key, order.topic.status
    who, waiting = producer_text(status.holder), status.waiting or 0
    if order.kind is FENCING:
        after = "the first of them is next" if waiting else "no producer writes after that"
        return f"Fence {who}, epoch {order.epoch} of {key}? {waiting} waiting: {after}"
    to = order.to or "the first of those who wait"
    return f"Hand {key} over from {who}, epoch {order.epoch}, to {to}?"


def by_annotation(kubectl: Kubectl, order: Order, timeout_seconds: float) -> str:
    """Give the order to the operator and wait for the result, a sentence.

    Raises Refused if the order was refused, Undecided if there is no result after ``timeout_seconds``:
    the annotation stays, and an operator executes it later.
    """
    key = order.topic.key
    kubectl = kubectl.within(key.namespace)
    kubectl.text(
        *("annotate", "--overwrite", TOPIC.resource, key.name),
        f"{order.kind.annotation}={order.text}",
        changes=True,
    )
    try:
        done = _awaited(kubectl, order, timeout_seconds)
    except Refused:
        _take_away(kubectl, order)
        raise
    _take_away(kubectl, order)
    return done


def _awaited(kubectl: Kubectl, order: Order, timeout_seconds: float) -> str:
    started = time.monotonic()
    while True:
        elapsed = time.monotonic() - started
        with contextlib.suppress(
            Unavailable
        ):  # the annotation may have been written: read it again
            done = _outcome(kubectl, order)
            if done:
                return done
        if elapsed > timeout_seconds:
            raise Undecided(
                f"result unknown after {timeout_seconds:g} s. The annotation"
                f" {order.kind.annotation} stays: the operator executes the order later if epoch"
                f" {order.epoch} is still current. --direct sends the order to the broker instead"
            )
        time.sleep(POLL_SECONDS)


def _outcome(kubectl: Kubectl, order: Order) -> str:
    """The result; empty while unknown. Raises Refused, and the errors of kubectl."""
    topic = lookups.topic(kubectl, order.topic.key.name)
    current = topic.status.epoch
    if current is not None and current > order.epoch:
        return _ended(order, topic, current)
    for event in reversed(lookups.events(kubectl, topic)):
        if _refuses(event, order):
            raise _refused(event.message)
    return ""


def _ended(order: Order, topic: TopicObject, current: int) -> str:
    """The result if the epoch has ended. Raises Refused if not by this order."""
    later = [each for each in topic.status.transitions if each.epoch > order.epoch]
    first = min(later, key=lambda each: each.epoch, default=None)
    if first is not None and first.cause != order.kind.cause:
        raise _refused(f"epoch {order.epoch} had ended otherwise: {first.cause}")
    return _done(order, current, producer_text(topic.status.holder))


def _refuses(event: Event, order: Order) -> bool:
    """Whether an Event is the operator's refusal of this order."""
    to = f" to {order.to}" if order.to else ""
    prefix = f"Epoch {order.epoch} was to be {order.kind.done}{to} (annotation #{order.mark}):"
    is_about_order = event.reason == order.kind.event and event.message.startswith(prefix)
    return is_about_order and event.is_warning


def _done(order: Order, current: int, writer: str) -> str:
    return f"done: epoch {order.epoch} of {order.topic.key} has ended; {writer} writes, epoch {current}"


def _take_away(kubectl: Kubectl, order: Order) -> None:
    """Remove the annotation if it still contains this order."""
    path = f"/metadata/annotations/{order.kind.annotation.replace('/', '~1')}"
    patch = [
        {"op": "test", "path": path, "value": order.text},
        {"op": "remove", "path": path},
    ]
    key = order.topic.key
    arguments = ("patch", TOPIC.resource, key.name, "--type=json", f"--patch={json.dumps(patch)}")
    try:
        kubectl.text(*arguments, namespace=key.namespace, changes=True)
    except OnewriterError:
        return  # another order has replaced this one


def directly(brokers: Brokers, order: Order) -> str:
    """Send the order to the broker that serves the topic. Raises Refused, Unavailable, Undecided."""
    body: Json = {"ifEpoch": order.epoch}
    if order.to:
        body["to"] = order.to
    answer = brokers.post(f"{topic_path(order.topic.status.topic)}/{order.kind.verb}", body)
    holder = parse_producer(answer.get("holder"))
    who = producer_text(holder) if holder else "the first who waits"
    return _done(order, int(answer["epoch"]), who)


def _refused(message: str) -> Refused:
    return Refused(ServerError.NOT_ALLOWED_ERROR, message)
