"""The election: its decisions, and runs over one Lease in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import random
from typing import Any, cast

import pytest

from onewriter_core.json_values import Json
from onewriter_core.kubernetes.kinds import Key
from onewriter_core.kubernetes.objects import LeaseRecord
from onewriter_operator.election import (
    Election,
    LeadershipLost,
    Observation,
    Timing,
    judge,
    observe,
)
from onewriter_operator.kube import ApiRefused, ApiUnreachable, Kube

TIMING = Timing(15, 10, 2)
LEASE = Key("Lease", "onewriter", "onewriter-operator")


def seen(holder: str, since: float, duration: float = 15) -> Observation:
    return Observation(LeaseRecord(holder, "2026-01-01T00:00:00.000000Z", 0, duration), since)


@pytest.mark.parametrize(
    ("found", "now", "decision"),
    [
        pytest.param(None, 0, "Take", id="there is none"),
        pytest.param(seen("", 0), 0, "Take", id="it was given back"),
        pytest.param(seen("me", 0), 100, "Renew", id="mine"),
        pytest.param(seen("other", 0), 14.9, "Wait", id="seen unchanged, not long enough"),
        pytest.param(seen("other", 0), 15, "Take", id="seen unchanged for all of it"),
        pytest.param(seen("other", 0, 60), 59, "Wait", id="the holder's own duration is longer"),
        pytest.param(seen("other", 0, 60), 60, "Take", id="and over"),
        pytest.param(seen("other", 0, 1), 14, "Wait", id="a shorter one does not count"),
    ],
)
def test_the_lease_decides_what_a_replica_may_do(
    found: Observation | None, now: float, decision: str
) -> None:
    assert judge("me", found, now, TIMING) == decision


def test_a_renewed_record_restarts_the_observation_whatever_its_time() -> None:
    first = LeaseRecord("other", "2026-01-01T00:00:10Z")
    earlier = LeaseRecord("other", "2020-01-01T00:00:00Z")  # a clock that was set back
    known = observe(None, first, 5)
    assert observe(known, first, 9) is known
    assert observe(known, earlier, 9) == Observation(earlier, 9)


class OneLease:
    """An API server with one Lease: conditional writes, and failures on demand."""

    def __init__(self) -> None:
        self.document: Json | None = None
        self.version = 0
        self.writes = 0
        self.is_away = False
        self.is_slow = 0.0

    async def _reached(self) -> None:
        await asyncio.sleep(self.is_slow)
        if self.is_away:
            raise ApiUnreachable("away")

    async def get(self, kind: Any, namespace: str, name: str) -> Json | None:
        await self._reached()
        return copy.deepcopy(self.document)

    async def create(self, kind: Any, document: Json) -> Json:
        await self._reached()
        if self.document is not None:
            raise ApiRefused(409, "it exists")
        return self._store(document)

    async def replace(self, kind: Any, document: Json) -> Json:
        await self._reached()
        if self.document is None:
            raise ApiRefused(404, "gone")
        if document["metadata"]["resourceVersion"] != self.document["metadata"]["resourceVersion"]:
            raise ApiRefused(409, "changed")
        return self._store(document)

    def _store(self, document: Json) -> Json:
        self.version += 1
        self.writes += 1
        self.document = copy.deepcopy(document)
        self.document["metadata"]["resourceVersion"] = str(self.version)
        return copy.deepcopy(self.document)

    @property
    def holder(self) -> str:
        return "" if self.document is None else str(self.document["spec"]["holderIdentity"])


class Replica:
    """One candidate; a test can cut its connection to the API server."""

    def __init__(self, lease: OneLease, name: str) -> None:
        self.lease = lease
        self.led: list[tuple[float, float]] = []
        self.election = Election(cast("Kube", lease), LEASE, name, TIMING, now, random.Random(name))

    async def run(self) -> None:
        await self.election.win()
        started = now()
        try:
            await self.election.keep()
        except LeadershipLost:
            return
        finally:
            self.led.append((started, now()))
            await self.election.give_back()


def now() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.looptime
async def test_the_leader_renews_its_lease() -> None:
    lease = OneLease()
    replicas = [Replica(lease, name) for name in ("a", "b")]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each.run()) for each in replicas]
        await asyncio.sleep(600)
        assert [each.election.is_leader for each in replicas].count(True) == 1
        assert lease.writes == pytest.approx(300, abs=3)
        assert lease.document is not None
        assert lease.document["spec"]["leaseTransitions"] == 0
        for task in tasks:
            task.cancel()


@pytest.mark.looptime
async def test_a_clean_stop_hands_over_immediately() -> None:
    lease = OneLease()
    first, second = Replica(lease, "a"), Replica(lease, "b")
    async with asyncio.TaskGroup() as group:
        one = group.create_task(first.run())
        await asyncio.sleep(1)
        two = group.create_task(second.run())
        await asyncio.sleep(30)
        one.cancel()
        stopped = now()
        while not second.election.is_leader:  # noqa: ASYNC110 - virtual time costs nothing
            await asyncio.sleep(0.1)
        assert now() - stopped <= 2 * (1 + 1.2) + 0.2
        two.cancel()
    assert lease.holder == ""


@pytest.mark.looptime
async def test_a_crash_is_waited_out() -> None:
    lease = OneLease()
    second = Replica(lease, "b")
    lease._store(
        {
            "metadata": {},
            "spec": {"holderIdentity": "a", "renewTime": "x", "leaseDurationSeconds": 15},
        }
    )
    async with asyncio.TaskGroup() as group:
        task = group.create_task(second.run())
        await asyncio.sleep(14.9)
        assert not second.election.is_leader
        await asyncio.sleep(5)
        assert second.election.is_leader
        task.cancel()
    assert lease.document is not None
    assert lease.document["spec"]["leaseTransitions"] == 1


@pytest.mark.looptime
async def test_a_leader_stops_before_anybody_else_may_begin() -> None:
    lease = OneLease()
    first = Replica(lease, "a")
    task = asyncio.get_running_loop().create_task(first.run())
    await asyncio.sleep(20)
    lease.is_away = True
    cut = now()
    await task
    assert now() - cut <= TIMING.renew_seconds
    assert not first.election.is_leader


@pytest.mark.looptime
async def test_a_server_that_hangs_counts_as_away() -> None:
    lease = OneLease()
    first = Replica(lease, "a")
    task = asyncio.get_running_loop().create_task(first.run())
    await asyncio.sleep(20)
    lease.is_slow = 1000
    cut = now()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(500):
            await asyncio.shield(task)
    (_, ended), *_ = first.led or [(0.0, now())]
    assert ended - cut <= TIMING.renew_seconds
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@pytest.mark.looptime
async def test_a_lease_taken_by_another_replica_ends_leadership_at_once() -> None:
    lease = OneLease()
    first = Replica(lease, "a")
    task = asyncio.get_running_loop().create_task(first.run())
    await asyncio.sleep(5)
    assert lease.document is not None
    lease._store(lease.document | {"spec": lease.document["spec"] | {"holderIdentity": "b"}})
    taken = now()
    await task
    assert now() - taken <= TIMING.retry_seconds
    assert lease.holder == "b"


@pytest.mark.looptime
async def test_a_deleted_lease_is_made_again() -> None:
    lease = OneLease()
    first = Replica(lease, "a")
    task = asyncio.get_running_loop().create_task(first.run())
    await asyncio.sleep(5)
    lease.document = None
    await asyncio.sleep(5)
    assert lease.holder == "a"
    assert first.election.is_leader
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@pytest.mark.looptime
async def test_of_two_concurrent_takeovers_the_server_accepts_one() -> None:
    for seed in range(20):
        lease = OneLease()
        lease.is_slow = 0.01
        replicas = [Replica(lease, f"{name}{seed}") for name in ("a", "b", "c")]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each.run()) for each in replicas]
            await asyncio.sleep(3)
            assert [each.election.is_leader for each in replicas].count(True) == 1
            for task in tasks:
                task.cancel()
