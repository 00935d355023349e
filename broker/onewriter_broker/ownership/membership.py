"""Membership: heartbeats through the log store, which each observer evaluates with its own clock.

Every broker publishes a counter and its addresses each BEAT_SECONDS. An observer declares a broker
dead if its counter has not changed for DEAD_SECONDS of the observer's monotonic clock, summed over
successful readings only. While the store is unavailable no broker is declared dead. After such an
interruption (the store was unavailable, or the observer was delayed) the other brokers may reconnect
to the store later than the observer. Until the counter of a broker that was alive changes, the broker
has RETURN_SECONDS instead of DEAD_SECONDS. A broker that was dead before stays dead until its counter moves.
In a cluster each broker beats on every shard, and its newest beat counts (``newest``): one shard that is away does not
interrupt the observation. The buckets of a shard may also be taken from a living broker that is silent on this shard
(shard_views.py). Membership is a hint that decides *when* a broker tries to acquire a bucket; anchor and log decide
whether it may.

At most MEMBERS_MAX brokers work together. A broker that finds as many living ones at its start, before or after its first
heartbeat, removes its heartbeat and ends. The others never evaluate its heartbeat instead of that of a living broker. If
two brokers start for one place, at least one of them ends, and perhaps both: a later start succeeds.

``Membership`` is the loop around ``MemberObserver`` (member_observer.py) and ``ShardViews``, which are pure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import structlog

from onewriter_broker.anchor.api import Addresses
from onewriter_broker.log.store.api import LogStore, ShardBeats
from onewriter_broker.ownership.heartbeats import Beat, newest
from onewriter_broker.ownership.member_observer import (
    BEAT_SECONDS,
    DEAD_SECONDS,
    HELD_UP_SECONDS,
    MEMBERS_MAX,
    MemberObserver,
)
from onewriter_broker.ownership.placement import LiveView
from onewriter_broker.ownership.shard_views import ShardViews
from onewriter_core.errors import ConfigurationError, OnewriterError

FAILURES_MAX = 2
"""Failures of a heartbeat in a row that show that the store does not answer. One failure shows it too, unless the event
loop ended the wait much later than HELD_UP_SECONDS: then the answer may have arrived in time."""

_log = structlog.get_logger(__name__)


class Membership:
    """Beats for this broker and observes the others; ``run`` is the caller's task.

    While ``is_prepared`` returns False, the heartbeat asks the other brokers to keep their buckets:
    topics that move here would wait while the resume windows of their holders end. ``leads``: the
    counts of leaders that this broker reports to the others.
    ``changed`` is set whenever the view may have changed; the waiting task clears it.
    """

    def __init__(
        self,
        store: LogStore,
        me: str,
        addresses: Addresses,
        *,
        clock: Callable[[], float] | None = None,
        wall_ms: Callable[[], int] = lambda: 0,
        is_prepared: Callable[[], bool] = lambda: True,
        leads: Callable[[], Mapping[str, int]] = dict,
        members_max: int = MEMBERS_MAX,
    ) -> None:
        self._store = store
        self._me = me
        self._addresses = addresses
        self._clock = clock
        self._wall_ms = wall_ms
        self._is_prepared = is_prepared
        self._leads = leads
        self._counter = 0
        self._leaving = False
        self._failures = FAILURES_MAX
        self._members_max = members_max
        self._others: Mapping[str, str] = {}
        """The heartbeats of the other processes, of the last successful reading."""
        self._observer = MemberObserver(me, members_max=members_max)
        self._shards = ShardViews(me)
        self._view: LiveView | None = None
        self._last_view: LiveView | None = None
        self.changed = asyncio.Event()

    @property
    def observer(self) -> MemberObserver:
        """The observer, for status pages."""
        return self._observer

    def view(self) -> LiveView | None:
        """The brokers that are alive now; None while the store is unavailable."""
        return None if self._observer.view(self._now()) is None else self._view

    @property
    def store_answers(self) -> bool:
        """Whether the store answers this broker: the last heartbeat succeeded, or a reading is recent.

        A late reading alone shows no loss of the store: the event loop of a broker that takes over thousands of
        topics may be held up for seconds.
        """
        return self._failures < FAILURES_MAX or self.view() is not None

    def all_keep_floors(self) -> bool:
        """Whether every broker that may be alive is known to keep floors (``Beat.keeps_floors``)."""
        return self._observer.all_keep_floors(self._now())

    def brokers(self) -> int:
        """The number of living brokers including this one; while the store is unavailable, the last known number."""
        return 1 + self._observer.alive

    async def run(self) -> None:
        """Beat and read until cancelled. Raises ConfigurationError if there are as many brokers as may be."""
        await self._join()
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            await self.beat_once()

    async def _join(self) -> None:
        """Send the first heartbeat, if this broker is not one too many. Raises ConfigurationError.

        While the store is unavailable, the number of brokers is unknown, and the broker waits.
        """
        while True:
            if (
                await self._read_others()
                and await self._has_place()
                and await self.beat_once()
                and await self._has_place()  # another broker may have joined at the same time
            ):
                return
            await asyncio.sleep(BEAT_SECONDS)

    async def _has_place(self) -> bool:
        """Whether another broker may work with those of the last reading; False if the store is unavailable.

        Heartbeats of dead brokers stay in the store for a while, so their counters are compared if there are many.
        Raises ConfigurationError.
        """
        before = self._others
        if len(before) < self._members_max:
            return True
        await asyncio.sleep(DEAD_SECONDS)
        if not await self._read_others():
            return False
        alive = [member for member, beat in self._others.items() if before.get(member) != beat]
        if len(alive) < self._members_max:
            return True
        await self.leave()
        raise ConfigurationError(
            f"{len(alive)} other brokers are alive, and at most {self._members_max} work together"
            " (MEMBERS_MAX): stop a broker before you start another one"
        )

    async def _read_others(self) -> bool:
        """Read the heartbeats of the others without an own one; False if the store is unavailable."""
        try:
            async with asyncio.timeout(HELD_UP_SECONDS):
                self._note_others(newest([each.beats for each in await self._store.members()]))
        except (OnewriterError, TimeoutError) as error:
            self._observer.missed()
            self._shards.missed()
            _log.debug("membership.store_away", error=str(error))
            return False
        return True

    def _note_others(self, beats: Mapping[str, str]) -> None:
        self._others = {member: beat for member, beat in beats.items() if member != self._me}

    async def beat_once(self) -> bool:
        """Send one heartbeat and read all; False if the store is unavailable, which is not an error."""
        self._counter += 1
        is_kept_out = self._leaving or not self._is_prepared()
        beat = Beat(self._counter, self._addresses, is_kept_out, self._wall_ms(), self._leads())
        began_at = self._now()
        try:
            async with asyncio.timeout(HELD_UP_SECONDS):
                await self._store.beat(self._me, beat.encode())
                self._observe(await self._store.members())
                for member in self._observer.forgettable():
                    await self._store.forget_member(member)
            is_announced = True
            self._failures = 0
        except (OnewriterError, TimeoutError) as error:
            is_announced = False
            was_held_up = self._now() - began_at > HELD_UP_SECONDS + BEAT_SECONDS
            self._failures = min(
                FAILURES_MAX, self._failures + (1 if was_held_up else FAILURES_MAX)
            )
            self._observer.missed()
            self._shards.missed()
            _log.debug("membership.store_away", error=str(error))
        view = self.view()
        if view != self._last_view:
            self._last_view = view
            self.changed.set()
        return is_announced

    def _observe(self, readings: Sequence[ShardBeats]) -> None:
        now = self._now()
        beats = newest([reading.beats for reading in readings])
        self._note_others(beats)
        self._observer.feed(now, beats, self._wall_ms())
        self._shards.feed(now, readings, self._counter)
        whole = self._observer.view(now)
        self._view = None if whole is None else self._shards.refine(now, whole)

    async def announce_leaving(self) -> bool:
        """Announce that this broker is about to release its buckets, so that the others get them.

        False: the store is unavailable, and the other brokers may not have read the announcement.
        """
        self._leaving = True
        return await self.beat_once()

    async def leave(self) -> None:
        """Remove this broker's heartbeat after its buckets are released; best effort, within a time limit."""
        try:
            async with asyncio.timeout(HELD_UP_SECONDS):
                await self._store.forget_member(self._me)
        except (OnewriterError, TimeoutError) as error:
            _log.debug("membership.store_away", error=str(error))

    def _now(self) -> float:
        return asyncio.get_running_loop().time() if self._clock is None else self._clock()
