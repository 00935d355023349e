"""Producers, guarded producers and transactions whose calls block."""

from __future__ import annotations

from onewriter._errors import OnewriterError
from onewriter._lead.transaction import Transaction as AsyncTransaction
from onewriter._produce.guarded import Guarded as AsyncGuarded
from onewriter._produce.producer import Producer as AsyncProducer
from onewriter._produce.tenure import ProducerOptions, ProducerState
from onewriter.sync._contexts import Context
from onewriter.sync._facade import (
    Facade,
    Reading,
    blocking,
    calling,
    closing,
    direct,
    submitting,
)
from onewriter_core.ids import TopicName


class Producer(Facade[AsyncProducer]):
    """The blocking form of ``onewriter.Producer``, for any thread. ``Client.create_producer`` returns it."""

    topic: Reading[AsyncProducer, TopicName] = Reading(lambda it: it.topic)
    options: Reading[AsyncProducer, ProducerOptions] = Reading(lambda it: it.options)
    name: Reading[AsyncProducer, str] = Reading(lambda it: it.name)
    epoch: Reading[AsyncProducer, int | None] = Reading(lambda it: it.epoch)
    queue_priority: Reading[AsyncProducer, int] = Reading(lambda it: it.queue_priority)
    guard_is_atomic: Reading[AsyncProducer, bool | None] = Reading(lambda it: it.guard_is_atomic)
    registration: Reading[AsyncProducer, str | None] = Reading(lambda it: it.registration)
    state: Reading[AsyncProducer, ProducerState] = Reading(lambda it: it.state)
    is_ready: Reading[AsyncProducer, bool] = Reading(lambda it: it.is_ready)
    waiting: Reading[AsyncProducer, int] = Reading(lambda it: it.waiting)
    pending_messages: Reading[AsyncProducer, int] = Reading(lambda it: it.pending_messages)
    pending_bytes: Reading[AsyncProducer, int] = Reading(lambda it: it.pending_bytes)
    end: Reading[AsyncProducer, OnewriterError | None] = Reading(lambda it: it.end)
    trouble: Reading[AsyncProducer, OnewriterError | None] = Reading(lambda it: it.trouble)

    ready = blocking(AsyncProducer.ready)
    ended = blocking(AsyncProducer.ended)
    when_ended = calling(AsyncProducer.when_ended)
    waited_for = blocking(AsyncProducer.waited_for)
    verify = blocking(AsyncProducer.verify)
    may_send = direct(AsyncProducer.may_send)
    check_open = direct(AsyncProducer.check_open)

    send = blocking(AsyncProducer.send)
    submit = submitting(AsyncProducer.submit)
    flush = blocking(AsyncProducer.flush)
    close = closing(AsyncProducer.close)
    abandon = closing(AsyncProducer.abandon)


class Guarded(Facade[AsyncGuarded]):
    """The blocking form of ``onewriter.Guarded``, for any thread.

    ``Leadership.guarded`` and ``Ownership.guarded`` return it.
    """

    topic: Reading[AsyncGuarded, str] = Reading(lambda it: it.topic)
    is_closed: Reading[AsyncGuarded, bool] = Reading(lambda it: it.is_closed)
    is_atomic: Reading[AsyncGuarded, bool | None] = Reading(lambda it: it.is_atomic)

    send = blocking(AsyncGuarded.send)
    submit = submitting(AsyncGuarded.submit)
    seal = blocking(AsyncGuarded.seal)
    producer = blocking(AsyncGuarded.producer, Producer)
    close = closing(AsyncGuarded.close)


class Transaction(Context[AsyncTransaction]):
    """As ``onewriter.Transaction``, in a ``with`` statement. Made by ``Leadership.transaction``."""

    send = submitting(AsyncTransaction.send)
    commit = blocking(AsyncTransaction.commit)

    def _leave(self, error: BaseException | None) -> None:
        if error is None:
            self._thread.call(self._inner.__aexit__(None, None, None))
        else:
            self._thread.leave(self._inner.__aexit__(type(error), error, error.__traceback__))
