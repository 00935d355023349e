"""The limit of repairs: immediate at first, then with growing delays."""

from __future__ import annotations

from onewriter_operator.reconcile.repairs import (
    AT_ONCE,
    DELAY_SECONDS_MAX,
    DELAY_SECONDS_MIN,
    QUIET_SECONDS,
    RepairLimit,
)


def test_repairs_are_immediate_at_first_and_then_further_and_further_apart() -> None:
    now = 0.0
    repairs = RepairLimit(lambda: now)
    for _ in range(AT_ONCE):
        assert repairs.delay_seconds("Service/a") == 0.0
        repairs.repaired("Service/a")
    delays = []
    for _ in range(8):
        delay = repairs.delay_seconds("Service/a")
        delays.append(delay)
        now += delay
        repairs.repaired("Service/a")
    assert delays[:3] == [DELAY_SECONDS_MIN, 2 * DELAY_SECONDS_MIN, 4 * DELAY_SECONDS_MIN]
    assert delays[-1] == DELAY_SECONDS_MAX
    assert repairs.delay_seconds("Service/b") == 0.0, "another object has its own limit"


def test_after_a_quiet_time_a_repair_is_immediate_again() -> None:
    now = 0.0
    repairs = RepairLimit(lambda: now)
    for _ in range(2 * AT_ONCE):
        repairs.repaired("Service/a")
    assert repairs.delay_seconds("Service/a") > 0.0
    now = QUIET_SECONDS + 1
    repairs.repaired("Service/a")
    assert repairs.delay_seconds("Service/a") == 0.0
