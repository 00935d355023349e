"""What the state of a log says about the last writer."""

from __future__ import annotations

import json

import pytest

from onewriter_broker.topic.history.tenures import (
    ABSENT_CAUSE,
    ABSENT_SINCE,
    PRESENT,
    partition_of,
)
from onewriter_core.topic.model import TransitionCause, Vacant

HOLDER = {"epoch": 7, "producer": "alice", "subject": "s", "podUID": ""}
HELD = {"epoch": "7", "holder": json.dumps(HOLDER)}


@pytest.mark.parametrize(
    ("state", "may_resume", "cause"),
    [
        ({}, True, TransitionCause.NONE),
        ({}, False, TransitionCause.NONE),
        (HELD, True, TransitionCause.MOVED),
        (HELD, False, TransitionCause.GRANT_LOST),
    ],
)
def test_a_writer_that_may_not_return_is_not_taken_for_none(
    state: dict[str, str], may_resume: bool, cause: TransitionCause
) -> None:
    partition = partition_of(0, state, may_resume=may_resume, reserved_until=None)
    assert isinstance(partition.ownership, Vacant)
    assert partition.ownership.absence.cause is cause
    assert (partition.ownership.tenure is not None) == (cause is TransitionCause.MOVED)


LEFT = {PRESENT: "0", ABSENT_SINCE: "5", ABSENT_CAUSE: "5 Released"}


@pytest.mark.parametrize(
    ("state", "cause"),
    [
        (LEFT, TransitionCause.CLOSED),
        (LEFT | {ABSENT_CAUSE: "5 Silent"}, TransitionCause.SILENT),
        (LEFT | {PRESENT: "1"}, TransitionCause.MOVED),  # it returned, or the record is outdated
        (LEFT | {ABSENT_SINCE: "6"}, TransitionCause.MOVED),  # recorded by an earlier version
        (LEFT | {ABSENT_SINCE: ""}, TransitionCause.MOVED),
        (LEFT | {ABSENT_SINCE: "", ABSENT_CAUSE: " Released"}, TransitionCause.MOVED),
        (LEFT | {ABSENT_CAUSE: "5 foreign"}, TransitionCause.MOVED),
        ({}, TransitionCause.MOVED),
    ],
)
def test_a_writer_that_had_left_did_not_lose_its_broker(
    state: dict[str, str], cause: TransitionCause
) -> None:
    partition = partition_of(0, HELD | state, may_resume=True, reserved_until=None)
    assert isinstance(partition.ownership, Vacant)
    assert partition.ownership.tenure is not None
    absence = partition.ownership.absence
    assert (absence.cause, absence.is_recalled) == (cause, cause is not TransitionCause.MOVED)
