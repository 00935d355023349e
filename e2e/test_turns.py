"""Pods of one claim hand the topic over to each other repeatedly; no pod is stale or evicted."""

from __future__ import annotations

from e2e.manifests import KINDS, PATIENT
from e2e.world import World
from e2e.writers import Writers, WritingPod, until

TURNS = 40


def first_writing_pod(writers: Writers) -> WritingPod:
    until(lambda: len(writers.pods()) == 2 and writers.writing_pod() is not None, writers.status)
    return until(writers.writing_pod, writers.status)


def test_two_pods_that_take_turns_are_left_alone(world: World) -> None:
    """One pair closes its producers and waits again. The sidecars of the other pair hand over."""
    all_writers = [
        world.writers(kind, spec=PATIENT, TURN_SECONDS="0.2", INTERVAL_SECONDS="0.05")
        for kind in KINDS
    ]
    firsts = [first_writing_pod(writers) for writers in all_writers]
    pods = [{pod["metadata"]["uid"] for pod in writers.pods()} for writers in all_writers]
    for writers, first in zip(all_writers, firsts, strict=True):
        writers.until_epoch(first.epoch + TURNS)
    for writers, uids in zip(all_writers, pods, strict=True):
        assert {pod["metadata"]["uid"] for pod in writers.pods()} == uids
        assert writers.outcomes() == {}
        assert writers.events("WriterFenced") == []
        assert writers.events("PodEvicted") == []
        causes = {each["cause"] for each in writers.status()["transitions"]}
        assert causes <= {"Released", "Handover"}
