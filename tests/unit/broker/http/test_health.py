"""``/readyz``: a broker that can serve none of its buckets is not ready; one that serves some is."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from onewriter_broker.http import health
from onewriter_broker.http.routes import Routes
from onewriter_broker.http.site import Site


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
            membership=SimpleNamespace(view=object),
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
