"""A producer's tenure: it acquires the topic, resumes it under the same epoch, or loses it for good.

::

    CONNECTING ──▶ WAITING ──▶ READY ◀──▶ DETACHED     any of them ──▶ ENDED
                  (queued)            (connection lost: the producer asks the
                                       broker to resume under the same epoch)

A granted tenure resumes its epoch or ends; it never acquires a new epoch. To lead again, an application creates
another producer (_lead/leadership.py), so no message can be sent under an epoch that was granted after the
message.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from onewriter._config import Backoff, Limits, requeue_delay_seconds
from onewriter._errors import (
    FINAL_FOR_HOLDERS,
    Closed,
    ConfigurationError,
    Fenced,
    OnewriterError,
    Refused,
    Unavailable,
)
from onewriter._produce.packer import Batching, Compression
from onewriter._produce.registration import Registration, RegistrationOwner
from onewriter._signal import Signal
from onewriter._transport.connection import Connection
from onewriter._transport.lookup import Directory
from onewriter_core.errors import ProtocolError
from onewriter_core.ids import TopicName
from onewriter_core.property_names import (
    IF_EPOCH_PROPERTY,
    PRIORITY_PROPERTY,
    SERVE_SECONDS_PROPERTY,
)
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

log = logging.getLogger("onewriter")

PENDING_MESSAGES_MAX = 1_000
PENDING_BYTES_MAX = 16 * 1024 * 1024
"""Default bounds of the messages without a receipt; ``submit`` waits above them.

They equal what a broker accepts from one producer before it stops reading.
"""

STABLE_SECONDS = 5.0
"""A producer that was ready for this time resumes without a pause."""


class AccessMode(enum.Enum):
    """Access modes of a producer (PIP-68)."""

    SHARED = pb.SHARED
    EXCLUSIVE = pb.EXCLUSIVE
    WAIT_FOR_EXCLUSIVE = pb.WAIT_FOR_EXCLUSIVE
    EXCLUSIVE_WITH_FENCING = pb.EXCLUSIVE_WITH_FENCING


class ProducerState(enum.Enum):
    """States of a producer; see the diagram of this module."""

    CONNECTING = "connecting"
    WAITING = "waiting"
    READY = "ready"
    DETACHED = "detached"
    """It was ready and lost its connection; it asks the broker to resume under the same epoch."""
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """Options of a producer.

    ``name``: the producer's name; the broker assigns one if it is empty.

    ``queue_priority``: order of the topic's queue, higher first (PIP-440). Brokers other than onewriter's ignore
    it and grant in the order of arrival.

    ``if_epoch``: a takeover succeeds only while the topic epoch equals this number (onewriter only).

    ``properties``: further properties of the producer.

    ``pending_messages_max``, ``pending_bytes_max``: bounds of the messages without a receipt.

    ``send_timeout_seconds``: default time limit of ``send``.

    ``batching``: limits of batches; None: each message is an entry of its own.

    ``chunking``: a message that is larger than the broker's limit is split into several entries, outside of
    any batch. Readers receive it completely or not at all.

    ``requeue_delay``: returns the seconds to wait before the producer queues again after a lost connection; it
    must not block. None, an exception, or a value that is negative, infinite or not a number (both are logged):
    the delay of PIP-440 by priority. A resume is never delayed.

    ``serve_seconds`` (at most 3): the leader may serve until a deadline, and its successor is granted the
    topic only after it (``Leadership.may_serve``). None: the leader has to check each time.

    ``is_grouped``: the producer of a partition competes together with the producers of the other partitions
    that have the same name and connection, so that one epoch leads all of them. ``Client.lead`` sets it.
    """

    access_mode: AccessMode = AccessMode.SHARED
    name: str = ""
    queue_priority: int | None = None
    if_epoch: int | None = None
    properties: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    pending_messages_max: int = PENDING_MESSAGES_MAX
    pending_bytes_max: int = PENDING_BYTES_MAX
    send_timeout_seconds: float = 30.0
    batching: Batching | None = None
    compression: Compression = Compression.NONE
    chunking: bool = False
    requeue_delay: Callable[[], float] | None = None
    serve_seconds: float | None = None
    is_grouped: bool = False

    def requeue_seconds(self) -> float:
        """Return the seconds to wait before the producer queues again; each call draws a new value."""
        if self.requeue_delay is not None:
            try:
                return _checked_delay(self.requeue_delay())
            except Exception:
                log.exception("requeue_delay failed, so the default delay counts")
        if self.access_mode is not AccessMode.WAIT_FOR_EXCLUSIVE:
            return 0.0  # these modes do not queue, so there is no other waiter to let pass
        return requeue_delay_seconds(self.queue_priority or 0)

    @property
    def is_exclusive(self) -> bool:
        """Whether the access mode excludes other producers."""
        return self.access_mode is not AccessMode.SHARED


def _checked_delay(seconds: float) -> float:
    """Return the application's delay. Raises TypeError or ValueError if it is not a finite time."""
    if not 0 <= seconds < math.inf:  # false for nan, too
        raise ValueError(f"{seconds!r} is not a timeout in seconds")
    return float(seconds)


class Tenant(RegistrationOwner, Protocol):
    """The producer of a tenure. No method blocks or raises."""

    def granted(self, answer: pb.CommandProducerSuccess) -> None:
        """The producer may write, for the first time or again. Called before any waiting task is woken."""
        ...

    def changed(self) -> None:
        """The state or the trouble has changed."""
        ...

    def ended_with(self, end: OnewriterError, ended_by: Connection | None) -> None:
        """The tenure has ended; ``ended_by`` is the connection whose broker ended it. Called once."""
        ...


class Tenure:
    """The states of one producer. ``run`` it in a task; ``stop`` ends it from outside."""

    def __init__(
        self,
        topic: TopicName,
        options: ProducerOptions,
        producer_id: int,
        *,
        directory: Directory,
        limits: Limits,
        tenant: Tenant,
    ) -> None:
        self.name = options.name
        self.epoch: int | None = None
        self.state = ProducerState.CONNECTING
        self.end: OnewriterError | None = None
        self.trouble: OnewriterError | None = None
        self.was_ready = False
        self.link: Registration | None = None
        """The registration that may write; None unless READY."""
        self.changes = Signal()
        self._topic = topic
        self._options = options
        self._producer_id = producer_id
        self._directory = directory
        self._limits = limits
        self._tenant = tenant
        self._attempts = 0
        self._carried_epoch: int | None = None
        """The epoch in the next PRODUCER command, in every mode; it distinguishes a resume from a first request."""
        self._registration: Registration | None = None

    async def run(self) -> None:
        """Register until the topic is granted, and resume after each lost connection; return at the end."""
        backoff = Backoff()
        now = asyncio.get_running_loop().time
        try:
            while self.end is None:
                if self._attempts > 0 and self.epoch is None and self._options.is_exclusive:
                    await asyncio.sleep(self._options.requeue_seconds())
                try:
                    await self._register()
                except (OnewriterError, ProtocolError) as error:
                    if self._is_final(error):
                        self.stop(error)
                        return
                    self.trouble = error
                    was_granted = self.was_ready or self.epoch is not None
                    self._enter(ProducerState.DETACHED if was_granted else ProducerState.CONNECTING)
                    await asyncio.sleep(backoff.seconds())
                    continue
                ready_at = now()
                await self.changes.until(lambda: self.link is None)
                if now() - ready_at > STABLE_SECONDS:
                    backoff.reset()
                else:
                    await asyncio.sleep(backoff.seconds())
        except Exception as defect:
            self.stop(Closed(f"the producer failed: {defect!r}"))
            raise

    def stop(self, end: OnewriterError) -> None:
        """End the tenure for this reason."""
        if self.end is not None:
            return
        self.end = end
        self.link = None
        registration = self._registration
        ended_by = None
        if isinstance(end, Fenced) and registration is not None:
            ended_by = registration.connection
        self._tenant.ended_with(end, ended_by)
        if registration is not None:
            registration.withdraw()
        self._enter(ProducerState.ENDED)

    async def leave(self, link: Registration) -> bool:
        """Release the topic after the last receipt. False: the connection was lost or closed before."""
        try:
            await link.close()
        except (Unavailable, Refused):
            return False
        if self.link is not link:
            return False
        link.release()
        return True

    # ------------------------------------------------------------ inside

    def _is_final(self, error: OnewriterError) -> bool:
        """Whether the error is permanent, so that the producer must not register again."""
        if isinstance(error, Fenced) and not self.was_ready and self.epoch is not None:
            # Granted, and lost again before the application knew: queue again.
            self.epoch = self._carried_epoch = None
            return self._options.access_mode is not AccessMode.WAIT_FOR_EXCLUSIVE
        if self.epoch is not None or self.was_ready:
            return isinstance(error, Refused) and error.code in FINAL_FOR_HOLDERS
        return isinstance(error, Refused | ConfigurationError)

    async def _register(self) -> None:
        """Register once, for a grant or a resume; return when the producer may write."""
        self._attempts += 1
        connection = await self._directory.owner_of(self._topic)
        is_named_alone = self._topic.partition is not None and not self._options.is_grouped
        if is_named_alone or (self._attempts == 1 and not self._options.is_grouped):
            await self._directory.check_partitions(connection, self._topic)
        if self._registration is not None:
            self._registration.release()
        registration = Registration(
            connection, self._producer_id, self._tenant, on_detached=self._detached
        )
        self._registration = registration
        asked_at = connection.now()
        registration.ask(self._command())
        answer = await self._first_answer(registration, asked_at)
        self.name = answer.producer_name or self.name
        if not answer.producer_ready:
            answer = await self._turn(registration)
        self._take_epoch(registration, answer)
        # The process may have been frozen since the grant, which may be outdated by now.
        await connection.prove()
        if not registration.is_open:
            raise Unavailable("the broker closed the producer immediately")
        self._became_ready(registration, answer)

    async def _first_answer(
        self, registration: Registration, asked_at: float
    ) -> pb.CommandProducerSuccess:
        seconds = self._limits.request_timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                answer = await registration.answer()
        except TimeoutError as error:
            registration.withdraw()
            raise Unavailable(f"no answer to PRODUCER within {seconds:g} s") from error
        registration.connection.note_proof(asked_at)
        return answer

    async def _turn(self, registration: Registration) -> pb.CommandProducerSuccess:
        """Wait in the topic's queue without a limit."""
        if self.epoch is not None:
            # A holder that is queued has lost the topic (Pulsar does that): it must not wait for a new grant.
            registration.withdraw()
            raise Fenced("the topic has another writer", epoch=self.epoch)
        self.trouble = None
        self._enter(ProducerState.WAITING)
        return await registration.ready()

    def _take_epoch(self, registration: Registration, answer: pb.CommandProducerSuccess) -> None:
        granted = answer.topic_epoch if answer.HasField("topic_epoch") else None
        if not self._options.is_exclusive:
            self._carried_epoch = granted
            return
        if self.epoch is not None and granted != self.epoch:
            registration.withdraw()
            raise Fenced(
                f"the broker granted epoch {granted} instead of resuming {self.epoch}",
                epoch=self.epoch,
                current_epoch=granted,
            )
        self.epoch = self._carried_epoch = granted

    def _became_ready(self, registration: Registration, answer: pb.CommandProducerSuccess) -> None:
        self.link = registration
        self.trouble = None
        self._tenant.granted(answer)
        self.was_ready = True
        self._enter(ProducerState.READY)

    def _detached(self, registration: Registration, reason: str) -> None:
        if self.link is registration:
            self.link = None
            self.trouble = Unavailable(reason)
            self._enter(ProducerState.DETACHED)

    def _command(self) -> pb.CommandProducer:
        options = self._options
        properties = dict(options.properties)
        if options.queue_priority is not None:
            properties.setdefault(PRIORITY_PROPERTY, str(options.queue_priority))
        if options.if_epoch is not None and self.epoch is None:
            properties.setdefault(IF_EPOCH_PROPERTY, str(options.if_epoch))
        if options.serve_seconds is not None:
            properties.setdefault(SERVE_SECONDS_PROPERTY, f"{options.serve_seconds:g}")
        return pb.CommandProducer(
            topic=str(self._topic),
            producer_name=self.name or None,
            user_provided_producer_name=bool(options.name),
            producer_access_mode=options.access_mode.value,
            topic_epoch=self._carried_epoch,
            epoch=self._attempts - 1,
            metadata=[pb.KeyValue(key=name, value=value) for name, value in properties.items()],
        )

    def _enter(self, state: ProducerState) -> None:
        self.state = state
        self.changes.notify()
        self._tenant.changed()
