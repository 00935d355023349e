"""Which brokers reach each shard of a cluster.

A broker is alive if it reaches any shard. If it lost one shard only, it cannot serve that shard's buckets, so other brokers
take them, and leave it the buckets of the shards that it reaches (docs/adr/0023). Each shard has its own observer:
a shard that is away interrupts the observation of that shard only.

``ShardViews`` is pure: readings and times go in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from onewriter_broker.log.store.api import ShardBeats
from onewriter_broker.ownership.heartbeats import Beat
from onewriter_broker.ownership.member_observer import MemberObserver
from onewriter_broker.ownership.placement import LiveView


@dataclass(slots=True)
class _Shard:
    """One shard as observed.

    ``cut_off``: brokers that live, but do not reach the shard. ``kept_out``: brokers that get no buckets of the shard,
    because they do not reach it, or reach it again only since a moment.
    """

    buckets: frozenset[int]
    observer: MemberObserver
    cut_off: frozenset[str] = frozenset()
    kept_out: frozenset[str] = frozenset()

    def view(self, now: float, whole: LiveView) -> LiveView:
        """The view for the buckets of this shard; ``whole`` is that of all shards together."""
        seen = self.observer.view(now)
        if seen is not None and seen.complete:
            self.cut_off = whole.alive - seen.alive
            self.kept_out = whole.settled - seen.settled
        elif seen is not None:
            # Who was cut off before an interruption stays cut off until it beats here.
            self.cut_off -= seen.alive
            self.kept_out -= seen.settled
        return replace(
            whole,
            alive=whole.alive - self.cut_off,
            settled=whole.settled - self.kept_out,
            is_read=seen is not None,
        )


class ShardViews:
    """The views of all shards of one cluster; without a cluster there are none. ``me``: the observer's incarnation."""

    def __init__(self, me: str) -> None:
        self._me = me
        self._shards: dict[int, _Shard] = {}
        self._is_first = True

    def missed(self) -> None:
        """Record that no shard could be read."""
        self._is_first = False
        for shard in self._shards.values():
            shard.observer.missed()

    def feed(self, now: float, readings: Sequence[ShardBeats], counter: int) -> None:
        """Take in the readings of the shards that answered, after this broker's own heartbeat ``counter``.

        A shard that did not store this heartbeat does not store those of the others either (a full store): its
        reading shows nothing.
        """
        read: set[int] = set()
        for reading in readings:
            if reading.buckets is None:
                continue
            own = Beat.decode(reading.beats.get(self._me, ""))
            if own is None or own.counter < counter:
                continue
            first = min(reading.buckets)
            read.add(first)
            shard = self._shards.get(first)
            if shard is None:
                shard = self._shards[first] = _Shard(reading.buckets, MemberObserver(self._me))
                if not self._is_first:  # the others may reach it later than this broker
                    shard.observer.missed()
            shard.buckets = reading.buckets
            shard.observer.feed(now, reading.beats)
            shard.observer.forgettable(present=reading.beats)
        elsewhere = {bucket for first in read for bucket in self._shards[first].buckets}
        for first in self._shards.keys() - read:
            if first in elsewhere:  # its hash slot of Valkey moved to another shard
                del self._shards[first]
            else:
                self._shards[first].observer.missed()
        self._is_first = False

    def refine(self, now: float, whole: LiveView) -> LiveView:
        """``whole``, with the views for the buckets of shards that show other brokers."""
        of_buckets: dict[int, LiveView] = {}
        for shard in self._shards.values():
            view = shard.view(now, whole)
            if view != whole:
                of_buckets.update(dict.fromkeys(shard.buckets, view))
        return replace(whole, of_buckets=of_buckets)
