"""An atomic publish without progress: it is abandoned after a while, frees its memory, and can be retried."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest
from tests.contents import stored_in
from tests.stamps import stamp_anew
from tests.unit.broker.topic.fence_path_world import ORDERS, World, serving, until
from tests.unit.broker.topic.publish.publish_world import Calls, contents, whole
from tests.unit.broker.topic.publish.test_publish_epochs import (
    APP,
    DUPLICATE,
    PublishSetup,
    held,
    setup_of,
)
from tests.unit.broker.topic.publish.test_staging import body, frame

from onewriter_broker.log.store.api import Block, Outcome
from onewriter_broker.topic.publish import staging
from onewriter_broker.topic.publish.atomic_publishes import STANDSTILL_SECONDS
from onewriter_broker.topic.publish.staging import StagedPartRef
from onewriter_core.errors import Fenced, Refused, Unavailable, Undecided
from onewriter_core.ids import Position, TopicName
from onewriter_core.log_format.field_names import VERSION_PREFIX
from onewriter_core.topic.model import WHOLE
from onewriter_testing.fake_store.store import Moment

pytestmark = pytest.mark.looptime

BLOCKS = 20
"""Blocks of the publish. A call has about six."""

LAST_CALL = -(-BLOCKS // 6)


class StoppedStore:
    """Answers nothing from its n-th append on, before or after the append is executed, until ``go_on``."""

    def __init__(self, world: World, number: int, moment: Moment) -> None:
        self.is_reached = asyncio.Event()
        self.go_on = asyncio.Event()
        self._left = number
        self._moment = moment
        world.store.faults.hook = self._hook

    async def _hook(self, call: str, moment: Moment) -> None:
        if call != "append" or moment != self._moment:
            return
        self._left -= 1
        if self._left == 0:
            self.is_reached.set()
            await self.go_on.wait()


async def large_parts(setup: PublishSetup, version: int = 1) -> list[StagedPartRef]:
    text = body(*[frame(b"%d " % n + bytes(200_000)) for n in range(BLOCKS)])
    return [await setup.staging.keep(ORDERS, f"{APP}/{version}/0/1", text)]


def begun(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return asyncio.get_running_loop().create_task(work)


def rows_of(blocks: list[Block]) -> int:
    return sum(len(block.lengths) for block in blocks)


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_one_that_stops_in_the_middle_was_certainly_not_published(moment: Moment) -> None:
    async with serving() as world:
        setup = await setup_of(world)
        epoch, parts = await held(setup), await large_parts(setup)
        holder = next(iter(setup.runner.producers.values()))
        store = StoppedStore(world, 2, moment)
        asking = begun(setup.publish(parts, epoch=epoch))
        await store.is_reached.wait()
        world.send(holder, 7)  # it waits for the publish
        with pytest.raises(Unavailable, match="nothing was published; retry later"):
            await asking
        log = setup.runner.logs[WHOLE]
        assert log.undecided == []
        store.go_on.set()
        await until(lambda: log.is_writable and not log.waiting and not log.undecided)
        assert rows_of(await whole(world)) == 1, "what was stored of it is gone"
        assert holder.epoch == epoch
        assert (await setup.publish(parts, epoch=epoch)).where is not None
        assert rows_of(await whole(world)) == 1 + BLOCKS


@pytest.mark.parametrize("is_stored", [True, False])
async def test_one_whose_last_block_is_not_answered_is_unknown_and_asked_again_definite(
    *, is_stored: bool
) -> None:
    async with serving() as world:
        setup = await setup_of(world)
        epoch, parts = await held(setup), await large_parts(setup)
        store = StoppedStore(world, LAST_CALL, "after" if is_stored else "before")
        asking = begun(setup.publish(parts, epoch=epoch))
        await store.is_reached.wait()
        with pytest.raises(Undecided, match="unknown"):
            await asking
        log = setup.runner.logs[WHOLE]
        ledger = log.ledger
        store.go_on.set()
        again = await setup.publish(parts, epoch=epoch)
        assert (again, again.held) == (DUPLICATE, 1), "the call that was sent went on"
        assert len(await contents(log)) == BLOCKS, "readers get all of it"
        assert log.ends[-1] == log.committed == Position(ledger, BLOCKS)
        assert log.ledger == ledger, "nothing had to be fenced"
        assert (await setup.publish(await large_parts(setup, 2), version=2, epoch=epoch)).where


@pytest.mark.parametrize("is_stored", [True, False])
async def test_a_send_with_an_unknown_result_is_not_reported_as_failed(*, is_stored: bool) -> None:
    async with serving() as world:
        setup = await setup_of(world)
        epoch, parts = await held(setup), await large_parts(setup)
        log = setup.runner.logs[WHOLE]
        store = StoppedStore(world, LAST_CALL, "after" if is_stored else "before")
        asking = begun(setup.publish(parts, epoch=epoch))
        await store.is_reached.wait()
        with pytest.raises(Undecided, match="unknown"):
            await asking
        for version, by in [(1, epoch), (1, epoch + 1), (0, epoch)]:
            with pytest.raises(Undecided):
                await setup.publish(parts, version=version, epoch=by)
        store.go_on.set()
        for by in (epoch + 1, epoch):
            assert await setup.publish(parts, epoch=by) == DUPLICATE
        assert len(await contents(log)) == BLOCKS
        with pytest.raises(Fenced):
            await setup.publish(parts, version=2, epoch=epoch + 1)


async def test_asked_under_another_epoch_while_the_first_is_under_way_it_is_not_denied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving() as world:
        setup = await setup_of(world)
        epoch, parts = await held(setup), await setup.staged()
        load, is_reached, go_on = setup.staging.load, asyncio.Event(), asyncio.Event()

        async def slowly(name: TopicName, part: StagedPartRef) -> bytes:
            is_reached.set()
            await go_on.wait()
            return await load(name, part)

        monkeypatch.setattr(setup.staging, "load", slowly)
        asking = begun(setup.publish(parts, epoch=epoch))
        await is_reached.wait()
        other, later = (
            begun(setup.publish(parts, version=version, epoch=epoch + 1)) for version in (1, 2)
        )
        await asyncio.sleep(1.0)
        assert not other.done(), "it is not known yet whether the first is published"
        go_on.set()
        assert (await asking).where is not None
        assert await other == DUPLICATE
        with pytest.raises(Fenced):
            await later


async def test_after_the_send_a_closed_log_reports_an_unknown_result() -> None:
    async with serving() as world:
        setup = await setup_of(world)
        epoch, parts = await held(setup), await large_parts(setup)
        store = StoppedStore(world, LAST_CALL, "before")
        asking = begun(setup.publish(parts, epoch=epoch))
        await store.is_reached.wait()
        with pytest.raises(Undecided):
            await asking
        waiting = begun(setup.publish(parts, epoch=epoch))
        await asyncio.sleep(0.1)
        setup.runner.unload("moving")
        for each in (waiting, setup.publish(parts, epoch=epoch)):
            with pytest.raises(Undecided):
                await each
        with pytest.raises(Unavailable):
            await setup.publish(parts, version=2, epoch=epoch)
        store.go_on.set()
        anew = await setup_of(world)
        assert await anew.publish(parts, epoch=epoch) == DUPLICATE
        assert rows_of(await whole(world)) == BLOCKS


@pytest.mark.parametrize("is_replicated", [True, False])
async def test_a_failover_reports_its_outcome(*, is_replicated: bool) -> None:
    async with serving() as world:
        setup = await setup_of(world)
        epoch, parts = await held(setup), await large_parts(setup)
        replica = world.server.add_replica("node-1")
        store = StoppedStore(world, LAST_CALL, "after")
        asking = begun(setup.publish(parts, epoch=epoch))
        if not is_replicated:
            await asyncio.sleep(0)
            replica.holds_replication = True
        await store.is_reached.wait()
        with pytest.raises(Undecided):
            await asking
        world.server.primary.is_reachable = False
        world.server.promote(replica)
        store.go_on.set()
        found = world.owner.held
        assert found is not None
        rebound = replace(found.binding, replid=replica.replid, generation=2)
        assert await stamp_anew(world.store, rebound) is Outcome.DONE
        world.owner.held = replace(found, binding=rebound)
        setup.runner.dataset_changed()
        answer = await setup.publish(parts, epoch=epoch)
        assert (answer == DUPLICATE) is is_replicated
        log = setup.runner.logs[WHOLE]
        assert rows_of(await whole(world)) == BLOCKS
        assert len(await contents(log)) == BLOCKS
        if is_replicated:
            assert log.ends == [Position(2, BLOCKS)]


async def test_one_that_the_store_knows_already_is_taken_back_as_ever() -> None:
    async with serving() as world:
        setup = await setup_of(world)
        epoch, text = await held(setup), body(*[frame(bytes(200_000)) for _ in range(4)])
        parts = [await setup.staging.keep(ORDERS, f"{APP}/1/0/1", text)]  # several blocks, one call
        holder = next(iter(setup.runner.producers.values()))
        log = setup.runner.logs[WHOLE]
        store = StoppedStore(world, 1, "before")
        asking = begun(setup.publish(parts, epoch=epoch))
        await store.is_reached.wait()
        stored_in(world.server.primary).states[ORDERS][f"{VERSION_PREFIX}{APP}"] = "4"
        with pytest.raises(Undecided):
            await asking
        world.send(holder, 7)
        store.go_on.set()
        await until(lambda: log.committed == Position(log.ledger, 1))
        again = await setup.publish(parts, epoch=epoch)
        assert (again, again.held) == (DUPLICATE, 4)


async def test_a_duplicate_is_answered_with_the_stored_version() -> None:
    async with serving() as world:
        setup = await setup_of(world)
        epoch, parts = await held(setup), await large_parts(setup)
        state = stored_in(world.server.primary).states[ORDERS]
        Calls(world, 1, lambda: state.update({f"{VERSION_PREFIX}{APP}": "4"}))
        asking = [begun(setup.publish(parts, epoch=epoch)) for _ in range(2)]
        found = await asyncio.gather(*asking)
        assert [(each.is_duplicate, each.held) for each in found] == [(True, 4), (True, 4)]
        parts = await large_parts(setup, 5)
        asking = [begun(setup.publish(parts, version=5, epoch=epoch)) for _ in range(2)]
        found = await asyncio.gather(*asking)
        assert [(each.is_duplicate, each.held) for each in found] == [(False, None), (True, 5)]


async def test_a_queued_publish_that_times_out_costs_the_topic_nothing() -> None:
    async with serving() as world:
        setup = await setup_of(world)
        epoch, parts = await held(setup), await setup.staged()
        log = setup.runner.logs[WHOLE]
        holder = next(iter(setup.runner.producers.values()))
        store = StoppedStore(world, 1, "before")
        world.send(holder, 1)
        await store.is_reached.wait()
        with pytest.raises(Unavailable, match="retry later"):
            await setup.publish(parts, epoch=epoch)
        ledger = log.ledger
        store.go_on.set()
        assert (await setup.publish(parts, epoch=epoch)).where is not None
        assert log.ledger == ledger, "nothing had to be fenced"


async def test_memory_that_others_wait_for_is_given_back() -> None:
    async with serving() as world:
        setup = await setup_of(world)
        epoch, parts = await held(setup), await large_parts(setup)
        size = parts[0].bytes + staging.ENTRY_MEMORY_BYTES * parts[0].rows
        setup.staging._limits = staging.StagingLimits(loaded_bytes_max=size, topic_memory_bytes=0)
        other = TopicName.parse("other")
        store = StoppedStore(world, 2, "before")
        asking = begun(setup.publish(parts, epoch=epoch))
        await store.is_reached.wait()
        with pytest.raises(Refused, match="use all memory"), setup.staging.loading(other, parts):
            pass
        began = asyncio.get_running_loop().time()
        with pytest.raises(Unavailable):
            await asking
        assert asyncio.get_running_loop().time() - began < 1.5 * STANDSTILL_SECONDS
        with setup.staging.loading(other, parts):
            store.go_on.set()


async def test_one_that_gets_on_however_slowly_is_waited_for() -> None:
    async with serving() as world:
        setup = await setup_of(world)
        epoch, parts = await held(setup), await large_parts(setup)

        async def slowly(call: str, moment: Moment) -> None:
            if (call, moment) == ("append", "before"):
                await asyncio.sleep(0.8 * STANDSTILL_SECONDS)

        world.store.faults.hook = slowly
        began = asyncio.get_running_loop().time()
        assert (await setup.publish(parts, epoch=epoch)).where is not None
        assert asyncio.get_running_loop().time() - began > 2 * STANDSTILL_SECONDS
