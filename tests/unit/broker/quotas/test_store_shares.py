"""Producers that may write while a share of the store, or all of it, is used up."""

from __future__ import annotations

import pytest

from onewriter_broker.quotas.shares import ShareLimits, ShareOf, StoreShares
from onewriter_core.errors import Refused, ServerError

LIMITS = ShareLimits(
    namespace_bytes=1_000, namespace_share=0.8, undeclared_share=0.5, reserve_share=0.05
)
GREEDY, CALM = ShareOf("public/greedy", is_declared=True), ShareOf("public/calm", is_declared=True)
LOOSE = ShareOf("public/calm", is_declared=False)


def shares_after(
    stored: dict[ShareOf, int], used: int = 0, limit: int = 0, *, is_nearly_full: bool = False
) -> StoreShares:
    shares = StoreShares(LIMITS)
    for whose in (GREEDY, CALM, LOOSE):
        shares.of(whose.namespace, is_declared=whose.is_declared)
    shares.update(used, limit, stored, is_nearly_full=is_nearly_full)
    return shares


def share(shares: StoreShares, whose: ShareOf) -> tuple[bool, bool]:
    """Whether it is read slowly, and whether it is held."""
    found = shares.of(whose.namespace, is_declared=whose.is_declared)
    return found.is_slow, found.is_held


def test_a_namespace_beyond_its_bytes_is_held_and_another_is_not() -> None:
    shares = shares_after({GREEDY: 1_001, CALM: 10})
    assert share(shares, GREEDY) == (True, True)
    assert share(shares, CALM) == (False, False)
    with pytest.raises(Refused, match="quota_stored_bytes_per_namespace allows 1000") as refused:
        shares.check(shares.of("public/greedy", is_declared=True))
    assert refused.value.code is ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_ERROR
    shares.check(shares.of("public/calm", is_declared=True))
    assert shares.refused == 1


def test_a_share_is_held_until_use_is_well_below() -> None:
    shares = shares_after({GREEDY: 1_001})
    assert not shares.update(0, 0, {GREEDY: 960}, is_nearly_full=False)
    assert share(shares, GREEDY) == (True, True)
    assert shares.update(0, 0, {GREEDY: 900}, is_nearly_full=False)
    assert share(shares, GREEDY) == (False, False)
    shares.update(0, 0, {GREEDY: 990}, is_nearly_full=False)
    assert share(shares, GREEDY) == (False, False)


def test_a_namespace_s_share_counts_what_is_declared_and_what_is_not() -> None:
    limit = 100
    shares = shares_after({CALM: 41, LOOSE: 40}, used=85, limit=limit)
    assert share(shares, CALM) == (True, True)
    with pytest.raises(Refused, match=r"quota_store_share_per_namespace allows 0\.8"):
        shares.check(shares.of("public/calm", is_declared=True))


def test_undeclared_topics_together_have_a_share_and_declared_ones_continue() -> None:
    loose = ShareOf("public/greedy", is_declared=False)
    shares = shares_after({loose: 30, LOOSE: 21, CALM: 10}, used=70, limit=100)
    assert share(shares, LOOSE) == (True, True)
    assert share(shares, CALM) == (False, False)
    unused = shares.now("public/new", is_declared=False)
    with pytest.raises(Refused, match=r"undeclared_store_share allows 0\.5"):
        shares.check(unused)


@pytest.mark.parametrize(
    ("used", "declared", "undeclared"),
    [
        (91, (False, False), (True, False)),
        (93, (False, False), (True, True)),
        (96, (False, False), (True, True)),
        (98, (True, False), (True, True)),
        (99, (True, True), (True, True)),
    ],
    ids=["nearly full", "the reserve", "in it", "it is used", "full"],
)
def test_the_reserve_is_for_declared_topics(
    used: int, declared: tuple[bool, bool], undeclared: tuple[bool, bool]
) -> None:
    shares = shares_after({}, used=used, limit=100, is_nearly_full=True)
    assert share(shares, CALM) == declared
    assert share(shares, LOOSE) == undeclared


def test_a_nearly_full_store_takes_no_new_producer_and_a_holder_that_returns() -> None:
    shares = shares_after({}, used=93, limit=100, is_nearly_full=True)
    declared = shares.of("public/calm", is_declared=True)
    with pytest.raises(Refused, match="almost full") as refused:
        shares.check(declared)
    assert refused.value.code is ServerError.SERVICE_NOT_READY
    shares.check(declared, resumes=True)
    shares.update(98, 100, {}, is_nearly_full=True)
    with pytest.raises(Refused):
        shares.check(declared, resumes=True)


def test_without_limits_nothing_is_held() -> None:
    shares = StoreShares()
    shares.update(0, 0, {GREEDY: 10**12, LOOSE: 10**12}, is_nearly_full=False)
    assert share(shares, GREEDY) == share(shares, LOOSE) == (False, False)
    assert shares.held == 0
