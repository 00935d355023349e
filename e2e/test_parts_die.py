"""Each component crashes, hangs or is cut off while writers write."""

from __future__ import annotations

from functools import partial

import pytest
from e2e.faults import API_PORTS, STORE_PORTS, Faults
from e2e.installation import NAMESPACE, Installation
from e2e.manifests import PATIENT, PATIENT_WITH_SILENCE, SIDECAR, STOCK, Json
from e2e.world import World
from e2e.writers import Writers, WritingPod, until

SIDECAR_CONTAINER = "onewriter-sidecar"
STEADY = ("Serving", "Conflict", "Drifted")
"""Conditions that a change of the holder does not affect, whichever component reports it.

It does not affect Ready and PolicyApplied either, but those also report a broker that does not answer the
operator in time, as on a busy machine.
"""


@pytest.fixture(scope="module")
def stock(world: World) -> Writers:
    """Writers with Pulsar's own client."""
    return world.writers(STOCK, spec=PATIENT_WITH_SILENCE)


@pytest.fixture(scope="module")
def sidecar(world: World) -> Writers:
    """Writers with the sidecar."""
    return world.writers(SIDECAR, spec=PATIENT_WITH_SILENCE)


def evicted_once(writers: Writers, stale: WritingPod, successor: WritingPod) -> None:
    """Check that a stale pod is removed, once, and no other pod."""
    until(lambda: writers.outcomes().get(stale.uid) == "Evicted", writers.status)
    assert writers.settled().uid == successor.uid, "its replacement waits"
    assert not any(pod["metadata"]["uid"] == stale.uid for pod in writers.pods())
    until(lambda: writers.evictions(stale) == 1, lambda: writers.evictions(stale))
    assert writers.evictions(successor) == 0


def crashed_and_back(writers: Writers, former: WritingPod, successor: WritingPod) -> None:
    """Check that a killed leader becomes a waiter, and no pod is evicted."""
    assert writers.settled().uid == successor.uid
    assert former.uid in {pod["metadata"]["uid"] for pod in writers.pods()}
    assert former.uid not in writers.outcomes()
    assert writers.evictions(former) == 0


# ------------------------------------------------------------ the operator and its webhook


def test_without_an_operator_topics_change_holders_and_labelled_pods_wait(
    world: World,
    installation: Installation,
    stock: Writers,
    sidecar: Writers,
    faults: Faults,
) -> None:
    stale, crashed = stock.settled(), sidecar.settled()
    with installation.without_operator():
        faults.freeze(stale.pod)
        faults.kill(crashed.pod, SIDECAR_CONTAINER)
        stock.taken_over(stale)
        sidecar.taken_over(crashed)
        assert stock.status()["epoch"] == stale.epoch, "nobody is there to tell of it"
        late = only_labelled_pods_wait(world)
    successors = stock.succeeded(stale), sidecar.succeeded(crashed)
    assert stock.last_transition()["cause"] == "Silent"
    assert sidecar.last_transition()["cause"] == "ConnectionLost"
    crashed_and_back(sidecar, crashed, successors[1])
    evicted_once(stock, stale, successors[0])
    late.settled()
    assert all(has_sidecar(pod) for pod in late.pods())


def only_labelled_pods_wait(world: World) -> Writers:
    """While the webhook is away, only pods that request a sidecar have to wait."""
    status, answer = world.tried(SIDECAR)
    assert status == 500
    assert 'failed calling webhook "inject.onewriter.dev"' in answer["message"]
    status, answer = world.tried(STOCK)
    assert status == 201, answer
    late = world.writers(SIDECAR, "late", spec=PATIENT)
    until(lambda: any("inject.onewriter.dev" in each for each in late.not_created()))
    assert late.pods() == []
    return late


def has_sidecar(pod: Json) -> bool:
    return any(each["name"] == SIDECAR_CONTAINER for each in pod["spec"]["initContainers"])


def test_an_operator_that_is_frozen_past_its_lease_and_wakes_does_nothing_twice(
    installation: Installation, stock: Writers, sidecar: Writers, faults: Faults
) -> None:
    all_writers = (stock, sidecar)
    formers = [writers.settled() for writers in all_writers]
    before = [writers.changed_at(*STEADY) for writers in all_writers]
    frozen = installation.pod(until(installation.leading_operator))
    for former in formers:
        faults.freeze(former.pod)
    for writers, former in zip(all_writers, formers, strict=True):
        writers.until_outcome(former, "Pending", "Evicted")  # if one took longer than its grace
    faults.freeze(frozen)
    name = frozen["metadata"]["name"]
    until(lambda: installation.leading_operator() != name, installation.leading_operator)
    successors = [
        writers.succeeded(former) for writers, former in zip(all_writers, formers, strict=True)
    ]
    for writers, former in zip(all_writers, formers, strict=True):
        writers.until_outcome(former, "Evicted")
    faults.thaw(frozen)  # it believes that it leads, and that it still has to evict both
    until(lambda: "operator.ends" in previous_words(installation, name))
    for writers, former, successor in zip(all_writers, formers, successors, strict=True):
        evicted_once(writers, former, successor)
        writers.until_condition("Ready", "True/Ready")
    assert [writers.changed_at(*STEADY) for writers in all_writers] == before


def previous_words(installation: Installation, operator: str) -> str:
    """Return the log of an operator's previous process."""
    return installation.api.log(NAMESPACE, operator, "operator", previous=True)


# ------------------------------------------------------------ the store


def test_a_store_that_hangs_and_dies_costs_no_writer_its_topic(
    world: World, installation: Installation, stock: Writers, sidecar: Writers, faults: Faults
) -> None:
    former, crashed = stock.settled(), sidecar.settled()
    (store,) = installation.pods("valkey")
    faults.freeze(store)
    no_broker_reaches_the_store(installation)
    stock.until_condition("Serving", "False/StoreUnreachable")
    faults.kill(crashed.pod, SIDECAR_CONTAINER)
    faults.kill(store, "valkey")
    stock.wrote()
    crashed_and_back(sidecar, crashed, sidecar.succeeded(crashed))
    goes_on(stock, former)

    formers = [former, sidecar.settled()]
    world.api.delete("pods", NAMESPACE, store["metadata"]["name"])
    until(lambda: is_replaced(installation, store), installation.diagnostics)
    for writers, each in zip((stock, sidecar), formers, strict=True):
        writers.wrote()
        goes_on(writers, each)


def no_broker_reaches_the_store(installation: Installation) -> None:
    """Wait until all brokers know it, and check that they stay ready."""
    for pod in installation.pods("broker"):
        readiness = partial(installation.readiness, pod["metadata"]["name"])
        until(lambda: readiness()["store"]["access"] == "LostByAll", readiness)  # noqa: B023
        assert readiness()["ready"]


def is_replaced(installation: Installation, former: Json) -> bool:
    """Whether the store has another pod."""
    uids = [pod["metadata"]["uid"] for pod in installation.pods("valkey")]
    return uids != [] and uids != [former["metadata"]["uid"]]


def goes_on(writers: Writers, former: WritingPod) -> None:
    """Check that the same pod writes under the same epoch, and that the status is unchanged."""
    now = writers.settled()
    assert (now.uid, now.epoch) == (former.uid, former.epoch)
    writers.until_condition("Ready", "True/Ready")
    writers.until_condition("WriterActive", "True/Held")


# ------------------------------------------------------------ the API server


def test_without_an_api_server_topics_change_holders_and_no_transition_is_missed(
    stock: Writers, sidecar: Writers, faults: Faults
) -> None:
    stale, crashed = stock.settled(), sidecar.settled()
    with faults.api_server_away():
        stock.wrote(faults=faults)
        sidecar.wrote(faults=faults)
        faults.cut_off(stale.pod)
        faults.kill(crashed.pod, SIDECAR_CONTAINER)
        sidecar.taken_over(crashed, faults=faults)
        stock.taken_over(stale, faults=faults)
    successors = stock.succeeded(stale), sidecar.succeeded(crashed)
    assert stock.last_transition()["cause"] == "Silent"
    assert sidecar.last_transition()["cause"] == "ConnectionLost"
    crashed_and_back(sidecar, crashed, successors[1])
    evicted_once(stock, stale, successors[0])


# ------------------------------------------------------------ a broker that is cut off


def test_a_broker_without_the_api_server_continues_and_reports_it(
    installation: Installation, stock: Writers, sidecar: Writers, faults: Faults
) -> None:
    former = stock.settled()
    broker = serving_broker(installation, stock)
    heal = faults.cut_off(installation.pod(broker), API_PORTS)
    waits = partial(waiting_reasons, installation, broker)
    until(lambda: any("API server does not answer" in each for each in waits()), waits)
    for writers in (stock, sidecar):
        writers.wrote()
    faults.kill(former.pod, "writer")
    successor = stock.succeeded(former)
    stock.wrote()
    assert installation.readiness(broker)["ready"]
    assert installation.owner(stock.topic) == broker
    heal()
    until(lambda: not waits(), waits)
    crashed_and_back(stock, former, successor)


def serving_broker(installation: Installation, writers: Writers) -> str:
    """Return the broker that serves the writers' topic, once no bucket is moving after an earlier fault."""
    until(installation.is_placed, installation.diagnostics)
    return installation.owner(writers.topic)


def waiting_reasons(installation: Installation, broker: str) -> list[str]:
    """Return why buckets wait, as the broker reports at /readyz."""
    return list(installation.readiness(broker)["buckets"]["waiting"].values())


def test_a_broker_that_loses_the_store_loses_its_topics_and_appends_nothing(
    installation: Installation, stock: Writers, sidecar: Writers, faults: Faults
) -> None:
    all_writers = (stock, sidecar)
    formers = [writers.settled() for writers in all_writers]
    outcomes = [writers.outcomes() for writers in all_writers]
    broker = serving_broker(installation, stock)
    heal = faults.cut_off(installation.pod(broker), STORE_PORTS)
    until(lambda: installation.owner(stock.topic) not in {"", broker})
    for writers in all_writers:
        writers.wrote()
    readiness = partial(installation.readiness, broker)
    until(lambda: "the store does not answer" in readiness()["problems"], readiness)
    assert readiness()["store"]["access"] == "LostAlone"
    crashed = stock.settled()
    faults.kill(crashed.pod, "writer")
    # Its producer is a new one, and its first request may go to the broker that is cut off.
    crashed_and_back(stock, crashed, stock.succeeded(crashed))
    heal()
    until(lambda: installation.readiness(broker)["ready"])
    for writers, former in zip(all_writers, formers, strict=True):
        assert writers.settled().epoch >= former.epoch
        writers.wrote()
    assert [writers.outcomes() for writers in all_writers] == outcomes, "nobody was stale"
