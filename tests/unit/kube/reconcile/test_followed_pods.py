"""Pods that are followed by name: one stream for each pod of a leader Service, bounded."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, cast

import pytest

from onewriter_core.kubernetes.kinds import Key, Kind
from onewriter_operator.kube import ApiRefused, Kube
from onewriter_operator.reconcile import followed_pods
from onewriter_operator.reconcile.followed_pods import FollowedPods, Pod

Json = dict[str, Any]

POD = Pod("shop", "writer-0", "u0")

pytestmark = pytest.mark.looptime


def topic(number: int = 0) -> Key:
    return Key("ExclusiveTopic", "shop", f"orders-{number}")


def document(uid: str = "u0", *, is_going: bool = False) -> Json:
    going = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if is_going else {}
    return {"metadata": {"name": "writer-0", "uid": uid} | going, "status": {"podIP": "10.0.0.1"}}


class Server:
    """Streams that a test feeds; an exception or None ends a stream."""

    def __init__(self) -> None:
        self.streams: dict[str, asyncio.Queue[Json | Exception | str | None]] = {}
        self.opened: list[str] = []
        self.open = 0

    async def follow(
        self, kind: Kind, namespace: str, name: str
    ) -> AsyncGenerator[Json | None, None]:
        self.opened.append(name)
        self.open += 1
        try:
            while True:
                found = await self.streams.setdefault(name, asyncio.Queue()).get()
                if isinstance(found, Exception):
                    raise found
                if isinstance(found, str):
                    return
                yield found
        finally:
            self.open -= 1

    async def says(self, *found: Json | Exception | str | None, name: str = "writer-0") -> None:
        for each in found:
            self.streams.setdefault(name, asyncio.Queue()).put_nowait(each)
        await asyncio.sleep(0.01)


class World:
    def __init__(self, followed_max: int) -> None:
        self.server = Server()
        self.changed: list[str] = []
        self.pods = FollowedPods(cast("Kube", self.server), self.changed.append, followed_max)


@contextlib.asynccontextmanager
async def running(followed_max: int = followed_pods.FOLLOWED_MAX) -> AsyncIterator[World]:
    world = World(followed_max)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(world.pods.run())
        yield world
        task.cancel()


async def test_the_deletion_and_the_end_of_a_pod_are_reported() -> None:
    async with running() as world:
        world.pods.want(topic(), POD)
        await world.server.says(document(), document())
        found = world.pods.facts("u0")
        assert found is not None
        assert (found.ip, found.is_going) == ("10.0.0.1", False)
        assert world.changed == ["u0"]  # and not for what changes nothing
        await world.server.says(document(is_going=True))
        found = world.pods.facts("u0")
        assert found is not None
        assert found.is_going
        await world.server.says(None)
        found = world.pods.facts("u0")
        assert found is not None
        assert not found.exists
        assert world.changed == ["u0"] * 3
        assert world.server.open == 0


async def test_a_successor_of_the_same_name_is_not_it() -> None:
    async with running() as world:
        world.pods.want(topic(), POD)
        await world.server.says(document("another"))
        found = world.pods.facts("u0")
        assert found is not None
        assert not found.exists


async def test_an_unwanted_pod_is_no_longer_followed() -> None:
    async with running() as world:
        world.pods.want(topic(0), POD)
        world.pods.want(topic(1), POD)
        await world.server.says(document())
        assert world.server.opened == ["writer-0"]
        world.pods.want(topic(0), None)
        await asyncio.sleep(0.01)
        assert world.server.open == 1
        world.pods.want(topic(1), Pod("shop", "writer-1", "u1"))
        await asyncio.sleep(0.01)
        assert world.server.opened == ["writer-0", "writer-1"]
        assert world.server.open == 1
        assert world.pods.facts("u0") is None
        world.pods.want(topic(1), None)
        world.pods.want(topic(1), None)
        await asyncio.sleep(0.01)
        assert world.server.open == 0


async def test_an_ended_stream_is_opened_again_and_the_facts_stay() -> None:
    async with running() as world:
        world.pods.want(topic(), POD)
        await world.server.says(document(), "it ends")
        assert world.pods.facts("u0") is not None
        await asyncio.sleep(followed_pods.AGAIN_SECONDS + 0.1)
        assert world.server.opened == ["writer-0", "writer-0"]


async def test_a_pod_that_cannot_be_followed_is_unknown_and_tried_again() -> None:
    async with running() as world:
        world.pods.want(topic(), POD)
        await world.server.says(document(), ApiRefused(403, "no right to watch pods"))
        assert world.pods.facts("u0") is None
        await asyncio.sleep(followed_pods.RETRY_SECONDS + 1)
        assert len(world.server.opened) == 2
        await world.server.says(document())
        assert world.pods.facts("u0") is not None


async def test_the_number_of_followed_pods_is_limited() -> None:
    async with running(followed_max=3) as world:
        for number in range(5):
            world.pods.want(topic(number), Pod("shop", f"writer-{number}", f"u{number}"))
        await asyncio.sleep(0.01)
        assert world.server.open == 3
        world.pods.want(topic(0), None)
        await asyncio.sleep(0.01)
        assert world.server.opened[-1] == "writer-3"
        assert world.server.open == 3
