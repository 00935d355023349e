"""Who may publish atomically: the leading epoch, once for each version."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.unit.broker.topic.fence_path_world import BUCKET, ORDERS, World, serving, until
from tests.unit.broker.topic.publish.test_staging import body, frame

from onewriter_broker.log.limits import APPS_MAX
from onewriter_broker.log.store.api import Block
from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_broker.topic.publish import atomic_publishes as publishing
from onewriter_broker.topic.publish.atomic_publishes import AtomicPublishes
from onewriter_broker.topic.publish.requests import PublishRequest, PublishResult, PublishRight
from onewriter_broker.topic.publish.staging import MissingPart, StagedPartRef, Staging
from onewriter_broker.topic.registry.catalog import CatalogEntry
from onewriter_broker.topic.registry.loaded_topic import LoadedTopic
from onewriter_broker.topic.runner import TopicRunner
from onewriter_core.errors import Fenced, Refused, Unavailable, Undecided
from onewriter_core.ids import Identity
from onewriter_core.log_format.field_names import TERMINATED, VERSION_PREFIX
from onewriter_core.topic.lookups import tenure_of
from onewriter_core.topic.model import (
    WHOLE,
    AccessMode,
)

APP = "job"

DUPLICATE = PublishResult(is_duplicate=True)


class PublishSetup:
    """The part of a broker that publishes, around one topic."""

    def __init__(self, world: World, runner: TopicRunner) -> None:
        self.world = world
        self.runner = runner
        self.topic = LoadedTopic(ORDERS, BUCKET, CatalogEntry(), runner, {}, None)
        self.topic.subscriptions[WHOLE] = None  # type: ignore[assignment]
        self.staging = Staging(world.store, lambda _: BUCKET, lambda: [BUCKET], lambda: 1_000)
        self.publishing = AtomicPublishes(world.store, world.appender, self.staging)

    async def staged(self, version: int = 1, parts: int = 2) -> list[StagedPartRef]:
        return [
            await self.staging.keep(
                ORDERS, f"{APP}/{version}/{number}/1", body(frame(b"%d" % number, b"row"))
            )
            for number in range(parts)
        ]

    async def publish(
        self, parts: Sequence[StagedPartRef], *, version: int = 1, epoch: int | None = None
    ) -> PublishResult:
        """``epoch`` None: the leading epoch. Without a holder, a driver gets the topic first."""
        if epoch is None:
            epoch = await self.led()
        request = PublishRequest(APP, version, epoch, parts, right=PublishRight(epoch, Identity()))
        return await self.publishing.publish(ORDERS, self.topic, request, 1_234)

    async def led(self) -> int:
        """The leading epoch."""
        partitions = self.runner.topic.partitions
        tenure = tenure_of(partitions[0]) if partitions else None
        return await held(self, "driver") if tenure is None else tenure.epoch

    async def entries(self) -> int:
        blocks = [each for each in await self.world.stored() if isinstance(each, Block)]
        return sum(len(block.lengths) for block in blocks)


async def setup_of(world: World) -> PublishSetup:
    return PublishSetup(world, await world.load())


async def held(setup: PublishSetup, name: str = "holder") -> int:
    """Let a producer hold the topic, and return its epoch."""
    producer, channel = setup.world.ask(setup.runner, AccessMode.EXCLUSIVE_WITH_FENCING, name)
    await until(lambda: channel.ready)
    assert producer.epoch is not None
    return producer.epoch


async def test_an_epoch_that_does_not_lead_publishes_nothing() -> None:
    async with serving() as world:
        setup = await setup_of(world)
        parts = await setup.staged()
        old = await held(setup)
        new = await held(setup, "next")
        for epoch in (old, new + 1):
            for rows in (parts, []):  # without rows, the store gets no block to reject
                with pytest.raises(Fenced) as fenced:
                    await setup.publish(rows, epoch=epoch)
                assert fenced.value.current_epoch == new
        assert await setup.entries() == 0


async def test_under_an_epoch_that_leads_a_proof_is_needed() -> None:
    async with serving() as world:
        setup = await setup_of(world)
        epoch, parts = await held(setup), await setup.staged()
        for right in (None, PublishRight(epoch + 1, Identity())):
            request = PublishRequest(APP, 1, epoch, parts, right=right)
            with pytest.raises(Refused, match="was not proved"):
                await setup.publishing.publish(ORDERS, setup.topic, request, 1_234)
        assert await setup.entries() == 0


async def test_a_takeover_while_the_parts_are_read_is_seen() -> None:
    async with serving() as world:
        setup = await setup_of(world)
        parts = await setup.staged()
        old = await held(setup)
        read = world.store.staged.read
        taken = False

        async def slow(*arguments: Any) -> bytes | None:
            nonlocal taken
            if not taken:
                taken = True
                await held(setup, "next")
            return await read(*arguments)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(world.store.staged, "read", slow)
            with pytest.raises(Fenced):
                await setup.publish(parts, epoch=old)
        assert await setup.entries() == 0


async def test_crossing_requests_publish_once() -> None:
    async with serving() as world:
        setup = await setup_of(world)
        epoch = await held(setup)
        parts = await setup.staged()
        found = await asyncio.gather(*(setup.publish(parts, epoch=epoch) for _ in range(5)))
        assert sorted(each.is_duplicate for each in found) == [False, True, True, True, True]
        assert await setup.entries() == 2


async def test_while_one_is_published_its_app_is_not_forgotten() -> None:
    async with serving() as world:
        setup = await setup_of(world)
        parts, topic_log = await setup.staged(), setup.runner.logs[WHOLE]
        epoch = await setup.led()
        asking = asyncio.get_running_loop().create_task(setup.publish(parts, epoch=epoch))
        await asyncio.sleep(0)
        assert topic_log.publishes is None  # the log has not received it yet
        with (
            pytest.raises(Unavailable, match="may have a publish of job in progress"),
            setup.publishing.blocking(topic_log, APP),
        ):
            pass
        with setup.publishing.blocking(topic_log, "another"):
            assert (await asking).where is not None


async def test_while_an_app_is_forgotten_nothing_of_it_is_published() -> None:
    async with serving() as world:
        setup = await setup_of(world)
        parts, topic_log = await setup.staged(), setup.runner.logs[WHOLE]
        with setup.publishing.blocking(topic_log, APP):
            with pytest.raises(Unavailable, match="nothing was published; retry later"):
                await setup.publish(parts)
            with pytest.raises(Unavailable), setup.publishing.blocking(topic_log, APP):
                pass
        assert (await setup.publish(parts)).where is not None


async def test_in_a_full_store_nothing_new_is_published() -> None:
    async with serving() as world:
        setup = await setup_of(world)
        is_full = False
        setup.publishing = AtomicPublishes(
            world.store, world.appender, setup.staging, is_full=lambda: is_full
        )
        assert (await setup.publish(await setup.staged())).where is not None
        is_full, parts = True, await setup.staged(2)
        assert (await setup.publish(parts, version=1)).is_duplicate
        with pytest.raises(Unavailable, match="almost full; nothing is published"):
            await setup.publish(parts, version=2)


async def test_a_publish_continues_when_no_caller_waits_for_the_answer() -> None:
    async with serving() as world:
        setup = await setup_of(world)
        parts, epoch = await setup.staged(), await setup.led()
        asking = asyncio.get_running_loop().create_task(setup.publish(parts, epoch=epoch))
        await asyncio.sleep(0)
        asking.cancel()
        field = f"{VERSION_PREFIX}{APP}"
        await until(lambda: field in setup.runner.logs[WHOLE].state)
        assert await setup.entries() == 2


async def test_parts_that_are_gone_are_no_matter_once_they_are_published() -> None:
    async with serving() as world:
        setup = await setup_of(world)
        parts = await setup.staged()
        await setup.staging.drop(ORDERS, f"{APP}/")
        with pytest.raises(MissingPart):
            await setup.publish(parts)
        parts = await setup.staged()
        assert not (await setup.publish(parts)).is_duplicate
        assert await setup.publish(parts) == DUPLICATE
        assert await setup.publish(parts, version=0) == DUPLICATE


async def test_no_rows_are_published_under_the_right_epoch_only() -> None:
    async with serving() as world:
        setup = await setup_of(world)
        epoch = await held(setup)
        assert await setup.publish([], epoch=epoch) == PublishResult(is_duplicate=False)
        with pytest.raises(Fenced):
            await setup.publish([], epoch=epoch + 1)
        state = setup.runner.logs[WHOLE]._state
        state |= {f"{VERSION_PREFIX}app-{number}": "1" for number in range(APPS_MAX)}
        with pytest.raises(Refused, match="under 500 names already"):
            await setup.publish([], epoch=epoch)
        assert await setup.entries() == 0


async def test_a_terminated_topic_takes_no_more() -> None:
    async with serving() as world:
        setup = await setup_of(world)
        await setup.led()
        setup.runner.logs[WHOLE]._state[TERMINATED] = "0-0"
        for parts in ([], await setup.staged()):
            with pytest.raises(Refused, match="terminated"):
                await setup.publish(parts)


async def test_a_defect_in_one_publish_closes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example a name that cannot be encoded: the topic has not been changed by then."""
    async with serving() as world:
        setup = await setup_of(world)
        parts = await setup.staged()
        epoch = await held(setup)

        async def fails(*_: object) -> bytes:
            raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")

        with monkeypatch.context() as patched:
            patched.setattr(Staging, "load", fails)
            with pytest.raises(Undecided, match="the broker's log says why"):
                await setup.publish(parts, epoch=epoch)
        assert world.failures == []
        assert not (await setup.publish(parts, epoch=epoch)).is_duplicate
        assert await setup.entries() == 2


@pytest.mark.parametrize("call", ["publish", "watch"])
async def test_a_defect_once_the_log_has_a_publish_closes_the_topic(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The state in memory may be inconsistent, and no task would finish the publish."""
    async with serving() as world:
        setup = await setup_of(world)
        epoch = await held(setup)

        def fails(*_: object) -> None:
            raise RuntimeError("a defect")

        if call == "publish":
            monkeypatch.setattr(TopicLog, "publish", fails)
        else:
            monkeypatch.setattr(publishing, "_progress_of", fails)
        with pytest.raises(Undecided):
            await setup.publish(await setup.staged(), epoch=epoch)
        assert world.failures == [ORDERS]


async def test_a_topic_that_moves_away_reports_that() -> None:
    async with serving() as world:
        setup = await setup_of(world)
        parts, epoch = await setup.staged(), await setup.led()
        setup.runner.unload("moving")
        with pytest.raises((Unavailable, Refused)):
            await setup.publish(parts, epoch=epoch)
