"""Which brokers count as reaching a shard of a cluster, by one observer's clock."""

from __future__ import annotations

import pytest

from onewriter_broker.anchor.api import Addresses, Record
from onewriter_broker.log.store.api import ShardBeats
from onewriter_broker.ownership.heartbeats import Beat
from onewriter_broker.ownership.member_observer import (
    BEAT_SECONDS,
    DEAD_SECONDS,
    FORGET_SECONDS,
    RETURN_SECONDS,
    SETTLE_SECONDS,
    MemberObserver,
)
from onewriter_broker.ownership.placement import LiveView, Plan, expected, may_take, plan
from onewriter_broker.ownership.shard_views import ShardViews

ME, OTHER = "broker-0~me", "broker-1~x"
ADDRESSES = Addresses("pulsar://h:1", "http://h:2")
SHARDS = {0: frozenset({0, 3}), 1: frozenset({1, 2})}
"""The buckets of each shard."""

HERE, ELSEWHERE = 0, 1
"""A bucket of each shard."""


class ClusterTimeline:
    """An observer and another broker on a cluster of two shards, each of which can be away, full, or out of reach."""

    def __init__(self) -> None:
        self.whole = MemberObserver(ME)
        self.views = ShardViews(ME)
        self.now = 100.0
        self.counters = {ME: 0, OTHER: 0}
        self.beats: dict[int, dict[str, str]] = {shard: {} for shard in SHARDS}
        self.buckets = dict(SHARDS)
        self.away: set[int] = set()
        self.full: set[int] = set()
        self.unreached: set[int] = set()
        self.is_dead = False
        self.view = LiveView()

    def run(self, seconds: float) -> LiveView:
        for _ in range(round(seconds / BEAT_SECONDS)):
            self._step()
        return self.view

    def _step(self) -> None:
        self.now += BEAT_SECONDS
        for member in self.counters:
            if member == OTHER and self.is_dead:
                continue
            self.counters[member] += 1
            for shard in SHARDS.keys() - self.away - self.full:
                if member == ME or shard not in self.unreached:
                    self.beats[shard][member] = Beat(self.counters[member], ADDRESSES).encode()
        readings = [
            ShardBeats(self.buckets[shard], dict(self.beats[shard]))
            for shard in SHARDS
            if shard not in self.away
        ]
        if not readings:
            self.whole.missed()
            self.views.missed()
            return
        newest: dict[str, str] = {}
        for reading in readings:
            for member, text in reading.beats.items():
                if member not in newest or counter(text) > counter(newest[member]):
                    newest[member] = text
        self.whole.feed(self.now, newest)
        self.views.feed(self.now, readings, self.counters[ME])
        whole = self.whole.view(self.now)
        assert whole is not None
        self.view = self.views.refine(self.now, whole)

    def may_take(self, bucket: int) -> bool:
        return may_take(ME, self.view.of(bucket), Record(owner=OTHER))


def counter(text: str) -> int:
    beat = Beat.decode(text)
    assert beat is not None
    return beat.counter


@pytest.fixture
def cluster() -> ClusterTimeline:
    timeline = ClusterTimeline()
    timeline.run(10)
    return timeline


def test_brokers_that_reach_every_shard_have_one_view(cluster: ClusterTimeline) -> None:
    assert cluster.view == LiveView(frozenset({"broker-1"}), frozenset({"broker-1"}), complete=True)


def test_a_broker_that_lost_one_shard_loses_the_buckets_of_this_shard_only(
    cluster: ClusterTimeline,
) -> None:
    cluster.unreached = {0}
    cluster.run(DEAD_SECONDS - BEAT_SECONDS)
    assert not cluster.may_take(HERE)
    cluster.run(BEAT_SECONDS)
    assert cluster.may_take(HERE)
    assert not cluster.may_take(ELSEWHERE)
    assert cluster.view.alive == {"broker-1"}, "clients that ask find it alive"
    records = dict.fromkeys(range(4), Record(owner=OTHER))
    assert plan(ME, cluster.view, records, held=()) == Plan(acquire=(0, 3))
    assert plan(ME, cluster.view, {}, held=(0, 3)).give_back == ()


def test_a_broker_that_reaches_the_shard_again_gets_buckets_after_it_has_settled(
    cluster: ClusterTimeline,
) -> None:
    cluster.unreached = {0}
    cluster.run(30)
    cluster.unreached = set()
    cluster.run(SETTLE_SECONDS - BEAT_SECONDS)
    assert cluster.view.of(HERE).alive == {"broker-1"}
    assert cluster.view.of(HERE).settled == frozenset()
    cluster.run(BEAT_SECONDS)
    assert cluster.view.of(HERE).settled == {"broker-1"}


@pytest.mark.parametrize("seconds", [BEAT_SECONDS, 3])
def test_a_shard_that_was_away_gives_its_owners_time_to_return(
    cluster: ClusterTimeline, seconds: float
) -> None:
    cluster.away = {0}
    cluster.run(seconds)
    cluster.away, cluster.unreached = set(), {0}  # its new primary is not found by the other yet
    cluster.run(RETURN_SECONDS)
    assert not cluster.may_take(HERE)
    cluster.run(BEAT_SECONDS)
    assert cluster.may_take(HERE)


def test_a_broker_that_died_with_a_primary_is_found_dead_on_the_other_shards(
    cluster: ClusterTimeline,
) -> None:
    cluster.is_dead, cluster.away = True, {0}
    cluster.run(3)
    cluster.away = set()
    cluster.run(BEAT_SECONDS)
    assert cluster.may_take(HERE)
    assert cluster.may_take(ELSEWHERE)


def test_a_broker_cut_off_before_an_interruption_stays_cut_off(cluster: ClusterTimeline) -> None:
    """Otherwise its buckets would move back to it for a moment."""
    cluster.unreached = {0}
    cluster.run(30)
    cluster.away = {0}
    cluster.run(3)
    cluster.away = set()
    for _ in range(5):
        cluster.run(BEAT_SECONDS)
        assert cluster.view.of(HERE).settled == frozenset()


def test_a_shard_that_stores_no_heartbeats_shows_nothing(cluster: ClusterTimeline) -> None:
    cluster.full = {0}
    cluster.run(60)
    assert not cluster.may_take(HERE)
    assert not cluster.view.of(HERE).is_read
    assert cluster.view.of(HERE).alive == {"broker-1"}


def test_a_broker_that_does_not_reach_a_shard_expects_none_of_its_buckets(
    cluster: ClusterTimeline,
) -> None:
    records = {HERE: Record(owner=OTHER)}
    mine = next(me for n in range(64) if expected(me := f"x{n}~a", cluster.view, records))
    cluster.away = {0}
    assert not expected(mine, cluster.run(5), records)


def test_a_shard_whose_buckets_moved_to_another_is_forgotten(cluster: ClusterTimeline) -> None:
    cluster.unreached = {0}
    cluster.run(30)
    cluster.buckets, cluster.away = {0: frozenset(), 1: frozenset(range(4))}, {0}
    cluster.run(BEAT_SECONDS)
    assert not cluster.may_take(HERE), "the other broker reaches the shard that serves it now"


def test_a_shard_that_appears_later_gives_its_owners_time_to_return(
    cluster: ClusterTimeline,
) -> None:
    cluster.away, cluster.unreached = {0}, {0}
    cluster.views = ShardViews(ME)  # this broker starts while the shard is away
    cluster.run(5)
    cluster.away = set()
    cluster.run(RETURN_SECONDS)
    assert not cluster.may_take(HERE)
    cluster.run(BEAT_SECONDS)
    assert cluster.may_take(HERE)


def test_a_broker_that_stays_away_from_a_shard_is_not_taken_for_a_new_one(
    cluster: ClusterTimeline,
) -> None:
    cluster.unreached = {0}
    cluster.run(DEAD_SECONDS)
    for _ in range(round(3 * FORGET_SECONDS / BEAT_SECONDS)):
        cluster.run(BEAT_SECONDS)
        assert cluster.may_take(HERE)


def test_a_store_without_shards_has_one_view() -> None:
    views = ShardViews(ME)
    views.feed(1.0, [ShardBeats(None, {})], 1)
    assert views.refine(1.0, LiveView()) == LiveView()
