"""Membership: heartbeats through the log store, which each observer evaluates with its own clock.

Every broker publishes a counter and its addresses each BEAT_SECONDS. An observer declares a broker
dead if its counter has not changed for DEAD_SECONDS of the observer's monotonic clock, summed over
successful readings only. While the store is unavailable no broker is declared dead. After such an
interruption (the store was unavailable, or the observer was delayed) the other brokers may reconnect
to the store later than the observer. Until the counter of a broker that was alive changes, the broker
has RETURN_SECONDS instead of DEAD_SECONDS. A broker that was dead before stays dead until its counter moves.
Membership is a hint that decides *when* a broker tries to acquire a bucket; anchor and log decide
whether it may.

``MemberObserver`` is pure: readings and times go in. ``Membership`` is the loop around it.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import structlog

from onewriter_broker.anchor.api import Addresses
from onewriter_broker.log.store.api import LogStore
from onewriter_broker.ownership.placement import LiveView, name_of
from onewriter_core.errors import OnewriterError

BEAT_SECONDS = 0.5
"""Interval of heartbeats, and of readings."""

DEAD_SECONDS = 2.0
"""Seconds without a change of the counter after which a broker counts as dead."""

HELD_UP_SECONDS = 1.2
"""A longer gap between two successful readings is an interruption: the observer or the store was unavailable."""

RETURN_SECONDS = 10.0
"""Seconds that a broker has to return after an interruption.

Another broker may notice the store's return later: after its present attempt to connect (``connect_timeout_seconds``,
2 s), its next heartbeat, and the time in which its node learns where the store runs now. A broker that takes
buckets from one that is about to return ends the epochs of their topics: a store that restarted has a new
dataset, and only a bucket's continuing owner remembers the last epoch that it granted there.
"""

SETTLE_SECONDS = 3.0
"""Seconds that a new broker must be alive before it gets buckets."""

FORGET_SECONDS = 60.0
"""Seconds after which a dead broker is dropped from the store."""

MEMBERS_MAX = 256
"""Largest number of heartbeats that are evaluated; others are ignored, the names that sort last first."""

HOSTS_MAX = 64
"""Hosts whose leaders one heartbeat counts."""

HOST_LENGTH_MAX = 253
"""In characters of JSON, like a domain name; longer names are not reported."""

VALUE_LENGTH_MAX = 1024
"""In characters. Brokers of every version ignore a longer heartbeat, so no broker writes one."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Beat:
    """The heartbeat of one broker.

    ``leaving``: the broker must get no buckets, because it stops or cannot serve any yet.
    ``at_ms``: the time on its wall clock; 0 if not reported. It is for users and for the histories of
    topics: no decision depends on it.
    """

    counter: int
    addresses: Addresses
    leaving: bool = False
    at_ms: int = 0
    leads: Mapping[str, int] = field(default_factory=dict)
    """How many topics of this broker each host leads, while a policy asks for it (topic/producers/leader_loads.py)."""
    keeps_floors: bool = True
    """Whether its version lets generations of ownerships begin above floors (own/floors.py)."""

    def encode(self) -> str:
        """As stored: JSON, so that people and other programs can read it.

        ``leads`` is shortened to fit into VALUE_LENGTH_MAX: the hosts that lead least are left out,
        among equal hosts those whose names sort last.
        """
        document: dict[str, object] = {
            "counter": self.counter,
            "leaving": self.leaving,
            "brokerUrl": self.addresses.broker_url,
            "httpUrl": self.addresses.http_url,
            "at": self.at_ms,
            "keepsFloors": self.keeps_floors,
        }
        text = json.dumps(document)
        space = VALUE_LENGTH_MAX - len(text) - len(', "leads": {}')
        leads = self._most_leads(space)
        return json.dumps(document | {"leads": leads}) if leads else text

    def _most_leads(self, space: int) -> dict[str, int]:
        """The hosts that lead most, as many as fit into ``space`` characters of JSON."""
        leads: dict[str, int] = {}
        for host, count in sorted(self.leads.items(), key=lambda each: (-each[1], each[0])):
            written = len(json.dumps(host))
            if written > HOST_LENGTH_MAX + len('""'):
                continue
            space -= written + len(f": {count}, ")
            if space < 0 or len(leads) == HOSTS_MAX:
                break
            leads[host] = count
        return leads

    @classmethod
    def decode(cls, text: str) -> Beat | None:
        """Parse a heartbeat; None for a value that no broker writes."""
        if len(text) > VALUE_LENGTH_MAX:
            return None
        try:
            document = json.loads(text)
            counter = document["counter"]
            leaving = document["leaving"]
            urls = (document["brokerUrl"], document["httpUrl"])
            at_ms = document.get("at", 0)
            leads = document.get("leads", {}).items()
            keeps_floors = document.get("keepsFloors") is True
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        if type(counter) is not int or not all(isinstance(url, str) for url in urls):
            return None
        return cls(
            counter,
            Addresses(*urls),
            leaving is True,
            at_ms if type(at_ms) is int else 0,
            {host: count for host, count in leads if type(count) is int and count > 0},
            keeps_floors,
        )


@dataclass(slots=True)
class _Member:
    """One process as observed; the seconds count successful readings only."""

    beat: Beat
    settled: bool
    silent_seconds: float = 0.0
    alive_seconds: float = 0.0
    has_moved: bool = False
    has_to_return: bool = False
    """Whether its counter has not moved since the last interruption, before which it was alive or unknown."""

    @property
    def is_alive(self) -> bool:
        return self.silent_seconds < (RETURN_SECONDS if self.has_to_return else DEAD_SECONDS)


class MemberObserver:
    """Turns readings into a LiveView. ``me`` is the observer's own incarnation."""

    def __init__(self, me: str) -> None:
        self._me = me
        self._members: dict[str, _Member] = {}
        self._read_at: float | None = None
        self._observed_seconds = 0.0
        self._complete_after_seconds = DEAD_SECONDS
        self._has_missed = False
        self.leads: Mapping[str, int] = {}
        """The number of topics that each host leads, as last reported by the other living brokers."""

    def missed(self) -> None:
        """Record a failed reading, which is an interruption.

        Before the first successful reading, the store was also unavailable to the others.
        """
        if self._read_at is None:
            self._complete_after_seconds = RETURN_SECONDS
        else:
            self._has_missed = True

    def feed(self, now: float, reading: Mapping[str, str]) -> None:
        """Take in one successful reading, made at ``now`` (monotonic seconds)."""
        first = self._read_at is None
        gap = 0.0 if self._read_at is None else now - self._read_at
        self._read_at = now
        was_interrupted = self._has_missed or gap > HELD_UP_SECONDS
        self._has_missed = False
        if was_interrupted:
            self._observe_again()
            gap = 0.0
        self._observed_seconds += gap
        beats = {
            member: beat
            for member in sorted(reading)[:MEMBERS_MAX]
            if member != self._me and (beat := Beat.decode(reading[member])) is not None
        }
        for member, known in self._members.items():
            beat = beats.get(member)
            if was_interrupted and beat is not None and known.has_to_return:
                # This heartbeat may be older than the interruption: it does not prove that the broker returned.
                known.beat = beat
            self._compare(known, beat, gap)
        for member, beat in beats.items():
            if member not in self._members and len(self._members) < 2 * MEMBERS_MAX:
                # A broker that was there before this one is not new, and a known name that restarted is not either.
                settled = first or name_of(member) in self._names(settled=True)
                has_to_return = first and self._complete_after_seconds == RETURN_SECONDS
                self._members[member] = _Member(beat, settled, has_to_return=has_to_return)
        leads: Counter[str] = Counter()
        for known in self._members.values():
            if known.is_alive:
                leads.update(known.beat.leads)
        self.leads = leads

    def _observe_again(self) -> None:
        """Begin to observe after an interruption.

        Further interruptions do not prolong it. Otherwise an observer on a busy machine, which is often held up,
        would never find a dead broker.
        """
        if self._observed_seconds >= self._complete_after_seconds:
            self._observed_seconds, self._complete_after_seconds = 0.0, DEAD_SECONDS
        for member in self._members.values():
            if member.is_alive and not member.has_to_return:
                member.silent_seconds, member.has_to_return = 0.0, True

    def _compare(self, known: _Member, beat: Beat | None, gap: float) -> None:
        if beat is None or beat.counter == known.beat.counter:
            known.silent_seconds += gap
        else:
            if not known.is_alive:
                known.settled, known.alive_seconds = False, 0.0
            known.silent_seconds = 0.0
            known.has_moved, known.has_to_return = True, False
            known.beat = beat
        if known.is_alive:
            known.alive_seconds += gap
            known.settled = known.settled or known.alive_seconds >= SETTLE_SECONDS

    def view(self, now: float) -> LiveView | None:
        """The brokers that are alive; None while the store is unavailable: then no broker acquires a bucket."""
        if self._read_at is None or now - self._read_at > HELD_UP_SECONDS:
            return None
        mine = name_of(self._me)
        return LiveView(
            alive=self._names() - {mine},
            settled=self._names(settled=True) - {mine},
            complete=self._observed_seconds >= self._complete_after_seconds,
            rivals=frozenset(
                member
                for member, known in self._members.items()
                if name_of(member) == mine and known.is_alive and known.has_moved
            ),
        )

    @property
    def alive(self) -> int:
        """The number of other processes that count as alive, by the successful readings."""
        return sum(known.is_alive for known in self._members.values())

    def all_keep_floors(self, now: float) -> bool:
        """Whether every process that may be alive is known to be of a version that keeps floors."""
        if self._read_at is None or now - self._read_at > HELD_UP_SECONDS:
            return False
        return all(known.beat.keeps_floors for known in self._members.values() if known.is_alive)

    def forgettable(self) -> list[str]:
        """Processes whose heartbeats should be removed after FORGET_SECONDS; this call forgets them."""
        gone = [
            member
            for member, known in self._members.items()
            if known.silent_seconds >= FORGET_SECONDS
        ]
        for member in gone:
            del self._members[member]
        return gone

    def members(self) -> dict[str, tuple[Addresses, bool]]:
        """Every known process with its addresses and whether it counts as alive."""
        return {
            member: (known.beat.addresses, known.is_alive)
            for member, known in self._members.items()
        }

    def last_seen_ms(self, member: str) -> int | None:
        """The time of a process's last heartbeat, on its own wall clock; None if unknown."""
        known = self._members.get(member)
        return None if known is None or known.beat.at_ms == 0 else known.beat.at_ms

    def _names(self, *, settled: bool = False) -> frozenset[str]:
        return frozenset(
            name_of(member)
            for member, known in self._members.items()
            if known.is_alive and (not settled or (known.settled and not known.beat.leaving))
        )


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
        self._observer = MemberObserver(me)
        self._last_view: LiveView | None = None
        self.changed = asyncio.Event()

    @property
    def observer(self) -> MemberObserver:
        """The observer, for status pages."""
        return self._observer

    def view(self) -> LiveView | None:
        """The brokers that are alive now; None while the store is unavailable."""
        return self._observer.view(self._now())

    def all_keep_floors(self) -> bool:
        """Whether every broker that may be alive is known to keep floors (``Beat.keeps_floors``)."""
        return self._observer.all_keep_floors(self._now())

    def brokers(self) -> int:
        """The number of living brokers including this one; while the store is unavailable, the last known number."""
        return 1 + self._observer.alive

    async def run(self) -> None:
        """Beat and read until cancelled."""
        while True:
            await self.beat_once()
            await asyncio.sleep(BEAT_SECONDS)

    async def beat_once(self) -> bool:
        """Send one heartbeat and read all; False if the store is unavailable, which is not an error."""
        self._counter += 1
        is_kept_out = self._leaving or not self._is_prepared()
        beat = Beat(self._counter, self._addresses, is_kept_out, self._wall_ms(), self._leads())
        try:
            async with asyncio.timeout(HELD_UP_SECONDS):
                await self._store.beat(self._me, beat.encode())
                reading = await self._store.members()
                self._observer.feed(self._now(), reading)
                for member in self._observer.forgettable():
                    await self._store.forget_member(member)
            is_announced = True
        except (OnewriterError, TimeoutError) as error:
            is_announced = False
            self._observer.missed()
            _log.debug("membership.store_away", error=str(error))
        view = self.view()
        if view != self._last_view:
            self._last_view = view
            self.changed.set()
        return is_announced

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
