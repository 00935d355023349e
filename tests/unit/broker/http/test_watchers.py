"""Watchers get the latest state only, are disconnected if they do not read, and cost little."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from onewriter_broker.http.onewriter import broker_report
from onewriter_broker.http.onewriter import watch as watch_module
from onewriter_broker.http.onewriter.broker_report import MEMORY_STEP_BYTES
from onewriter_broker.http.routes import Routes
from onewriter_broker.http.site import Site
from onewriter_broker.http.watchers import WATCHERS_MAX, Watchers, WatchIntervals
from onewriter_broker.log.store.api import UNWRITTEN, Observation
from onewriter_broker.quotas.problems import QuotaProblems
from onewriter_broker.settings import Settings
from onewriter_core.api.topic import Durability
from onewriter_core.ids import TopicName


def name(text: str) -> TopicName:
    return TopicName.parse(f"persistent://public/default/{text}")


def test_a_watcher_has_a_set_of_changes_not_a_queue() -> None:
    watchers = Watchers()
    early, late = watchers.join(["x"]), watchers.join([])
    for _ in range(1000):
        watchers.changed(name("a"))
        watchers.changed(name("b-partition-3"))
    assert early.take() == ["x", str(name("a")), str(name("b"))]
    assert early.take() == []
    watchers.leave(early)
    watchers.changed(name("c"))
    assert early.take() == []
    assert late.take() == [str(name("a")), str(name("b")), str(name("c"))]
    assert not late.woken.is_set()


def test_there_is_a_bound() -> None:
    watchers = Watchers()
    joined = [watchers.join([]) for _ in range(WATCHERS_MAX)]
    assert watchers.is_full
    watchers.leave(joined[0])
    assert not watchers.is_full


class World:
    """A site with topics whose status is a number, and a server that only watches it."""

    def __init__(self) -> None:
        self.watchers = Watchers(
            WatchIntervals(
                gather_seconds=0.01, poll_seconds=0.01, ping_seconds=0.3, write_seconds=1.0
            )
        )
        self.loaded: dict[str, int] = {}
        self.padding = ""
        self.served: list[int] = [0, 1]
        self.waiting: dict[int, str] = {}
        self.view: object | None = object()
        self.problem = "a fault that has ended"
        self.seen: Observation | None = None
        self.full_namespaces: dict[str, str] = {}
        self.quota_problems = QuotaProblems(lambda: 0.0, lambda: 0)
        self.clients = SimpleNamespace(
            settings=Settings(redis_url="redis://me:pw@store:6379/"),
            store_is_full=False,
            quota_problems=self.quota_problems,
        )
        self.site = cast(
            "Site",
            SimpleNamespace(
                watchers=self.watchers,
                topics=SimpleNamespace(
                    loaded=self.loaded,
                    ownership=SimpleNamespace(
                        served=lambda: self.served, waiting=lambda: self.waiting
                    ),
                    bucket_of=lambda _topic: 0,
                    promises=frozenset({Durability.NONE, Durability.LOCAL}),
                    shares=self,
                ),
                clients=self.clients,
                membership=SimpleNamespace(view=lambda: self.view),
                certificate=None,
                desired=SimpleNamespace(revision="r7"),
                incarnation="broker-0~1",
                seen=lambda: self.seen,
                seen_of=lambda _bucket: self.seen,
                shards=lambda: (),
                store_problem=lambda: self.problem,
                declared=(),
            ),
        )
        self.url = ""

    def set(self, text: str, value: int | None) -> None:
        key = str(name(text))
        if value is None:
            del self.loaded[key]
        else:
            self.loaded[key] = value
        self.watchers.changed(name(text))


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    found = World()
    monkeypatch.setattr(
        watch_module,
        "served_status",
        lambda _site, value, _seen: {"value": value, "padding": found.padding},
    )
    application = web.Application()
    watch_module.add_routes(Routes(application.router), found.site)
    async with TestServer(application) as server:
        found.url = str(server.make_url(watch_module.PATH))
        yield found
        found.watchers.end()


class Reader:
    """Reads a watch line by line."""

    def __init__(self, lines: AsyncIterator[bytes]) -> None:
        self._lines = lines

    async def next(self) -> dict[str, Any]:
        async with asyncio.timeout(60):
            found: dict[str, Any] = json.loads(await anext(self._lines))
            return found

    async def until(self, kind: str) -> list[dict[str, Any]]:
        lines = [await self.next()]
        while lines[-1]["type"] != kind:
            lines.append(await self.next())
        return lines


@pytest.fixture
async def session() -> AsyncIterator[ClientSession]:
    async with ClientSession() as session:
        yield session


async def test_all_topics_then_synced_then_changes_and_goings(
    world: World, session: ClientSession
) -> None:
    for number in range(100):
        world.set(f"t{number}", number)
    async with session.get(world.url) as answer:
        reader = Reader(aiter(answer.content))
        lines = await reader.until("SYNCED")
        assert [line["status"]["value"] for line in lines[:-4]] == list(range(100))
        durabilities = lines[-3].pop("durabilities")
        assert lines[-3] == {"type": "BUCKETS", "count": 64, "served": [0, 1], "waiting": {}}
        assert (durabilities["None"], durabilities["Local"]) == ("", "")
        assert "the store can promise Local at most" in durabilities["Replicated"]
        assert lines[-2] == {"type": "QUOTAS", "topics": {}, "namespaces": {}}
        assert lines[-1] == {"type": "SYNCED", "broker": "broker-0~1", "revision": "r7"}
        for value in range(50):
            world.set("t3", value)
        world.set("t4", None)
        world.set("brief", 1)
        world.set("brief", None)  # nobody was told that it came
        assert [await reader.next(), await reader.next(), await reader.next()] == [
            {"type": "TOPIC", "topic": str(name("t3")), "status": {"value": 49, "padding": ""}},
            {"type": "GONE", "topic": str(name("t4"))},
            {"type": "PING"},
        ]
        world.set("t4", 5)
        assert (await reader.until("TOPIC"))[-1]["status"]["value"] == 5


async def test_waiting_buckets_and_their_end_are_reported(
    world: World, session: ClientSession
) -> None:
    async with session.get(world.url) as answer:
        reader = Reader(aiter(answer.content))
        await reader.until("SYNCED")
        world.served, world.waiting = [1], {0: "refused"}
        found = (await reader.until("BUCKETS"))[-1]
        assert (found["served"], found["waiting"]) == ([1], {"0": "refused"})
        world.served, world.waiting = [0, 1], {}
        found = (await reader.until("BUCKETS"))[-1]
        assert (found["served"], found["waiting"]) == ([0, 1], {})


async def test_quotas_that_refuse_producers_are_reported_once(
    world: World, session: ClientSession
) -> None:
    topic, at = str(name("orders")), "1970-01-01T00:00:00.000Z"
    async with session.get(world.url) as answer:
        reader = Reader(aiter(answer.content))
        await reader.until("SYNCED")
        world.quota_problems.refused(topic, "producers", "100 producers")
        found = (await reader.until("QUOTAS"))[-1]
        assert found["topics"] == {topic: {"reason": "100 producers", "since": at, "holds": False}}
        world.quota_problems.refused(topic, "producers", "101 producers")
        assert [each["type"] for each in await reader.until("PING")] == ["PING"]
        world.full_namespaces = {"public/default": "1100 bytes"}
        found = (await reader.until("QUOTAS"))[-1]
        assert found["namespaces"] == {
            "public/default": {"reason": "1100 bytes", "since": at, "holds": True}
        }


async def test_a_broker_reports_itself_and_its_store_and_each_change(
    world: World, session: ClientSession
) -> None:
    async with session.get(world.url) as answer:
        reader = Reader(aiter(answer.content))
        found = (await reader.until("BROKER"))[-1]
        assert found["store"] == {
            "url": "redis://store:6379/",
            "topology": "Single",
            "reachable": True,
            "problem": None,
            "durability": "Local",
            "full": False,
            "faults": [],
            "refusesWrites": False,
            "declared": [],
            "memoryBytesUsed": 0,
            "memoryBytesMax": None,
            "shards": [],
        }
        assert found["certificates"] == []
        world.view = None
        found = (await reader.until("BROKER"))[-1]
        assert found["store"]["reachable"] is False
        world.problem = "no TLS connection"
        found = (await reader.until("BROKER"))[-1]
        assert found["store"]["problem"] == "no TLS connection"
        used = 10 * MEMORY_STEP_BYTES
        world.seen = Observation("d", "", True, 0, {}, used + 1, 4 * used)
        found = (await reader.until("BROKER"))[-1]
        assert found["store"]["memoryBytesUsed"] == used
        world.seen = Observation("d", "", True, 0, {}, used + 100, 4 * used)
        await reader.until("PING")
        world.view = object()
        found = (await reader.until("BROKER"))[-1]
        assert found["store"]["reachable"] is True, "small changes of the memory are not sent"
        world.clients.store_is_full = True
        found = (await reader.until("BROKER"))[-1]
        assert found["store"]["full"] is True
        rewrite = "the append-only file could not be rewritten"
        world.seen = replace(world.seen, faults=(rewrite,))
        found = (await reader.until("BROKER"))[-1]
        assert (found["store"]["faults"], found["store"]["refusesWrites"]) == ([rewrite], False)
        world.seen = replace(world.seen, faults=(UNWRITTEN,))
        found = (await reader.until("BROKER"))[-1]
        assert (found["store"]["faults"], found["store"]["refusesWrites"]) == ([UNWRITTEN], True)


@pytest.mark.parametrize(
    ("settings", "address"),
    [
        (
            {"redis_url": "rediss://user:pass@store.example:6380/?x=1"},
            "rediss://store.example:6380/",
        ),
        ({"redis_url": "unix:///run/store.sock"}, "unix:///run/store.sock"),
        ({"redis_sentinels": "a:26379, u:p@b:26379"}, "a:26379,b:26379"),
    ],
)
def test_the_reported_address_has_no_credentials(settings: dict[str, str], address: str) -> None:
    assert broker_report.address(Settings(**settings)) == address  # type: ignore[arg-type]


async def test_pings_are_sent_also_while_changes_are_sent(
    world: World, session: ClientSession
) -> None:
    async with session.get(world.url) as answer, asyncio.TaskGroup() as tasks:

        async def change() -> None:
            for value in range(10**9):
                world.set("busy", value)
                await asyncio.sleep(0.001)

        busy = tasks.create_task(change())
        reader = Reader(aiter(answer.content))
        await reader.until("SYNCED")
        for kind in ("TOPIC", "PING", "TOPIC", "PING"):
            await reader.until(kind)
        busy.cancel()


async def test_a_watcher_that_does_not_read_is_disconnected_and_delays_no_other(
    world: World, session: ClientSession
) -> None:
    world.padding = "x" * 100_000
    for number in range(500):  # 50 MB: more than any socket's buffers
        world.set(f"t{number}", number)
    async with session.get(world.url) as answer:
        reader = Reader(aiter(answer.content))
        await reader.next()
        async with asyncio.timeout(60):
            while world.watchers._watchers:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
        world.padding = ""
        async with session.get(world.url) as other:
            lines = await Reader(aiter(other.content)).until("SYNCED")
            assert len(lines) == 504


async def test_the_brokers_end_is_the_watchs_end(world: World, session: ClientSession) -> None:
    async with session.get(world.url) as answer:
        reader = Reader(aiter(answer.content))
        await reader.until("SYNCED")
        world.watchers.end()
        async with asyncio.timeout(60):
            assert [line async for line in answer.content] == []
