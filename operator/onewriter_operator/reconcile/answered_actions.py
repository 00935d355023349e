"""Actions whose answers a plan needs: look-ups, fences, handovers, and removals of pods and logs.

A missing answer also becomes a result (``Unconfirmed``, ``is_open``, not known), so that the reconcile continues
and writes the status.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final

import structlog

from onewriter_core.kubernetes.kinds import NODE
from onewriter_core.kubernetes.objects import TopicObject
from onewriter_operator.brokers.client import BrokerRefused, BrokerUnreachable
from onewriter_operator.kube import ApiRefused
from onewriter_operator.plan.actions import (
    Action,
    DeleteLog,
    Fence,
    HandOver,
    LookUpNode,
    LookUpPod,
    LookUpTopic,
    RemovePod,
)
from onewriter_operator.plan.facts import DeletionResult, OrderResult, PodFacts, RemovalAttempt
from onewriter_operator.plan.fenced import came_back
from onewriter_operator.reconcile import removal
from onewriter_operator.reconcile.api_calls import api_answer
from onewriter_operator.reconcile.cache import TopicCache
from onewriter_operator.reconcile.context import ReconcileContext

UNCONFIRMED_SECONDS: Final = 5.0
"""Delay before brokers that could not say whether a fenced pod has registered again are asked again."""

log = structlog.get_logger(__name__)


def has_answer(action: Action) -> bool:
    """Whether the plan needs the action's answer."""
    kinds = LookUpTopic | LookUpPod | LookUpNode | Fence | HandOver | DeleteLog | RemovePod
    return isinstance(action, kinds)


class AnsweredActions:
    """Performs these actions and keeps the answers in the topic's cache."""

    def __init__(self, context: ReconcileContext) -> None:
        self._context = context

    async def perform(
        self, declared: TopicObject, topic: str, cache: TopicCache, action: Action
    ) -> None:
        """Perform an action of an ExclusiveTopic for the Pulsar topic ``topic``. Raises RetryLater."""
        now = asyncio.get_running_loop().time
        match action:
            case LookUpTopic(topic):
                cache.stored = await self._context.fleet.stored(topic)
                if cache.stored.is_known:
                    self._context.note_declared_by(topic, cache.stored.declared_by)
                    self._context.declarations.admit(declared)
                    self._context.fleet.declare()
            case LookUpPod(namespace, name, uid):
                cache.remember_pod(uid, await self._pod(namespace, name, uid), now())
            case LookUpNode(name):
                cache.remember_node(name, now(), is_ready=await self._is_node_ready(name))
            case RemovePod():
                former = cache.attempts.get(action.fence)
                count = 0 if former is None else former[0].count
                attempt = await self._remove(topic, action, count)
                cache.attempts[action.fence] = (attempt, now())
            case Fence(topic, epoch, order):
                cache.fence = await _ordered(order, self._context.fleet.fence(topic, epoch))
            case HandOver(topic, epoch, to, order):
                handing = self._context.fleet.hand_over(topic, epoch, to)
                cache.handover = await _ordered(order, handing)
            case DeleteLog():
                cache.deletion = (await self._delete(action, declared.key.namespace), now())
            case _:
                raise AssertionError(f"the plan needs no answer of {action}")

    async def _pod(self, namespace: str, name: str, uid: str) -> PodFacts:
        """A pod; without the right to read pods, the operator assumes that it exists."""
        try:
            return await api_answer(removal.look_up(self._context.kube, namespace, name, uid))
        except ApiRefused as refused:
            log.warning("pod.unreadable", namespace=namespace, pod=name, reason=str(refused))
            return PodFacts()

    async def _is_node_ready(self, name: str) -> bool | None:
        """Whether a node is ready; False if it is gone, None without the right to read nodes."""
        try:
            return removal.is_ready(await api_answer(self._context.kube.get(NODE, "", name)))
        except ApiRefused as refused:
            log.warning("node.unreadable", node=name, reason=str(refused))
            return None

    async def _remove(self, topic: str, action: RemovePod, count: int) -> RemovalAttempt:
        """Remove a pod unless it registered again: asks the broker, because its stream may lag.

        ``count``: attempts that the API server has answered.
        """
        try:
            view = await self._context.fleet.confirm(topic)
        except (BrokerRefused, BrokerUnreachable) as error:
            log.info("eviction.unconfirmed", pod=action.name, reason=str(error))
            return RemovalAttempt("Unconfirmed", count, retry_after_seconds=UNCONFIRMED_SECONDS)
        uid, _, epoch = action.fence.rpartition("@")
        if came_back(view, uid, int(epoch)):
            return RemovalAttempt("CameBack", count)
        return await removal.remove(self._context.kube, action, count + 1)

    async def _delete(self, action: DeleteLog, namespace: str) -> DeletionResult:
        try:
            is_gone = await self._context.fleet.delete(
                action.topic, only_if_empty=action.only_if_empty, declared_by=namespace
            )
        except (BrokerRefused, BrokerUnreachable) as error:
            return DeletionResult("Failed", str(error))
        return DeletionResult("Deleted" if is_gone else "NotEmpty")


async def _ordered(what: str, call: Awaitable[None]) -> OrderResult:
    """Send an order; its result."""
    try:
        await call
    except BrokerRefused as refused:
        return OrderResult(what, "; ".join(refused.errors), is_news=True)
    except BrokerUnreachable as error:
        return OrderResult(what, f"unknown yet: {error}", is_news=True, is_open=True)
    return OrderResult(what, is_news=True)
