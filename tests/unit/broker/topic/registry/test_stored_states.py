"""The state of a log with a value that no broker wrote breaks that topic before it is fenced, and no other topic."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.unit.broker.topic.fence_path_world import BUCKET, ORDERS, World, serving
from tests.unit.broker.topic.topics_world import BUCKETS, topics_of

from onewriter_broker.log.store.api import BrokenKey
from onewriter_broker.log.store.keys import Keys
from onewriter_broker.topic.registry.broken_topics import RETRY_SECONDS
from onewriter_broker.topic.registry.stored_states import check_state
from onewriter_broker.topic.registry.topics import Topics
from onewriter_core.errors import Unavailable
from onewriter_core.ids import NUMBER_MAX, TopicName, bucket_of
from onewriter_core.topic.model import WHOLE, AccessMode

pytestmark = pytest.mark.looptime

STATE = Keys(BUCKETS).state(ORDERS)
AS_WRITTEN = {
    "tok": "7:broker-0~one",
    "epoch": "7",
    "ledger": "9",
    "generation": "1",
    "leads": "7",
    "serves": "3000",
    "settled": "2",
    "since": "1700000000000",
    "present": "0",
    "presentSince": "",
    "absentSince": "1700000000000",
    "heardAt": "",
    "holder": json.dumps(
        {"epoch": 7, "producer": "p", "subject": "s", "podUID": "", "pod": "", "node": ""}
    ),
    "deposed": json.dumps([["s", "uid"]]),
    "sequences": json.dumps({"p": [7, -1, 1700000000000]}),
    "deduplication": '7-3 {"p": 12}',
    "trimmed": "7-0",
    "terminated": "0-0",
    "ledgerEnds": "7 5-3,9 7-12",
    "guard:other": "4",
    "cursor:s": "any value",
}


def test_a_state_as_brokers_write_it_is_accepted() -> None:
    check_state(ORDERS, AS_WRITTEN, BUCKETS)
    empty = ("presentSince", "absentSince", "heardAt", "since", "holder", "deduplication")
    check_state(
        ORDERS, AS_WRITTEN | dict.fromkeys((*empty, "terminated", "ledgerEnds"), ""), BUCKETS
    )
    check_state(ORDERS, {}, BUCKETS)


@pytest.mark.parametrize(
    ("field", "text"),
    [
        *(
            (field, text)
            for field in ("epoch", "ledger", "generation", "leads", "settled")
            for text in ("", "x", "-1", "1.5", "٣", " 5", "1_0", str(NUMBER_MAX + 1))
        ),
        *(("serves", text) for text in ("", "x", "-1", "3001", "9" * 30)),
        *((field, "x") for field in ("since", "presentSince", "absentSince", "heardAt")),
        *(("guard:other", text) for text in ("", "x")),
        *(("trimmed", text) for text in ("", "x", "5", "5-x", "-1-5", "5--1", "9" * 30 + "-0")),
        *(("terminated", text) for text in ("x", "5")),
        *(("ledgerEnds", text) for text in ("x", "7", "7 5", "x 5-3", "7 5-3 1")),
        *(("holder", text) for text in ("x", "[]", "{}", "1", "[" * 100_000)),
        ("holder", AS_WRITTEN["holder"].replace("7", '"7"')),
        ("holder", AS_WRITTEN["holder"].replace("7", "-7")),
        ("holder", AS_WRITTEN["holder"].replace('"s"', "{}")),
        *(("deposed", text) for text in ("", "x", "{}", "[1]", "[[1, 2]]", '[["a"]]', "null")),
        *(
            ("sequences", text)
            for text in ("", "x", "[]", '{"p": 1}', '{"p": [1, 2]}', '{"p": ["1", 2, 3]}')
        ),
        *(
            ("deduplication", text)
            for text in ("x", "{}", "7-3", "7-3 []", '7-3 {"p": "1"}', "7 {}")
        ),
    ],
)
def test_a_value_that_no_broker_wrote_is_named(field: str, text: str) -> None:
    with pytest.raises(BrokenKey, match=f"{field} is ") as caught:
        check_state(ORDERS, AS_WRITTEN | {field: text}, BUCKETS)
    assert str(caught.value).startswith(STATE)
    assert len(str(caught.value)) < 200


async def falsify(world: World, field: str, text: str) -> None:
    world.server.primary.run("HSET", STATE, field, text)


async def test_a_falsified_topic_is_refused_without_a_fence_until_it_is_repaired() -> None:
    async with serving() as world:
        topics = topics_of(world)
        topic = await topics.serve(ORDERS)
        holder, _ = await world.granted(topic.runner, AccessMode.EXCLUSIVE)
        await topics.unload(ORDERS)
        before = await world.entries_by_ledger()
        await falsify(world, "heardAt", "yesterday")
        await falsify(world, "present", "0")
        await falsify(world, "absentSince", "1")
        for _ in range(3):
            with pytest.raises(BrokenKey, match="heardAt is 'yesterday'"):
                await topics.serve(ORDERS)
            await asyncio.sleep(RETRY_SECONDS)
        assert await world.entries_by_ledger() == before  # no request has left a marker
        assert "heardAt" in topics.broken.reason(ORDERS)
        other = await topics.serve(other_topic())
        assert other.runner.logs[WHOLE].is_writable

        await falsify(world, "heardAt", "")
        topic = await topics.serve(ORDERS)
        again, _ = await world.granted(topic.runner, AccessMode.EXCLUSIVE, "again")
        assert (again.epoch or 0) > (holder.epoch or 0) > 0


def other_topic() -> TopicName:
    """A topic of the same bucket."""
    names = (TopicName.parse(f"other-{number}") for number in range(100_000))
    return next(name for name in names if bucket_of(name, BUCKETS) == BUCKET)


async def test_an_unexpected_error_of_a_load_is_retried_by_the_client() -> None:
    async with serving() as world:
        topics: Topics = topics_of(world)

        async def failing(*_arguments: object, **_more: object) -> dict[str, str]:
            raise ValueError("a defect")

        world.store.read_state = failing  # type: ignore[method-assign]
        with pytest.raises(Unavailable, match="cannot be loaded"):
            await topics.serve(ORDERS)
