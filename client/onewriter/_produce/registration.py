"""One PRODUCER command on one connection: asked, waiting, ready, and how it ends.

The producer outlives it: after a lost connection it makes another one (_produce/tenure.py).
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
    """Whoever writes under a registration. No method blocks or raises."""

    def received(self, receipt: SendReceipt) -> None:
        """A message is stored."""
        ...

    def send_refused(self, error: pb.CommandSendError) -> None:
        """A message is refused."""
        ...

    def writable(self) -> None:
        """Go on writing."""
        ...

    def queue_changed(self) -> None:
        """Another number of candidates waits behind it."""
        ...


class Registration:
    """Implements ProducerEnd. ``ask`` once, then ``answer``, then ``ready``.

    ``on_detached`` is called when it was ready and is closed or lost, with the reason.
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
        """The broker has neither refused nor closed it, and the connection lives."""
        self.waiting = 0
        """How many wait behind it, once it is granted; 0 where the broker does not tell."""
        self._producer_id = producer_id
        self._writer = writer
        self._on_detached = on_detached
        self._request_id = 0
        loop = asyncio.get_running_loop()
        self._answer: asyncio.Future[pb.CommandProducerSuccess] = loop.create_future()
        self._ready: asyncio.Future[pb.CommandProducerSuccess] = loop.create_future()

    @property
    def producer_id(self) -> int:
        """What requests on its connection call the producer."""
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
        """The first answer: ready or not. Raises what the broker refused with, Unavailable."""
        return await asyncio.shield(self._answer)

    async def ready(self) -> pb.CommandProducerSuccess:
        """The answer that says ready, however long it takes. Raises as ``answer`` does."""
        return await asyncio.shield(self._ready)

    def release(self) -> None:
        """Another registration takes over: nothing that still comes is for this one."""
        self.is_open = False
        self.connection.detach(self._producer_id, self._request_id)
        self._fail(Unavailable("given up"))

    def withdraw(self) -> None:
        """Tell the broker that we do not want it any more, without waiting for an answer."""
        if self.is_open:
            self.connection.say(self._close_command())
        self.release()

    async def close(self) -> None:
        """Leave in order: the broker answers once all that was sent before is stored and answered.

        Raises Unavailable when the connection is lost before.
        """
        await self.connection.request(self._close_command())

    def _close_command(self) -> pb.CommandCloseProducer:
        return pb.CommandCloseProducer(
            producer_id=self._producer_id, request_id=self.connection.next_request_id()
        )

    # ------------------------------------------------------------ ProducerEnd

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
        # It stays attached: receipts of what was stored before may still come.
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
                future.exception()  # perhaps nobody waits for it
