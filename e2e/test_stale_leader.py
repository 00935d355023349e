"""A leader freezes or is cut off: it is fenced first, then evicted by its uid, as budgets allow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime

import pytest
from e2e import manifests
from e2e.faults import Faults
from e2e.manifests import KINDS, PATIENT_WITH_SILENCE
from e2e.world import World
from e2e.writers import Writers, WritingPod, until

from onewriter_operator.plan.facts import GRACE_SECONDS


@pytest.fixture(scope="module")
def all_writers(world: World) -> list[Writers]:
    """Writers with the stock client, and writers with the sidecar."""
    return [world.writers(kind, spec=PATIENT_WITH_SILENCE) for kind in KINDS]


def fenced_then_evicted(writers: Writers, former: WritingPod) -> None:
    """Check the outcome for a silent leader."""
    now = writers.succeeded(former)
    assert writers.last_transition()["cause"] == "Silent"
    writers.until_outcome(former, "Evicted")
    (fenced,) = [pod for pod in writers.status()["fencedPods"] if pod["podUID"] == former.uid]
    given = datetime.fromisoformat(fenced["since"]) - datetime.fromisoformat(fenced["at"])
    assert given.total_seconds() >= GRACE_SECONDS - 1, "since has whole seconds"
    writers.until_condition("FencedPodEvicted", "True/Evicted", "producerclaims")
    until(lambda: not writers.is_there(former.uid))
    writers.until_event("PodEvicted")
    # Events are written in the background, and an earlier test has left some of the same reason.
    until(
        lambda: any(former.name in note for note in writers.events("WriterFenced")),
        lambda: writers.events("WriterFenced"),
    )
    assert writers.settled().uid == now.uid, "its replacement waits"
    writers.wrote()


@pytest.mark.parametrize("fault", [Faults.freeze, Faults.cut_off])
def test_a_silent_leader_is_fenced_and_then_evicted(
    all_writers: list[Writers], faults: Faults, fault: Callable[[Faults, manifests.Json], object]
) -> None:
    formers = [writers.settled() for writers in all_writers]
    for former in formers:
        fault(faults, former.pod)
    for writers, former in zip(all_writers, formers, strict=True):
        fenced_then_evicted(writers, former)


@contextmanager
def nobody_evicted(world: World, *all_writers: Writers) -> Iterator[None]:
    """Budgets that forbid evictions, so that a test does not depend on the speed of the machine."""
    for writers in all_writers:
        world.apply(manifests.budget(writers.name, available=2))
    try:
        yield
    finally:
        for writers in all_writers:
            world.api.delete("poddisruptionbudgets", world.namespace, writers.name)


def test_a_writer_that_wakes_in_time_is_refused_and_keeps_its_pod(
    world: World, all_writers: list[Writers], faults: Faults
) -> None:
    with nobody_evicted(world, *all_writers):
        formers = [writers.settled() for writers in all_writers]
        wakes_in_time(all_writers, formers, faults)
    for writers, former in zip(all_writers, formers, strict=True):
        assert writers.is_there(former.uid)


def wakes_in_time(all_writers: list[Writers], formers: list[WritingPod], faults: Faults) -> None:
    """Freeze each leader until another pod leads."""
    for former in formers:
        faults.freeze(former.pod)
    for writers, former in zip(all_writers, formers, strict=True):
        writers.succeeded(former)
        faults.thaw(former.pod)
    for writers, former in zip(all_writers, formers, strict=True):
        writers.until_outcome(former, "CameBack")
        writers.refused(former)


def test_a_budget_blocks_the_eviction_until_it_lets_go(world: World, faults: Faults) -> None:
    writers = world.writers(name="guarded", spec=PATIENT_WITH_SILENCE)
    world.apply(manifests.budget("guarded", available=2))
    former = writers.settled()
    faults.freeze(former.pod)
    writers.until_outcome(former, "BlockedByPDB")
    writers.until_condition("FencedPodEvicted", "False/BlockedByPDB", "producerclaims")
    writers.until_event("EvictionBlocked")
    assert writers.is_there(former.uid)
    assert writers.writing_pod(after=former.epoch) is not None, "the fence waits for no budget"
    world.apply(manifests.budget("guarded", available=1))
    writers.until_outcome(former, "Evicted")
    until(lambda: not writers.is_there(former.uid))


def test_a_successor_of_the_same_name_is_never_evicted(world: World, faults: Faults) -> None:
    writers = world.writers(name="stateful", stateful=True, spec=PATIENT_WITH_SILENCE)
    former = writers.settled()
    with nobody_evicted(world, writers):
        faults.freeze(former.pod)
        writers.succeeded(former)
        world.api.delete("pods", world.namespace, former.name, gracePeriodSeconds=0)
        writers.until_outcome(former, "PodGone")
    writers.settled()
    (namesake,) = [pod for pod in writers.pods() if pod["metadata"]["name"] == former.name]
    assert namesake["metadata"]["uid"] != former.uid
    assert set(writers.outcomes()) == {former.uid}
    assert writers.events("PodEvicted") == []
