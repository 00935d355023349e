"""Atomic publishes on topics with a progress deadline: such a publish counts as progress."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from tests.unit.broker.connection.test_deadlines import (
    DEADLINE_SECONDS,
    Registry,
    deadlines,
    declared,
)
from tests.unit.broker.topic.fence_path_world import Gates, serving, until
from tests.unit.broker.topic.publish.test_publish_epochs import PublishSetup, setup_of

from onewriter_broker.connection.deadlines import ProgressDeadlines
from onewriter_core.api.manifests import DesiredState
from onewriter_core.topic.model import AccessMode, Held


def deadlines_of(setup: PublishSetup) -> ProgressDeadlines:
    topic = SimpleNamespace(runner=setup.runner, progress_deadline_seconds=DEADLINE_SECONDS)
    registry = Registry(orders=topic)
    registry.desired = DesiredState((declared(DEADLINE_SECONDS),))
    return deadlines(registry)


async def test_an_atomic_publish_under_an_epoch_counts_as_progress() -> None:
    async with serving() as world:
        setup = await setup_of(world)
        deadlines, parts = deadlines_of(setup), await setup.staged()
        holder, channel = setup.world.ask(setup.runner, AccessMode.EXCLUSIVE)
        await until(lambda: channel.ready)
        gates = Gates(world.store, "append")
        deadlines.check(100.0)
        asking = asyncio.get_running_loop().create_task(setup.publish(parts, epoch=holder.epoch))
        await gates.reached("append")
        deadlines.check(101.0 + DEADLINE_SECONDS)
        gates.open("append")
        assert (await asking).where is not None
        assert isinstance(setup.runner.topic.partitions[0].ownership, Held)
        for now in (200.0, 199.0 + DEADLINE_SECONDS):
            deadlines.check(now)
        assert channel.closed == 0
        deadlines.check(201.0 + DEADLINE_SECONDS)
        assert channel.closed == 1
