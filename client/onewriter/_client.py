"""The client: one service URL, its connections, and the tasks of everything made from it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import Self

from onewriter._config import ClientOptions, Limits, Tls, TokenSource, fixed_token, token_file
from onewriter._errors import Closed, ConfigurationError, Unavailable
from onewriter._lookup import Directory
from onewriter._producer import Producer
from onewriter._tenure import AccessMode, ProducerOptions
from onewriter_core.ids import InvalidTopicName, TopicName


class Client:
    """Connections to the brokers of one service URL. ``async with`` it, in one task.

    ``service_url`` is ``pulsar://HOST:PORT,...`` or ``pulsar+ssl://...``. ``token`` is the text of a
    token, a path (a file that is read anew at each connection and whenever a broker asks), or a
    coroutine function that gives one. Raises ConfigurationError for a wrong URL.
    """

    def __init__(
        self,
        service_url: str,
        *,
        token: str | Path | TokenSource | None = None,
        tls: Tls | None = None,
        limits: Limits | None = None,
        version: str = "onewriter-python",
    ) -> None:
        self._options = ClientOptions(
            token=_token_source(token),
            tls=tls or Tls(),
            limits=limits or Limits(),
            version=version,
        )
        self._tasks = asyncio.TaskGroup()
        self._running: set[asyncio.Task[None]] = set()
        self._directory = Directory(service_url, self._options, self.spawn)
        self._producers: dict[Producer, None] = {}
        self._producer_ids = itertools.count(1)
        self._is_open = False

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._is_open = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_open = False
        for producer in list(self._producers):
            producer.abandon()
        await self._directory.close()
        for task in list(self._running):
            task.cancel()
        # The group would wrap what the application raised; only its own cancellation concerns it.
        if isinstance(error, asyncio.CancelledError):
            await self._tasks.__aexit__(kind, error, traceback)
        else:
            await self._tasks.__aexit__(None, None, None)

    def spawn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Run something that ends with the client at the latest; its failure ends the client."""
        task = self._tasks.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def start_producer(
        self,
        topic: str,
        options: ProducerOptions | None = None,
        *,
        on_change: Callable[[Producer], None] = lambda _producer: None,
    ) -> Producer:
        """A producer that begins to ask for its topic; ``ready`` waits until it may write.

        ``on_change`` is called at once whenever its state or its trouble changes; it must not
        block or raise. Raises ConfigurationError for a wrong name, Closed.
        """
        if not self._is_open:
            raise Closed("the client is not open: use it in an async with statement")
        try:
            name = TopicName.parse(topic)
        except InvalidTopicName as error:
            raise ConfigurationError(str(error)) from error
        producer = Producer(
            name,
            options or ProducerOptions(),
            next(self._producer_ids),
            directory=self._directory,
            limits=self._options.limits,
            spawn=self.spawn,
            on_change=on_change,
        )
        self._producers[producer] = None
        self.spawn(self._forget_when_ended(producer))
        return producer

    async def create_producer(
        self,
        topic: str,
        options: ProducerOptions | None = None,
        *,
        timeout_seconds: float | None = None,
        on_change: Callable[[Producer], None] = lambda _producer: None,
    ) -> Producer:
        """A producer that may write; with WaitForExclusive as long as it takes, without any limit.

        Other modes are given up after ``timeout_seconds`` (``Limits.operation_timeout_seconds``).
        Raises Fenced or Refused when the broker says no, Unavailable when there was no answer in
        time, and what ``start_producer`` raises. Whoever stops waiting (a time-out, a cancellation)
        leaves no registration behind.
        """
        producer = self.start_producer(topic, options, on_change=on_change)
        seconds = timeout_seconds
        if seconds is None and producer.options.access_mode is not AccessMode.WAIT_FOR_EXCLUSIVE:
            seconds = self._options.limits.operation_timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                await producer.ready()
        except TimeoutError as error:
            trouble = producer.trouble or "it is not its turn"
            producer.abandon()
            raise Unavailable(f"no producer for {topic} within {seconds:g} s: {trouble}") from error
        except BaseException:
            producer.abandon()
            raise
        return producer

    async def _forget_when_ended(self, producer: Producer) -> None:
        await producer.ended()
        del self._producers[producer]


def _token_source(token: str | Path | TokenSource | None) -> TokenSource | None:
    match token:
        case None:
            return None
        case str():
            return fixed_token(token)
        case Path():
            return token_file(token)
        case _:
            return token
