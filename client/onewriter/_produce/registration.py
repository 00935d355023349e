"""One PRODUCER command on one connection: sent, queued, ready, and ended.

The producer outlives its registration: after a lost connection it makes another one (_produce/tenure.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from onewriter._errors import OnewriterError, Unavailable
from onewriter._transport.connection import Connection
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import SendReceipt


class RegistrationOwner(Protocol):
    """The producer that writes under a registration. No method blocks or raises."""

    def received(self, receipt: SendReceipt) -> None:
        """The broker has stored an entry."""
        ...

    def send_refused(self, error: pb.CommandSendError) -> None:
        """The broker has rejected an entry."""
        ...

    def writable(self) -> None:
        """Continue writing."""
        ...

    def queue_changed(self) -> None:
        """The number of producers in the topic's queue has changed."""
        ...


class Registration:
    """Implements ProducerCallbacks. ``ask`` once, then ``answer``, then ``ready``.

    It calls ``on_detached`` with the reason when a ready registration is closed or lost.
    """

    def __init__(
        self,
        connection: Connection,
        producer_id: int,
        writer: RegistrationOwner,
        on_detached: Callable[[Registration, str], None],
    ) -> None:
        self.connection = connection
        self.is_open = True
        """The broker has neither rejected nor closed it, and the connection is open."""
        self.waiting = 0
        """Number of producers in the topic's queue after the grant; 0 if the broker does not report it."""
        self._producer_id = producer_id
        self._writer = writer
        self._on_detached = on_detached
        self._request_id = 0
        loop = asyncio.get_running_loop()
        self._answer: asyncio.Future[pb.CommandProducerSuccess] = loop.create_future()
        self._ready: asyncio.Future[pb.CommandProducerSuccess] = loop.create_future()

    @property
    def producer_id(self) -> int:
        """The producer's id in commands on its connection."""
        return self._producer_id

    def ask(self, command: pb.CommandProducer) -> None:
        """Send the command, with a producer id and request id of this connection."""
        self._request_id = self.connection.next_request_id()
        command.producer_id = self._producer_id
        command.request_id = self._request_id
        if self.connection.is_closed:
            self.on_lost("closed")
            return
        self.connection.attach(self._producer_id, self._request_id, self)
        self.connection.say(command)

    async def answer(self) -> pb.CommandProducerSuccess:
        """Return the first answer, ready or queued. Raises the broker's refusal, Unavailable."""
        return await asyncio.shield(self._answer)

    async def ready(self) -> pb.CommandProducerSuccess:
        """Wait without a limit for the answer that grants the topic. Raises as ``answer`` does."""
        return await asyncio.shield(self._ready)

    def release(self) -> None:
        """Ignore all further commands, because another registration replaces this one."""
        self.is_open = False
        self.connection.detach(self._producer_id, self._request_id)
        self._fail(Unavailable("given up"))

    def withdraw(self) -> None:
        """Close the producer at the broker without waiting for an answer."""
        if self.is_open:
            self.connection.say(self._close_command())
        self.release()

    async def close(self) -> None:
        """Close the producer. The broker answers after the receipts of all entries sent before.

        Raises Unavailable if the connection is lost before that.
        """
        await self.connection.request(self._close_command())

    def _close_command(self) -> pb.CommandCloseProducer:
        return pb.CommandCloseProducer(
            producer_id=self._producer_id, request_id=self.connection.next_request_id()
        )

    # ------------------------------------------------------------ ProducerCallbacks

    def on_success(self, answer: pb.CommandProducerSuccess) -> None:
        if not self._answer.done():
            self._answer.set_result(answer)
        if answer.producer_ready and not self._ready.done():
            self._ready.set_result(answer)

    def on_error(self, error: OnewriterError) -> None:
        self.is_open = False
        self._fail(error)

    def on_receipt(self, receipt: SendReceipt) -> None:
        self._writer.received(receipt)

    def on_send_error(self, error: pb.CommandSendError) -> None:
        self._writer.send_refused(error)

    def on_queue_changed(self, waiting: int) -> None:
        self.waiting = waiting
        self._writer.queue_changed()

    def on_closed(self) -> None:
        # The registration stays attached: receipts of stored entries may still arrive.
        self._end("closed by the broker")

    def on_lost(self, reason: str) -> None:
        self._end(reason)

    def on_writable(self) -> None:
        self._writer.writable()

    def _end(self, reason: str) -> None:
        if not self.is_open:
            return
        self.is_open = False
        was_ready = self._ready.done()
        self._fail(Unavailable(reason))
        if was_ready:
            self._on_detached(self, reason)

    def _fail(self, error: OnewriterError) -> None:
        for future in (self._answer, self._ready):
            if not future.done():
                future.set_exception(error)
                future.exception()  # mark it as retrieved: no caller may wait for it
