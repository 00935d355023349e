"""Bucket ownership on an embedded server, the Redis log store, and the file anchor."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.stamps import fence_once

from onewriter_broker.anchor.api import Addresses
from onewriter_broker.anchor.file import FileAnchor
from onewriter_broker.local.embedded import EmbeddedServer, EmbeddedSettings
from onewriter_broker.log.store.api import Fence, FencedLog, Outcome
from onewriter_broker.log.store.redis.primary import RedisSettings
from onewriter_broker.log.store.redis.store import RedisLogStore
from onewriter_broker.ownership.acquisition import Holding, adopt_force
from onewriter_broker.ownership.bucket_events import LostReason, Refenced
from onewriter_broker.ownership.buckets import BucketOwnership
from onewriter_broker.ownership.member_observer import (
    BEAT_SECONDS,
    DEAD_SECONDS,
    RETURN_SECONDS,
    SETTLE_SECONDS,
)
from onewriter_broker.ownership.membership import Membership
from onewriter_core.errors import Unavailable
from onewriter_core.ids import TopicName, bucket_of
from onewriter_testing.memory_anchor import MemoryAnchor

BUCKETS = 16
TOPIC = TopicName.parse("orders")
BUCKET = bucket_of(TOPIC, BUCKETS)
SECONDS_MAX = 120.0


class Application:
    """A broker without topics."""

    def __init__(
        self,
        me: str,
        server: EmbeddedServer,
        anchor: FileAnchor | MemoryAnchor,
        clock: Callable[[], float] | None = None,
    ) -> None:
        addresses = Addresses(f"pulsar://{me}", f"http://{me}")
        self.lost: dict[int, LostReason] = {}
        self.store = RedisLogStore(RedisSettings(url=server.url, buckets=BUCKETS))
        self.anchor = anchor
        self.membership = Membership(self.store, me, addresses, clock=clock)
        self.buckets = BucketOwnership(
            me=me,
            addresses=addresses,
            buckets=BUCKETS,
            anchor=self.anchor,
            store=self.store,
            events=self,
            single_node=True,
            live_view=self.membership.view,
            wake=self.membership.changed,
        )

    def bucket_acquired(self, bucket: int, holding: Holding) -> None:
        pass

    def bucket_lost(self, bucket: int, reason: LostReason) -> None:
        self.lost[bucket] = reason

    def dataset_changed(self, bucket: int, holding: Holding) -> None:
        pass

    async def drain(self, bucket: int) -> None:
        pass

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.membership.run())
            tasks.create_task(self.buckets.run())

    async def holds(self, count: int) -> None:
        async with asyncio.timeout(SECONDS_MAX):
            while len(self.buckets.held()) != count:  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(0.01)

    def holding(self) -> Holding:
        holding = self.buckets.holding(BUCKET)
        assert holding is not None
        return holding

    async def grant(self) -> int:
        ledger = await self.buckets.reserve_ledger(BUCKET)
        log = FencedLog(TOPIC, create=True, marker={"note": "x"}, state={})
        fence = Fence(self.holding().binding, ledger, (log,), {"kind": "grant"})
        assert await fence_once(self.store, fence) is Outcome.DONE
        await self.buckets.record_grant(BUCKET, ledger)
        return ledger


@asynccontextmanager
async def running(application: Application) -> AsyncIterator[None]:
    """Run it. At the end it stops at any point of its work, as if frozen."""
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(application.run())
        try:
            yield
        finally:
            task.cancel()


@asynccontextmanager
async def broker(me: str, server: EmbeddedServer, directory: Path) -> AsyncIterator[Application]:
    """Run a broker. At the end it disappears without notice, as after kill -9."""
    application = Application(me, server, FileAnchor(directory / "anchor"))
    try:
        async with running(application):
            yield application
    finally:
        await application.store.close()
        await application.anchor.close()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    server = EmbeddedServer(EmbeddedSettings(tmp_path / "valkey"))
    await server.start()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(server.watch())
        yield server
        await server.stop()


async def refenced(application: Application, outcome: Outcome) -> Refenced:
    async with asyncio.timeout(SECONDS_MAX):
        return await application.buckets.refence(BUCKET, application.holding().binding, outcome)


async def killed(server: EmbeddedServer) -> None:
    process_id = server.process_id
    assert process_id is not None
    os.kill(process_id, signal.SIGKILL)
    async with asyncio.timeout(SECONDS_MAX):
        while server.process_id in {None, process_id}:  # noqa: ASYNC110 - another process's
            await asyncio.sleep(0.01)


async def test_epochs_may_be_resumed_after_broker_and_store_were_killed(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    async with broker("broker-0~a", server, tmp_path) as first:
        await first.holds(BUCKETS)
        ledger = await first.grant()
        generation = first.holding().binding.generation
    await killed(server)
    async with broker("broker-0~b", server, tmp_path) as second:
        await second.holds(BUCKETS)
        assert second.holding().binding.generation == generation + 1
        assert second.holding().may_resume(generation)
        assert await second.grant() > ledger


async def test_a_store_that_restarts_under_a_broker_is_adopted_in_place(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    async with broker("broker-0~a", server, tmp_path) as application:
        await application.holds(BUCKETS)
        await application.grant()
        before = application.holding()
        await killed(server)
        assert await refenced(application, Outcome.REFENCE) is Refenced.REBOUND
        after = application.holding()
        assert after.binding.replid != before.binding.replid
        assert after.may_resume(before.binding.generation)
        await application.grant()


class Pair:
    """Two brokers on a virtual clock: a broker acts only when the test lets it act.

    Their anchor does not record every grant, as the one in Kubernetes.
    """

    def __init__(self, server: EmbeddedServer) -> None:
        self._seconds = 0.0
        anchor = MemoryAnchor(records_every_grant=False)
        self.first = Application("broker-0~a", server, anchor, lambda: self._seconds)
        self.second = Application("broker-1~b", server, anchor, lambda: self._seconds)

    def wait(self, seconds: float) -> None:
        self._seconds += seconds

    async def act(self, seconds: float, *acting: Application) -> None:
        """Heartbeats, readings and the resulting changes of buckets, for so long."""
        for _ in range(round(seconds / BEAT_SECONDS)):
            self.wait(BEAT_SECONDS)
            for application in acting:
                assert await application.membership.beat_once()
            for application in acting:
                async with asyncio.TaskGroup() as tasks:
                    await application.buckets.place_once(tasks)

    async def close(self) -> None:
        for application in (self.first, self.second):
            await application.store.close()


async def test_broker_that_finds_the_restarted_store_later_keeps_its_buckets(
    server: EmbeddedServer,
) -> None:
    pair = Pair(server)
    first, second = pair.first, pair.second
    await pair.act(SETTLE_SECONDS + DEAD_SECONDS, first, second)
    shares = set(first.buckets.held()), set(second.buckets.held())
    assert sorted(shares[0] | shares[1]) == list(range(BUCKETS))
    bucket = min(shares[1])
    former = second.buckets.held()[bucket]
    ledger = await second.buckets.reserve_ledger(bucket)
    topic = next(
        topic
        for topic in (TopicName.parse(f"orders-{number}") for number in range(1000))
        if bucket_of(topic, BUCKETS) == bucket
    )
    log = FencedLog(topic, create=True, marker={"note": "x"}, state={})
    fence = Fence(former.binding, ledger, (log,), {"kind": "grant"})
    assert await fence_once(second.store, fence) is Outcome.DONE
    await second.buckets.record_grant(bucket, ledger)

    await killed(server)
    async with asyncio.timeout(SECONDS_MAX):
        while not await first.membership.beat_once():  # noqa: ASYNC110 - another process's
            await asyncio.sleep(0.01)
    pair.wait(10)
    await pair.act(RETURN_SECONDS, first)
    assert set(first.buckets.held()) == shares[0], "the other one may be about to return"
    await pair.act(BEAT_SECONDS, second)
    failed = former.binding
    assert await second.buckets.refence(bucket, failed, Outcome.REFENCE) is Refenced.REBOUND
    assert second.buckets.held()[bucket].may_resume(failed.generation)
    assert second.lost == {}

    await pair.act(DEAD_SECONDS + BEAT_SECONDS, first)
    assert len(first.buckets.held()) == BUCKETS, "while the store serves, a silent broker is dead"
    await pair.close()


async def test_a_zombie_broker_cannot_grant(server: EmbeddedServer, tmp_path: Path) -> None:
    zombie = Application("broker-0~a", server, FileAnchor(tmp_path / "anchor"))
    async with running(zombie):
        await zombie.holds(BUCKETS)
        ledger = await zombie.buckets.reserve_ledger(BUCKET)
    async with broker("broker-1~x", server, tmp_path) as successor:
        await successor.holds(BUCKETS)
        log = FencedLog(TOPIC, create=True, marker={"note": "x"}, state={})
        fence = Fence(zombie.holding().binding, ledger, (log,), {"kind": "grant"})
        assert await fence_once(zombie.store, fence) is Outcome.FENCED
        with pytest.raises(Unavailable, match="taken by 'broker-1~x'"):
            await zombie.buckets.record_grant(BUCKET, ledger)
        assert zombie.lost == {BUCKET: LostReason.TAKEN}
        await successor.grant()
    await zombie.store.close()
    await zombie.anchor.close()


async def test_a_lost_dataset_is_refused_until_it_is_forced(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    other = EmbeddedServer(EmbeddedSettings(tmp_path / "empty"))
    async with broker("broker-0~a", server, tmp_path) as application:
        await application.holds(BUCKETS)
        ledger = await application.grant()
    await other.start()
    try:
        async with broker("broker-0~b", other, tmp_path) as application:
            await application.holds(BUCKETS - 1)
            reason, found = "holds nothing of bucket", application.buckets.waiting_reason
            async with asyncio.timeout(SECONDS_MAX):
                while reason not in found(BUCKET):  # noqa: ASYNC110 - no event reports it
                    await asyncio.sleep(0.01)
            await application.holds(BUCKETS - 1)
            forced = await adopt_force(
                BUCKET,
                anchor=application.anchor,
                store=application.store,
                operator="operator",
                reason="the disk is gone",
                time_ms=1_700_000_000_000,
                single_node=True,
            )
            assert forced.problem == ""
            await application.holds(BUCKETS)
            assert not application.holding().may_resume(1)
            assert await application.grant() > ledger
            records = await application.store.read_audit(BUCKET, count=10)
            assert [fields["kind"] for _, fields in records] == ["adopt", "grant"]
    finally:
        await other.stop()
