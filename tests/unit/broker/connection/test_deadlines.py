"""Progress deadlines: which producers are closed, and that only topics with a deadline are checked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from tests.unit.broker.topic.fence_path_world import ORDERS, serving, until

from onewriter_broker.connection.deadlines import ProgressDeadlines
from onewriter_core.api import ExclusiveTopic
from onewriter_core.api.manifests import DesiredState
from onewriter_core.topic.model import AccessMode

DEADLINE_SECONDS = 5


def declared(seconds: int) -> ExclusiveTopic:
    return ExclusiveTopic.from_document(
        {
            "apiVersion": "onewriter.dev/v1alpha1",
            "kind": "ExclusiveTopic",
            "metadata": {"name": "orders"},
            "spec": {
                "topic": str(ORDERS),
                "detection": {"progressDeadlineSeconds": seconds},
            },
        }
    )


class Registry:
    """The loaded topics of a broker; counts who asks for which."""

    def __init__(self, **topics: Any) -> None:
        self.desired = DesiredState()
        self.requests: list[str] = []
        self.loaded = self
        self._topics = {str(ORDERS): topics.get("orders")}

    def get(self, name: str) -> Any:
        self.requests.append(name)
        return self._topics.get(name)


def deadlines(registry: Registry) -> ProgressDeadlines:
    return ProgressDeadlines(cast("Any", registry))


def test_topics_without_a_deadline_are_not_even_looked_up() -> None:
    registry = Registry()
    registry.desired = DesiredState((declared(0),))
    deadlines(registry).check(100.0)
    assert registry.requests == []


def test_a_changed_manifest_is_followed() -> None:
    registry = Registry()
    checker = deadlines(registry)
    checker.check(100.0)
    registry.desired = DesiredState((declared(DEADLINE_SECONDS),))
    checker.check(101.0)
    assert registry.requests == [str(ORDERS)]
    registry.desired = DesiredState()
    checker.check(102.0)
    assert len(registry.requests) == 1


async def test_a_holder_that_does_not_publish_is_closed_and_the_next_one_granted() -> None:
    async with serving() as world:
        runner = await world.load()
        topic = SimpleNamespace(runner=runner, progress_deadline_seconds=DEADLINE_SECONDS)
        registry = Registry(orders=topic)
        registry.desired = DesiredState((declared(DEADLINE_SECONDS),))
        checker = deadlines(registry)
        holder, channel = await world.granted(runner, AccessMode.EXCLUSIVE)
        _, next_told = world.ask(runner, AccessMode.WAIT_FOR_EXCLUSIVE)
        checker.check(100.0)
        world.send(holder, 0)
        await until(lambda: channel.receipts)
        checker.check(104.0)  # it has published since the last check
        checker.check(104.0 + DEADLINE_SECONDS)
        assert channel.closed == 0
        checker.check(104.1 + DEADLINE_SECONDS)
        assert channel.closed == 1
        await until(lambda: next_told.ready)


async def test_waiters_and_shared_producers_have_no_deadline() -> None:
    async with serving() as world:
        runner = await world.load()
        topic = SimpleNamespace(runner=runner, progress_deadline_seconds=DEADLINE_SECONDS)
        registry = Registry(orders=topic)
        registry.desired = DesiredState((declared(DEADLINE_SECONDS),))
        checker = deadlines(registry)
        _, shared = await world.granted(runner, AccessMode.SHARED)
        _, waiter = world.ask(runner, AccessMode.WAIT_FOR_EXCLUSIVE)
        for now in (100.0, 200.0):
            checker.check(now)
        assert (shared.closed, waiter.closed) == (0, 0)
