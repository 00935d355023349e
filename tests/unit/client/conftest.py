"""Fixtures for tests of the SDK and the sidecar with a scripted broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.unit.client.fake_broker import Clock, FakeBroker, client_of, fake_broker
from tests.unit.client.fake_topic import FakeTopic
from tests.unit.client.sidecar_world import SidecarWorld, running_sidecar

from onewriter import Client
from onewriter._transport.connection import Connection
from onewriter.sidecar.limits import DEFAULT_LIMITS, SidecarLimits


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with fake_broker() as started:
        yield started


@pytest.fixture
async def client(broker: FakeBroker) -> AsyncIterator[Client]:
    async with client_of(broker) as opened:
        yield opened


@pytest.fixture
def topic(broker: FakeBroker) -> FakeTopic:
    return FakeTopic(broker)


@pytest.fixture
async def pulsar_broker() -> AsyncIterator[FakeBroker]:
    """One that says it is Apache Pulsar."""
    async with fake_broker(server_version="Pulsar Server 4.0.7", has_extensions=False) as started:
        yield started


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of all connections that are opened from now on."""
    clock = Clock()
    monkeypatch.setattr(Connection.__init__, "__defaults__", (clock,))
    return clock


@pytest.fixture
def limits() -> SidecarLimits:
    """The limits of ``sidecar``. A test replaces them with ``parametrize``."""
    return DEFAULT_LIMITS


@pytest.fixture
async def sidecar(
    broker: FakeBroker, tmp_path: Path, limits: SidecarLimits
) -> AsyncIterator[SidecarWorld]:
    """A sidecar of the scripted broker."""
    async with running_sidecar(broker, tmp_path, limits=limits) as world:
        yield world
