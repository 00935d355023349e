"""The catalogs learn of each change of the buckets that the broker holds, so that its quotas count them."""

from __future__ import annotations

import pytest
from tests.unit.broker.topic.fence_path_world import BUCKET, serving
from tests.unit.broker.topic.topics_world import topics_of

from onewriter_broker.ownership.bucket_events import LostReason
from onewriter_broker.topic.registry.catalog import Catalogs

pytestmark = pytest.mark.looptime


async def test_each_change_of_the_held_buckets_reaches_the_catalogs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noted: list[str] = []
    changed = Catalogs.holdings_changed

    def note(catalogs: Catalogs) -> None:
        noted.append("changed")
        changed(catalogs)

    monkeypatch.setattr(Catalogs, "holdings_changed", note)
    async with serving() as world:
        topics = topics_of(world)
        holding = world.owner.holding(BUCKET)
        assert holding is not None
        topics.bucket_acquired(BUCKET, holding)
        assert len(noted) == 1
        topics.dataset_changed(BUCKET, holding)
        assert len(noted) == 2
        topics.bucket_lost(BUCKET, LostReason.TAKEN)
        assert len(noted) == 3
