"""Refusals by quotas are reported with their begin, do not flap, and use bounded memory."""

from __future__ import annotations

import dataclasses

from onewriter_broker.quotas.problems import (
    KEPT_SECONDS,
    SHOWN_SECONDS,
    QuotaProblem,
    QuotaProblems,
)

ORDERS, BILLS = "persistent://shop/default/orders", "persistent://shop/default/bills"
FULL = {"shop/default": "namespace shop/default stores 1100 bytes"}


class Clock:
    def __init__(self) -> None:
        self.seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds

    def advance(self, seconds: float) -> None:
        self.seconds += seconds


class World:
    def __init__(self, topics_max: int = 10) -> None:
        self.clock = Clock()
        self.problems = QuotaProblems(
            self.clock, lambda: int(self.clock() * 1000), topics_max=topics_max
        )

    def refuse(self, topic: str = ORDERS, quota: str = "a", reason: str = "100 producers") -> None:
        self.problems.refused(topic, quota, reason)

    @property
    def shown(self) -> dict[str, str]:
        return {name: each.reason for name, each in self.problems.topics().items()}


def test_the_first_refusal_stays_while_the_client_tries_again() -> None:
    world = World()
    world.refuse()
    first = world.problems.topics()
    for number in range(20):
        world.clock.advance(KEPT_SECONDS / 2)
        world.refuse(reason=f"{101 + number} producers")
        assert world.problems.topics() == first


def test_a_refusal_ends_when_nothing_is_refused_any_more() -> None:
    world = World()
    world.refuse()
    world.clock.advance(KEPT_SECONDS - 1)
    assert world.shown
    world.clock.advance(1)
    assert not world.shown


def test_an_admitted_producer_ends_it_but_not_at_once() -> None:
    world = World()
    world.refuse()
    world.problems.admitted(ORDERS)
    world.clock.advance(SHOWN_SECONDS - 1)
    assert world.shown
    world.clock.advance(1)
    assert not world.shown


def test_producers_that_come_and_go_at_the_limit_change_the_report_once() -> None:
    world = World()
    reports = []
    for _ in range(1000):
        world.refuse()
        world.problems.admitted(ORDERS)
        world.clock.advance(1.0)
        reports.append(world.problems.topics())
    assert all(report == reports[0] for report in reports)


def test_another_refusal_after_an_admission_counts() -> None:
    world = World()
    world.refuse()
    world.problems.admitted(ORDERS)
    world.refuse()
    world.clock.advance(SHOWN_SECONDS)
    assert world.shown


def test_another_quota_is_named() -> None:
    world = World()
    world.refuse(quota="a", reason="producers")
    world.clock.advance(5.0)
    world.refuse(quota="b", reason="bytes")
    assert world.shown == {ORDERS: "bytes"}


def test_a_refusal_after_a_pause_begins_again() -> None:
    world = World()
    world.refuse()
    before = world.problems.topics()[ORDERS].since_ms
    world.clock.advance(KEPT_SECONDS)
    world.refuse()
    assert world.problems.topics()[ORDERS].since_ms == before + KEPT_SECONDS * 1000


def test_the_number_of_topics_is_bounded() -> None:
    world = World(topics_max=2)
    for topic in (ORDERS, BILLS, ORDERS, "persistent://shop/default/third"):
        world.refuse(topic)
    assert list(world.shown) == [ORDERS, "persistent://shop/default/third"]


def test_a_full_namespace_keeps_its_first_text_and_its_begin() -> None:
    world = World()
    first = world.problems.namespaces(FULL)["shop/default"]
    assert first.holds
    world.clock.advance(60.0)
    later = {name: f"{text}, more" for name, text in FULL.items()}
    assert world.problems.namespaces(later) == {"shop/default": first}
    assert world.problems.namespaces({}) == {}
    again = world.problems.namespaces(FULL)["shop/default"]
    assert again == dataclasses.replace(first, since_ms=first.since_ms + 60_000)


def test_a_topic_has_the_problem_of_its_namespace_or_its_own() -> None:
    world = World()
    assert world.problems.of(ORDERS, "shop/default", {}) is None
    world.refuse()
    found = world.problems.of(ORDERS, "shop/default", {})
    assert found == QuotaProblem("100 producers", found.since_ms if found else 0)
    full = world.problems.of(ORDERS, "shop/default", FULL)
    assert full is not None
    assert full.holds
    assert world.problems.of(BILLS, "other/default", FULL) is None
