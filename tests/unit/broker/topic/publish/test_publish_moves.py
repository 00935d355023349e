"""Answers about a publish whose answer was lost, whose topic moves, or whose broker was deposed."""

from __future__ import annotations

import asyncio

import pytest
from tests.contents import stored_in
from tests.unit.broker.topic.fence_path_world import BUCKET, ORDERS, Gates, World, serving
from tests.unit.broker.topic.publish.publish_world import Calls, contents
from tests.unit.broker.topic.publish.test_publish_epochs import APP, DUPLICATE, held, setup_of
from tests.unit.broker.topic.publish.test_staging import body, frame

from onewriter_broker.log.store.api import Binding
from onewriter_broker.log.topic_log.atomic_publish import PUBLISHES_WAITING_MAX
from onewriter_broker.topic.publish.atomic_publishes import AtomicPublishes
from onewriter_broker.topic.publish.requests import PublishResult
from onewriter_core.api.topic import Durability
from onewriter_core.errors import Refused, Unavailable, Undecided
from onewriter_core.log_format.field_names import TERMINATED, VERSION_PREFIX
from onewriter_core.topic.model import WHOLE


async def test_a_retry_after_its_epoch_does_not_deny_a_published_version() -> None:
    async with serving() as world:
        setup = await setup_of(world)
        parts = await setup.staged()
        old = await held(setup)
        assert (await setup.publish(parts, epoch=old)).where is not None  # this answer is lost
        await held(setup, "next")
        assert await setup.publish(parts, epoch=old) == DUPLICATE


async def test_a_retry_after_the_end_of_the_topic_does_not_deny_a_published_version() -> None:
    async with serving() as world:
        setup = await setup_of(world)
        parts = await setup.staged()
        assert (await setup.publish(parts)).where is not None
        setup.runner.logs[WHOLE]._state[TERMINATED] = "0-0"
        assert await setup.publish(parts) == DUPLICATE


@pytest.mark.parametrize("are_gone", [True, False], ids=["parts gone", "parts there"])
async def test_a_version_that_another_request_published_during_the_read_of_the_parts_is_not_denied(
    *, are_gone: bool
) -> None:
    async with serving() as world:
        setup = await setup_of(world)
        parts = await setup.staged()
        epoch = await held(setup)
        gates = Gates(world.store, "staged_read")
        asking = asyncio.get_running_loop().create_task(setup.publish(parts, epoch=epoch))
        await gates.reached("staged_read")
        stored_in(world.server.primary).states[ORDERS][f"{VERSION_PREFIX}{APP}"] = "1"
        await held(setup, "next")
        if are_gone:
            stored_in(world.server.primary).clear_staged()
        gates.open("staged_read")
        assert await asking == DUPLICATE


async def test_a_topic_that_moves_while_parts_are_read_is_not_the_end_of_its_epoch() -> None:
    async with serving() as world:
        setup = await setup_of(world)
        epoch = await held(setup)
        parts = await setup.staged()
        gates = Gates(world.store, "staged_read")
        asking = asyncio.get_running_loop().create_task(setup.publish(parts, epoch=epoch))
        await gates.reached("staged_read")
        setup.runner.unload("moving")
        gates.open("staged_read")
        with pytest.raises(Unavailable):
            await asking


async def test_a_topic_that_moves_between_blocks_is_not_the_end_of_its_epoch() -> None:
    async with serving() as world:
        setup = await setup_of(world)
        epoch = await held(setup)
        large = body(*[frame(bytes(200_000)) for _ in range(20)])
        parts = [await setup.staging.keep(ORDERS, f"{APP}/1/{n}/1", large) for n in range(2)]
        Calls(world, 2, lambda: setup.runner.unload("moving"))
        with pytest.raises(Unavailable):
            await setup.publish(parts, epoch=epoch)


async def test_a_topic_that_moves_while_its_last_block_is_stored_is_not_the_end_either() -> None:
    async with serving() as world:
        setup = await setup_of(world)
        epoch = await held(setup)
        parts = await setup.staged()
        gates = Gates(world.store, "append")
        asking = asyncio.get_running_loop().create_task(setup.publish(parts, epoch=epoch))
        await gates.reached("append")
        setup.runner.unload("moving")
        gates.open("append")
        with pytest.raises((Unavailable, Undecided)):
            await asking


async def succeeded(world: World) -> None:
    """Another broker has acquired the bucket, and this one does not know it yet."""
    assert world.owner.held is not None
    ours = world.owner.held.binding
    version = stored_in(world.server.primary).units[BUCKET].version + 1
    await world.store.stamp(Binding(BUCKET, ours.replid, ours.generation, "successor", version))


@pytest.mark.parametrize("known", [True, False], ids=["a version", "an epoch"])
async def test_a_deposed_broker_confirms_no_write(*, known: bool) -> None:
    async with serving() as world:
        setup = await setup_of(world)
        epoch = await held(setup)
        parts = await setup.staged()
        await succeeded(world)
        dataset = stored_in(world.server.primary)
        if known:  # the successor has stored it, and no replica has confirmed it
            dataset.states[ORDERS][f"{VERSION_PREFIX}{APP}"] = "1"
        # The successor may have granted that epoch, so the broker must not say that nothing is published.
        with pytest.raises(Undecided if known else Unavailable):
            await setup.publish(parts, epoch=epoch if known else epoch + 1)


async def test_a_deposed_broker_confirms_no_epoch() -> None:
    """A request without rows appends nothing that the store could reject."""
    async with serving() as world:
        setup = await setup_of(world)
        epoch = await held(setup)
        assert await setup.publish([], epoch=epoch) == PublishResult(is_duplicate=False)
        await succeeded(world)
        with pytest.raises(Unavailable, match="no longer serves"):
            await setup.publish([], epoch=epoch)


async def test_a_duplicate_is_as_durable_as_what_is_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving() as world:
        setup = await setup_of(world)
        parts = await setup.staged()
        assert (await setup.publish(parts)).where is not None
        setup.runner.logs[WHOLE]._durability = Durability.REPLICATED

        async def never(*_: object, **__: object) -> bool:
            return False  # the replicas are unavailable

        monkeypatch.setattr(world.store, "commit", never)
        with pytest.raises(Undecided):
            await setup.publish(parts)


@pytest.mark.parametrize("is_cut_off", [False, True])
async def test_without_its_replicas_it_is_given_up_and_asked_again_when_they_are_back(
    monkeypatch: pytest.MonkeyPatch, *, is_cut_off: bool
) -> None:
    async with serving() as world:
        setup = await setup_of(world)
        setup.publishing = AtomicPublishes(
            world.store, world.appender, setup.staging, standstill_seconds=0.1
        )
        epoch = await held(setup)
        large = body(*[frame(bytes(200_000)) for _ in range(20)])
        parts = [await setup.staging.keep(ORDERS, f"{APP}/1/0/1", large)]
        log = setup.runner.logs[WHOLE]
        log._durability = log._wanted_durability = Durability.REPLICATED
        commit, are_back, failing = world.store.commit, asyncio.Event(), False

        async def committed(durability: Durability, *, replid: str = "") -> bool:
            if failing:
                raise Undecided("the connection is gone")
            return are_back.is_set() and await commit(Durability.LOCAL, replid=replid)

        monkeypatch.setattr(world.store, "commit", committed)
        with pytest.raises(Undecided, match="ask for its status"):
            await setup.publish(parts, epoch=epoch)
        kept = [each.block.commits for each in log.undecided]
        assert kept == [True], "of it only what tells its end is kept in memory"
        if is_cut_off:
            failing = True
            await asyncio.sleep(0.05)  # waiting blocks are written again, and found in the log
        failing = False
        are_back.set()
        setup.publishing = AtomicPublishes(world.store, world.appender, setup.staging)  # patient
        assert await setup.publish(parts, epoch=epoch) == DUPLICATE
        assert len(await contents(log)) == 20
        assert log.ends[-1] == log.committed


async def test_requests_that_wait_are_bounded_and_the_same_ones_share_an_end() -> None:
    async with serving() as world:
        setup = await setup_of(world)
        epoch = await held(setup)
        parts = await setup.staged()
        gates = Gates(world.store, "append")
        create_task = asyncio.get_running_loop().create_task
        asking = [create_task(setup.publish(parts, epoch=epoch))]
        await gates.reached("append")
        asking += [
            create_task(setup.publish(parts, epoch=epoch)) for _ in range(PUBLISHES_WAITING_MAX - 1)
        ]
        for _ in range(5):
            await asyncio.sleep(0)
        for version in (1, 2):
            with pytest.raises(Refused, match="retry later"):
                await setup.publish(parts, version=version, epoch=epoch)
        gone = asking.pop()
        gone.cancel()
        await asyncio.wait([gone])
        asking.append(create_task(setup.publish(parts, epoch=epoch)))  # instead of that caller
        gates.open("append")
        first, *others = await asyncio.gather(*asking)
        assert first == PublishResult(is_duplicate=False, where=first.where)
        assert others == [DUPLICATE] * (PUBLISHES_WAITING_MAX - 1)
        assert await setup.publish(parts, epoch=epoch) == DUPLICATE, "there is room again"


async def test_a_joined_request_gets_the_error_of_the_failed_one() -> None:
    async with serving() as world:
        setup = await setup_of(world)
        epoch = await held(setup)
        parts = await setup.staged()
        gates = Gates(world.store, "staged_read")
        create_task = asyncio.get_running_loop().create_task
        asking = [create_task(setup.publish(parts, epoch=epoch)) for _ in range(3)]
        await gates.reached("staged_read")
        setup.runner.unload("moving")
        gates.open("staged_read")
        found = await asyncio.gather(*asking, return_exceptions=True)
        assert [type(each) for each in found] == [Unavailable] * 3
