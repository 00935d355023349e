"""Brokers on a store of the test, and the results of writes to it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from tests.integration.continuous_writer import (
    ContinuousWriter,
    check,
    reported_losses,
    stored_topic,
)
from tests.integration.forked_brokers import forked_brokers

from onewriter_testing.processes import LocalBrokers


@contextlib.contextmanager
def bare_broker(url: str, **options: Any) -> Iterator[LocalBrokers]:
    """Run one broker without a supervisor on a store of the test."""
    settings = {"store_timeout_seconds": 1.0}
    options["settings"] = settings | options.get("settings", {})
    with forked_brokers(redis_url=url, **options) as brokers:
        yield brokers


def settle(writer: ContinuousWriter, brokers: list[LocalBrokers], url: str) -> int:
    """Stop the writer and check its log; return how many values the brokers reported as lost."""
    writer.stop()
    found = stored_topic(url, writer.topic, buckets=brokers[0].buckets)
    return check(writer, found, reported_losses(brokers, writer.topic))


def declared(*topics: tuple[str, str]) -> str:
    """Return manifests of topics with their durability."""
    return "---\n".join(
        f"apiVersion: onewriter.dev/v1alpha1\nkind: ExclusiveTopic\nmetadata: {{name: {name}}}\n"
        f"spec: {{durability: {durability}, access: {{requireClaim: false}}}}\n"
        for name, durability in topics
    )
