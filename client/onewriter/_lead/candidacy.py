"""A candidacy leads a topic term after term: queue, lead, lose the topic or hand it over, queue again.

::

    QUEUEING ──▶ LEADING ──▶ QUEUEING ...        after a fence, or its own release
    (not connected, or queued at a broker)
    LEADING ──▶ STEPPING_DOWN ──▶ STANDING_ASIDE ──▶ QUEUEING     release, with or without a pause

Each term has its own producer and an epoch above all earlier ones. A term that is over never returns:
operations that began under it fail, even if the candidate wins the next term at once.
"""

from __future__ import annotations

import asyncio
import enum
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Self

from onewriter._config import Backoff
from onewriter._errors import Closed, Fenced, OnewriterError
from onewriter._lead.leadership import LeaderHost, Leadership
from onewriter._produce.producer import Producer
from onewriter._produce.tenure import AccessMode, ProducerOptions, ProducerState
from onewriter._signal import Signal, notify

REFUSED_MAX_SECONDS = 5.0
"""Longest pause after a broker rejected the candidate, whose ProducerClaim may be created soon."""


class Phase(enum.Enum):
    """The phases of a candidate."""

    QUEUEING = "queueing"
    """Queued at a broker, or connecting (``is_connected`` distinguishes them)."""
    LEADING = "leading"
    STEPPING_DOWN = "stepping-down"
    """Releasing the topic: accepted messages get their receipts, no further messages are accepted."""
    STANDING_ASIDE = "standing-aside"
    """Not queued, because the application released the topic with ``rejoin=False``."""
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A candidate's state at one moment. ``version`` increases with every change.

    ``is_connected``: a broker has the candidate as leader or in its queue. ``latest_epoch``: the highest topic
    epoch that this candidate knows, its own or another's. ``trouble``: why there is no connection.
    ``last_term`` and ``loss``: the latest term that is over, and the reason. ``since``: time of the last
    change, in seconds since 1970.
    """

    version: int
    phase: Phase
    term: Leadership | None
    is_connected: bool
    latest_epoch: int | None
    trouble: str
    last_term: Leadership | None
    loss: OnewriterError | None
    since: float


class Candidacy:
    """A candidate for one topic. Use it in an ``async with`` block inside its client's.

    ``options`` are those of each term's producer; the access mode is WaitForExclusive. ``on_elected`` runs at
    the beginning of each term, before ``lead``, ``terms`` and ``on_change`` report it. If it raises an
    OnewriterError, the term ends; any other exception ends the candidacy, and ``lead`` then raises Closed.
    ``on_change`` is called at once with every new Standing; it must not block. Its exceptions, and the one that
    ended the candidacy, go to the loop's exception handler.
    """

    def __init__(
        self,
        host: LeaderHost,
        topic: str,
        options: ProducerOptions | None = None,
        *,
        on_elected: Callable[[Leadership], Awaitable[None]] | None = None,
        on_change: Callable[[Standing], None] = lambda _standing: None,
    ) -> None:
        options = options or ProducerOptions()
        self._host = host
        self._topic = topic
        self._options = replace(options, access_mode=AccessMode.WAIT_FOR_EXCLUSIVE)
        self._on_elected = on_elected
        self._on_change = on_change
        self._changed = Signal()
        self._wants = asyncio.Event()
        self._wants.set()
        self._runner: asyncio.Task[None] | None = None
        self._producer: Producer | None = None
        self.standing = Standing(
            version=0,
            phase=Phase.QUEUEING,
            term=None,
            is_connected=False,
            latest_epoch=None,
            trouble="",
            last_term=None,
            loss=None,
            since=time.time_ns() / 1e9,
        )

    async def __aenter__(self) -> Self:
        self._runner = self._host.spawn(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def term(self) -> Leadership | None:
        """The current term; None while the candidate does not lead."""
        standing = self.standing
        return standing.term if standing.phase is Phase.LEADING else None

    async def lead(self) -> Leadership:
        """Wait without a limit until the candidate leads, and return its term. Raises Closed."""
        while (term := self.term) is None:
            if self.standing.phase is Phase.CLOSED:
                trouble = self.standing.trouble
                raise Closed(f"the candidacy was closed{trouble and f': {trouble}'}")
            await self._changed.wait()
        return term

    async def terms(self) -> AsyncIterator[Leadership]:
        """Yield each term, until the candidacy is closed."""
        while True:
            try:
                term = await self.lead()
            except Closed:
                return
            yield term
            await self._until_over(term)

    async def change(self, version: int) -> Standing:
        """Wait until the standing is newer than ``version``, and return it."""
        await self._changed.until(lambda: self.standing.version > version)
        return self.standing

    async def release(self, *, rejoin: bool = True, timeout_seconds: float | None = None) -> None:
        """Hand the topic over, after the receipts of sent messages, so that the first waiter leads.

        The candidate then queues again, after all present waiters; with ``rejoin=False`` it stays out of the
        queue until ``rejoin`` is called. Returns when the topic is released; at once if the candidate does
        not lead. ``timeout_seconds`` is as for ``Leadership.handover``.
        """
        if not rejoin:
            self._wants.clear()
        term = self.term
        if term is not None:
            self._update(phase=Phase.STEPPING_DOWN)
            await term.producer.close(timeout_seconds=timeout_seconds)
        elif self.standing.phase is Phase.STEPPING_DOWN:
            await self._changed.until(lambda: self.standing.phase is not Phase.STEPPING_DOWN)
        elif not rejoin and self._producer is not None:
            self._producer.abandon()

    def rejoin(self) -> None:
        """Queue again after ``release(rejoin=False)``."""
        self._wants.set()

    async def close(self, *, timeout_seconds: float | None = None) -> None:
        """Release the topic and end the candidacy."""
        try:
            await self.release(rejoin=False, timeout_seconds=timeout_seconds)
        finally:
            if self._runner is not None:
                self._runner.cancel()
            if self.standing.phase is not Phase.CLOSED:  # otherwise the standing states the reason
                self._update(phase=Phase.CLOSED, term=None, is_connected=False, trouble="")

    # ------------------------------------------------------------ inside

    async def _run(self) -> None:
        backoff = Backoff(max_seconds=REFUSED_MAX_SECONDS)
        has_queued = False
        while True:
            if not self._wants.is_set():
                self._update(phase=Phase.STANDING_ASIDE, term=None, is_connected=False)
                await self._wants.wait()
            self._update(phase=Phase.QUEUEING, term=None)
            if has_queued:
                await asyncio.sleep(self._options.requeue_seconds())
            has_queued = True
            try:
                await self._serve_one_term()
            except OnewriterError as error:
                self._update(trouble=str(error), is_connected=False)
                await asyncio.sleep(backoff.seconds())
            except Exception as error:  # noqa: BLE001 - on_elected's: it ends this candidacy alone
                self._failed(error)
                return
            else:
                backoff.reset()

    def _failed(self, error: Exception) -> None:
        """End the candidacy because the application failed, and report the error to its loop."""
        self._update(phase=Phase.CLOSED, term=None, is_connected=False, trouble=repr(error))
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"onewriter: the candidate for {self._topic} failed", "exception": error}
        )

    async def _serve_one_term(self) -> None:
        """Run one term: queue, lead, lose. Raises if the term never began."""
        producer = self._producer = self._host.start_producer(
            self._topic, self._options, on_change=self._producer_changed
        )
        try:
            try:
                await producer.ready()
            except Closed:
                return  # ``release`` was called
            term = Leadership(producer, self._host)
            self._update(latest_epoch=term.epoch)
            if self._on_elected is not None:
                await self._on_elected(term)
            if not term.is_over:
                self._update(phase=Phase.LEADING, term=term)
            await term.over()
        finally:
            producer.abandon()

    def _producer_changed(self, producer: Producer) -> None:
        """Callback of the producer: it reports a loss in the event-loop tick in which it arrived."""
        standing = self.standing
        if standing.phase is Phase.CLOSED:
            return
        changes: dict[str, Any] = {
            "is_connected": producer.state in {ProducerState.WAITING, ProducerState.READY},
            "trouble": "" if producer.trouble is None else str(producer.trouble),
        }
        if producer.end is not None:
            changes["phase"] = Phase.QUEUEING if self._wants.is_set() else Phase.STANDING_ASIDE
            changes["trouble"] = ""
            if standing.term is not None:
                changes |= {"term": None, "last_term": standing.term, "loss": producer.end}
            if isinstance(producer.end, Fenced) and producer.end.current_epoch is not None:
                changes["latest_epoch"] = producer.end.current_epoch
        self._update(**changes)

    def _update(self, **changes: Any) -> None:
        """Change the standing and report it, unless it is the same as before."""
        standing = replace(self.standing, **changes)
        if standing == self.standing:
            return
        has_moved = standing.phase is not self.standing.phase
        since = time.time_ns() / 1e9 if has_moved else standing.since
        self.standing = replace(standing, version=standing.version + 1, since=since)
        self._changed.notify()
        notify(self._on_change, self.standing)

    async def _until_over(self, term: Leadership) -> None:
        await self._changed.until(lambda: self.term is not term)
