"""Raw clients that look a topic up and follow it from broker to broker, like stock clients."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from tests.integration.conftest import RawClients
from tests.integration.raw import RawClient, RawProducer, RefusedByBroker

from onewriter_core.errors import ServerError, Unavailable
from onewriter_testing.processes import LocalBrokers

FOLLOW_SECONDS = 120.0
PAUSE_SECONDS = 0.05


def at_owner(brokers: LocalBrokers, raw: RawClients, topic: str, *, asked: int = 0) -> RawClient:
    """Connect to the broker that serves the topic now."""
    return raw(brokers.address(brokers.owner_of(topic, through=asked)))


def follow(
    brokers: LocalBrokers,
    raw: RawClients,
    topic: str,
    mode: Any,
    *,
    asked: int = 0,
    waits: bool | None = False,
    seconds: float = FOLLOW_SECONDS,
    **options: Any,
) -> RawProducer:
    """Create a producer at the broker that serves the topic; retry while the topic moves or no broker serves it.

    ``waits``: whether the producer must be queued. None: if it is queued, wait for its grant.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            client = at_owner(brokers, raw, topic, asked=asked)
            producer = client.ask_producer(topic, mode, **options)
            if waits is None:
                return producer.ready_at_last()
            return producer.waits() if waits else producer.ready()
        except RefusedByBroker as refused:
            if refused.code is not ServerError.SERVICE_NOT_READY or time.monotonic() > deadline:
                raise
        except (Unavailable, OSError, TimeoutError):
            if time.monotonic() > deadline:
                raise
        time.sleep(PAUSE_SECONDS)


def topic_of(brokers: LocalBrokers, number: int, stem: str) -> str:
    """Return a topic that placement assigns to that broker."""
    candidates = (f"{stem}-{n}" for n in range(1000))
    return next(topic for topic in candidates if brokers.target_of(topic) == number)


@contextlib.contextmanager
def settled(brokers: LocalBrokers, *topics: str) -> Iterator[None]:
    """``placed`` as a context, for a test's ``with`` statement."""
    placed(brokers, *topics)
    yield


def placed(brokers: LocalBrokers, *topics: str, seconds: float = FOLLOW_SECONDS) -> None:
    """Wait until all brokers agree that each topic is at the broker that placement assigns."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if all(
                brokers.owner_of(topic, through=request) == brokers.target_of(topic)
                for topic in topics
                for request in range(len(brokers.names))
            ):
                return
        except (Unavailable, OSError):
            pass  # no broker serves it at the moment
        if time.monotonic() > deadline:
            raise TimeoutError(f"{topics} are not where they belong")
        time.sleep(PAUSE_SECONDS)
