"""Catalogs of topics: where a topic with braces in its name may begin, and when it gets partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from tests.stamps import stamp_anew
from tests.unit.broker.topic.fence_path_world import until

from onewriter_broker.http.site import status_of
from onewriter_broker.log.store.api import Binding, BrokenKey, Outcome
from onewriter_broker.log.store.keys import Keys
from onewriter_broker.topic.registry.catalog import (
    UNREADABLE_SECONDS,
    CatalogEntry,
    Catalogs,
    Undivided,
)
from onewriter_core.api import ExclusiveTopic
from onewriter_core.errors import Refused, ServerError, Unavailable, Undecided
from onewriter_core.ids import TopicName, bucket_of, bucket_without_tags
from onewriter_core.topic.model import WHOLE
from onewriter_testing.fake_store.server import FakeServer
from onewriter_testing.fake_store.store import FakeLogStore, Moment

BUCKETS = 64
ORDERS = TopicName.parse("orders")
BESIDE = TopicName.parse("{orders}-audit")


def with_log_numbers(partitions: tuple[int, ...], known: CatalogEntry | None) -> CatalogEntry:
    return replace(known or CatalogEntry(), log_numbers=partitions)


class World:
    """A store whose buckets are all held by this broker."""

    def __init__(self) -> None:
        self.server = FakeServer()
        self.store = FakeLogStore(self.server.resolve)

    async def binding(self, bucket: int) -> Binding:
        binding = Binding(bucket, self.server.primary.replid, 1, "broker-0~one", 1)
        assert await stamp_anew(self.store, binding) is Outcome.DONE
        return binding

    async def made_without_tags(self, topic: TopicName, entry: CatalogEntry) -> None:
        """Create a topic where an earlier version placed it."""
        binding = await self.binding(bucket_without_tags(topic, BUCKETS))
        fields = {str(topic): entry.encode()}
        assert await self.store.set_catalog(binding, fields) is Outcome.DONE


def test_a_part_in_braces_determines_the_bucket_of_the_whole_name() -> None:
    assert bucket_of(BESIDE, BUCKETS) == bucket_of(ORDERS, BUCKETS)
    assert bucket_of(BESIDE, BUCKETS) != bucket_without_tags(BESIDE, BUCKETS)
    assert bucket_of(ORDERS, BUCKETS) == bucket_without_tags(ORDERS, BUCKETS)
    partition = BESIDE.with_partition(3)
    assert bucket_without_tags(partition, BUCKETS) == bucket_without_tags(BESIDE, BUCKETS)


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_a_topic_stored_before_braces_counted_does_not_begin_again(
    is_deleted: bool,
) -> None:
    world = World()
    await world.made_without_tags(BESIDE, CatalogEntry(log_numbers=(-1,), is_deleted=is_deleted))
    catalogs = Catalogs(world.store, BUCKETS)
    binding = await world.binding(bucket_of(BESIDE, BUCKETS))
    with pytest.raises(Refused, match="without hash tags") as refused:
        await catalogs.change(binding, BESIDE, lambda _: CatalogEntry(log_numbers=(-1,)))
    assert refused.value.code is ServerError.NOT_ALLOWED_ERROR
    assert await catalogs.entry(BESIDE, binding) is None


async def test_an_unused_name_in_braces_begins_a_topic() -> None:
    world = World()
    await world.made_without_tags(
        TopicName.parse("{orders}-other"), CatalogEntry(log_numbers=(-1,))
    )
    catalogs = Catalogs(world.store, BUCKETS)
    binding = await world.binding(bucket_of(BESIDE, BUCKETS))
    for partitions in ((-1,), (-1, 0)):
        made = await catalogs.change(binding, BESIDE, partial(with_log_numbers, partitions))
        assert await catalogs.entry(BESIDE, binding) == made == CatalogEntry(log_numbers=partitions)


# ------------------------------------------------------------ with and without partitions


def declared(partitions: int) -> ExclusiveTopic:
    return ExclusiveTopic.model_validate(
        {"metadata": {"name": "orders"}, "spec": {"partitions": partitions}}
    )


def test_a_declaration_determines_the_state_of_a_topic() -> None:
    new, single, named = CatalogEntry(), CatalogEntry(0, (WHOLE,)), CatalogEntry(0, (4, 1))
    wide = CatalogEntry(2, (0, 1))
    for entry in (new, single, named, wide):
        assert entry.with_declared(None) == entry
    assert new.with_declared(declared(0)) == single
    assert new.with_declared(declared(2)) == wide
    assert single.with_declared(declared(3)) == single, "its messages would be out of reach"
    assert named.with_declared(declared(3)) == CatalogEntry(3, (0, 1, 2, 4))
    assert wide.with_declared(declared(3)) == CatalogEntry(3, (0, 1, 2))
    assert wide.with_declared(declared(0)) == wide
    assert [each.is_undivided for each in (new, single, named, wide)] == [False, True, False, False]
    assert not CatalogEntry(is_deleted=True).is_undivided
    with pytest.raises(Refused, match="taken away"):
        wide.grown(1)
    with pytest.raises(Undivided, match="delete it first"):
        single.grown(3)


def test_a_request_for_partitions_of_an_undivided_topic_is_a_conflict() -> None:
    assert status_of(Undivided()) == 409


async def test_one_of_two_concurrent_creators_creates_the_topic() -> None:
    """Each change is based on the catalog at its own time."""

    def single(known: CatalogEntry | None) -> CatalogEntry:
        return CatalogEntry(0, (WHOLE,)) if known is None else known

    def wide(known: CatalogEntry | None) -> CatalogEntry:
        return (known or CatalogEntry()).grown(3)

    catalogs = Catalogs((world := World()).store, BUCKETS)
    binding = await world.binding(bucket_of(ORDERS, BUCKETS))
    divided = CatalogEntry(3, (0, 1, 2))
    for first, second, answers in (
        (single, wide, [CatalogEntry(0, (WHOLE,)), Undivided]),
        (wide, single, [divided, divided]),
    ):
        await catalogs.change(binding, ORDERS, lambda _: CatalogEntry(is_deleted=True))
        changes = (catalogs.change(binding, ORDERS, change) for change in (first, second))
        answered = await asyncio.gather(*changes, return_exceptions=True)
        assert [type(each) if isinstance(each, Undivided) else each for each in answered] == answers
        assert await catalogs.entry(ORDERS, binding) == answers[0]


async def test_concurrent_changes_are_not_lost() -> None:
    catalogs = Catalogs((world := World()).store, BUCKETS)
    binding = await world.binding(bucket_of(ORDERS, BUCKETS))
    world.store.faults.hook = lambda *_: asyncio.sleep(0)
    names = [f"policy-{number}" for number in range(9)]

    def having(name: str) -> Callable[[CatalogEntry | None], CatalogEntry]:
        return lambda known: (known or CatalogEntry()).with_policy(name, True)

    await asyncio.gather(*(catalogs.change(binding, ORDERS, having(name)) for name in names))
    stored = await Catalogs(world.store, BUCKETS).entry(ORDERS, None)
    assert stored == CatalogEntry(policies=dict.fromkeys(names, True))


async def test_an_answer_that_arrives_after_a_change_does_not_hide_it() -> None:
    """The copy of the bucket is forgotten during the check whether a new topic exists elsewhere."""
    catalogs = Catalogs((world := World()).store, BUCKETS)
    binding = await world.binding(bucket_of(BESIDE, BUCKETS))
    reads, writes, go_on = 0, 0, asyncio.Event()
    reading: list[asyncio.Task[CatalogEntry | None]] = []

    async def cross(call: str, when: Moment) -> None:
        nonlocal reads, writes
        if (call, when) == ("set_catalog", "before"):
            writes += 1
            if (
                writes == 2
            ):  # the change; the first is the reader's own, which settles what was sent
                await until(lambda: reads == 3)
        if (call, when) == ("read_catalog", "after"):
            reads += 1
            if reads == 2:
                catalogs.forget(binding.bucket)
                reading.append(tasks.create_task(catalogs.entry(BESIDE, binding)))
                await until(lambda: writes == 1)
            if reads == 3:
                await go_on.wait()

    world.store.faults.hook = cross
    async with asyncio.TaskGroup() as tasks:
        made = await catalogs.change(binding, BESIDE, partial(with_log_numbers, (WHOLE,)))
        go_on.set()
        assert await reading[0] is None
        assert await catalogs.entry(BESIDE, binding) == made


async def test_a_change_that_is_refused_leaves_everything() -> None:
    catalogs = Catalogs((world := World()).store, BUCKETS)
    binding = await world.binding(bucket_of(ORDERS, BUCKETS))
    single = CatalogEntry(0, (WHOLE,))
    await catalogs.change(binding, ORDERS, lambda _: single)

    def refuse(known: CatalogEntry | None) -> CatalogEntry:
        assert known == single
        raise Undivided

    with pytest.raises(Undivided):
        await catalogs.change(binding, ORDERS, refuse)
    assert await Catalogs(world.store, BUCKETS).entry(ORDERS, None) == single


async def test_a_catalog_read_under_one_binding_is_read_again_under_the_next() -> None:
    """Another broker may have held the bucket in between."""
    catalogs = Catalogs((world := World()).store, BUCKETS)
    former = await world.binding(bucket_of(ORDERS, BUCKETS))
    await catalogs.change(former, ORDERS, lambda _: CatalogEntry(0, (WHOLE,)))
    between = replace(former, owner="broker-1~one", version=2)
    assert await world.store.stamp(between) is Outcome.DONE
    await Catalogs(world.store, BUCKETS).change(
        between, ORDERS, lambda _: CatalogEntry(is_deleted=True)
    )
    again = replace(former, version=3)
    assert await world.store.stamp(again) is Outcome.DONE
    assert await catalogs.entry(ORDERS, again) is None
    with pytest.raises(Unavailable, match="no longer owns bucket"):
        await catalogs.change(former, ORDERS, lambda _: CatalogEntry(0, (WHOLE, 0)))
    assert await catalogs.entry(ORDERS, again) is None


async def test_nothing_is_remembered_of_another_dataset_than_the_one_that_counts() -> None:
    catalogs = Catalogs((world := World()).store, BUCKETS)
    binding = await world.binding(bucket_of(ORDERS, BUCKETS))
    await catalogs.change(binding, ORDERS, lambda _: CatalogEntry(0, (WHOLE,)))
    with pytest.raises(Undecided):
        await catalogs.entry(ORDERS, replace(binding, replid="f" * 40))


@pytest.mark.looptime
@pytest.mark.parametrize(
    "text",
    [
        "",
        "foreign",
        "[]",
        "{}",
        "[" * 100_000,
        '{"partitions": "2", "slots": [-1], "deleted": false}',
        '{"partitions": -1, "slots": [-1], "deleted": false}',
        '{"partitions": 0, "slots": ["x"], "deleted": false}',
        '{"partitions": 0, "slots": [-2], "deleted": false}',
        '{"partitions": 0, "slots": [-1], "deleted": 0}',
        '{"partitions": 0, "slots": [-1], "deleted": false, "policies": [1]}',
        '{"partitions": 0, "slots": [-1], "deleted": false, "declaredBy": 1}',
        '{"partitions": 0, "slots": [-1], "deleted": false, "madeBy": {"me": "x"}}',
    ],
)
async def test_an_entry_that_no_broker_wrote_breaks_its_topic_alone(text: str) -> None:
    world = World()
    bucket = bucket_of(ORDERS, BUCKETS)
    catalogs, binding = Catalogs(world.store, BUCKETS), await world.binding(bucket)
    entry = CatalogEntry(log_numbers=(WHOLE,))
    await catalogs.change(binding, BESIDE, lambda _: entry)
    key, primary = Keys(BUCKETS).topics(bucket), world.server.primary
    primary.run("HSET", key, str(ORDERS), text)
    catalogs = Catalogs(world.store, BUCKETS)  # of the next owner
    for _ in range(2):
        with pytest.raises(BrokenKey) as caught:
            await catalogs.entry(ORDERS, binding)
        assert key in str(caught.value)
        assert str(ORDERS) in str(caught.value)
        with pytest.raises(BrokenKey):
            await catalogs.change(binding, ORDERS, lambda _: entry)
    assert await catalogs.entry(BESIDE, binding) == entry
    await catalogs.change(binding, BESIDE, lambda known: replace(known or entry, partitions=0))
    assert set(await catalogs.under("", lambda _: binding)) == {str(BESIDE)}
    assert catalogs.logs_in("public/default") == 1

    primary.run("HDEL", key, str(ORDERS))
    await asyncio.sleep(UNREADABLE_SECONDS)
    with pytest.raises(BrokenKey):  # this request causes the next reading
        await catalogs.entry(ORDERS, binding)
    assert await catalogs.entry(ORDERS, binding) is None
    assert await catalogs.change(binding, ORDERS, lambda _: entry) == entry
