"""The SDK for programs without an event loop: the same names, and calls that block.

::

    import onewriter.sync

    with onewriter.sync.Client("pulsar://127.0.0.1:6650") as client:
        with client.lead("orders", priority=10) as leadership:
            while not leadership.lost.is_set():
                leadership.send(b"only I can write this")

Each client has one thread, in which its event loop runs; it keeps connections alive and hears of
losses while the program computes. Every method may be called from any thread. Errors are those of
``onewriter``. Callbacks run in that thread: they must not block, nor call anything that does.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from onewriter._checks import Check
from onewriter._client import Client as AsyncClient
from onewriter._config import Limits, Tls, TokenSource
from onewriter._errors import Closed, OnewriterError
from onewriter._ids import EARLIEST, MessageId
from onewriter._lead import Lead as AsyncLead
from onewriter._leader import LeaderInfo
from onewriter._leadership import ANNOUNCE_SECONDS
from onewriter._leadership import Leadership as AsyncLeadership
from onewriter._leadership import Loss as AsyncLoss
from onewriter._message import Message
from onewriter._producer import Producer as AsyncProducer
from onewriter._reader import Reader as AsyncReader
from onewriter._reader import ReaderOptions
from onewriter._tenure import ProducerOptions, ProducerState

__all__ = ["Client", "Lead", "Leadership", "Loss", "Producer", "Reader"]

Result = TypeVar("Result")

Receipt = concurrent.futures.Future[MessageId]


class _Thread:
    """An event loop in a thread of its own, and the client that lives in it."""

    def __init__(self, make: Callable[[], AsyncClient]) -> None:
        self._make = make
        self._started: concurrent.futures.Future[AsyncClient] = concurrent.futures.Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._lock = threading.Lock()
        self._is_stopping = False
        self._running: set[concurrent.futures.Future[Any]] = set()
        """One for each thread that is in ``call``."""
        self._thread = threading.Thread(target=self._run, name="onewriter-client", daemon=True)

    def start(self) -> AsyncClient:
        """Raises what making the client raises."""
        self._thread.start()
        return self._started.result()

    def stop(self) -> None:
        """Close the client and wait until its thread has ended."""
        with self._lock:
            was_stopping, self._is_stopping = self._is_stopping, True
            # The loop cannot be closed before its own thread has had the lock, see _live.
            if self._loop is not None and self._stop is not None and not was_stopping:
                self._loop.call_soon_threadsafe(self._stop.set)
        if self._thread.ident is not None:
            self._thread.join()

    def call(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run it in the loop and wait. Whatever interrupts the waiting cancels it."""
        if threading.current_thread() is self._thread:
            work.close()
            raise Closed("a callback must not call what blocks")
        with self._lock:
            if self._loop is None or self._is_stopping:
                work.close()
                raise Closed("the client is not open")
            running = asyncio.run_coroutine_threadsafe(work, self._loop)
            self._running.add(running)
        try:
            return running.result()
        except concurrent.futures.CancelledError:
            raise Closed("the client was closed") from None
        except BaseException:
            running.cancel()
            raise
        finally:
            with self._lock:
                self._running.discard(running)

    def leave(self, work: Coroutine[Any, Any, None]) -> None:
        """As ``call``, for what the end of the client does as well: then wait for that."""
        try:
            self.call(work)
        except Closed:
            if not self._is_stopping or threading.current_thread() is self._thread:
                raise
            self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._live())
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)
        finally:
            self._fail_running()

    async def _live(self) -> None:
        try:
            async with self._make() as client:
                self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
                self._started.set_result(client)
                await self._stop.wait()
        finally:
            with self._lock:
                self._is_stopping = True
            await asyncio.sleep(0)  # calls taken before that become tasks, which are cancelled

    def _fail_running(self) -> None:
        """The loop is closed: what it has not answered, it never will."""
        with self._lock:
            running = list(self._running)
        for each in running:
            with contextlib.suppress(concurrent.futures.InvalidStateError):  # it was answered
                each.set_exception(Closed("the client was closed"))


class Client:
    """As ``onewriter.Client``, for a ``with`` statement."""

    def __init__(
        self,
        service_url: str,
        *,
        token: str | Path | TokenSource | None = None,
        tls: Tls | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._thread = _Thread(
            lambda: AsyncClient(service_url, token=token, tls=tls, limits=limits)
        )
        self._client: AsyncClient | None = None

    def __enter__(self) -> Self:
        self._client = self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._thread.stop()

    def create_producer(
        self,
        topic: str,
        options: ProducerOptions | None = None,
        *,
        timeout_seconds: float | None = None,
    ) -> Producer:
        """A producer that may write; see ``onewriter.Client.create_producer``."""
        client = self._open()
        made = self._thread.call(
            client.create_producer(topic, options, timeout_seconds=timeout_seconds)
        )
        return Producer(made, self._thread)

    def lead(
        self,
        topic: str,
        *,
        priority: int | None = None,
        identity: str = "",
        metadata: Any = None,
        announce: bool = True,
        timeout_seconds: float | None = None,
        handover_timeout_seconds: float | None = None,
        on_lost: Callable[[OnewriterError], None] | None = None,
        options: ProducerOptions | None = None,
    ) -> Lead:
        """``with client.lead(topic) as leadership``; see ``onewriter.Client.lead``."""
        asked = self._open().lead(
            topic,
            priority=priority,
            identity=identity,
            metadata=metadata,
            announce=announce,
            timeout_seconds=timeout_seconds,
            handover_timeout_seconds=handover_timeout_seconds,
            on_lost=on_lost,
            options=options,
        )
        return Lead(asked, self._thread)

    def leader(self, topic: str) -> LeaderInfo | None:
        """Who leads, as it says itself; see ``onewriter.Client.leader``."""
        return self._thread.call(self._open().leader(topic))

    def check(self, topic: str, epoch: int | None = None) -> Check:
        """Have the broker prove which epoch is current; see ``onewriter.Client.check``."""
        return self._thread.call(self._open().check(topic, epoch))

    def create_reader(
        self,
        topic: str,
        start: MessageId = EARLIEST,
        options: ReaderOptions | None = None,
        *,
        is_inclusive: bool = False,
        timeout_seconds: float | None = None,
    ) -> Reader:
        """A reader that begins behind ``start``; see ``onewriter.Client.create_reader``."""
        made = self._thread.call(
            self._open().create_reader(
                topic, start, options, is_inclusive=is_inclusive, timeout_seconds=timeout_seconds
            )
        )
        return Reader(made, self._thread)

    def _open(self) -> AsyncClient:
        if self._client is None:
            raise Closed("the client is not open: use it in a with statement")
        return self._client


class Producer:
    """As ``onewriter.Producer``. Made by ``Client.create_producer``; for any thread."""

    def __init__(self, producer: AsyncProducer, thread: _Thread) -> None:
        self._producer = producer
        self._thread = thread

    @property
    def epoch(self) -> int | None:
        """The topic epoch that it was granted; None for Shared producers."""
        return self._producer.epoch

    @property
    def queue_priority(self) -> int:
        """Its place in the waiting line; cannot be changed afterwards."""
        return self._producer.queue_priority

    @property
    def state(self) -> ProducerState:
        """Where it stands."""
        return self._producer.state

    @property
    def end(self) -> OnewriterError | None:
        """Why it ended; None while it lives."""
        return self._producer.end

    def send(
        self,
        content: bytes,
        *,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        ordering_key: bytes | None = None,
        event_time_ms: int = 0,
        timeout_seconds: float | None = None,
    ) -> MessageId:
        """Append one message; where it stands. Raises as ``onewriter.Producer.send`` does."""
        return self._thread.call(
            self._producer.send(
                content,
                key=key,
                properties=properties,
                ordering_key=ordering_key,
                event_time_ms=event_time_ms,
                timeout_seconds=timeout_seconds,
            )
        )

    def submit(
        self,
        content: bytes,
        *,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        ordering_key: bytes | None = None,
        event_time_ms: int = 0,
    ) -> Receipt:
        """Hand a message in once there is room, and get the future of its receipt."""

        async def hand_in() -> Receipt:
            submitted = await self._producer.submit(
                content,
                key=key,
                properties=properties,
                ordering_key=ordering_key,
                event_time_ms=event_time_ms,
            )
            told: Receipt = concurrent.futures.Future()
            told.set_running_or_notify_cancel()  # it cannot be taken back
            submitted.add_done_callback(lambda receipt: _pass_on(receipt, told))
            return told

        return self._thread.call(hand_in())

    def flush(self) -> None:
        """Send what is being gathered, and wait for all receipts so far."""
        self._thread.call(self._producer.flush())

    def close(self, *, timeout_seconds: float | None = None) -> None:
        """See through what was sent, and leave the topic. Idempotent."""
        self._thread.leave(self._producer.close(timeout_seconds=timeout_seconds))


class Reader:
    """As ``onewriter.Reader``; for any thread. Made by ``Client.create_reader``."""

    def __init__(self, reader: AsyncReader, thread: _Thread) -> None:
        self._reader = reader
        self._thread = thread

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def next(self, *, timeout_seconds: float | None = None) -> Message:
        """The next message, however long it takes. Raises NoMessage after ``timeout_seconds``."""
        return self._thread.call(self._reader.next(timeout_seconds=timeout_seconds))

    def has_message_available(self) -> bool:
        """Whether there is a message that was not handed out."""
        return self._thread.call(self._reader.has_message_available())

    def last_message_id(self) -> MessageId | None:
        """The topic's last message; None: it holds none."""
        return self._thread.call(self._reader.last_message_id())

    def close(self) -> None:
        """Leave. Idempotent."""
        self._thread.leave(self._reader.close())


class Loss:
    """As ``onewriter.Loss``, for any thread."""

    def __init__(self, lost: AsyncLoss, thread: _Thread) -> None:
        self._lost = lost
        self._thread = thread

    @property
    def reason(self) -> OnewriterError | None:
        """Why it is over; None while it is not."""
        return self._lost.reason

    def is_set(self) -> bool:
        """Whether it is over."""
        return self._lost.is_set()

    def wait(self, timeout_seconds: float | None = None) -> OnewriterError | None:
        """Wait until it is over; why. None when it was not in that time."""

        async def wait() -> OnewriterError | None:
            try:
                async with asyncio.timeout(timeout_seconds):
                    return await self._lost.wait()
            except TimeoutError:
                return None

        return self._thread.call(wait())

    def call(self, callback: Callable[[OnewriterError], None]) -> None:
        """Call it, in the client's thread, once it is over; at once if it is."""

        async def ask() -> None:
            self._lost.call(callback)

        self._thread.call(ask())


class Leadership:
    """As ``onewriter.Leadership``, for any thread."""

    def __init__(self, leadership: AsyncLeadership, thread: _Thread) -> None:
        self._leadership = leadership
        self._thread = thread
        self.producer = Producer(leadership.producer, thread)
        self.lost = Loss(leadership.lost, thread)

    @property
    def epoch(self) -> int:
        """Above that of every earlier leader."""
        return self._leadership.epoch

    @property
    def topic(self) -> str:
        """The topic's full name."""
        return self._leadership.topic

    @property
    def session(self) -> str:
        """Epoch and nonce in one word, for those who act on the leader's behalf."""
        return self._leadership.session

    @property
    def is_over(self) -> bool:
        """Whether it is known to be lost or given up."""
        return self._leadership.is_over

    def send(
        self,
        content: bytes,
        *,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        ordering_key: bytes | None = None,
        event_time_ms: int = 0,
        timeout_seconds: float | None = None,
    ) -> MessageId:
        """Append one message under this epoch; see Producer.send."""
        return self.producer.send(
            content,
            key=key,
            properties=properties,
            ordering_key=ordering_key,
            event_time_ms=event_time_ms,
            timeout_seconds=timeout_seconds,
        )

    def check(self) -> Check:
        """Have the broker prove that we lead; see ``onewriter.Leadership.check``."""
        return self._thread.call(self._leadership.check())

    def announce(
        self, metadata: Any = None, *, timeout_seconds: float = ANNOUNCE_SECONDS
    ) -> MessageId:
        """Publish who leads, and what a successor needs."""
        return self._thread.call(
            self._leadership.announce(metadata, timeout_seconds=timeout_seconds)
        )

    def handover(self, *, timeout_seconds: float | None = None) -> None:
        """See through what was sent, leave, and let the next in line lead."""
        self._thread.call(self._leadership.handover(timeout_seconds=timeout_seconds))


class Lead:
    """Made by ``Client.lead``; enter it once, in a ``with`` statement."""

    def __init__(self, asked: AsyncLead, thread: _Thread) -> None:
        self._asked = asked
        self._thread = thread

    def __enter__(self) -> Leadership:
        return Leadership(self._thread.call(self._asked.__aenter__()), self._thread)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._thread.call(self._asked.__aexit__(kind, error, traceback))


def _pass_on(receipt: asyncio.Future[MessageId], told: Receipt) -> None:
    if receipt.cancelled():
        told.set_exception(Closed("the client was closed"))
        return
    error = receipt.exception()
    if error is not None:
        told.set_exception(error)
    else:
        told.set_result(receipt.result())
