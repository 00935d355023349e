"""What the state of a log says about the last writer."""

from __future__ import annotations

import json

import pytest

from onewriter_broker.topic.history.tenures import partition_of
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
