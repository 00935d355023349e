"""The model of atomic publishes: all or nothing, once, in order. Each variant without one rule is found wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.model.explorer import Always, Report, Sometimes, Step, explore
from tests.model.publish_protocol import (
    Action,
    Part,
    PublishProtocol,
    Rules,
    Scope,
    State,
    is_whole,
    runs,
)

pytestmark = pytest.mark.timeout(300)

SMALLEST = Scope(fences=1)
"""The smallest scope in which each variant without one rule is found wrong."""

THREE_ATTEMPTS = Scope(attempts=(1, 1, 2), fences=1, failovers=0, rows=0)


def readers_see_all_of_it_or_nothing(state: State) -> bool:
    return is_whole(state.seen)


def what_was_read_stays(state: State) -> bool:
    return state.data.items[: len(state.seen)] == state.seen


def a_version_stands_once(state: State) -> bool:
    versions = [version for _, version in runs(state.data.items)]
    return len(versions) == len(set(versions)) and versions == sorted(versions)


def published_is_there(state: State) -> bool:
    there = {attempt for attempt, _ in runs(state.data.items)}
    answered = {n for n, each in enumerate(state.attempts) if each.answer == "published"}
    return answered <= there


def failed_is_absent(state: State) -> bool:
    there = {attempt for attempt, _ in runs(state.data.items)}
    return not any(each.answer == "failed" and n in there for n, each in enumerate(state.attempts))


def a_duplicate_is_there(state: State) -> bool:
    """As far as the registered data is concerned: durable data is not lost, and only that is claimed."""
    versions = {version for _, version in runs(state.data.items)}
    lost = state.failovers > 0
    return lost or all(
        max(versions, default=0) >= each.version
        for each in state.attempts
        if each.answer == "duplicate"
    )


def watermarks_never_fall_behind_readers(before: State, _action: Action, after: State) -> bool:
    return after.seen[: len(before.seen)] == before.seen


def answered(word: str) -> Callable[[State, Action, State], bool]:
    return lambda before, _action, after: any(
        now.answer == word and not then.answer
        for then, now in zip(before.attempts, after.attempts, strict=True)
    )


def _drops(before: State, _action: Action, after: State) -> bool:
    return after.fences > before.fences and before.data.open is not None


def _restored(before: State, _action: Action, after: State) -> bool:
    """A failover found a part of a publish and dropped it."""
    return after.failovers > before.failovers and before.replica.open is not None


def _late(before: State, action: Action, after: State) -> bool:
    """A copy without a waiting broker stored something."""
    return "without an answer: stored" in action.text and after.data != before.data


def explored(rules: Rules = Rules(), scope: Scope = SMALLEST) -> Report[State, Action]:  # noqa: B008
    return explore(
        PublishProtocol(rules, scope),
        always=[
            Always("readers see all of it or nothing", readers_see_all_of_it_or_nothing),
            Always("what was read stays", what_was_read_stays),
            Always("a version stands once, and in order", a_version_stands_once),
            Always("what was published is there", published_is_there),
            Always("what failed is absent", failed_is_absent),
            Always("a duplicate is there", a_duplicate_is_there),
        ],
        steps=[Step("readers go on only", watermarks_never_fall_behind_readers)],
        sometimes=[
            *(Sometimes(word, answered(word)) for word in ("published", "duplicate", "failed")),
            Sometimes("a fence drops a part", _drops),
            Sometimes("a part is stored and nobody hears", _late),
            *([Sometimes("a failover finds a part", _restored)] if scope.failovers else []),
        ],
    )


def test_all_or_nothing_once_and_in_order() -> None:
    report = explored()
    report.assert_sound()
    assert report.states > 5_000, "too small to show anything"


@pytest.mark.full  # the same with two fences
def test_the_protocol_holds_through_two_fences() -> None:
    explored(scope=Scope()).assert_sound()


def test_three_attempts_of_two_versions() -> None:
    explored(scope=THREE_ATTEMPTS).assert_sound()


@pytest.mark.parametrize(
    "mutant",
    [
        replace(Rules(), watermark_waits=False),
        replace(Rules(), fence_drops=False),
        replace(Rules(), checks_version=False),
        replace(Rules(), commit_rides_on_last=False),
        replace(Rules(), others_wait=False),
        replace(Rules(), reads_fate_behind_fence=False),
    ],
    ids=[
        "the watermark moves early",
        "an abort is not recorded",
        "the version is not checked",
        "the version is noted with the first block",
        "others write in between",
        "the last block's fate is guessed",
    ],
)
def test_without_any_one_rule_it_goes_wrong(mutant: Rules) -> None:
    assert explored(mutant).violation is not None


def test_parts_are_distinguished() -> None:
    parts = tuple(Part(1, 0, 1, number) for number in range(3))
    assert is_whole(parts)
    assert not is_whole(parts[:2])
    assert not is_whole((parts[0], parts[2], parts[1]))
