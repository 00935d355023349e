"""The record of refusals is bounded in everything that a stranger can choose."""

from __future__ import annotations

from onewriter_broker.auth.refusals import PER_TOPIC_MAX, TEXT_LENGTH_MAX, TopicRefusals
from onewriter_core.authorization import Action
from onewriter_core.ids import Identity, TopicName, is_printable

TOPIC = TopicName.parse("orders")


def test_a_repeated_refusal_is_counted_with_its_last_time() -> None:
    times = iter((10, 20, 30))
    kept = TopicRefusals(lambda: next(times))
    kept.note(TOPIC, Identity("mallory", "pod-1"), Action.CONSUME)
    kept.note(TOPIC, Identity("mallory"), Action.PRODUCE)
    kept.note(TOPIC.with_partition(3), Identity("mallory", "pod-2"), Action.CONSUME)
    first, second = kept.of(TOPIC)
    assert (first.right, first.count, first.last_ms, first.pod_uid) == ("consume", 2, 30, "pod-2")
    assert (second.right, second.count, second.last_ms) == ("produce", 1, 20)


def test_of_a_topic_the_latest_are_kept() -> None:
    kept = TopicRefusals(lambda: 0)
    for number in range(PER_TOPIC_MAX + 3):
        kept.note(TOPIC, Identity(f"subject-{number}"), Action.CONSUME)
    kept.note(TOPIC, Identity("subject-3"), Action.CONSUME)  # the oldest that is left
    kept.note(TOPIC, Identity("one-more"), Action.CONSUME)
    subjects = [each.subject for each in kept.of(TOPIC)]
    assert len(subjects) == PER_TOPIC_MAX
    assert subjects[:2] == ["one-more", "subject-3"]
    assert "subject-4" not in subjects


def test_of_topics_the_latest_are_kept() -> None:
    kept = TopicRefusals(lambda: 0, topics_max=2)
    names = [TopicName.parse(name) for name in ("a", "b", "a", "c")]
    for name in names:
        kept.note(name, Identity("mallory"), Action.CONSUME)
    assert [bool(kept.of(TopicName.parse(name))) for name in "abc"] == [True, False, True]


def test_texts_are_short_and_printable() -> None:
    kept = TopicRefusals(lambda: 0)
    kept.note(TOPIC, Identity("\x1b[2J\u202e" * 500, "\n" * 5000), Action.OWN)
    (found,) = kept.of(TOPIC)
    for text in (found.subject, found.pod_uid):
        assert len(text) <= TEXT_LENGTH_MAX
        assert is_printable(text)
