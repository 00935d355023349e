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
from onewriter_core.kubernetes_names import FENCE, HANDOVER
from onewriter_kubectl import lookups
from onewriter_kubectl.brokers import Brokers
from onewriter_kubectl.kubectl import Json, Kubectl
from onewriter_kubectl.objects import TOPIC, epoch, metadata, name, person, status
from onewriter_kubectl.views import NO_PRODUCER

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
    topic: Json
    epoch: int
    to: str = ""
    mark: str = field(default_factory=lambda: secrets.token_hex(4))

    @property
    def text(self) -> str:
        """The annotation's value."""
        return f"{self.epoch}#{self.mark} {self.to}".strip()


def judged(kind: OrderKind, topic: Json, if_epoch: int | None, to: str = "") -> Order:
    """The order for a topic as it was read.

    Raises Refused if the topic has no holder, if its epoch is not ``if_epoch``, or if no producer waits
    for a handover.
    """
    found, current = status(topic), epoch(topic)
    if current is None or not found.get("holder"):
        raise _refused(f"{name(topic)} has no writer to {kind.verb}")
    if if_epoch is not None and if_epoch != current:
        raise _refused(f"the epoch of {name(topic)} is {current}, not {if_epoch}")
    if kind is HANDING_OVER and not found.get("waiting"):
        raise _refused(f"no producer waits for {name(topic)}")
    return Order(kind, topic, current, to)


def question(order: Order) -> str:
    """The question that asks for a confirmation."""
    found = status(order.topic)
    who = person(found["holder"])
    waiting = int(found.get("waiting") or 0)
    if order.kind is FENCING:
        after = "the first of them is next" if waiting else "no producer writes after that"
        return (
            f"Fence {who}, epoch {order.epoch} of {name(order.topic)}? {waiting} waiting: {after}"
        )
    to = order.to or "the first of those who wait"
    return f"Hand {name(order.topic)} over from {who}, epoch {order.epoch}, to {to}?"


def by_annotation(kubectl: Kubectl, order: Order, timeout_seconds: float) -> str:
    """Give the order to the operator and wait for the result, a sentence.

    Raises Refused if the order was refused, Undecided if there is no result after ``timeout_seconds``:
    the annotation stays, and an operator executes it later.
    """
    about = metadata(order.topic)
    kubectl = kubectl.within(order.topic)
    kubectl.text(
        *("annotate", "--overwrite", TOPIC, str(about["name"])),
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
    topic = lookups.topic(kubectl, str(metadata(order.topic)["name"]))
    current = epoch(topic)
    if current is not None and current > order.epoch:
        return _ended(order, topic, current)
    for event in reversed(lookups.events(kubectl, topic)):
        if _refuses(event, order):
            raise _refused(str(event["message"]))
    return ""


def _ended(order: Order, topic: Json, current: int) -> str:
    """The result if the epoch has ended. Raises Refused if not by this order."""
    later = [
        each
        for each in status(topic).get("transitions") or ()
        if int(each.get("epoch") or 0) > order.epoch
    ]
    first = min(later, key=lambda each: int(each["epoch"]), default=None)
    if first is not None and first.get("cause") != order.kind.cause:
        raise _refused(f"epoch {order.epoch} had ended otherwise: {first.get('cause')}")
    holder = status(topic).get("holder")
    return _done(order, current, person(holder) if holder else NO_PRODUCER)


def _refuses(event: Json, order: Order) -> bool:
    """Whether an Event is the operator's refusal of this order."""
    to = f" to {order.to}" if order.to else ""
    prefix = f"Epoch {order.epoch} was to be {order.kind.done}{to} (annotation #{order.mark}):"
    return (
        event.get("reason") == order.kind.event
        and event.get("type") == "Warning"
        and str(event.get("message")).startswith(prefix)
    )


def _done(order: Order, current: int, writer: str) -> str:
    return f"done: epoch {order.epoch} of {name(order.topic)} has ended; {writer} writes, epoch {current}"


def _take_away(kubectl: Kubectl, order: Order) -> None:
    """Remove the annotation if it still contains this order."""
    path = f"/metadata/annotations/{order.kind.annotation.replace('/', '~1')}"
    patch = [
        {"op": "test", "path": path, "value": order.text},
        {"op": "remove", "path": path},
    ]
    about = metadata(order.topic)
    try:
        kubectl.text(
            *("patch", TOPIC, str(about["name"]), "--type=json", f"--patch={json.dumps(patch)}"),
            namespace=str(about["namespace"]),
            changes=True,
        )
    except OnewriterError:
        return  # another order has replaced this one


def directly(brokers: Brokers, order: Order) -> str:
    """Send the order to the broker that serves the topic. Raises Refused, Unavailable, Undecided."""
    topic = str(status(order.topic)["topic"])
    body: Json = {"ifEpoch": order.epoch}
    if order.to:
        body["to"] = order.to
    answer = brokers.post(f"{topic_path(topic)}/{order.kind.verb}", body)
    holder = answer.get("holder")
    who = person(holder) if holder else "the first who waits"
    return _done(order, int(answer["epoch"]), who)


def _refused(message: str) -> Refused:
    return Refused(ServerError.NOT_ALLOWED_ERROR, message)
