"""An administrator drops ownership records, with a real store."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator

import pytest
from tests.integration.conftest import RawClients
from tests.integration.forked_brokers import forked_brokers
from tests.integration.http_calls import Http
from tests.integration.owners import own
from tests.integration.raw import eventually
from tests.integration.test_verbs import Said, onewriter
from tests.servers import running_server

from onewriter import Client, Fenced, ProducerOptions, Refused
from onewriter_broker.log.store.keys import BUCKETS_DEFAULT
from onewriter_core.command import EXIT_USAGE
from onewriter_core.ids import TopicName, bucket_of
from onewriter_core.own.names import resource_bucket
from onewriter_core.property_names import (
    GUARD_GROUP_PROPERTY,
    GUARD_NUMBER_PROPERTY,
    GUARD_PROPERTY,
)
from onewriter_testing.processes import LocalBrokers

OWNERSHIPS = "/onewriter/v1/ownerships"

_numbers = itertools.count()


@pytest.fixture
def group() -> str:
    return f"dropping-{next(_numbers)}"


@pytest.fixture(scope="module")
def brokers() -> Iterator[LocalBrokers]:
    with running_server() as server, forked_brokers(redis_url=server.url) as running:
        yield running


def dropped(http: Http, group: str, query: str = "") -> tuple[int, int]:
    status, answer = http("DELETE", f"{OWNERSHIPS}?group={group}{query}")
    assert status in {200, 503}, answer  # 503: not all brokers have reported lately
    return answer.get("dropped", 0), answer.get("kept", 0)


async def gone(brokers: LocalBrokers, group: str, query: str = "") -> None:
    """Drop one record when no client can act as its owner any more."""
    http = Http(brokers.http_url)
    await asyncio.to_thread(eventually, lambda: dropped(http, group, query) == (1, 0))


async def test_generations_continue_after_a_dropped_record(
    brokers: LocalBrokers, group: str, topic: str
) -> None:
    resource = f"persistent://public/default/{topic}"
    target = f"{{{topic}}}-audit"
    async with Client(brokers.service_url) as client, Client(brokers.service_url) as other:
        (first,) = await client.own(group, [resource])
        guarded = first.guarded(target)
        await guarded.send(b"by the first owner")
        http = Http(brokers.http_url)
        await asyncio.to_thread(eventually, lambda: dropped(http, group) == (0, 1))  # it is owned
        (second,) = await other.own(group, [(resource, 5)])
        assert second.generation == 5
        await second.release()
        await gone(brokers, group)
        with pytest.raises(Fenced):
            await guarded.send(b"by a stale owner, of whom the store knows nothing any more")
        (third,) = await other.own(group, [resource])
        assert third.generation == 6
        with pytest.raises(Fenced):
            await first.guarded(target).send(b"nor now")
        await third.guarded(target).send(b"by the third one")
    shown = Http(brokers.http_url)("GET", f"{OWNERSHIPS}?group={group}")[1]["ownerships"]
    assert [row["generation"] for row in shown] == [6]


async def test_floors_outlive_the_broker(
    brokers: LocalBrokers, group: str, raw: RawClients
) -> None:
    client = raw(brokers.address())
    for identity in ("one", "two"):
        own(client, "resource", group=group, identity=identity, generation=0)
    client.close()
    await gone(brokers, group, "&resource=resource")
    brokers.kill()
    brokers.restart(0)
    again = own(raw(brokers.address()), "resource", group=group)
    assert again == 3


def guard(group: str, resource: str, generation: int) -> ProducerOptions:
    return ProducerOptions(
        properties={
            GUARD_PROPERTY: resource,
            GUARD_NUMBER_PROPERTY: str(generation),
            GUARD_GROUP_PROPERTY: group,
        }
    )


async def test_dropping_a_record_ends_the_guards_of_its_last_owner(
    brokers: LocalBrokers, group: str, raw: RawClients, topic: str
) -> None:
    resource, target = f"persistent://public/default/{topic}", f"{{{topic}}}-audit"
    owner = raw(brokers.address())
    assert own(owner, resource, group=group) == 1
    async with Client(brokers.service_url) as client:
        guarded = await client.create_producer(target, guard(group, resource, 1))
        await guarded.send(b"by the owner")
        owner.close()
        await gone(brokers, group)
        with pytest.raises(Fenced):
            await guarded.send(b"stale")
        with pytest.raises(Fenced):
            await client.create_producer(target, guard(group, resource, 1))
        with pytest.raises(Refused, match="never owned"):
            await client.create_producer(target, guard(group, resource, 2))


async def test_a_resource_without_any_owner_guards_nothing(
    brokers: LocalBrokers, group: str, raw: RawClients
) -> None:
    bucket = resource_bucket("dropped", BUCKETS_DEFAULT)
    never = next(
        name
        for number in itertools.count()
        if resource_bucket(name := f"never-{number}", BUCKETS_DEFAULT) == bucket
    )
    elsewhere = next(
        name
        for number in itertools.count()
        if bucket_of(TopicName.parse(name := f"{group}-{number}"), BUCKETS_DEFAULT) != bucket
    )
    owner = raw(brokers.address())
    own(owner, "dropped", group=group)
    async with Client(brokers.service_url) as client:
        with pytest.raises(Refused, match="never owned"):
            await client.create_producer(elsewhere, guard(group, never, 1))
        owner.close()
        await gone(brokers, group)
        with pytest.raises(
            Fenced
        ):  # as if it had been owned: only the floor of dropped records is known
            await client.create_producer(elsewhere, guard(group, never, 1))
        with pytest.raises(Refused, match="never owned"):
            await client.create_producer(elsewhere, guard(group, never, 2))


def test_a_drop_without_a_group_is_refused(brokers: LocalBrokers) -> None:
    status, answer = Http(brokers.http_url)("DELETE", OWNERSHIPS)
    assert status == 400
    assert "group=" in answer["reason"]


async def test_the_command_lists_who_owns_what_and_drops_a_groups_records(
    brokers: LocalBrokers, group: str, topic: str
) -> None:
    resource = f"persistent://public/default/{topic}"

    async def said(*words: str) -> Said:
        at = ("--http-url", brokers.http_url)
        return await asyncio.to_thread(onewriter, "ownerships", *words, *at)

    async with Client(brokers.service_url) as client:
        first, _ = await client.own(group, [resource, "other"])
        listed = await said("--group", group)
        assert listed.code == 0
        assert [word for word in listed.out.split() if word in {topic, "other", "owned"}] == [
            "other",
            "owned",
            topic,
            "owned",
        ]
        (row,) = (await said("--resource", resource, "-o", "json")).json["ownerships"]
        assert (row["group"], row["generation"]) == (group, first.generation)
        held = await said("--group", group, "--drop", "-o", "json")
        assert {key: held.json[key] for key in ("dropped", "kept")} == {"dropped": 0, "kept": 2}
    dropped: list[int] = []

    def all_dropped() -> bool:
        found = onewriter("ownerships", "--group", group, "--drop", "-o", "json", *_at(brokers))
        dropped.append(found.json["dropped"])
        return sum(dropped) == 2

    await asyncio.to_thread(eventually, all_dropped)
    assert (await said("--group", group)).out == "no ownerships\n"


async def test_the_command_drops_nothing_without_a_group(brokers: LocalBrokers) -> None:
    wrong = await asyncio.to_thread(onewriter, "ownerships", "--drop", *_at(brokers))
    assert (wrong.code, wrong.out) == (EXIT_USAGE, "")
    assert "--group" in wrong.err


def _at(brokers: LocalBrokers) -> tuple[str, str]:
    return "--http-url", brokers.http_url
