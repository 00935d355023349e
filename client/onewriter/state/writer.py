"""The writer of a shared state: it acquires the log's grant when there are writes, and keeps it between writes.

The writer holds the grant until another writer waits for it. Then, after a tenure of at least
``tenure_seconds_min``, it completes the entries in flight and hands the log over; if it has more writes, it queues
again. So two busy writers alternate, each for one tenure, and none is ever fenced. If the broker does not report
waiters, the writer releases the grant after ``blind_tenure_seconds``, or after ``blind_idle_seconds`` without a
write.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from onewriter._config import Backoff
from onewriter._errors import (
    Closed,
    Fenced,
    NotSent,
    OnewriterError,
    OutcomeUnknown,
    Refused,
    ServerError,
)
from onewriter._signal import Signal
from onewriter.state.envelope import WRITER_BYTES
from onewriter.state.errors import StateError
from onewriter.state.fold import Rules, Taken
from onewriter.state.log import BarrierUnsupported, Grant, Log
from onewriter.state.pending_writes import (
    Outcome,
    PendingWrite,
    WriteOutbox,
    WriteWithoutEntry,
    fail,
    settle,
)
from onewriter.state.replica import Replica

_DEFINITE = (Fenced, Refused, NotSent)
"""Errors after which an append is certainly not in the log."""

S = TypeVar("S")
Op = TypeVar("Op")

log = logging.getLogger("onewriter")


@dataclass(frozen=True, slots=True, kw_only=True)
class StateLimits:
    """Limits of one shared state; times are in seconds."""

    timeout_seconds: float = 30.0
    """Default limit of a read or a write; limit of closing."""
    opening_timeout_seconds: float = 120.0
    """Limit of reading the log for the first time."""
    queued_writes_max: int = 10_000
    """Largest number of writes without an outcome; further ones wait."""
    entries_in_flight_max: int = 8
    """Largest number of entries that were appended and not read back yet."""
    tenure_seconds_min: float = 0.1
    """Shortest tenure before a writer hands over to another one."""
    drain_seconds_max: float = 5.0
    """Longest wait for entries in flight before a handover; the next grant decides the rest."""
    blind_tenure_seconds: float = 0.25
    blind_idle_seconds: float = 0.02
    watched_changes_max: int = 10_000
    """Largest number of changes that a watcher has not taken; above it, the watch ends with WatchOverflow."""


class Writer(Generic[S, Op]):
    """Appends writes; ``run`` it next to its replica. Any task of the same loop may call ``write``.

    ``prepare`` runs before each request for a grant.
    """

    def __init__(
        self,
        source: Log,
        rules: Rules[S, Op],
        limits: StateLimits,
        prepare: Callable[[], Awaitable[None]],
    ) -> None:
        self._source = source
        self._limits = limits
        self._prepare = prepare
        self.outbox: WriteOutbox[S, Op] = WriteOutbox(rules, source.entry_bytes_max)
        self._replica: Replica[S, Op]
        self._wake = Signal()
        self._decided = Signal()
        """Notified when writes have an outcome, or their callers were cancelled."""
        self._slots = asyncio.Semaphore(limits.queued_writes_max)
        self._is_failed = False
        """Whether an append under the current grant was refused or has an unknown outcome."""
        self._is_closing = False
        self.grant: Grant | None = None
        """The current grant; None while the writer has none."""
        self.grants = 0
        """Number of grants so far."""

    def attach(self, replica: Replica[S, Op]) -> None:
        """Set the replica that follows the same log."""
        self._replica = replica

    def taken(self, taken: Taken[S, Op]) -> None:
        """Record an entry that was read from the log."""
        self.outbox.taken(taken)
        self._wake.notify()
        self._decided.notify()

    def troubled(self, error: OnewriterError) -> None:
        """Record that the replica cannot read the log any more."""
        self._refuse(error)
        self._wake.notify()

    async def write(self, write: PendingWrite[S, Op], timeout_seconds: float) -> Outcome[S]:
        """Complete one write. Raises its generator's exception, NotSent, OutcomeUnknown, Closed."""
        try:
            async with asyncio.timeout(timeout_seconds), self._slots:
                if self._is_closing:
                    raise Closed("the shared state is closed: nothing was written")
                self.outbox.queue.append(write)
                self._wake.notify()
                return await write.outcome
        except TimeoutError:
            if write.is_sent:
                raise OutcomeUnknown(
                    f"the write was sent and not read back within {timeout_seconds:g} s"
                ) from None
            raise NotSent(f"no grant within {timeout_seconds:g} s: nothing was written") from None
        finally:
            self._decided.notify()

    async def run(self) -> None:
        """Write the queued writes, until cancelled."""
        backoff = Backoff()
        outbox = self.outbox
        while True:
            await self._wake.until(lambda: bool(outbox.queue or outbox.sent))
            if (trouble := self._replica.trouble) is not None:
                self._refuse(trouble)  # nothing can be read back, so a grant would decide nothing
                continue
            try:
                await self._replica.complete()
                await self._prepare()
                grant = await self._source.acquire(self._wake.notify)
            except (Refused, StateError, Closed) as error:
                if isinstance(error, Refused) and error.code is ServerError.TOPIC_TERMINATED_ERROR:
                    await self._decide_at_the_end()
                self._refuse(error)
                await asyncio.sleep(backoff.seconds())
                continue
            except OnewriterError as error:
                log.info("%s: no grant yet: %s", self._source.name, error)
                await asyncio.sleep(backoff.seconds())
                continue
            if await self._served(grant):
                backoff.reset()
            else:
                await asyncio.sleep(backoff.seconds())

    async def _served(self, grant: Grant) -> bool:
        """Use a grant and hand it over; return whether there was no trouble."""
        try:
            await self._serve(grant)
        except (Refused, StateError, Closed) as error:
            self._refuse(error)
            return False
        except OnewriterError as error:
            log.info("%s: giving the grant up: %s", self._source.name, error)
            return False
        else:
            return True
        finally:
            self.grant = None
            await grant.hand_over()

    async def close(self, timeout_seconds: float) -> None:
        """Accept no more writes, and complete the accepted ones within the time limit."""
        self._is_closing = True
        self._decided.notify()
        outbox = self.outbox
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._decided.until(
                    lambda: self._replica.trouble is not None or not (outbox.queue or outbox.sent)
                )
        except TimeoutError:
            log.info("%s: closed with writes under way", self._source.name)
        outbox.fail_all(_closed)

    def abandon(self) -> None:
        """Fail all writes, because nothing is written any more."""
        self._is_closing = True
        self.outbox.fail_all(_closed)
        self._decided.notify()

    # ------------------------------------------------------------ under a grant

    async def _serve(self, grant: Grant) -> None:
        """Write under a grant until it is over or another writer waits."""
        self._is_failed = False
        await self._read_to_the_end()
        fold = self._replica.fold
        self.outbox.begin(secrets.token_bytes(WRITER_BYTES), fold.state, fold.version)
        self._decided.notify()
        self.grant = grant
        self.grants += 1
        now = asyncio.get_running_loop().time
        granted_at = idle_since = now()
        while not self._is_over(grant):
            if self._replica.trouble is not None:
                raise self._replica.trouble
            wait_seconds = self._seconds_left(grant, now() - granted_at, now() - idle_since)
            if wait_seconds is not None and wait_seconds <= 0:
                await self._drain(grant)
                return
            is_full = len(self.outbox.sent) >= self._limits.entries_in_flight_max
            if self.outbox.queue and not is_full:
                await self._send(grant)
                idle_since = now()
            else:
                await self._wait(wait_seconds)

    async def _read_to_the_end(self) -> None:
        """Fold everything before the beginning of the grant; no other writer appends any more."""
        replica = self._replica
        end = await self._source.end()
        if end < replica.fold.position:
            replica.suspect()
        await replica.complete()
        await replica.reach(end)

    async def _decide_at_the_end(self) -> None:
        """Decide the writes on a terminated log: those that cannot be read back are not in it."""
        try:
            await self._read_to_the_end()
        except OnewriterError as error:
            log.info("%s: not read to its end: %s", self._source.name, error)
        else:
            self.outbox.recall()

    def _is_over(self, grant: Grant) -> bool:
        return grant.end is not None or self._is_failed or self.outbox.is_spoiled

    def _seconds_left(self, grant: Grant, held: float, idle: float) -> float | None:
        """Return the seconds until the handover; None: no other writer waits."""
        limits = self._limits
        if grant.waiting is None:
            left = limits.blind_tenure_seconds - held
            is_idle = not self.outbox.queue and not self.outbox.sent
            return min(left, limits.blind_idle_seconds - idle) if is_idle else left
        return limits.tenure_seconds_min - held if grant.waiting > 0 else None

    async def _wait(self, seconds: float | None) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _drain(self, grant: Grant) -> None:
        """Wait until the sent entries are read back."""
        try:
            async with asyncio.timeout(self._limits.drain_seconds_max):
                await self._wake.until(lambda: not self.outbox.sent or self._is_over(grant))
        except TimeoutError:
            log.warning("%s: handing over with entries under way", self._source.name)

    async def _send(self, grant: Grant) -> None:
        """Append one entry of queued writes."""
        gathered = self.outbox.gather()
        messages = self.outbox.seal(gathered) if gathered.writes or gathered.is_forced else ()
        if not messages:
            if gathered.unstored and not self.outbox.attach(gathered.unstored):
                await self._confirm(grant, gathered.unstored)
            return
        try:
            receipt = await grant.append(messages)
        except OnewriterError as error:
            is_refused = isinstance(error, Refused)
            self._failed(gathered.writes, error if is_refused else NotSent(str(error)))
        else:
            receipt.add_done_callback(lambda done: self._received(gathered.writes, done))

    async def _confirm(self, grant: Grant, unstored: list[WriteWithoutEntry[S, Op]]) -> None:
        """Confirm writes without operations, with no entry in flight: they hold if the log still ends here."""
        writes = [write for write, _ in unstored]
        position = self._replica.fold.position
        is_forced = any(write.is_forced for write in writes)
        try:
            end = await (self._source.end() if is_forced else self._source.barrier())
        except BarrierUnsupported:
            for write, outcome in unstored:
                write.is_forced = True
                if isinstance(outcome, Exception):  # a write that raised needs no entry
                    settle(write, outcome)
            self.outbox.put_back(writes)
            return
        except BaseException:
            self.outbox.put_back(writes)
            raise
        if end <= position and not self._is_over(grant):
            for write, outcome in unstored:
                settle(write, outcome)
        else:
            self._is_failed = True
            self.outbox.put_back(writes)

    def _received(self, writes: list[PendingWrite[S, Op]], receipt: asyncio.Future[object]) -> None:
        if not receipt.cancelled() and (error := receipt.exception()) is not None:
            self._failed(writes, error)

    def _failed(self, writes: list[PendingWrite[S, Op]], error: BaseException) -> None:
        """Send nothing more under this grant; the next one decides the remaining writes."""
        if not self._is_failed:
            log.info("%s: an append failed: %s", self._source.name, error)
        if isinstance(error, _DEFINITE):
            for write in writes:
                write.is_sent = False
                if isinstance(error, Refused) and not isinstance(error, Fenced):
                    fail(
                        write, Refused(error.code, error.message)
                    )  # a retry would be refused again
        self._is_failed = True
        self._wake.notify()

    def _refuse(self, error: OnewriterError) -> None:
        """Fail the writes that were never sent, because nothing can be written now.

        While the replica is in trouble nothing can be read back, so all writes fail.
        """
        if self._replica.trouble is not None:
            self.outbox.fail_all(lambda write: _undecided(write, error))
        self.outbox.recall(only_refused=True)
        queue = self.outbox.queue
        while queue:
            write = queue.popleft()
            fail(write, error)
        self._decided.notify()


def _undecided(write: PendingWrite[S, Op], error: OnewriterError) -> OnewriterError:
    if write.is_sent:
        return OutcomeUnknown(f"the write was sent and cannot be read back: {error}")
    return error


def _closed(write: PendingWrite[S, Op]) -> OnewriterError:
    if write.is_sent:
        return OutcomeUnknown("the shared state was closed before the write was read back")
    return Closed("the shared state was closed: nothing was written")
