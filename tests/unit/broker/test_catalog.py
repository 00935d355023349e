"""Catalogs of topics: what a name in braces means for where a topic may begin."""

from __future__ import annotations

import pytest
from tests.stamps import stamp_anew

from onewriter_broker.log.api import Binding, Outcome
from onewriter_broker.log.memory import MemoryLogStore
from onewriter_broker.log.memory_server import MemoryServer
from onewriter_broker.topic.catalog import CatalogEntry, Catalogs
from onewriter_core.errors import Refused, ServerError
from onewriter_core.ids import TopicName, bucket_of, bucket_without_tags

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
