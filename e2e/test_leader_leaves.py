"""A leader stops, crashes or is fenced by a command: the other pod leads, and no pod is evicted."""

from __future__ import annotations

import pytest
from e2e.faults import Faults
from e2e.manifests import KINDS, PATIENT, SIDECAR
from e2e.world import World
from e2e.writers import Writers, WritingPod


@pytest.fixture(scope="module")
def all_writers(world: World) -> list[Writers]:
    """Writers with the stock client, and writers with the sidecar."""
    return [world.writers(kind, spec=PATIENT) for kind in KINDS]


def settled(all_writers: list[Writers]) -> list[WritingPod]:
    return [writers.settled() for writers in all_writers]


def test_a_deleted_leader_hands_over(world: World, all_writers: list[Writers]) -> None:
    formers = settled(all_writers)
    for writers, former in zip(all_writers, formers, strict=True):
        writers.wrote()
        world.api.delete("pods", world.namespace, former.name)
    for writers, former in zip(all_writers, formers, strict=True):
        writers.succeeded(former)
        writers.until_condition("WriterActive", "True/Held")
        transition = writers.last_transition()
        assert transition["cause"] in {"Released", "Handover"}
        world.tally.figures.append(
            f"{writers.name}: a deleted leader's topic was {transition['leaderlessMs']} ms without one"
        )
        assert writers.outcomes() == {}
        assert writers.events("PodEvicted") == []
        writers.wrote()


def test_a_writer_that_crashes_comes_back_and_waits(
    world: World, all_writers: list[Writers], faults: Faults
) -> None:
    formers = settled(all_writers)
    for writers, former in zip(all_writers, formers, strict=True):
        faults.kill(former.pod, holder_of_the_topic(writers))
    for writers, former in zip(all_writers, formers, strict=True):
        now = writers.succeeded(former)
        assert writers.last_transition()["cause"] == "ConnectionLost"
        assert writers.settled().uid == now.uid
        assert former.uid in {pod["metadata"]["uid"] for pod in writers.pods()}, "it came back"
        assert writers.outcomes() == {}
        assert writers.events("PodEvicted") == []
        writers.until_condition("FencedPodEvicted", "False/NotRequested", "producerclaims")
        writers.wrote()
    assert world.installation.is_ready()


def holder_of_the_topic(writers: Writers) -> str:
    """Return the name of the container whose end is the writer's end."""
    return "onewriter-sidecar" if writers.name == SIDECAR else "writer"


def test_a_fence_annotation_deposes_the_holder_and_keeps_its_pod(
    world: World, all_writers: list[Writers]
) -> None:
    formers = settled(all_writers)
    for writers, former in zip(all_writers, formers, strict=True):
        order = {"metadata": {"annotations": {"onewriter.dev/fence": str(former.epoch)}}}
        world.api.patch("exclusivetopics", world.namespace, writers.name, order)
    for writers, former in zip(all_writers, formers, strict=True):
        writers.succeeded(former)
        writers.until_outcome(former, "CameBack")
        writers.until_event("FencedByOrder")
        assert former.uid in {pod["metadata"]["uid"] for pod in writers.pods()}
        assert writers.events("PodEvicted") == []
        writers.refused(former)
        writers.wrote()


def test_an_application_that_crashes_keeps_its_sidecars_topic(
    all_writers: list[Writers], faults: Faults
) -> None:
    writers = next(each for each in all_writers if each.name == SIDECAR)
    before = writers.settled()
    faults.kill(before.pod, "writer")
    writers.wrote()
    now = writers.settled()
    assert (now.uid, now.epoch) == (before.uid, before.epoch)
