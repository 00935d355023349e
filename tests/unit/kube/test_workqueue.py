"""The queue of keys, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from onewriter_core.kubernetes.kinds import Key
from onewriter_operator import workqueue
from onewriter_operator.workqueue import GONE, KEYS_MAX, RetryLater, WorkQueue

pytestmark = pytest.mark.looptime


def key(name: str) -> Key:
    return Key("ExclusiveTopic", "shop", name)


@contextlib.asynccontextmanager
async def running(
    reconcile: Callable[[Key], Awaitable[float | None]],
    *,
    workers: int = 4,
    resync: float = 1000.0,
    keys_max: int = KEYS_MAX,
) -> AsyncIterator[WorkQueue]:
    queue = WorkQueue(
        reconcile,
        workers=workers,
        resync_seconds=resync,
        randomness=random.Random(1),
        keys_max=keys_max,
    )
    async with asyncio.TaskGroup() as group:
        task = group.create_task(queue.run())
        yield queue
        task.cancel()


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_a_key_that_waits_is_visited_once() -> None:
    visits: list[Key] = []

    async def reconcile(found: Key) -> None:
        visits.append(found)

    async with running(reconcile) as queue:
        for _ in range(10):
            queue.add(key("a"))
        queue.add(key("b"))
        await asyncio.sleep(1)
    assert sorted(visits) == [key("a"), key("b")]


async def test_a_key_is_reconciled_once_at_a_time_and_again_after_a_change() -> None:
    under_way: list[Key] = []
    visits: list[float] = []

    async def reconcile(found: Key) -> None:
        assert found not in under_way
        under_way.append(found)
        visits.append(now())
        await asyncio.sleep(1)
        under_way.remove(found)

    async with running(reconcile) as queue:
        queue.add(key("a"))
        await asyncio.sleep(0.5)
        for _ in range(5):
            queue.add(key("a"))
        await asyncio.sleep(3)
    assert visits == pytest.approx([0, 1 + workqueue.SPACING_SECONDS])


async def test_different_keys_are_visited_beside_each_other() -> None:
    visits: list[float] = []

    async def reconcile(found: Key) -> None:
        await asyncio.sleep(1)
        visits.append(now())

    async with running(reconcile, workers=2) as queue:
        for name in "abc":
            queue.add(key(name))
        await asyncio.sleep(5)
    assert visits == pytest.approx([1, 1, 2])


async def test_a_visit_that_fails_is_repeated_with_growing_jittered_delays() -> None:
    visits: list[float] = []

    async def reconcile(found: Key) -> None:
        visits.append(now())
        if len(visits) < 6:
            raise RuntimeError("a defect")

    async with running(reconcile) as queue:
        queue.add(key("a"))
        await asyncio.sleep(60)
    delays = [later - earlier for earlier, later in itertools.pairwise(visits)]
    assert len(delays) == 5
    for doublings, delay in enumerate(delays):
        most = workqueue.BACKOFF_SECONDS_MIN * 2**doublings
        assert most / 2 <= delay <= most + 1e-6


async def test_the_delay_is_bounded() -> None:
    visits: list[float] = []

    async def reconcile(found: Key) -> None:
        visits.append(now())
        raise RetryLater("not yet")

    async with running(reconcile) as queue:
        queue.add(key("a"))
        await asyncio.sleep(10_000)
    delays = [later - earlier for earlier, later in itertools.pairwise(visits)]
    assert max(delays) <= workqueue.BACKOFF_SECONDS_MAX
    assert min(delays[-20:]) >= workqueue.BACKOFF_SECONDS_MAX / 2


async def test_a_reconcile_may_request_its_repetition() -> None:
    visits: list[float] = []

    async def reconcile(found: Key) -> float | None:
        visits.append(now())
        if len(visits) == 1:
            raise RetryLater("the server is busy", 7)
        return 3 if len(visits) == 2 else None

    async with running(reconcile) as queue:
        queue.add(key("a"))
        await asyncio.sleep(100)
    assert visits == pytest.approx([0, 7, 10])


async def test_a_firm_delay_holds_even_if_the_key_changes() -> None:
    visits: list[float] = []

    async def reconcile(_: Key) -> None:
        visits.append(now())
        if len(visits) == 1:
            raise RetryLater("busy", 30, is_firm=True)

    async with running(reconcile) as queue:
        queue.add(key("a"))
        for _ in range(20):
            await asyncio.sleep(1)
            queue.add(key("a"))
        await asyncio.sleep(20)
    assert visits == pytest.approx([0, 30])


async def test_a_requested_delay_is_bounded() -> None:
    visits: list[float] = []

    async def reconcile(_: Key) -> None:
        visits.append(now())
        raise RetryLater("busy", 1e9, is_firm=True)

    async with running(reconcile) as queue:
        queue.add(key("a"))
        await asyncio.sleep(workqueue.LATER_SECONDS_MAX + 1)
    assert len(visits) == 2


async def test_success_forgets_earlier_failures() -> None:
    visits: list[float] = []

    async def reconcile(found: Key) -> float | None:
        visits.append(now())
        if len(visits) in {1, 2, 3, 5}:
            raise RetryLater("not yet")
        return 50 if len(visits) == 4 else None

    async with running(reconcile) as queue:
        queue.add(key("a"))
        await asyncio.sleep(200)
    assert visits[5] - visits[4] <= workqueue.BACKOFF_SECONDS_MIN


async def test_everything_is_visited_again_at_the_resync() -> None:
    visits: list[float] = []

    async def reconcile(found: Key) -> None:
        visits.append(now())

    async with running(reconcile, resync=100) as queue:
        queue.add(key("a"))
        await asyncio.sleep(1000)
    delays = [later - earlier for earlier, later in itertools.pairwise(visits)]
    assert 9 <= len(visits) <= 12
    assert all(90 <= delay <= 110 for delay in delays)
    assert len({round(delay, 3) for delay in delays}) > 1


async def test_a_gone_object_is_not_reconciled_again() -> None:
    visits: list[float] = []

    async def reconcile(found: Key) -> float:
        visits.append(now())
        return GONE

    async with running(reconcile, resync=10) as queue:
        queue.add(key("a"))
        await asyncio.sleep(100)
        assert queue._entries == {}
    assert visits == [0]


async def test_a_flapping_object_is_visited_at_a_bounded_rate() -> None:
    visits: list[float] = []

    async def reconcile(found: Key) -> None:
        visits.append(now())

    async with running(reconcile) as queue:
        for _ in range(1000):
            queue.add(key("a"))
            await asyncio.sleep(0.001)
    assert len(visits) <= 1 / workqueue.SPACING_SECONDS + 1


async def test_an_earlier_appointment_counts() -> None:
    visits: list[float] = []

    async def reconcile(found: Key) -> None:
        visits.append(now())

    async with running(reconcile) as queue:
        queue._add_after(key("a"), 50)
        queue._add_after(key("a"), 5)
        queue._add_after(key("a"), 20)
        await asyncio.sleep(100)
    assert visits == pytest.approx([5])


async def test_old_appointments_do_not_pile_up() -> None:
    async def reconcile(found: Key) -> None:
        return None

    async with running(reconcile) as queue:
        for _ in range(2000):
            queue.add(key("a"))
            await asyncio.sleep(0.2)
        assert len(queue._later) < 100


async def test_keys_are_bounded() -> None:
    async def reconcile(found: Key) -> None:
        return None

    async with running(reconcile, keys_max=3) as queue:
        for name in "abcde":
            queue.add(key(name))
        assert queue.refused == 2
        assert queue.depth == 3


async def test_results_are_observed() -> None:
    seen: list[str] = []

    class Observer:
        def reconciled(self, found: Key, seconds: float, result: str) -> None:
            seen.append(result)

    async def reconcile(found: Key) -> None:
        if found.name == "later":
            raise RetryLater("x", 900)
        if found.name == "error":
            raise RuntimeError("x")

    queue = WorkQueue(reconcile, workers=1, resync_seconds=900, observer=Observer())
    async with asyncio.TaskGroup() as group:
        task = group.create_task(queue.run())
        for name in ("ok", "later", "error"):
            queue.add(key(name))
        await asyncio.sleep(0.05)
        task.cancel()
    assert seen == ["ok", "later", "error"]
