"""Forgetting an app over HTTP, also during concurrent requests for its layout."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from tests.contents import stored_in
from tests.unit.broker.topic.fence_path_world import BUCKET, ORDERS, World, serving
from tests.unit.broker.topic.test_fence_path_partitions import topics_of

from onewriter_broker.http.onewriter import staging as http_staging
from onewriter_broker.http.routes import Routes
from onewriter_broker.http.site import Refusal, Site
from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_broker.topic.publish.atomic_publishes import AtomicPublishes
from onewriter_broker.topic.publish.layouts import LAYOUT_PREFIX
from onewriter_broker.topic.publish.staging import Staging
from onewriter_broker.topic.registry.topics import Topics
from onewriter_core.log_format.field_names import OWNER_PREFIX, VERSION_PREFIX

APP = "job"


class Asking:
    """The handler that forgets, of a broker whose one topic has two partitions."""

    def __init__(self, world: World, topics: Topics, first: TopicLog) -> None:
        self.first = first
        staging = Staging(world.store, lambda _: BUCKET, lambda: [BUCKET], lambda: 1_000)
        self.publishing = AtomicPublishes(world.store, world.appender, staging)

        async def owned(*_: object) -> None:
            return

        site: Any = SimpleNamespace(
            topics=topics, publishing=self.publishing, staging=staging, require_owned=owned
        )
        router = web.UrlDispatcher()
        http_staging.add_routes(Routes(router), cast("Site", site))
        (self._handler,) = (
            route.handler
            for route in router.routes()
            if route.method == "DELETE" and "published" in str(route.resource)
        )

    async def forget(self) -> dict[str, Any]:
        found = {"tenant": "shop", "namespace": "default", "topic": "orders", "app": APP}
        answer = await cast("Any", self._handler)(
            make_mocked_request("DELETE", "/", match_info=found)
        )
        return cast("dict[str, Any]", json.loads(answer.body))

    async def note(self, version: int, turns: int = 0) -> int:
        async def counted() -> int:
            for _ in range(turns):
                await asyncio.sleep(0)
            return 2

        async def held() -> int:
            return -1

        return await self.publishing.layouts.note(self.first, APP, version, counted, held)


async def asking_of(world: World) -> Asking:
    topics = topics_of(world)
    await topics.set_partitions(ORDERS, 2)
    topic = await topics.serve(ORDERS.with_partition(0))
    return Asking(world, topics, topic.runner.logs[0])


async def test_the_layout_of_a_forgotten_app_does_not_return() -> None:
    """Whoever begins anew begins with low versions, which old notes would say are over."""
    async with serving() as world:
        asking = await asking_of(world)
        for version in range(100, 110):
            await asking.note(version)
        noting = world.tasks.create_task(asking.note(110, turns=200))
        for _ in range(50):
            await asyncio.sleep(0)
        await asyncio.gather(noting, asking.forget())
        assert await asking.note(0) == 2


async def test_a_forgotten_app_has_no_owner() -> None:
    async with serving() as world:
        asking = await asking_of(world)
        state = stored_in(world.server.primary).states[asking.first.name]
        state[f"{VERSION_PREFIX}{APP}"] = "7"
        state[f"{OWNER_PREFIX}{APP}"] = "alice"
        assert await asking.forget() == {"app": APP, "version": 7}
        assert f"{OWNER_PREFIX}{APP}" not in state


async def test_a_damaged_version_is_forgotten() -> None:
    async with serving() as world:
        asking = await asking_of(world)
        state = stored_in(world.server.primary).states[asking.first.name]
        state[f"{LAYOUT_PREFIX}{APP}"] = "x 4"
        assert await asking.forget() == {"app": APP, "version": 0}
        state[f"{VERSION_PREFIX}{APP}"] = "x"
        assert await asking.forget() == {"app": APP, "version": 0}
        with pytest.raises(Refusal, match="never published"):
            await asking.forget()
