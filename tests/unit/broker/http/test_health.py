"""``/readyz``: which brokers clients should connect to."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from onewriter_broker.http import health
from onewriter_broker.http.health import ReadinessFacts, problems_of
from onewriter_broker.http.routes import Routes
from onewriter_broker.http.site import Site
from onewriter_broker.ownership.store_access import StoreAccess


def site(served: list[int], waiting: dict[int, str], unreadable: dict[int, str]) -> Site:
    ownership = SimpleNamespace(
        held=lambda: dict.fromkeys(served),
        owner_of=lambda _bucket: object(),
        served=lambda: served,
        waiting=lambda: waiting,
        waiting_reason=lambda bucket: waiting.get(bucket) or unreadable.get(bucket, ""),
    )
    is_ready = asyncio.Event()
    is_ready.set()
    return cast(
        "Site",
        SimpleNamespace(
            topics=SimpleNamespace(ownership=ownership),
            clients=SimpleNamespace(settings=SimpleNamespace(buckets=4)),
            is_ready=is_ready,
            desired=SimpleNamespace(is_known=True),
            store_access=SimpleNamespace(access=StoreAccess.REACHED, is_reached=True),
        ),
    )


REFUSED = "the store holds nothing of it"


@pytest.mark.parametrize(
    ("served", "waiting", "unreadable", "status"),
    [
        ([0, 1, 2, 3], {}, {}, 200),
        ([0, 1], {2: REFUSED}, {}, 200),
        ([], {0: REFUSED, 1: REFUSED}, {}, 503),
        ([], {}, {}, 200),
        ([], {}, {0: "the anchor cannot be reached", 1: "the anchor cannot be reached"}, 200),
        ([0], {}, {1: "the anchor cannot be reached"}, 200),
    ],
    ids=[
        "it serves all",
        "one waits",
        "all wait",
        "more brokers than buckets",
        "others' buckets cannot be read",
        "it serves without the anchor",
    ],
)
async def test_readiness(
    served: list[int], waiting: dict[int, str], unreadable: dict[int, str], status: int
) -> None:
    application = web.Application()
    health.add_routes(Routes(application.router), site(served, waiting, unreadable))
    async with (
        TestServer(application) as server,
        ClientSession() as session,
        session.get(server.make_url("/readyz")) as answer,
    ):
        found: dict[str, Any] = await answer.json()
        assert answer.status == status
        assert bool(found["problems"]) is (status == 503)
        assert found["store"] == {"reachable": True, "access": "Reached"}


SERVING = ReadinessFacts(
    is_listening=True,
    is_desired_known=True,
    access=StoreAccess.REACHED,
    owners=4,
    serves=True,
    waits=False,
)
STORE = "the store does not answer"
WAITS = "every bucket that this broker should serve waits"


@pytest.mark.parametrize(
    ("access", "problem"),
    [
        (StoreAccess.NEVER, [STORE]),
        (StoreAccess.REACHED, []),
        (StoreAccess.RETURNED, []),
        (StoreAccess.UNCERTAIN, []),
        (StoreAccess.LOST_BY_ALL, []),
        (StoreAccess.LOST_ALONE, [STORE]),
    ],
)
def test_a_lost_store_counts_only_if_this_broker_lost_it_alone_or_never_reached_it(
    access: StoreAccess, problem: list[str]
) -> None:
    assert problems_of(replace(SERVING, access=access)) == problem


@pytest.mark.parametrize(
    ("access", "problem"),
    [
        (StoreAccess.NEVER, [STORE]),
        (StoreAccess.REACHED, [WAITS]),
        (StoreAccess.RETURNED, []),
        (StoreAccess.UNCERTAIN, []),
        (StoreAccess.LOST_BY_ALL, []),
        (StoreAccess.LOST_ALONE, [STORE, WAITS]),
    ],
)
def test_buckets_that_all_wait_count_unless_they_wait_for_a_store_that_no_broker_reaches(
    access: StoreAccess, problem: list[str]
) -> None:
    facts = replace(SERVING, access=access, serves=False, waits=True)
    assert problems_of(facts) == problem


@pytest.mark.parametrize("access", StoreAccess)
@pytest.mark.parametrize(
    "lacking", [{"is_listening": False}, {"is_desired_known": False}, {"owners": 0}], ids=str
)
def test_whatever_the_store_does_a_broker_needs_the_rest(
    access: StoreAccess, lacking: dict[str, Any]
) -> None:
    assert problems_of(replace(SERVING, access=access, **lacking))
