"""Fixtures that many tests share: real store servers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from tests.servers import SERVER_KINDS, SERVER_PROGRAMS, StoreServer, running_server

# A busy machine generates examples slowly; that says nothing about the code under test.
settings.register_profile("any-speed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any-speed")


def pytest_report_header() -> str:
    if "redis7" in SERVER_PROGRAMS:
        return f"stores: {', '.join(SERVER_PROGRAMS)}"
    return f"stores: {', '.join(SERVER_PROGRAMS)} (Debian's Redis 7.0 is not installed: left out)"


@pytest.fixture(params=SERVER_KINDS)
def server_kind(request: pytest.FixtureRequest) -> str:
    """Every kind of server that is installed, one after the other."""
    return str(request.param)


@pytest.fixture
def store_server(server_kind: str) -> Iterator[StoreServer]:
    """A fresh server of every kind."""
    with running_server(server_kind) as server:
        yield server


@pytest.fixture
def valkey() -> Iterator[StoreServer]:
    """A fresh Valkey with the embedded default's settings."""
    with running_server() as server:
        yield server


@pytest.fixture(scope="session", autouse=True)
def loop_of_the_main_thread() -> Iterator[None]:
    """A loop to find for the plugins that ask for one around synchronous tests.

    Without it ``get_event_loop`` makes one that nobody closes, and its warning fails the run.
    """
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.close()
