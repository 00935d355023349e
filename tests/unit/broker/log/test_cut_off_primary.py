"""A primary that was cut off still answers: what it has beyond its successor is never used.

The broker has fenced the successor, and its reads still go to the old primary until that drops
them, as a connection of its own does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import pytest
from tests.stamps import stamp_anew
from tests.unit.broker.verify.histories import BUCKETS, TopicHistory, entry, no_subscription, waiter

from onewriter_broker.dispatch.ledgers import LedgerGaps
from onewriter_broker.dispatch.limits import Limits
from onewriter_broker.dispatch.positions import (
    last_message_id,
    learn_ledger_ends,
    position_before_time,
)
from onewriter_broker.log.store.api import Outcome
from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_broker.topic.retention.retention import Retention
from onewriter_core.api.topic import Retention as RetentionPolicy
from onewriter_core.errors import Undecided
from onewriter_core.ids import EARLIEST, Position
from onewriter_core.topic.model import Purpose
from onewriter_core.wire.values import MessageId
from onewriter_testing.fake_store.server import FakeServer
from onewriter_testing.fake_store.store import FakeLogStore

SHARED_ENTRIES = 6
EXTRA_ENTRIES = 10
STARTED_MS = 1_700_000_000_000


@dataclass
class Failover:
    """A log bound to the successor, whose reads still go to the old primary."""

    server: FakeServer
    log: TopicLog

    def reconnect(self) -> None:
        """The old primary drops its connections; discovery names the successor."""
        self.server.nodes["node-0"].drop_connections()


@pytest.fixture
async def failover() -> Failover:
    server = FakeServer()
    replica = server.add_replica("node-1")
    old = FakeLogStore(server.resolve, buckets=BUCKETS)
    history = await TopicHistory.begin(old)
    await history.fence(Purpose.GRANT, waiter("alice"))
    for number in range(SHARED_ENTRIES):
        await history.publish(entry("alice", number))
    replica.holds_replication = True
    for number in range(SHARED_ENTRIES, SHARED_ENTRIES + EXTRA_ENTRIES):
        await history.publish(entry("alice", number))
    await old.read_state(history.log.name)  # its other connection leads to the old primary, too
    server.promote(replica)
    new = FakeLogStore(server.resolve, buckets=BUCKETS)
    binding = replace(history.binding, replid=replica.replid, generation=2, version=2)
    assert await stamp_anew(new, binding) is Outcome.DONE
    history.store, history.binding, history.ledger = new, binding, history.ledger + 10
    await history.fence(Purpose.REFENCE)
    history.log.forget_tail()
    assert history.log.store is old
    return Failover(server, history.log)


async def last_message(log: TopicLog) -> MessageId:
    return (await last_message_id(log))[0]


async def by_time(log: TopicLog) -> Position:
    """From after the last message that the successor has."""
    return await position_before_time(
        log, STARTED_MS + SHARED_ENTRIES - 1, Limits(clock_skew_ms=-10 * SHARED_ENTRIES)
    )


async def ledger_end(log: TopicLog) -> Position | None:
    gaps = LedgerGaps()
    await learn_ledger_ends(log, gaps, Position(1, 0))
    return gaps.before_ledger(log.ledger)


LAST = Position(5, SHARED_ENTRIES)


@pytest.mark.parametrize(
    ("find", "expected"),
    [
        (last_message, MessageId(*LAST)),
        (by_time, LAST.previous),
        (ledger_end, LAST),
    ],
)
async def test_nothing_is_found_in_what_the_successor_never_had(
    failover: Failover, find: Callable[[TopicLog], Awaitable[object]], expected: object
) -> None:
    with pytest.raises(Undecided, match="read from dataset"):
        await find(failover.log)
    failover.reconnect()
    assert await find(failover.log) == expected


async def test_retention_does_not_count_what_the_successor_never_had(failover: Failover) -> None:
    retention, bound = Retention(), RetentionPolicy(max_entries=SHARED_ENTRIES)
    with pytest.raises(Undecided, match="read from dataset"):
        await retention.sweep(failover.log, bound, no_subscription, STARTED_MS)
    failover.reconnect()
    assert await retention.sweep(failover.log, bound, no_subscription, STARTED_MS) == 0
    first, *_ = await failover.log.read_blocks(EARLIEST, count=1)
    assert first.position == Position(5, 0), "all that there is is within the bound"
