"""Leaders of a test's topics: drivers of batches, and programs with the SDK."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from typing import Any

import onewriter.sync
from onewriter import AccessMode
from onewriter_core.ids import TopicName
from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.lead.leader import Leader
from onewriter_pipeline.lead.requests import EXCLUSIVE, Grant
from onewriter_pipeline.publish.lead_session import LeadSession
from onewriter_pipeline.publish.transfer import PublishTarget

FENCING = AccessMode.EXCLUSIVE_WITH_FENCING


@contextlib.contextmanager
def lead_session(mode: str = EXCLUSIVE, **more: Any) -> Iterator[LeadSession]:
    """Run a driver that leads the topics that it writes, for one batch write or query."""
    led = LeadSession(secrets.token_hex(8), Leader(), mode, **more)
    try:
        yield led
    finally:
        led.end(is_over=True)


@contextlib.contextmanager
def granted(access: Access | str, topic: str, app: str, mode: str = EXCLUSIVE) -> Iterator[Grant]:
    """Let a driver lead a topic without partitions, or one partition; it may publish as this app."""
    target = PublishTarget(Access(access) if isinstance(access, str) else access, topic)
    with lead_session(mode) as led:
        yield led.begin(target, app).grants[str(TopicName.parse(topic))]


def shown(grant: Grant) -> dict[str, str]:
    """Return the headers of a grant, as a script passes them to Http."""
    return {name.replace("-", "_"): value for name, value in grant.headers().items()}


@contextlib.contextmanager
def program(service_url: str, topic: str, app: str, **more: Any) -> Iterator[Grant]:
    """Let a user's program lead a topic and depose its leader; yield the grant that it passes to an app."""
    with (
        onewriter.sync.Client(service_url, **more) as client,
        client.lead(topic, access_mode=FENCING, announce=False) as leadership,
    ):
        yield Grant(leadership.epoch, leadership.capability(app))
