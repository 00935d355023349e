"""How long a returning holder has precedence over waiters."""

from __future__ import annotations

import pytest

from onewriter_broker.topic.registry.resume_windows import LATE_SECONDS_MAX, ResumeWindows
from onewriter_core.ids import TopicName

TOPIC = TopicName.parse("t")


def test_the_window_of_a_bucket_begins_when_it_was_acquired() -> None:
    now = 100.0
    windows = ResumeWindows(3.0, lambda: now)
    windows.bucket_acquired(1)
    assert windows.until(1, TOPIC) == 103.0
    assert windows.until(2, TOPIC) is None
    now = 103.0
    assert windows.until(1, TOPIC) is None


def test_resume_windows_restart_for_all_buckets_when_clients_are_admitted() -> None:
    now = 100.0
    windows = ResumeWindows(3.0, lambda: now)
    windows.bucket_acquired(1)
    now = 110.0
    windows.let_in()
    assert windows.until(1, TOPIC) == 113.0
    assert windows.until(2, TOPIC) is None, "it is not ours"


def test_an_unloaded_topic_has_a_window_until_it_is_loaded() -> None:
    windows = ResumeWindows(3.0, lambda: 100.0)
    windows.unloaded(TOPIC)
    assert windows.until(1, TOPIC) == 103.0
    load = windows.load_began(1, TOPIC)
    assert windows.load_done(load) == 103.0
    assert windows.until(1, TOPIC) is None


def test_the_window_of_a_topic_begins_when_it_is_loaded() -> None:
    now = 100.0
    windows = ResumeWindows(3.0, lambda: now)
    windows.bucket_acquired(1)
    now = 102.9
    load = windows.load_began(1, TOPIC)
    now = 103.1
    assert windows.load_done(load) == 106.1
    assert windows.until(1) is None, "a quick load extends no window"


def test_a_load_after_the_window_reserves_nothing() -> None:
    now = 100.0
    windows = ResumeWindows(3.0, lambda: now)
    windows.bucket_acquired(1)
    now = 103.0
    load = windows.load_began(1, TOPIC)
    now = 110.0
    assert windows.load_done(load) is None
    assert windows.until(1) is None


def test_no_window_ends_while_a_load_is_late() -> None:
    now = 100.0
    windows = ResumeWindows(3.0, lambda: now)
    windows.bucket_acquired(1)
    windows.bucket_acquired(2)
    late = windows.load_began(1, TOPIC)
    now = 109.0
    assert windows.until(2) == 112.0
    assert windows.load_done(late) == 112.0
    now = 111.9
    assert windows.until(1) == windows.until(2) == 112.0
    now = 112.0
    assert windows.until(2) is None


@pytest.mark.parametrize(("is_retried", "until"), [(True, 105.5), (False, 103.0)])
def test_a_load_that_failed_is_late_if_its_clients_try_again(
    is_retried: bool, until: float
) -> None:
    now = 100.0
    windows = ResumeWindows(3.0, lambda: now)
    windows.bucket_acquired(1)
    now = 102.5
    windows.load_failed(windows.load_began(1, TOPIC), is_retried=is_retried)
    assert windows.until(1) == until


def test_late_loads_extend_a_window_up_to_a_limit() -> None:
    now = 100.0
    windows = ResumeWindows(3.0, lambda: now)
    windows.bucket_acquired(1)
    windows.load_began(1, TOPIC)
    for _ in range(100):
        now += 2.0
        windows.load_failed(windows.load_began(1, TOPIC), is_retried=True)
    now = 103.0 + LATE_SECONDS_MAX - 0.1
    assert windows.until(1) == 103.0 + LATE_SECONDS_MAX
    now = 103.0 + LATE_SECONDS_MAX
    assert windows.until(1) is None


def test_while_the_store_is_away_no_window_passes() -> None:
    now = 100.0
    windows = ResumeWindows(3.0, lambda: now)
    windows.bucket_acquired(1)
    now = 90.0
    windows.bucket_acquired(2)
    now = 101.0
    windows.unloaded(TOPIC)
    now = 109.0
    windows.no_producer_could_resume(8.0)
    assert windows.until(1) == 111.0, "two seconds were left of it"
    assert windows.until(2) is None, "it had passed before"
    assert windows.until(3, TOPIC) == 112.0


def test_a_window_is_never_longer_than_a_whole_one() -> None:
    now = 159.0
    windows = ResumeWindows(3.0, lambda: now)
    windows.unloaded(TOPIC)
    now = 159.9
    windows.bucket_acquired(1)
    now = 160.0
    windows.no_producer_could_resume(60.0)
    assert windows.until(1) == 163.0
    assert windows.until(2, TOPIC) == 163.0
