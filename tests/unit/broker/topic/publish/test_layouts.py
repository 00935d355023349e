"""The number of partitions over which a batch is routed: the answer to the first request is final."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.broker.topic.fence_path_world import World, serving
from tests.unit.broker.topic.publish.test_publish_epochs import held, setup_of

from onewriter_broker.log.limits import APPS_PER_SUBJECT_MAX, LogLimits
from onewriter_broker.log.topic_log.atomic_publish import BoundElsewhere
from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_broker.topic.limits import TopicLimits
from onewriter_broker.topic.publish.layouts import (
    BEGUN_MAX,
    LAYOUT_PREFIX,
    Layout,
    Layouts,
    Overtaken,
)
from onewriter_core.api.topic import Durability
from onewriter_core.errors import Refused, Unavailable, Undecided
from onewriter_core.log_format.field_names import OWNER_PREFIX
from onewriter_core.topic.model import WHOLE

FIELD = f"{LAYOUT_PREFIX}job"


async def first_of(world: World) -> TopicLog:
    setup = await setup_of(world)
    return setup.runner.logs[WHOLE]


class Notes:
    """Layouts, and the version that the topic's partitions have."""

    def __init__(self, layouts: Layouts) -> None:
        self.layouts, self.published = layouts, -1

    async def note(
        self, log: TopicLog, app: str, wanted: Layout, owner: str | None = None
    ) -> Layout:
        async def counted() -> int:
            return wanted.partitions

        async def held() -> int:
            return self.published

        noted = await self.layouts.note(log, app, wanted.version, counted, held, owner)
        return Layout(wanted.version, noted)


def noting(world: World) -> Notes:
    return Notes(Layouts(world.store, world.appender.prove))


async def test_a_version_keeps_its_partitions_and_a_later_one_has_its_own() -> None:
    async with serving() as world:
        log, notes = await first_of(world), noting(world)
        assert await notes.note(log, "job", Layout(1, 4)) == Layout(1, 4)
        assert await notes.note(log, "job", Layout(1, 8)) == Layout(1, 4)
        assert await noting(world).note(log, "job", Layout(1, 8)) == Layout(1, 4)
        assert await notes.note(log, "job", Layout(2, 8)) == Layout(2, 8)
        assert await notes.note(log, "other", Layout(1, 8)) == Layout(1, 8)
        assert log.state[FIELD] == "2 8 1 4"


async def test_a_version_is_finished_although_a_later_one_began() -> None:
    """The version is over after a later one is published, and not before."""
    async with serving() as world:
        log, notes = await first_of(world), noting(world)
        await notes.note(log, "job", Layout(6, 4))
        notes.published = 6  # partly
        assert await notes.note(log, "job", Layout(7, 8)) == Layout(7, 8)
        assert await noting(world).note(log, "job", Layout(6, 8)) == Layout(6, 4)
        assert await notes.note(log, "job", Layout(6, 8)) == Layout(6, 4)
        notes.published = 7
        for version in (5, 6):
            with pytest.raises(Overtaken, match="version 7 of it already"):
                await notes.note(log, "job", Layout(version, 8))
        assert await notes.note(log, "job", Layout(7, 9)) == Layout(7, 8)
        assert log.state[FIELD] == "7 8 6 4"


async def test_a_forgotten_version_gets_no_other_layout() -> None:
    async with serving() as world:
        log, notes = await first_of(world), noting(world)
        for version in range(0, 2 * BEGUN_MAX + 2, 2):
            await notes.note(log, "job", Layout(version, version + 1))
        for version in (0, 1):
            with pytest.raises(Overtaken, match="later versions of it begun"):
                await notes.note(log, "job", Layout(version, 99))
        assert await notes.note(log, "job", Layout(2, 99)) == Layout(2, 3)
        assert await notes.note(log, "job", Layout(3, 4)) == Layout(3, 4)
        with pytest.raises(Overtaken):
            await notes.note(log, "job", Layout(2, 99))


async def test_an_unconfirmed_record_is_not_reported() -> None:
    """A repeated request gets the noted layout after it is as durable as the topic promises."""
    async with serving() as world:
        log, is_durable = await first_of(world), False
        log._durability = Durability.REPLICATED

        async def prove(*_: object) -> None:
            if not is_durable:
                raise Undecided("the replicas do not answer")

        notes = Notes(Layouts(world.store, prove))
        for _ in range(3):
            with pytest.raises(Undecided):
                await notes.note(log, "job", Layout(1, 4))
        is_durable = True
        assert await notes.note(log, "job", Layout(1, 8)) == Layout(1, 4)


async def test_concurrent_tasks_get_the_same_answer() -> None:
    async with serving() as world:
        log, notes = await first_of(world), noting(world)
        requests = (notes.note(log, "job", Layout(1, 4 + each % 2)) for each in range(10))
        assert set(await asyncio.gather(*requests)) == {Layout(1, 4)}


async def test_a_loss_is_recorded_while_a_producer_holds_the_topic() -> None:
    async with serving() as world:
        setup = await setup_of(world)
        await held(setup)
        log = setup.runner.logs[WHOLE]
        assert await noting(world).note(log, "job", Layout(1, 4)) == Layout(1, 4)


async def test_the_apps_of_a_log_are_limited() -> None:
    async with serving(limits=TopicLimits(log=LogLimits(apps_max=2))) as world:
        log, notes = await first_of(world), noting(world)
        for app in ("one", "two"):
            await notes.note(log, app, Layout(1, 4))
        with pytest.raises(Refused, match="under 2 names already"):
            await notes.note(log, "job", Layout(1, 4))
        assert await notes.note(log, "two", Layout(2, 4)) == Layout(2, 4)


async def test_a_layout_binds_its_app_and_is_not_noted_for_another_subject() -> None:
    """Eight versions that another subject noted would mark the owner's versions as over."""
    async with serving() as world:
        log, notes = await first_of(world), noting(world)
        assert await notes.note(log, "job", Layout(1, 4), "alice") == Layout(1, 4)
        assert log.state[f"{OWNER_PREFIX}job"] == "alice"
        for owner in ("mallory", ""):
            with pytest.raises(BoundElsewhere):
                await notes.note(log, "job", Layout(999, 4), owner)
            with pytest.raises(BoundElsewhere):
                await noting(world).note(log, "job", Layout(1, 4), owner)
        assert log.state[FIELD] == "1 4"
        assert await notes.note(log, "job", Layout(2, 4), "alice") == Layout(2, 4)


async def test_the_apps_of_a_subject_are_limited() -> None:
    async with serving() as world:
        log, notes = await first_of(world), noting(world)
        for number in range(APPS_PER_SUBJECT_MAX):
            await notes.note(log, f"app-{number}", Layout(1, 4), "alice")
        with pytest.raises(Refused, match="32 names already"):
            await notes.note(log, "job", Layout(1, 4), "alice")
        assert await notes.note(log, "app-0", Layout(2, 4), "alice") == Layout(2, 4)
        assert await notes.note(log, "job", Layout(1, 4), "bob") == Layout(1, 4)


@pytest.mark.parametrize("text", ["", "1", "1 2 3", "x 4"])
async def test_a_note_that_is_none_must_be_repaired(text: str) -> None:
    async with serving() as world:
        log = await first_of(world)
        await log.save_state({FIELD: text})
        with pytest.raises(Refused, match="must be repaired"):
            await noting(world).note(log, "job", Layout(1, 4))


async def test_a_log_that_is_not_open_notes_nothing() -> None:
    async with serving() as world:
        log = await first_of(world)
        log.close()
        with pytest.raises(Unavailable, match="not open"):
            await noting(world).note(log, "job", Layout(1, 4))
