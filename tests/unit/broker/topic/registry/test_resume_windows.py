"""How long a returning holder has precedence over waiters."""

from __future__ import annotations

from onewriter_broker.topic.registry.resume_windows import ResumeWindows
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


def test_it_begins_anew_for_all_buckets_when_nobody_could_come_before() -> None:
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
    windows.loaded(TOPIC)
    assert windows.until(1, TOPIC) is None


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
