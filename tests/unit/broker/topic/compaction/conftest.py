"""The log that the tests of compaction fill."""

from __future__ import annotations

import pytest
from tests.unit.broker.verify.histories import BUCKETS, TopicHistory, waiter

from onewriter_core.topic.model import Purpose
from onewriter_testing.fake_store.server import FakeServer
from onewriter_testing.fake_store.store import FakeLogStore


@pytest.fixture
async def history(server: FakeServer) -> TopicHistory:
    """A log that Alice has just been granted."""
    begun = await TopicHistory.begin(FakeLogStore(server.resolve, buckets=BUCKETS))
    await begun.fence(Purpose.GRANT, waiter("alice"))
    return begun
