"""Parsing of a cluster's views, and the newest claim of each slot."""

from __future__ import annotations

import pytest
from tests.unit.core.cluster_views import THIRDS, A, B, C, R, line, view, whole

from onewriter_core.cluster_views import SLOTS, SlotMap, parse_view, slot_of
from onewriter_core.errors import Undecided


@pytest.mark.parametrize(
    ("key", "slot"),
    [
        ("123456789", 0x31C3),
        ("ow:{b0}:unit", slot_of("b0")),
        ("ow:{b0}:log:{other}", slot_of("b0")),
        ("ow:{}:unit", slot_of("ow:{}:unit")),
        ("ow:{b0", slot_of("ow:{b0")),
    ],
)
def test_a_key_has_the_slot_of_its_hash_tag(key: str, slot: int) -> None:
    assert slot_of(key) == slot % SLOTS


def test_buckets_are_spread_over_the_slots() -> None:
    thirds = [slot_of(f"ow:{{b{bucket}}}:unit") * 3 // SLOTS for bucket in range(64)]
    assert [thirds.count(third) for third in range(3)] == [22, 22, 20]


def test_a_view_names_primaries_replicas_and_slots() -> None:
    found = SlotMap([view(A, *whole())])
    first, second, third = found.shards()
    assert first.primary.address == ("10.0.0.1", 7000)
    assert [replica.node_id for replica in first.replicas] == [R]
    assert first.ranges == ((0, 5460),)
    assert (second.primary.node_id, third.primary.node_id) == (B, C)
    assert found.is_complete
    owner = found.primary_of(5461)
    assert owner is not None
    assert owner.node_id == B


@pytest.mark.parametrize(
    ("place", "host"),
    [
        ("10.0.0.1:7000@17000,store-0.store.ns.svc", "store-0.store.ns.svc"),
        ("10.0.0.1:7000@17000,,shard-id=ff", "10.0.0.1"),
        ("::1:7000@17000", "::1"),
        (":7000@17000", "10.0.0.1"),
    ],
    ids=["a hostname", "auxiliary fields", "IPv6", "the node does not know its own"],
)
def test_a_node_is_reached_by_its_hostname_or_its_address(place: str, host: str) -> None:
    found = view(A, line(A, place=place, slots="0-16383"))
    assert found.nodes[0].address == (host, 7000)


def test_a_slot_that_is_being_moved_stays_with_its_owner() -> None:
    found = SlotMap([view(A, line(A, slots=f"0-5 7 [7->-{B}]"), line(B))])
    owners = [found.primary_of(slot) for slot in (5, 6, 7)]
    assert [owner and owner.node_id for owner in owners] == [A, None, A]
    assert not found.is_complete


def test_the_claim_with_the_highest_epoch_counts() -> None:
    """A primary that was cut off still believes that it owns its slots."""
    stale = view(A, *whole())
    promoted = [line(A, "master,fail"), line(R, epoch=9, slots=THIRDS[A])]
    others = [line(B, slots=THIRDS[B]), line(C, slots=THIRDS[C])]
    for views in (
        [stale, view(B, *promoted, *others)],
        [view(B, *promoted, *others), stale],
    ):
        owner = SlotMap(views).primary_of(0)
        assert owner is not None
        assert owner.node_id == R


def test_a_majority_of_the_primaries_is_needed_and_replicas_do_not_count() -> None:
    assert not SlotMap([view(A, *whole())]).is_by_majority
    assert not SlotMap([view(A, *whole()), view(R, *whole())]).is_by_majority
    assert SlotMap([view(A, *whole()), view(B, *whole())]).is_by_majority
    assert not SlotMap([]).is_by_majority


@pytest.mark.parametrize(
    "text", ["", "nonsense", line(A), line(A, "myself,master", slots="0-99999")]
)
def test_an_answer_that_is_no_view_is_undecided(text: str) -> None:
    with pytest.raises(Undecided):
        parse_view(text, ("host", 7000))
