"""Fixtures for tests of a log that is stored on the fake server."""

from __future__ import annotations

import pytest
from tests.unit.broker.verify.histories import BUCKETS, TopicHistory, a_long_history

from onewriter_testing.fake_store.server import FakeServer
from onewriter_testing.fake_store.store import FakeLogStore


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


@pytest.fixture
async def history(server: FakeServer) -> TopicHistory:
    """A log with several ledgers, holders and kinds of transitions."""
    return await a_long_history(FakeLogStore(server.resolve, buckets=BUCKETS))
