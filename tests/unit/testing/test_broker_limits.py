"""``BrokerLimits`` reach the parts that the composition root builds."""

from __future__ import annotations

import asyncio

from tests.attacks.test_publish_rights import part_of
from tests.integration.http_calls import OWN, Http

import onewriter
from onewriter_broker.app import BrokerLimits
from onewriter_broker.topic.publish.staging import StagingLimits
from onewriter_broker.topic.retention.segments import SegmentLimits
from onewriter_testing.in_process import in_process_broker

LIMITS = BrokerLimits(
    segments=SegmentLimits(segments_per_page=1), staging=StagingLimits(parts_max=1)
)


async def test_segments_and_staged_parts_are_bounded_by_the_limits_of_the_broker() -> None:
    with in_process_broker(limits=LIMITS) as broker:
        async with onewriter.Client(broker.service_url) as client:
            for _ in range(2):  # each holder begins a ledger, which is a segment
                async with client.lead("orders") as leadership:
                    await leadership.send(b"one")
        http = Http(broker.http_url)
        _, page = await asyncio.to_thread(http, "GET", f"{OWN}/orders/segments")
        path = f"{OWN}/orders/staged/app/1/p"
        accepted = await asyncio.to_thread(http, "PUT", f"{path}/0", part_of(b"row"))
        refused = await asyncio.to_thread(http, "PUT", f"{path}/1", part_of(b"row"))
    assert len(page["segments"]) == 1
    assert accepted[0] == 200, accepted
    assert refused[0] != 200
    assert "takes 1 parts" in str(refused[1])
