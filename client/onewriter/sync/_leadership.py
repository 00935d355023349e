"""Leaderships whose calls block: waiting for a term, one term, its loss."""

from __future__ import annotations

import asyncio
from typing import Any

from onewriter._errors import OnewriterError
from onewriter._lead.announcement import LeaderInfo
from onewriter._lead.lead import Lead as AsyncLead
from onewriter._lead.leadership import Leadership as AsyncLeadership
from onewriter._lead.leadership import Loss as AsyncLoss
from onewriter._produce.guarded import GuardedBy
from onewriter.sync._contexts import Opening
from onewriter.sync._facade import Facade, Reading, blocking, calling, closing, direct, submitting
from onewriter.sync._producer import Guarded, Producer, Transaction
from onewriter.sync._thread import Thread


class Loss(Facade[AsyncLoss]):
    """As ``onewriter.Loss``, for any thread. Its callbacks run in the client's thread."""

    reason: Reading[AsyncLoss, OnewriterError | None] = Reading(lambda it: it.reason)

    is_set = direct(AsyncLoss.is_set)
    call = calling(AsyncLoss.call)

    def wait(self, timeout_seconds: float | None = None) -> OnewriterError | None:
        """Wait until it is over, and return the reason; None after ``timeout_seconds``."""

        async def wait() -> OnewriterError | None:
            try:
                async with asyncio.timeout(timeout_seconds):
                    return await self._inner.wait()
            except TimeoutError:
                return None

        return self._thread.call(wait())


class Leadership(Facade[AsyncLeadership]):
    """As ``onewriter.Leadership``, for any thread."""

    topic: Reading[AsyncLeadership, str] = Reading(lambda it: it.topic)
    epoch: Reading[AsyncLeadership, int] = Reading(lambda it: it.epoch)
    nonce: Reading[AsyncLeadership, str] = Reading(lambda it: it.nonce)
    session: Reading[AsyncLeadership, str] = Reading(lambda it: it.session)
    identity: Reading[AsyncLeadership, str] = Reading(lambda it: it.identity)
    metadata: Reading[AsyncLeadership, Any] = Reading(lambda it: it.metadata)
    is_over: Reading[AsyncLeadership, bool] = Reading(lambda it: it.is_over)
    predecessor: Reading[AsyncLeadership, LeaderInfo | None] = Reading(lambda it: it.predecessor)
    registration: Reading[AsyncLeadership, str | None] = Reading(lambda it: it.registration)
    waiting: Reading[AsyncLeadership, int] = Reading(lambda it: it.waiting)
    guard: Reading[AsyncLeadership, GuardedBy] = Reading(lambda it: it.guard)
    serve_until: Reading[AsyncLeadership, float] = Reading(lambda it: it.serve_until)

    def __init__(self, inner: AsyncLeadership, thread: Thread) -> None:
        super().__init__(inner, thread)
        self.producer = Producer(inner.producer, thread)
        self.partitions = tuple(Producer(each, thread) for each in inner.partitions)
        self.lost = Loss(inner.lost, thread)

    over = blocking(AsyncLeadership.over)
    handover = closing(AsyncLeadership.handover)

    send = blocking(AsyncLeadership.send)
    submit = submitting(AsyncLeadership.submit)
    info = direct(AsyncLeadership.info)
    announcement = direct(AsyncLeadership.announcement)
    announce = blocking(AsyncLeadership.announce)

    capability = direct(AsyncLeadership.capability)
    spark_options = direct(AsyncLeadership.spark_options)

    check_held = direct(AsyncLeadership.check_held)
    check = blocking(AsyncLeadership.check)
    may_serve = direct(AsyncLeadership.may_serve)
    guarded = calling(AsyncLeadership.guarded, Guarded)
    seal = blocking(AsyncLeadership.seal)
    transaction = calling(AsyncLeadership.transaction, Transaction)


class Lead(Opening[AsyncLead, Leadership]):
    """The context manager that ``Client.lead`` returns; enter it once, in a ``with`` statement."""

    def _sibling_of(self, opened: AsyncLeadership) -> Leadership:
        return Leadership(opened, self._thread)
