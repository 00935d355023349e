"""Retention: what may be dropped, what must stay, and how a log is trimmed to its bounds."""

from __future__ import annotations

import pytest
from tests.contents import stored_in
from tests.stamps import stamp_anew
from tests.unit.broker.verify.histories import (
    BUCKETS,
    TOPIC,
    TopicHistory,
    entry,
    no_subscription,
    waiter,
)

from onewriter_broker.log.store.api import Binding, Block, Outcome
from onewriter_broker.topic.retention.retention import (
    BlockRun,
    Retention,
    RetentionLimits,
    trim_before,
)
from onewriter_broker.verify.reader import verify
from onewriter_core.api.topic import Retention as Policy
from onewriter_core.ids import EARLIEST, Position, TopicName
from onewriter_core.log_format.field_names import TRIMMED
from onewriter_core.topic.model import Purpose
from onewriter_testing.fake_store.server import FakeServer
from onewriter_testing.fake_store.store import FakeLogStore, Hook, Moment

NOW_MS = 1_000_000
MARKER = Position(7, 0)
UNLIMITED = Policy()


def ten() -> list[BlockRun]:
    """Ten blocks of ten entries and 100 bytes, one each second, the last one now."""
    return [
        BlockRun(Position(5, 1 + 10 * n), 1, 10, 100, NOW_MS - 1000 * (9 - n)) for n in range(10)
    ]


def cut(policy: Policy, lowest: Position | None = None, marker: Position = MARKER) -> str | None:
    position = trim_before(ten(), policy, lowest, marker, NOW_MS)
    return None if position is None else str(position)


# -- the decision -------------------------------------------------------------------------------


def test_nothing_goes_until_a_bound_is_declared() -> None:
    assert cut(UNLIMITED) is None
    assert trim_before([], Policy(max_entries=1), None, MARKER, NOW_MS) is None


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Policy(max_entries=100), None),
        (Policy(max_entries=30), "5-71"),
        (Policy(max_entries=31), "5-61"),  # a block that is partly within the bound stays
        (Policy(max_bytes=300), "5-71"),
        (Policy(max_bytes=1), "5-91"),
        (Policy(max_age_seconds=3), "5-61"),
        (Policy(max_age_seconds=9), None),
        (Policy(max_age_seconds=8, max_bytes=500), "5-51"),  # the bound that drops more
    ],
)
def test_entries_above_any_bound_are_trimmed_oldest_first(
    policy: Policy, expected: str | None
) -> None:
    assert cut(policy) == expected


def test_a_young_block_before_old_ones_keeps_them() -> None:
    block_runs = ten()
    block_runs[2] = BlockRun(block_runs[2].start, 1, 10, 100, NOW_MS)
    found = trim_before(block_runs, Policy(max_age_seconds=3), None, MARKER, NOW_MS)
    assert found == block_runs[2].start


def test_unacknowledged_entries_stay_unless_the_policy_drops_them() -> None:
    bounded = Policy(max_entries=10)
    assert cut(bounded, lowest=Position(5, 33)) == "5-34"
    assert cut(bounded, lowest=EARLIEST) is None
    assert cut(bounded, lowest=Position(5, 100)) == "5-91"
    forgetful = Policy(max_entries=10, keep_unacknowledged=False)
    assert cut(forgetful, lowest=EARLIEST) == "5-91"


def test_the_current_ledger_stays_whatever_its_size() -> None:
    assert cut(Policy(max_entries=1), marker=Position(5, 0)) is None
    assert cut(Policy(max_entries=1), marker=Position(5, 41)) == "5-41"


# -- the sweep ----------------------------------------------------------------------------------


async def written(server: FakeServer, *, ledgers: int = 3, blocks: int = 4) -> TopicHistory:
    """Ledgers of blocks of two entries, each rolled into the next. The last one is current."""
    store = FakeLogStore(server.resolve, buckets=BUCKETS)
    history = await TopicHistory.begin(store)
    await history.fence(Purpose.GRANT, waiter("alice"))
    number = 0
    for ledger in range(ledgers):
        if ledger:
            await history.fence(Purpose.ROLL)
        for _ in range(blocks):
            await history.publish(entry("alice", number), entry("alice", number + 1))
            number += 2
    return history


def hook(history: TopicHistory, hooked: Hook) -> None:
    """Await the hook at each call to the store."""
    assert isinstance(history.store, FakeLogStore)
    history.store.faults.hook = hooked


def stored(server: FakeServer) -> list[str]:
    return [str(block.position) for block in stored_in(server.primary).logs[TOPIC].blocks]


async def test_a_sweep_trims_to_the_bound_and_returns_the_position(server: FakeServer) -> None:
    history = await written(server)
    trimmed = await Retention().sweep(
        history.log, Policy(max_entries=12), no_subscription, history.clock_ms
    )
    assert stored(server) == ["6-5", "6-7", "7-0", "7-1", "7-3", "7-5", "7-7"]
    assert trimmed == 8
    assert history.log.state[TRIMMED] == "6-5"
    (report,) = await verify(history.store, [TOPIC], BUCKETS, lambda _log, _entries: None)
    assert report.findings.holds


async def test_the_current_ledger_is_trimmed_after_its_next_roll(server: FakeServer) -> None:
    history, retention, bound = await written(server), Retention(), Policy(max_entries=2)
    await retention.sweep(history.log, bound, no_subscription, history.clock_ms)
    assert stored(server)[0] == "7-0"
    assert await retention.sweep(history.log, bound, no_subscription, history.clock_ms) == 0
    await history.fence(Purpose.ROLL)
    await retention.sweep(history.log, bound, no_subscription, history.clock_ms)
    assert stored(server) == ["7-7", "8-0"]


async def test_entries_that_a_subscription_needs_stay(server: FakeServer) -> None:
    history, retention = await written(server), Retention()
    bound = Policy(max_entries=1)
    await retention.sweep(history.log, bound, lambda: Position(5, 4), history.clock_ms)
    assert stored(server)[0] == "5-5"
    forgetful = Policy(max_entries=1, keep_unacknowledged=False)
    await retention.sweep(history.log, forgetful, lambda: Position(5, 4), history.clock_ms)
    assert stored(server)[0] == "7-0"


async def test_a_subscription_created_during_a_measurement_keeps_its_backlog(
    server: FakeServer,
) -> None:
    history = await written(server)
    history.log._tail.clear()  # so that the store is read
    before = stored(server)
    standing: list[Position] = []

    async def comes(call: str, _moment: Moment) -> None:
        if call == "read_blocks":
            standing[:] = [EARLIEST]

    hook(history, comes)
    bound = Policy(max_entries=1)
    dropped = await Retention().sweep(
        history.log, bound, lambda: min(standing, default=None), history.clock_ms
    )
    assert (dropped, stored(server)) == (0, before)


async def test_a_subscription_created_between_two_calls_keeps_its_backlog(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = await written(server)
    standing, trim_in_store = list[Position](), history.store.trim

    async def a_block_at_a_time(
        binding: Binding, topic: TopicName, token: str, before: Position, fields: dict[str, str]
    ) -> Outcome:
        following = stored_in(server.primary).logs[TOPIC].blocks[1].position
        outcome = await trim_in_store(binding, topic, token, min(before, following), fields)
        standing[:] = [Position(5, 4)]
        return outcome

    monkeypatch.setattr(history.store, "trim", a_block_at_a_time)
    bound = Policy(max_entries=1)
    await Retention().sweep(
        history.log, bound, lambda: min(standing, default=None), history.clock_ms
    )
    assert stored(server)[0] == "5-5"


async def test_a_subscription_opened_during_a_trim_begins_after_it(
    server: FakeServer,
) -> None:
    history = await written(server)
    seen: list[Position] = []

    async def check(call: str, moment: Moment) -> None:
        if (call, moment) == ("trim", "before"):
            seen.append(history.log.maybe_trimmed_before)

    hook(history, check)
    await Retention().sweep(history.log, Policy(max_entries=12), no_subscription, history.clock_ms)
    assert seen[0] == Position(6, 5)
    assert stored(server)[0] == "6-5"


async def test_age_is_by_the_blocks_own_times(server: FakeServer) -> None:
    history = await written(server)
    last_of_first_ledger = stored_in(server.primary).logs[TOPIC].blocks[4]
    assert isinstance(last_of_first_ledger, Block)
    now_ms = last_of_first_ledger.time_ms + 1 + 5_000
    await Retention().sweep(history.log, Policy(max_age_seconds=5), no_subscription, now_ms)
    assert stored(server)[0] == "6-0"


async def test_after_a_change_of_broker_the_log_is_measured_again_a_part_at_a_time(
    server: FakeServer,
) -> None:
    retention = Retention(RetentionLimits(sweep_bytes_max=1, read_blocks_max=4))
    history, bound = await written(server), Policy(max_entries=8)
    history.log._tail.clear()  # as on a broker that has just loaded the topic
    dropped = [
        await retention.sweep(history.log, bound, no_subscription, history.clock_ms)
        for _ in range(6)
    ]
    assert dropped[0] == 0  # the unmeasured rest counts as empty
    assert stored(server)[0] == "7-0"
    assert sum(dropped) == 10


async def test_a_dataset_that_lost_its_tail_is_measured_again(server: FakeServer) -> None:
    history, retention = await written(server), Retention()
    bound = Policy(max_entries=24)
    assert await retention.sweep(history.log, bound, no_subscription, history.clock_ms) == 0
    server.restart(server.primary, keep=len(server.primary.history) - 3)  # three blocks are lost
    replid = server.primary.replid
    history.binding = type(history.binding)(
        history.binding.bucket, replid, 2, history.binding.owner, history.binding.version + 1
    )
    await stamp_anew(history.store, history.binding)
    history.log._tail.clear()
    await history.fence(Purpose.REFENCE)
    for number in range(100, 103):
        await history.publish(entry("alice", 2 * number), entry("alice", 2 * number + 1))
    assert await retention.sweep(history.log, bound, no_subscription, history.clock_ms) == 0
    assert stored(server)[0] == "5-0"


async def test_a_long_log_is_measured_in_a_bounded_number_of_stretches(
    server: FakeServer,
) -> None:
    retention = Retention(RetentionLimits(stretches_max=4))
    history = await written(server, ledgers=6, blocks=6)
    bound = Policy(max_entries=40)
    await retention.sweep(history.log, bound, no_subscription, history.clock_ms)
    kept = sum(
        len(block.lengths)
        for block in stored_in(server.primary).logs[TOPIC].blocks
        if isinstance(block, Block)
    )
    assert 40 <= kept < 72  # never less than the bound, and at most one stretch above it


async def test_a_deposed_brokers_sweep_changes_nothing(server: FakeServer) -> None:
    history = await written(server)
    before = stored(server)
    await TopicHistory.begin(history.store, owner="broker-b", version=2, ledger=64)
    assert (
        await Retention().sweep(
            history.log, Policy(max_entries=1), no_subscription, history.clock_ms
        )
        == 0
    )
    assert stored(server) == before
    assert TRIMMED not in history.log.state


async def test_a_log_without_bounds_or_not_open_is_not_trimmed(server: FakeServer) -> None:
    history, retention = await written(server), Retention()
    before = stored(server)
    assert await retention.sweep(history.log, UNLIMITED, no_subscription, history.clock_ms) == 0
    history.log.close()
    assert (
        await retention.sweep(history.log, Policy(max_entries=1), no_subscription, history.clock_ms)
        == 0
    )
    assert stored(server) == before
