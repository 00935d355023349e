"""Who should own which bucket."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onewriter_broker.anchor.api import Record
from onewriter_broker.ownership.placement import (
    TABLES_MAX,
    LiveView,
    Plan,
    Targets,
    expected,
    incarnation_of,
    may_take,
    name_of,
    plan,
    rendezvous,
)

BUCKETS = range(64)
ME = "broker-0~me"
names = st.frozensets(st.text("abcdef-0123456789", min_size=1, max_size=8), min_size=1, max_size=6)


def view(*alive: str, settled: tuple[str, ...] | None = None, complete: bool = True) -> LiveView:
    return LiveView(frozenset(alive), frozenset(alive if settled is None else settled), complete)


def owned(owner: str) -> dict[int, Record]:
    return {bucket: Record(owner=owner) for bucket in BUCKETS}


def share_of(name: str, *all_names: str) -> tuple[int, ...]:
    return tuple(bucket for bucket in BUCKETS if rendezvous(bucket, all_names) == name)


# Hashing.


@given(names, st.text("xyz", min_size=1))
def test_a_newcomer_only_takes_buckets_and_moves_none_between_the_others(
    known: frozenset[str], newcomer: str
) -> None:
    for bucket in BUCKETS:
        after = rendezvous(bucket, known | {newcomer})
        assert after in {newcomer, rendezvous(bucket, known)}


@given(names)
def test_brokers_that_know_the_same_names_choose_the_same_broker(known: frozenset[str]) -> None:
    for bucket in BUCKETS:
        assert rendezvous(bucket, sorted(known)) == rendezvous(bucket, sorted(known, reverse=True))


def test_buckets_are_spread_over_all() -> None:
    shares = [len(share_of(name, "a", "b", "c")) for name in "abc"]
    assert sum(shares) == 64
    assert min(shares) > 10


@given(st.lists(names, min_size=1, max_size=6))
def test_remembered_targets_are_those_of_a_comparison_with_all_names(
    sets: list[frozenset[str]],
) -> None:
    targets = Targets()
    for known in [*sets, *sets]:
        table = targets.among(known)
        for bucket in BUCKETS:
            if (bucket + len(known)) % 3:  # some buckets are asked for later, or never
                assert table.of(bucket) == rendezvous(bucket, known)


def test_targets_of_a_set_that_was_forgotten_are_compared_again() -> None:
    targets = Targets()
    for number in range(2 * TABLES_MAX):
        known = frozenset({"a", "b", f"c{number}"})
        assert targets.among(known).of(1) == rendezvous(1, known)
    again = frozenset({"a", "b", "c0"})
    assert targets.among(again).of(1) == rendezvous(1, again)


# Names.


def test_an_incarnation_contains_the_name_of_its_broker() -> None:
    assert name_of(incarnation_of("broker-0", "1f")) == "broker-0"
    assert name_of("") == ""
    assert name_of("somebody") == ""


@pytest.mark.parametrize("name", ["", "a~b", "a:b"])
def test_a_name_that_cannot_be_separated_from_its_nonce_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        incarnation_of(name, "1f")


# Who may take.


@pytest.mark.parametrize(
    ("owner", "live", "may"),
    [
        ("", view(), True),
        ("", view("broker-1", complete=False), True),
        (ME, view(), True),
        ("broker-0~earlier", view(complete=False), True),
        ("broker-1~x", view(), True),
        ("broker-1~x", view("broker-1"), False),
        ("broker-1~x", view(complete=False), False),
        ("operator", view(), False),
        ("broker-0~zombie", LiveView(complete=True, rivals=frozenset({"broker-0~zombie"})), False),
    ],
    ids=[
        "nobody's",
        "nobody's, whoever is alive",
        "my own",
        "of my earlier self",
        "of a dead broker",
        "of a live broker",
        "of a broker not yet observed long enough",
        "of a forced adoption at work",
        "of another live process under my name",
    ],
)
def test_only_a_free_bucket_is_taken(owner: str, live: LiveView, may: bool) -> None:
    assert may_take(ME, live, Record(owner=owner)) is may


# The plan.


def test_alone_a_broker_takes_everything_free() -> None:
    assert plan(ME, view(), owned(""), held=()).acquire == tuple(BUCKETS)


def test_two_brokers_that_know_each_other_share_what_is_free() -> None:
    own = plan(ME, view("broker-1"), owned(""), held=()).acquire
    other = plan("broker-1~x", view("broker-0"), owned(""), held=()).acquire
    assert sorted(own + other) == list(BUCKETS)
    assert own == share_of("broker-0", "broker-0", "broker-1")


def test_a_newcomer_gets_nothing_before_it_has_settled_and_then_its_share() -> None:
    held = owned(ME)
    assert plan(ME, view("broker-1", settled=()), held, held) == Plan()
    assert plan(ME, view("broker-1"), held, held).give_back == share_of(
        "broker-1", "broker-0", "broker-1"
    )


def test_a_newcomer_never_steals_what_a_live_broker_holds_but_expects_it() -> None:
    assert plan("broker-1~x", view("broker-0"), owned(ME), held=()) == Plan()
    assert expected("broker-1~x", view("broker-0"), owned(ME))
    assert not expected("broker-1~x", view("broker-0"), owned(""))


def test_a_dead_broker_s_buckets_go_to_the_survivors_by_share() -> None:
    own = plan(ME, view("broker-1"), owned("broker-2~dead"), held=()).acquire
    other = plan("broker-1~x", view("broker-0"), owned("broker-2~dead"), held=()).acquire
    assert sorted(own + other) == list(BUCKETS)


def test_after_a_restart_a_broker_goes_for_the_same_buckets() -> None:
    share = share_of("broker-0", "broker-0", "broker-1")
    records = {
        bucket: Record(owner="broker-0~before" if bucket in share else "broker-1~x")
        for bucket in BUCKETS
    }
    assert plan(ME, view("broker-1"), records, held=()) == Plan(acquire=share)


def test_a_takeover_that_broke_off_is_finished_or_released() -> None:
    todo = plan(ME, view("broker-1"), owned(ME), held=())
    assert todo.acquire == share_of("broker-0", "broker-0", "broker-1")
    assert todo.release == share_of("broker-1", "broker-0", "broker-1")


def test_when_everyone_has_its_share_there_is_nothing_to_do() -> None:
    share = share_of("broker-0", "broker-0", "broker-1")
    records = {bucket: Record(owner=ME if bucket in share else "broker-1~x") for bucket in BUCKETS}
    assert plan(ME, view("broker-1"), records, held=share) == Plan()
    assert not expected(ME, view("broker-1"), records)


def test_a_bucket_whose_shard_its_owner_does_not_reach_is_taken_and_not_given_back() -> None:
    cut_off = LiveView(complete=True)
    everywhere = view("broker-1")
    live = replace(everywhere, of_buckets=dict.fromkeys(range(8), cut_off))
    todo = plan(ME, live, owned("broker-1~x"), held=())
    assert todo.acquire == tuple(range(8)), "and none of the other shards"
    assert plan(ME, live, owned(ME), held=range(8)).give_back == ()
    kept = [bucket for bucket in share_of("broker-1", "broker-0", "broker-1") if bucket < 8]
    assert plan(ME, everywhere, owned(ME), held=range(8)).give_back == tuple(kept)


def test_an_earlier_process_of_this_name_does_not_block_a_bucket_that_belongs_elsewhere() -> None:
    # broker-1 was killed and restarted before anybody found it dead: to broker-0 it looks alive, so
    # only broker-1 itself can give up what its earlier process still owns.
    elsewhere = list(share_of("broker-0", "broker-0", "broker-1"))
    records = {bucket: Record(owner="broker-1~before") for bucket in elsewhere}
    todo = plan("broker-1~now", view("broker-0"), records, held=())
    assert todo.release == tuple(elsewhere)
    assert todo.acquire == ()
