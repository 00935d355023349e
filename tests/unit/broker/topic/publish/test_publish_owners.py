"""An app is bound to the subject that published under it first."""

from __future__ import annotations

import pytest
from tests.contents import stored_in
from tests.unit.broker.topic.fence_path_world import ORDERS, World, serving
from tests.unit.broker.topic.publish.publish_world import APP, ended, log_of, request

from onewriter_broker.log.limits import APPS_PER_SUBJECT_MAX
from onewriter_broker.log.topic_log.atomic_publish import (
    BoundElsewhere,
    Entries,
    Publish,
    Published,
    check_app,
)
from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_core.errors import Refused
from onewriter_core.log_format.field_names import OWNER_PREFIX, VERSION_PREFIX
from onewriter_core.wire.values import Send

FIELD = f"{OWNER_PREFIX}{APP}"


def published_by(owner: str | None, version: int = 1, app: str = APP) -> Publish:
    entries = [(Send(0, version), memoryview(b"row"))]
    return Publish(app, version, Entries(entries), lambda: True, owner)


async def published(world: World, log: TopicLog, owner: str | None, version: int) -> bool:
    found = await ended(request(world, log, published_by(owner, version)))
    return isinstance(found, Published)


async def test_the_first_publish_binds_the_app() -> None:
    async with serving() as world:
        _, log = await log_of(world)
        assert await published(world, log, "alice", 1)
        assert stored_in(world.server.primary).states[ORDERS][FIELD] == "alice"
        assert log.state[FIELD] == "alice"
        with pytest.raises(BoundElsewhere, match="another subject's app") as refused:
            log.publish(published_by("mallory", 999))
        assert "alice" not in str(refused.value), "who owns it is told to administrators only"
        assert refused.value.owner == "alice"
        assert await published(world, log, "alice", 2)


async def test_an_app_of_an_earlier_release_is_bound_by_its_next_publish() -> None:
    async with serving() as world:
        _, log = await log_of(world)
        assert await published(world, log, None, 1)
        assert FIELD not in log.state
        assert await published(world, log, "alice", 2)
        assert log.state[FIELD] == "alice"


async def test_without_authentication_nothing_is_bound_or_refused() -> None:
    async with serving() as world:
        _, log = await log_of(world)
        assert await published(world, log, "alice", 1)
        assert await published(world, log, None, 2)
        assert log.state[FIELD] == "alice"


async def test_a_client_without_a_token_does_not_publish_under_an_app_of_a_subject() -> None:
    async with serving() as world:
        _, log = await log_of(world)
        assert await published(world, log, "", 1)
        assert FIELD not in log.state
        assert await published(world, log, "alice", 2)
        with pytest.raises(BoundElsewhere):
            log.publish(published_by("", 3))


async def test_the_store_refuses_what_this_broker_did_not_know_to_be_bound() -> None:
    async with serving() as world:
        _, log = await log_of(world)
        state = stored_in(world.server.primary).states[ORDERS]
        state[FIELD] = "alice"
        assert not await published(world, log, "mallory", 1)
        assert f"{VERSION_PREFIX}{APP}" not in state


def bound_to(owner: str, count: int) -> dict[str, str]:
    fields = {f"{OWNER_PREFIX}app-{number}": owner for number in range(count)}
    return fields | {f"{VERSION_PREFIX}app-{number}": "1" for number in range(count)}


async def test_the_apps_of_a_subject_are_limited() -> None:
    state = bound_to("alice", APPS_PER_SUBJECT_MAX)
    with pytest.raises(Refused, match=r"alice publishes to .* under 32 names already"):
        check_app(ORDERS, state, APP, "alice")
    check_app(ORDERS, state, APP, "bob")
    check_app(ORDERS, state, APP, None)
    check_app(ORDERS, state, "app-0", "alice")
    check_app(ORDERS, state | {FIELD: "alice"}, APP, "alice")  # its layout has bound it
    check_app(ORDERS, bound_to("alice", APPS_PER_SUBJECT_MAX - 1), APP, "alice")
