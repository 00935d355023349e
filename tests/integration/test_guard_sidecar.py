"""``POST /publish?guard=`` of real sidecars: nothing of a deposed leader reaches the other topic."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.integration.conftest import ATTENTIVE
from tests.integration.forked_brokers import forked_brokers
from tests.integration.raw import contents_of
from tests.integration.sidecars import Sidecar, sidecars

ZOMBIES = 10


def guarded(sidecar: Sidecar, target: str, content: bytes, session: str) -> tuple[int, Any]:
    path = f"/publish?guard={quote(target, safe='')}"
    return sidecar.http("POST", path, content, Onewriter_Session=session)


@pytest.mark.parametrize(
    # test_sdk_guarded.py deposes leaders beside topics of other buckets.
    "target",
    ["{%s}-audit", pytest.param("%s-elsewhere", marks=pytest.mark.full)],
)
def test_a_frozen_leader_wakes_up_and_writes_nowhere(
    topic: str, tmp_path: Path, target: str
) -> None:
    """In the same bucket, and in another one, where the guard takes two steps."""
    other = target % topic
    with (
        forked_brokers(settings=ATTENTIVE) as brokers,
        sidecars(tmp_path, brokers.service_url, topic, "a", "b") as (frozen, waiter),
    ):
        session = frozen.lead()
        status, answer = guarded(frozen, other, b"before", session)
        assert (status, answer["epoch"]) == (200, int(session.partition("-")[0]))
        frozen.signal(signal.SIGSTOP)
        successor = waiter.lead()
        assert guarded(waiter, other, b"successor", successor)[0] == 200
        answers: list[tuple[int, Any]] = []
        zombies = [
            threading.Thread(
                target=lambda number=number: answers.append(
                    guarded(frozen, other, b"zombie %d" % number, session)
                )
            )
            for number in range(ZOMBIES)
        ]
        for each in zombies:
            each.start()
        frozen.signal(signal.SIGCONT)
        for each in zombies:
            each.join()
        epochs = tuple(int(each.partition("-")[0]) for each in (session, successor))
        assert len(answers) == ZOMBIES
        for status, answer in answers:
            assert (status, answer["stored"]) == (409, False), answer
            assert (answer["sessionEpoch"], answer["epoch"]) == epochs
        assert contents_of(brokers.address(), other) == [b"before", b"successor"]
        assert contents_of(brokers.address(), topic) == []
