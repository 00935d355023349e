"""Requests of a connection that wait for something. Their number is bounded, and each one is
answered.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Protocol

from onewriter_broker.log.store.api import BrokenKey
from onewriter_broker.log.store.blocks import MalformedBlock
from onewriter_broker.quotas.requests import RequestsInFlight
from onewriter_broker.topic.registry.loaded_topic import Detection
from onewriter_core.errors import OnewriterError, Refused, ServerError
from onewriter_core.ids import InvalidTopicName
from onewriter_core.wire import replies
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

REQUESTS_MAX = 200
"""Requests of one connection that are handled concurrently. At this number, the broker stops
reading from the connection until half of them are answered. Clients may send tens of thousands of
look-ups at once, and none is refused."""


class Link(Protocol):
    """The socket, as seen by the session."""

    detection: Detection | None
    """When the connection counts as silent; None if no exclusive producer depends on it."""
    may_only_resume: bool
    """The client may only return to topics that it holds, because its proof of identity permits no more."""
    last_inbound: float
    """Time of the last received byte, in the clock of ``Clients.now``."""

    @property
    def extensions_version(self) -> int:
        """The version of onewriter's own commands that the client understands; 0: send it none."""
        ...

    @property
    def has_space(self) -> bool: ...

    async def wait_for_space(self) -> None:
        """Return once ``has_space``, or when the connection is closed."""
        ...

    def is_silent_since(self, moment: float) -> bool:
        """Whether the peer has sent nothing since then, although the broker was reading."""
        ...

    def write(self, *parts: bytes | memoryview) -> None:
        """Queue for sending, in order, at the end of this tick of the event loop."""
        ...

    def close(self, reason: str) -> None:
        """Send what is queued, then close."""
        ...

    def auth_response(self, command: pb.CommandAuthResponse) -> None:
        """Handle the client's answer to a request for a new token."""
        ...

    def spawn(self, work: Coroutine[object, object, None]) -> None:
        """Run a task of this connection. It continues after the connection is closed, until the broker stops."""
        ...

    def pending_changed(self, difference: int) -> None:
        """Add to the bytes that are received but not answered yet."""
        ...

    def hold_back(self) -> None:
        """Read slowly: a message arrived for a log whose share of the store is used up."""
        ...

    def resume(self) -> None:
        """Handle commands again, if ``Session.must_wait`` is over."""
        ...


class Opening:
    """A producer or consumer whose topic is still being loaded."""

    __slots__ = ("is_cancelled", "priority", "request_id")

    def __init__(self, request_id: int, priority: int = 0) -> None:
        self.request_id = request_id
        self.priority = priority
        self.is_cancelled = False


class Requests:
    """The requests of one connection that are being handled."""

    def __init__(
        self,
        link: Link,
        in_flight: RequestsInFlight,
        subject: str,
        *,
        requests_max: int = REQUESTS_MAX,
    ) -> None:
        """``in_flight`` counts the requests of all connections; ``subject`` is the subject that
        this connection's requests count for.
        """
        self._requests_max = requests_max
        self._link = link
        self._in_flight = in_flight
        self._subject = subject
        self._count = 0
        self.is_full = False
        """No further request may begin. The link is notified when one may begin again."""

    def run(self, request_id: int, work: Coroutine[object, object, None]) -> None:
        """Run a request; an exception becomes its answer."""
        self.beside(self._answered(request_id, work))

    def beside(self, work: Coroutine[object, object, None]) -> None:
        """Run a request that always answers by itself."""
        self._count += 1
        self._in_flight.begin(self._subject)
        has_space = self._in_flight.has_space(self._subject)
        if not has_space:
            self._in_flight.wait(self._subject, self._space_freed)
        self.is_full = self._count >= self._requests_max or not has_space
        self._link.spawn(self._counted(work))

    async def _counted(self, work: Coroutine[object, object, None]) -> None:
        try:
            await work
        finally:
            self._count -= 1
            self._in_flight.end(self._subject)
            self._space_freed()

    def _space_freed(self) -> None:
        if not self.is_full or self._count > self._requests_max // 2:
            return
        if self._in_flight.has_space(self._subject):
            self.is_full = False
            self._link.resume()
        else:
            self._in_flight.wait(self._subject, self._space_freed)

    def lost(self) -> None:
        """The connection is closed."""
        self._in_flight.leave(self._subject, self._space_freed)

    async def _answered(self, request_id: int, work: Coroutine[object, object, None]) -> None:
        try:
            await work
        except (OnewriterError, InvalidTopicName) as error:
            self._link.write(error_reply(request_id, error))


def code_of(error: Exception) -> ServerError:
    """The wire code of an error that answers a request."""
    match error:
        case Refused():
            return error.code
        case InvalidTopicName():
            return ServerError.INVALID_TOPIC_NAME
        case MalformedBlock() | BrokenKey():
            return ServerError.PERSISTENCE_ERROR  # a retry cannot help until the data is repaired
        case _:
            return ServerError.SERVICE_NOT_READY


def error_reply(request_id: int, error: Exception) -> bytes:
    """The ERROR frame for an exception."""
    return replies.error(request_id, code_of(error), str(error))
