"""One SUBSCRIBE on one connection: its deliveries, its requests and its end.

The consumer outlives its link: after a lost connection it makes another one (_consume/stream.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from onewriter._errors import OnewriterError, OutcomeUnknown, Refused, Unavailable, answer_of
from onewriter._transport.connection import Connection
from onewriter_core.wire.commands import message_id_to_proto
from onewriter_core.wire.encoding import encode_ack, encode_flow
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import Delivery, MessageId


class Receiver(Protocol):
    """The stream that a link delivers to. No method blocks or raises."""

    def delivered(self, link: Link, delivery: Delivery, payload: memoryview) -> None:
        """An entry has arrived. ``payload`` is valid only until this method returns."""
        ...

    def active_changed(self, link: Link) -> None:
        """``link.is_active`` has become known, or changed."""
        ...

    def redelivery_answered(self, link: Link, error: OnewriterError | None) -> None:
        """The answer to ``ask_redelivery``; None: the broker has accepted it."""
        ...

    def end_reached(self, link: Link) -> None:
        """``link.is_at_end`` has become true."""
        ...

    def detached(self, link: Link, reason: str) -> None:
        """The broker closed the consumer, or the connection is lost."""
        ...


class Link:
    """Implements ConsumerCallbacks. ``subscribe`` once."""

    def __init__(self, connection: Connection, consumer_id: int, receiver: Receiver) -> None:
        self.connection = connection
        self.consumer_id = consumer_id
        self.is_open = True
        """The broker has not closed it, and the connection is open."""
        self.is_active: bool | None = None
        """Failover subscription: whether this consumer is active; None: not known yet."""
        self.is_at_end = False
        """The topic is terminated, and the subscription has acknowledged all its messages."""
        self._receiver = receiver
        self._answer_timer: asyncio.TimerHandle | None = None

    @property
    def answers_redeliver(self) -> bool:
        """Whether the broker answers requests for redelivery."""
        return self.connection.extensions_version >= 1

    async def subscribe(self, command: pb.CommandSubscribe) -> None:
        """Send SUBSCRIBE. Raises Refused, Unavailable; the broker then keeps no consumer."""
        command.consumer_id = self.consumer_id
        command.request_id = self.connection.next_request_id()
        self.connection.attach_consumer(self.consumer_id, self)
        try:
            await self.connection.request(command)
        except BaseException:
            self.withdraw()
            raise
        if not self.is_open:
            self.withdraw()
            raise Unavailable("the broker closed the consumer immediately")

    def flow(self, permits: int) -> None:
        """Give the broker permits for this number of messages."""
        self.connection.write(encode_flow(self.consumer_id, permits))

    async def redeliver(self, epoch: int | None) -> None:
        """Request redelivery of all unacknowledged messages, before the first permits are given.

        Returns when the broker has accepted the request, or at once if the broker does not answer it. Raises
        Refused, Unavailable.
        """
        command = self._redeliver_command(epoch)
        if self.answers_redeliver:
            await self.connection.request(command)
        else:
            self.connection.say(command)

    def ask_redelivery(self, epoch: int | None, timeout_seconds: float) -> None:
        """As ``redeliver``; the receiver gets the answer in order with the deliveries."""
        command = self._redeliver_command(epoch)
        if self.answers_redeliver:
            self.connection.expect(command.request_id, self)
            loop = asyncio.get_running_loop()
            late = Unavailable(f"no answer within {timeout_seconds:g} s")
            self._answer_timer = loop.call_later(timeout_seconds, self.on_answered, late)
        self.connection.say(command)

    def _redeliver_command(self, epoch: int | None) -> pb.CommandRedeliverUnacknowledgedMessages:
        command = pb.CommandRedeliverUnacknowledgedMessages(
            consumer_id=self.consumer_id, consumer_epoch=epoch
        )
        if self.answers_redeliver:
            command.request_id = self.connection.next_request_id()
        return command

    def redeliver_messages(self, message_ids: Sequence[MessageId]) -> None:
        """Request redelivery of these messages; only Shared subscriptions use the ids."""
        self.connection.say(
            pb.CommandRedeliverUnacknowledgedMessages(
                consumer_id=self.consumer_id,
                message_ids=[message_id_to_proto(each) for each in message_ids],
            )
        )

    async def acknowledge(self, message_ids: Sequence[MessageId], *, is_cumulative: bool) -> None:
        """Acknowledge, and wait until the broker has stored the acknowledgement.

        Raises OutcomeUnknown if there was no answer, Refused and Unavailable if it was not stored.
        """
        connection = self.connection
        request_id = connection.next_request_id()
        frame = encode_ack(self.consumer_id, int(is_cumulative), message_ids, request_id)
        if connection.is_closed:
            raise Unavailable(f"the connection to {connection.address} is lost")
        try:
            answer = await connection.ask(request_id, frame)
        except Unavailable as lost:
            raise OutcomeUnknown(f"whether it is acknowledged is not known: {lost}") from lost
        if not isinstance(answer, pb.CommandAckResponse):
            text = (
                f"whether it is acknowledged is not known: the answer was {type(answer).__name__}"
            )
            raise OutcomeUnknown(text)
        if answer.HasField("error"):
            error = answer_of(answer.error, answer.message)
            raise error if isinstance(error, Refused) else OutcomeUnknown(answer.message)

    def acknowledge_unanswered(
        self, message_ids: Sequence[MessageId], *, is_cumulative: bool
    ) -> None:
        """Acknowledge without waiting for an answer."""
        self.connection.write(encode_ack(self.consumer_id, int(is_cumulative), message_ids))

    async def last_message_id(self) -> pb.CommandGetLastMessageIdResponse:
        """Return the ids of the topic's last message and of the subscription. Raises Refused, Unavailable."""
        answer = await self.connection.request(
            pb.CommandGetLastMessageId(
                consumer_id=self.consumer_id, request_id=self.connection.next_request_id()
            )
        )
        if not isinstance(answer, pb.CommandGetLastMessageIdResponse):
            raise Unavailable(f"a question was answered with {type(answer).__name__}")
        return answer

    async def seek(self, command: pb.CommandSeek) -> None:
        """Move the subscription; the broker closes the link. Raises Refused, Unavailable."""
        command.consumer_id = self.consumer_id
        command.request_id = self.connection.next_request_id()
        await self.connection.request(command)

    async def unsubscribe(self) -> None:
        """Delete the subscription. Raises Refused, Unavailable."""
        await self.connection.request(
            pb.CommandUnsubscribe(
                consumer_id=self.consumer_id, request_id=self.connection.next_request_id()
            )
        )

    async def close(self) -> None:
        """Close the consumer, and wait for the answer. Raises Refused, Unavailable."""
        await self.connection.request(self._close_command())

    def withdraw(self) -> None:
        """Close the consumer at the broker without waiting for an answer."""
        if self.is_open:
            self.connection.say(self._close_command())
        self.release()

    def release(self) -> None:
        """Ignore all further commands."""
        self.is_open = False
        self._stop_timer()
        self.connection.detach_consumer(self.consumer_id)

    def _close_command(self) -> pb.CommandCloseConsumer:
        return pb.CommandCloseConsumer(
            consumer_id=self.consumer_id, request_id=self.connection.next_request_id()
        )

    # ------------------------------------------------------------ ConsumerCallbacks

    def on_delivery(self, delivery: Delivery, payload: memoryview) -> None:
        self._receiver.delivered(self, delivery, payload)

    def on_active(self, *, is_active: bool) -> None:
        self.is_active = is_active
        self._receiver.active_changed(self)

    def on_end_of_topic(self) -> None:
        self.is_at_end = True
        self._receiver.end_reached(self)

    def on_answered(self, error: OnewriterError | None) -> None:
        if self._answer_timer is not None:
            self._stop_timer()
            self._receiver.redelivery_answered(self, error)

    def _stop_timer(self) -> None:
        if self._answer_timer is not None:
            self._answer_timer.cancel()
            self._answer_timer = None

    def on_closed(self) -> None:
        self._end("closed by the broker")

    def on_lost(self, reason: str) -> None:
        self._end(reason)

    def _end(self, reason: str) -> None:
        if self.is_open:
            self.release()
            self._receiver.detached(self, reason)
