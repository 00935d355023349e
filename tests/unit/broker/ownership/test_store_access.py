"""Whether a broker alone lost the store: every observation in every state, and the questions to other brokers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from onewriter_broker.anchor.api import Addresses
from onewriter_broker.ownership.member_observer import DEAD_SECONDS, RETURN_SECONDS
from onewriter_broker.ownership.membership import Membership
from onewriter_broker.ownership.store_access import (
    ASKED_MAX,
    StoreAccess,
    StoreAccessWatch,
    StoreReach,
    next_reach,
)

NEVER, REACHED, RETURNED, UNCERTAIN, LOST_BY_ALL, LOST_ALONE = StoreAccess
NOW = 1_000.0

CUT_OFF: list[list[bool | None]] = [[True], [True, False], [None, True], [None], [None, None]]
"""Answers by which this broker may be the one that is cut off, if it has not known better."""

GONE: list[list[bool | None]] = [[], [False], [False, None], [False, False]]
"""Answers by which no broker reaches the store."""


def after(before: StoreReach, others: list[bool | None], seconds: float = 0.0) -> StoreReach:
    return next_reach(before, NOW + seconds, is_reached=False, others=others)


@pytest.mark.parametrize("others", [*CUT_OFF, *GONE], ids=str)
def test_a_broker_that_never_reached_the_store_stays_unready(
    others: list[bool | None],
) -> None:
    assert after(StoreReach(), others, 1e6).access is NEVER


@pytest.mark.parametrize("access", [REACHED, RETURNED, UNCERTAIN, LOST_BY_ALL, LOST_ALONE])
@pytest.mark.parametrize("others", GONE, ids=str)
def test_the_store_is_lost_by_all_if_no_broker_reaches_it_and_one_confirms_it_or_is_the_only_one(
    access: StoreAccess, others: list[bool | None]
) -> None:
    assert after(StoreReach(access, NOW), others).access is LOST_BY_ALL


@pytest.mark.parametrize("access", [REACHED, RETURNED])
@pytest.mark.parametrize("others", CUT_OFF, ids=str)
def test_a_broker_is_cut_off_after_the_time_in_which_others_notice_a_loss(
    access: StoreAccess, others: list[bool | None]
) -> None:
    reach = after(StoreReach(access, NOW), others)
    assert reach.access is UNCERTAIN
    reach = after(reach, others, DEAD_SECONDS - 0.01)
    assert reach.access is UNCERTAIN
    reach = after(reach, others, DEAD_SECONDS)
    assert reach.access is LOST_ALONE
    assert after(reach, others, 1e6).access is LOST_ALONE


@pytest.mark.parametrize("others", [each for each in CUT_OFF if True in each], ids=str)
def test_after_a_loss_by_all_a_broker_has_the_time_of_a_return(others: list[bool | None]) -> None:
    reach = after(StoreReach(LOST_BY_ALL), others)
    assert after(reach, others, RETURN_SECONDS - 0.01).access is UNCERTAIN
    assert after(reach, others, RETURN_SECONDS).access is LOST_ALONE


def test_silence_after_a_loss_by_all_shows_nothing() -> None:
    """The other brokers may be restarting, which they cannot complete without the store."""
    assert after(StoreReach(LOST_BY_ALL), [None, None], 1e6).access is LOST_BY_ALL


def test_a_doubt_ends_if_other_brokers_lost_the_store_too() -> None:
    doubtful = after(StoreReach(REACHED), [True, None])
    assert after(doubtful, [False, None], 1.0).access is LOST_BY_ALL


@pytest.mark.parametrize("access", [UNCERTAIN, LOST_BY_ALL, LOST_ALONE])
def test_after_its_return_the_buckets_have_time(access: StoreAccess) -> None:
    def reached(before: StoreReach, seconds: float) -> StoreReach:
        return next_reach(before, NOW + seconds, is_reached=True, others=())

    back = reached(StoreReach(access, NOW - 60), 0.0)
    assert back.access is RETURNED
    assert reached(back, RETURN_SECONDS - 0.01).access is RETURNED
    assert reached(back, RETURN_SECONDS).access is REACHED


@pytest.mark.parametrize("access", [NEVER, REACHED])
def test_the_first_time_needs_no_patience(access: StoreAccess) -> None:
    reach = next_reach(StoreReach(access), NOW, is_reached=True, others=())
    assert reach.access is REACHED


# ------------------------------------------------------------ asking


def addresses(name: str) -> Addresses:
    return Addresses(f"pulsar://{name}", f"http://{name}")


class World:
    """Other brokers with their answers; ``is_reached``: whether the store answers this broker."""

    def __init__(self, **answers: bool | None) -> None:
        self.is_reached = True
        self.answers = {addresses(name): answer for name, answer in answers.items()}
        self.members = {f"{name}~1": (addresses(name), True) for name in answers}
        self.owners: set[Addresses] = set()
        self.requests: list[Addresses] = []
        self.now = NOW
        self.watch = StoreAccessWatch(
            cast("Membership", self),
            "me~2",
            self.ask,
            owners=lambda: self.owners,
            now=lambda: self.now,
        )

    @property
    def store_answers(self) -> bool:
        return self.is_reached

    @property
    def observer(self) -> SimpleNamespace:
        return SimpleNamespace(members=lambda: self.members)

    async def ask(self, other: Addresses) -> bool | None:
        self.requests.append(other)
        return self.answers[other]

    async def seen(self, *, is_reached: bool) -> StoreAccess:
        self.is_reached = is_reached
        await self.watch.look()
        return self.watch.access


async def test_no_broker_is_asked_while_the_store_answers_or_before_it_did() -> None:
    world = World(one=True)
    assert await world.seen(is_reached=False) is NEVER
    assert await world.seen(is_reached=True) is REACHED
    assert world.requests == []


async def test_living_brokers_of_other_names_are_asked() -> None:
    world = World(one=False, dead=True, me=True)
    world.members["dead~1"] = (addresses("dead"), False)
    await world.seen(is_reached=True)
    assert await world.seen(is_reached=False) is LOST_BY_ALL
    assert world.requests == [addresses("one")]


async def test_a_single_broker_asks_no_other_broker() -> None:
    world = World()
    await world.seen(is_reached=True)
    assert await world.seen(is_reached=False) is LOST_BY_ALL
    assert await world.seen(is_reached=True) is RETURNED


@pytest.mark.parametrize(
    ("answer", "access"), [(True, UNCERTAIN), (False, LOST_BY_ALL), (None, LOST_BY_ALL)]
)
async def test_an_owner_named_only_by_the_anchor_is_asked_and_its_silence_proves_nothing(
    answer: bool | None, access: StoreAccess
) -> None:
    world = World()
    world.owners = {addresses("taker")}
    world.answers = {addresses("taker"): answer}
    await world.seen(is_reached=True)
    assert await world.seen(is_reached=False) is access
    assert world.requests == [addresses("taker")]


async def test_a_store_that_returns_while_others_are_asked_counts_as_reached() -> None:
    world = World(one=False)
    await world.seen(is_reached=True)
    requests = world.ask

    async def ask(other: Addresses) -> bool | None:
        world.is_reached = True
        return await requests(other)

    world.watch._ask = ask
    assert await world.seen(is_reached=False) is REACHED


async def test_a_broker_that_does_not_answer_in_time_leaves_the_result_unknown() -> None:
    world = World(one=True)
    await world.seen(is_reached=True)

    async def for_ever(_other: Addresses) -> bool | None:
        raise TimeoutError

    world.watch._ask = for_ever
    assert await world.seen(is_reached=False) is UNCERTAIN
    world.now += DEAD_SECONDS
    assert await world.seen(is_reached=False) is LOST_ALONE


async def test_some_of_many_brokers_are_asked_each_time_and_all_in_turn() -> None:
    names = [f"broker-{number:03}" for number in range(2 * ASKED_MAX + 1)]
    world = World(**dict.fromkeys(names, False))
    await world.seen(is_reached=True)
    for _ in range(3):
        before = len(world.requests)
        await world.seen(is_reached=False)
        assert len(world.requests) - before == ASKED_MAX
    assert {each.http_url for each in world.requests} == {f"http://{name}" for name in names}
