"""Waits for the owner of a bucket while it moves: one question per bucket and interval, however many callers wait.

After the death of a broker, the look-ups of all its clients wait for the same few buckets. They begin to wait as soon as
its heartbeat is late, before it counts as dead: a client that is sent to a dead broker comes back, each time after a
longer pause. A broker that lives although its heartbeat is late is named with its next heartbeat, or after
LATE_WAIT_SECONDS.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from onewriter_broker.anchor.api import Addresses

OWNER_WAIT_SECONDS = 5.0
"""Time that a look-up waits for a bucket without an owner. Brokers detect a dead broker after 2 s,
and acquire its buckets within another second."""

HINDERED_WAIT_SECONDS = 1.0
"""The same if this broker knows what prevents it from acquiring the bucket."""

LATE_WAIT_SECONDS = 2.0
"""Time that a look-up waits for a broker whose heartbeat is late, if it does not turn out to be dead."""

OWNER_POLL_SECONDS = 0.05

CALLERS_MAX = 50_000
"""Look-ups of a broker that wait without a task of their own, each in about 0.5 KiB."""

ANSWERS_PER_POLL_MAX = 1_000
"""Callers of a bucket that get their answers in one tick of the event loop, in about 10 ms."""

Answer = Callable[[Addresses | None], None]


class Owners(Protocol):
    """The questions to bucket ownership (buckets.BucketOwnership)."""

    def owner_of(self, bucket: int) -> Addresses | None: ...

    def is_in_doubt(self, bucket: int) -> bool: ...

    def waiting_reason(self, bucket: int) -> str: ...


@dataclass(slots=True, eq=False)
class _Caller:
    since: float
    wait_seconds: float
    answer: Answer


@dataclass(slots=True, eq=False)
class _Waiting:
    """The callers of one bucket, and those that wait for less than OWNER_WAIT_SECONDS, each in their order."""

    callers: deque[_Caller] = field(default_factory=deque)
    impatient: list[_Caller] = field(default_factory=list)


class OwnerWaits:
    """See the module. All callers run in one event loop."""

    def __init__(self, owners: Owners, *, callers_max: int = CALLERS_MAX) -> None:
        self._owners = owners
        self._callers_max = callers_max
        self._waiting: dict[int, _Waiting] = {}
        self._callers = 0

    def known(self, bucket: int) -> Addresses | None:
        """The broker that serves a bucket; None if it may be dead, or if there is no known owner."""
        owner = self._owners.owner_of(bucket)
        return None if owner is None or self._owners.is_in_doubt(bucket) else owner

    async def wait(self, bucket: int, wait_seconds: float = OWNER_WAIT_SECONDS) -> Addresses | None:
        """The broker that serves a bucket; None if there is no known owner in time."""
        owner = self.known(bucket)
        if owner is not None:
            return owner
        if wait_seconds <= 0.0:
            return self._owners.owner_of(bucket)
        found: asyncio.Future[Addresses | None] = asyncio.get_running_loop().create_future()
        self._add(bucket, wait_seconds, partial(_set_result, found))
        return await found

    def call(self, bucket: int, answer: Answer) -> bool:
        """Call ``answer`` as soon as the owner of a bucket is known, or with what is known in the end.

        False: too many callers wait, and ``answer`` is not called.
        """
        if self._callers >= self._callers_max:
            return False
        self._add(bucket, OWNER_WAIT_SECONDS, answer)
        return True

    def _add(self, bucket: int, wait_seconds: float, answer: Answer) -> None:
        waiting = self._waiting.get(bucket)
        if waiting is None:
            waiting = self._waiting[bucket] = _Waiting()
            self._poll_later(bucket, OWNER_POLL_SECONDS)
        caller = _Caller(asyncio.get_running_loop().time(), wait_seconds, answer)
        is_impatient = wait_seconds < OWNER_WAIT_SECONDS
        (waiting.impatient if is_impatient else waiting.callers).append(caller)
        self._callers += 1

    def _poll_later(self, bucket: int, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self._poll, bucket)

    def _poll(self, bucket: int) -> None:
        waiting, now = self._waiting[bucket], asyncio.get_running_loop().time()
        owner, named = self.known(bucket), self._owners.owner_of(bucket)
        limit = OWNER_WAIT_SECONDS
        if owner is not None:
            limit = 0.0
        elif named is not None:
            limit = LATE_WAIT_SECONDS
        elif self._owners.waiting_reason(bucket):
            limit = HINDERED_WAIT_SECONDS

        def is_over(caller: _Caller) -> bool:
            return now - caller.since >= min(caller.wait_seconds, limit)

        answered = [caller for caller in waiting.impatient if is_over(caller)]
        waiting.impatient = [caller for caller in waiting.impatient if not is_over(caller)]
        callers = waiting.callers
        while callers and is_over(callers[0]) and len(answered) < ANSWERS_PER_POLL_MAX:
            answered.append(callers.popleft())
        if callers or waiting.impatient:
            is_cut = len(answered) >= ANSWERS_PER_POLL_MAX
            self._poll_later(bucket, 0.0 if is_cut else OWNER_POLL_SECONDS)
        else:
            del self._waiting[bucket]
        self._callers -= len(answered)
        for caller in answered:
            caller.answer(named)


def _set_result(found: asyncio.Future[Addresses | None], owner: Addresses | None) -> None:
    if not found.done():  # its caller was cancelled
        found.set_result(owner)
