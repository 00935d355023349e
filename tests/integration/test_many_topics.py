"""Hundreds of topics whose broker is killed: every holder returns under its epoch, and no waiter is promoted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.integration.conftest import RawClients
from tests.integration.following import placed
from tests.integration.forked_brokers import forked_brokers
from tests.integration.raw import EXCLUSIVE, WAIT, eventually

from onewriter_core.errors import Unavailable
from onewriter_testing.processes import LocalBrokers

TOPICS = 300

PATIENT = {"resume_window_seconds": 300.0, "silent_after_seconds": 600.0}
"""A machine may be slow, and a raw client answers no PING while the test reads from another one."""


@pytest.fixture
def pair() -> Iterator[LocalBrokers]:
    """Two brokers without a supervisor: one that dies stays dead."""
    with forked_brokers(brokers=2, settings=PATIENT) as brokers:
        yield brokers


def topics_at(brokers: LocalBrokers, number: int) -> list[str]:
    """Topics that placement assigns to that broker."""
    names = (f"many-{at}" for at in range(100 * TOPICS))
    found = [name for name in names if brokers.target_of(name) == number]
    return found[:TOPICS]


def test_all_holders_of_a_killed_broker_return_before_the_waiters(
    pair: LocalBrokers, raw: RawClients
) -> None:
    topics = topics_at(pair, 0)
    placed(pair, *topics[:20])
    holding, waiting = raw(pair.address(0)), raw(pair.address(0))
    asked = [holding.ask_producer(topic, EXCLUSIVE, name=f"holder of {topic}") for topic in topics]
    epochs = [producer.ready().epoch for producer in asked]
    for each in [waiting.ask_producer(topic, WAIT) for topic in topics]:
        each.waits()
    pair.kill(0)

    def is_taken_over(topic: str) -> bool:
        try:
            return pair.owner_of(topic, through=1) == 1
        except (Unavailable, OSError):
            return False

    eventually(
        lambda: all(is_taken_over(topic) for topic in topics), what="all topics are served again"
    )
    waiting, holding = raw(pair.address(1)), raw(pair.address(1))
    queued = [waiting.ask_producer(topic, WAIT) for topic in topics]
    returning = [
        holding.ask_producer(topic, EXCLUSIVE, name=f"holder of {topic}", epoch=epoch, reconnects=1)
        for topic, epoch in zip(topics, epochs, strict=True)
    ]
    assert [producer.ready().epoch for producer in returning] == epochs
    for each in queued:
        each.waits()
        assert not each.is_ready
