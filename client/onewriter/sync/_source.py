"""Consumers and readers whose calls block."""

from __future__ import annotations

from typing import Self, TypeVar

from onewriter._consume.consumer import Consumer as AsyncConsumer
from onewriter._consume.consumer import ConsumerOptions
from onewriter._consume.reader import Reader as AsyncReader
from onewriter._consume.reader import ReaderOptions
from onewriter._consume.source import MessageSource as AsyncMessageSource
from onewriter._errors import OnewriterError
from onewriter._message import Message, MessageId
from onewriter.sync._contexts import Context, next_of
from onewriter.sync._facade import Reading, blocking, calling, closing
from onewriter_core.ids import TopicName

Source_co = TypeVar("Source_co", bound=AsyncMessageSource, covariant=True)


class MessageSource(Context[Source_co]):
    """The common base of consumers and readers: iterate over the messages in a ``with`` statement."""

    topic: Reading[AsyncMessageSource, TopicName] = Reading(lambda it: it.topic)
    is_attached: Reading[AsyncMessageSource, bool] = Reading(lambda it: it.is_attached)
    has_reached_end_of_topic: Reading[AsyncMessageSource, bool] = Reading(
        lambda it: it.has_reached_end_of_topic
    )
    end: Reading[AsyncMessageSource, OnewriterError | None] = Reading(lambda it: it.end)
    trouble: Reading[AsyncMessageSource, OnewriterError | None] = Reading(lambda it: it.trouble)

    ready = blocking(AsyncMessageSource.ready)
    changed = blocking(AsyncMessageSource.changed)
    ended = blocking(AsyncMessageSource.ended)
    last_message_id = blocking(AsyncMessageSource.last_message_id)
    close = closing(AsyncMessageSource.close)
    abandon = closing(AsyncMessageSource.abandon)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        return next_of(self._thread, self._inner.__anext__())

    def _leave(self, _error: BaseException | None) -> None:
        self.close()


class Consumer(MessageSource[AsyncConsumer]):
    """As ``onewriter.Consumer``, for any thread. Created by ``Client.subscribe``."""

    subscription: Reading[AsyncConsumer, str] = Reading(lambda it: it.subscription)
    options: Reading[AsyncConsumer, ConsumerOptions] = Reading(lambda it: it.options)
    name: Reading[AsyncConsumer, str] = Reading(lambda it: it.name)
    is_active: Reading[AsyncConsumer, bool] = Reading(lambda it: it.is_active)
    keeps_order: Reading[AsyncConsumer, bool] = Reading(lambda it: it.keeps_order)

    receive = blocking(AsyncConsumer.receive)
    receive_nowait = calling(AsyncConsumer.receive_nowait)
    has_message_available = blocking(AsyncConsumer.has_message_available)
    acknowledge = blocking(AsyncConsumer.acknowledge)
    acknowledge_cumulative = blocking(AsyncConsumer.acknowledge_cumulative)
    acknowledge_soon = calling(AsyncConsumer.acknowledge_soon)
    negative_acknowledge = calling(AsyncConsumer.negative_acknowledge)
    redeliver_unacknowledged = blocking(AsyncConsumer.redeliver_unacknowledged)
    seek = blocking(AsyncConsumer.seek)
    unsubscribe = blocking(AsyncConsumer.unsubscribe)


class Reader(MessageSource[AsyncReader]):
    """As ``onewriter.Reader``, for any thread. Created by ``Client.create_reader``."""

    options: Reading[AsyncReader, ReaderOptions] = Reading(lambda it: it.options)
    position: Reading[AsyncReader, MessageId | None] = Reading(lambda it: it.position)

    next = blocking(AsyncReader.next)
    next_nowait = calling(AsyncReader.next_nowait)
    has_message_available = blocking(AsyncReader.has_message_available)
    seek = blocking(AsyncReader.seek)
