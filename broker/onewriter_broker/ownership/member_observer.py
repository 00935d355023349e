"""Which brokers are alive, by the readings of one observer.

``MemberObserver`` is pure: readings and times go in. membership.py has the loop around it, and the rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass

from onewriter_broker.anchor.api import Addresses
from onewriter_broker.ownership.heartbeats import Beat
from onewriter_broker.ownership.placement import LiveView, name_of

BEAT_SECONDS = 0.5
"""Interval of heartbeats, and of readings."""

DEAD_SECONDS = 2.0
"""Seconds without a change of the counter after which a broker counts as dead."""

LATE_SECONDS = 0.75
"""Seconds without a change of the counter after which a heartbeat is late: the broker missed one and a half. It counts as
alive, but look-ups of its topics wait for a moment (owner_waits.py)."""

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
"""Largest number of heartbeats that are evaluated, and so of brokers. Further heartbeats are ignored: first those of
brokers that are not alive, then the names that sort last. A broker that would be one too many ends (Membership)."""


CLOCK_MS_MAX = 5_000
"""Wall clocks that differ by at most this much count as equal: a heartbeat is read some time after it was written, on a
busy machine seconds later."""


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
    clock_ahead_ms: int = 0
    """By how much its wall clock was ahead at its last heartbeat; 0 up to CLOCK_MS_MAX, or if unknown."""

    @property
    def is_alive(self) -> bool:
        return self.silent_seconds < (RETURN_SECONDS if self.has_to_return else DEAD_SECONDS)

    @property
    def is_late(self) -> bool:
        """Whether it is silent for longer than usual. After an interruption, all brokers are."""
        return self.silent_seconds >= LATE_SECONDS and not self.has_to_return


class MemberObserver:
    """Turns readings into a LiveView. ``me`` is the observer's own incarnation."""

    def __init__(self, me: str, *, members_max: int = MEMBERS_MAX) -> None:
        self._me = me
        self._members_max = members_max
        self._members: dict[str, _Member] = {}
        self._read_at: float | None = None
        self._observed_seconds = 0.0
        self._complete_after_seconds = DEAD_SECONDS
        self._has_missed = False
        self._view: LiveView | None = None
        self._late: frozenset[str] = frozenset()
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

    def feed(self, now: float, reading: Mapping[str, str], wall_ms: int = 0) -> None:
        """Take in one successful reading, made at ``now`` (monotonic seconds).

        ``wall_ms``: the same time on this broker's wall clock; 0: clocks are not compared.
        """
        self._view = None
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
            for member in self._evaluated(reading)
            if member != self._me and (beat := Beat.decode(reading[member])) is not None
        }
        for member, known in self._members.items():
            beat = beats.get(member)
            if was_interrupted and beat is not None and known.has_to_return:
                # This heartbeat may be older than the interruption: it does not prove that the broker returned.
                known.beat = beat
            if beat is not None and beat.counter > known.beat.counter and not was_interrupted:
                known.clock_ahead_ms = _clock_ahead_ms(beat, wall_ms)
            self._compare(known, beat, gap)
        for member, beat in beats.items():
            if member not in self._members and len(self._members) < 2 * self._members_max:
                # A broker that was there before this one is not new, and a known name that restarted is not either.
                settled = first or name_of(member) in self._names(settled=True)
                has_to_return = first and self._complete_after_seconds == RETURN_SECONDS
                self._members[member] = _Member(beat, settled, has_to_return=has_to_return)
        leads: Counter[str] = Counter()
        late, prompt = set[str](), set[str]()
        for member, known in self._members.items():
            if known.is_alive:
                leads.update(known.beat.leads)
                (late if known.is_late else prompt).add(name_of(member))
        self.leads = leads
        self._late = frozenset(late - prompt)

    def _evaluated(self, reading: Mapping[str, str]) -> list[str]:
        """The processes whose heartbeats count. Neither a newcomer nor a dead one displaces a living one."""
        if len(reading) <= self._members_max:
            return sorted(reading)
        alive = {member for member, known in self._members.items() if known.is_alive}
        return sorted(reading, key=lambda member: (member not in alive, member))[
            : self._members_max
        ]

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
        if beat is None or beat.counter <= known.beat.counter:
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
        if self._view is None:  # look-ups ask more often than readings change it
            own_name = name_of(self._me)
            self._view = LiveView(
                alive=self._names() - {own_name},
                settled=self._names(settled=True) - {own_name},
                complete=self._observed_seconds >= self._complete_after_seconds,
                rivals=frozenset(
                    member
                    for member, known in self._members.items()
                    if name_of(member) == own_name and known.is_alive and known.has_moved
                ),
            )
        return self._view

    def is_late(self, name: str) -> bool:
        """Whether the broker of this name counts as alive, but its heartbeat was late at the last successful reading."""
        return name in self._late

    @property
    def alive(self) -> int:
        """The number of other processes that count as alive, by the successful readings."""
        return sum(known.is_alive for known in self._members.values())

    def all_keep_floors(self, now: float) -> bool:
        """Whether every process that may be alive is known to be of a version that keeps floors."""
        if self._read_at is None or now - self._read_at > HELD_UP_SECONDS:
            return False
        return all(known.beat.keeps_floors for known in self._members.values() if known.is_alive)

    def forgettable(self, present: Container[str] = ()) -> list[str]:
        """Processes whose heartbeats should be removed after FORGET_SECONDS; this call forgets them.

        Those that are ``present`` stay: their next reading would take them for new ones.
        """
        gone = [
            member
            for member, known in self._members.items()
            if known.silent_seconds >= FORGET_SECONDS and member not in present
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

    def clock_ahead_ms(self, member: str) -> int:
        """By how much a process's wall clock was ahead of this broker's at its last heartbeat; negative: behind.

        0 if both differ by at most CLOCK_MS_MAX, or if it is unknown.
        """
        known = self._members.get(member)
        return 0 if known is None else known.clock_ahead_ms

    @property
    def clocks_ahead_ms(self) -> Mapping[str, int]:
        """The same of all living processes whose clocks differ from this broker's."""
        return {
            member: known.clock_ahead_ms
            for member, known in self._members.items()
            if known.is_alive and known.clock_ahead_ms
        }

    def _names(self, *, settled: bool = False) -> frozenset[str]:
        return frozenset(
            name_of(member)
            for member, known in self._members.items()
            if known.is_alive and (not settled or (known.settled and not known.beat.leaving))
        )


def _clock_ahead_ms(beat: Beat, wall_ms: int) -> int:
    ahead_ms = beat.at_ms - wall_ms if beat.at_ms and wall_ms else 0
    return ahead_ms if abs(ahead_ms) > CLOCK_MS_MAX else 0
