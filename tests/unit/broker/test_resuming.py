"""For how long a returning holder comes before those who wait."""

from __future__ import annotations

from onewriter_broker.topic.resuming import ResumeWindows
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
