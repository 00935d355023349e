"""Catalogs of topics: where one may begin whose name has braces, and when it gets partitions."""

from __future__ import annotations

import asyncio

import pytest
from tests.stamps import stamp_anew

from onewriter_broker.http.site import status_of
from onewriter_broker.log.api import Binding, Outcome
from onewriter_broker.log.memory import MemoryLogStore
from onewriter_broker.log.memory_server import MemoryServer
from onewriter_broker.topic.catalog import CatalogEntry, Catalogs, Undivided
from onewriter_core.api import ExclusiveTopic
from onewriter_core.errors import Refused, ServerError, Unavailable
from onewriter_core.ids import TopicName, bucket_of, bucket_without_tags
from onewriter_core.topic.model import WHOLE

BUCKETS = 64
ORDERS = TopicName.parse("orders")
BESIDE = TopicName.parse("{orders}-audit")


class World:
    """A store whose buckets are all this broker's."""

    def __init__(self) -> None:
        self.server = MemoryServer()
        self.store = MemoryLogStore(self.server.resolve)

    async def binding(self, bucket: int) -> Binding:
        binding = Binding(bucket, self.server.primary.replid, 1, "broker-0~one", 1)
        assert await stamp_anew(self.store, binding) is Outcome.DONE
        return binding

    async def made_without_tags(self, topic: TopicName, entry: CatalogEntry) -> None:
        """A topic where an earlier version put it."""
        binding = await self.binding(bucket_without_tags(topic, BUCKETS))
        fields = {str(topic): entry.encode()}
        assert await self.store.set_catalog(binding, fields) is Outcome.DONE


def test_a_part_in_braces_stands_for_the_whole_name() -> None:
    assert bucket_of(BESIDE, BUCKETS) == bucket_of(ORDERS, BUCKETS)
    assert bucket_of(BESIDE, BUCKETS) != bucket_without_tags(BESIDE, BUCKETS)
    assert bucket_of(ORDERS, BUCKETS) == bucket_without_tags(ORDERS, BUCKETS)
    partition = BESIDE.with_partition(3)
    assert bucket_without_tags(partition, BUCKETS) == bucket_without_tags(BESIDE, BUCKETS)


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_a_topic_that_lies_where_braces_did_not_count_does_not_begin_anew(
    is_deleted: bool,
) -> None:
    world = World()
    await world.made_without_tags(BESIDE, CatalogEntry(slots=(-1,), is_deleted=is_deleted))
    catalogs = Catalogs(world.store, BUCKETS)
    binding = await world.binding(bucket_of(BESIDE, BUCKETS))
    with pytest.raises(Refused, match="no hash tags") as refused:
        await catalogs.write(binding, BESIDE, CatalogEntry(slots=(-1,)))
    assert refused.value.code is ServerError.NOT_ALLOWED_ERROR
    assert await catalogs.entry(BESIDE, is_owned=True) is None


async def test_a_name_in_braces_that_nobody_used_before_begins() -> None:
    world = World()
    await world.made_without_tags(TopicName.parse("{orders}-other"), CatalogEntry(slots=(-1,)))
    catalogs = Catalogs(world.store, BUCKETS)
    binding = await world.binding(bucket_of(BESIDE, BUCKETS))
    for entry in (CatalogEntry(slots=(-1,)), CatalogEntry(slots=(-1, 0))):
        await catalogs.write(binding, BESIDE, entry)
        assert await catalogs.entry(BESIDE, is_owned=True) == entry


# ------------------------------------------------------------ with partitions, or without


def declared(partitions: int) -> ExclusiveTopic:
    return ExclusiveTopic.model_validate(
        {"metadata": {"name": "orders"}, "spec": {"partitions": partitions}}
    )


def test_what_a_declaration_makes_of_a_topic() -> None:
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
    with pytest.raises(Undivided, match="delete it first"):
        single.grown(3)


def test_who_asks_for_partitions_of_a_topic_without_is_told_of_a_conflict() -> None:
    assert status_of(Undivided()) == 409


async def test_of_two_who_make_a_topic_at_once_one_makes_it() -> None:
    """One reads what the catalog says, and so does the other; then both write."""
    catalogs = Catalogs((world := World()).store, BUCKETS)
    binding = await world.binding(bucket_of(ORDERS, BUCKETS))
    single, wide = CatalogEntry(0, (WHOLE,)), CatalogEntry(3, (0, 1, 2))
    for entries, error in (((single, wide), Undivided), ((wide, single), Unavailable)):
        await catalogs.write(binding, ORDERS, CatalogEntry(is_deleted=True))
        writes = (catalogs.write(binding, ORDERS, entry) for entry in entries)
        assert [type(each) for each in await asyncio.gather(*writes, return_exceptions=True)] == [
            type(None),
            error,
        ]
        assert await catalogs.entry(ORDERS, is_owned=True) == entries[0]
