"""Scenarios about those who wait: ghosts, a topic that moves, partitioned topics, a frozen holder."""

from __future__ import annotations

import threading
import time
from typing import Any

from bench.compare.scenario import Findings, Kind, Measure, Scenario
from bench.compare.stage import GRANTED, Stage, answer_to, holds_within, is_promoted
from bench.takeover import Fault, measure_takeovers
from tests.integration.raw import EXCLUSIVE, WAIT, RawClient, RawProducer, full

from onewriter_core.wire.proto import PulsarApi_pb2 as pb

LEFT_SECONDS = 0.5
"""For the broker to take note of those who left."""

PARTITIONS = 4
FROZEN_ROUNDS_MAX = 5


def _ghosts(stage: Stage) -> Findings:
    owner = stage.client().producer(stage.topic, EXCLUSIVE, name="A")
    gives_up, vanishes = stage.client(), stage.client()
    # A stock C++ or Python client whose creation timed out closes what it did not get.
    gives_up.waiter(stage.topic, name="gives-up").close()
    vanishes.waiter(stage.topic, name="vanishes")
    vanishes.close()
    stays = stage.client().waiter(stage.topic, name="stays")
    time.sleep(LEFT_SECONDS)
    stats: Any = stage.admin("GET", "stats")
    owner.close()
    return {
        "counted": stats["waitingPublishers"] - 1,
        "stuck": not is_promoted(stays, stage.patience.promotion_seconds),
    }


GHOSTS = Scenario(
    "ghosts",
    "Waiters that have left",
    "A (Exclusive) holds, three wait: one gives up (CLOSE_PRODUCER), the connection of one drops, one "
    "stays. The admin API reports how many wait. Then A leaves.",
    (
        Measure("counted", "waiters that have left and are still counted", Kind.TOTAL),
        Measure("stuck", "the waiter that stayed is not promoted within 5 s"),
    ),
    _ghosts,
)


def _failed_promotion(stage: Stage) -> Findings:
    owner = stage.client().producer(stage.topic, EXCLUSIVE, name="A")
    declines = stage.client().waiter(stage.topic, name="declines")
    stays = stage.client().waiter(stage.topic, name="stays")
    owner.close()
    declines.ready().close()  # its creation had timed out meanwhile: "ghost win"
    return {"stuck": not is_promoted(stays, stage.patience.promotion_seconds)}


FAILED_PROMOTION = Scenario(
    "failed-promotion",
    "A promotion that the waiter declines",
    "A (Exclusive) holds, two wait. A leaves. The first waiter is promoted and declines with "
    "CLOSE_PRODUCER, as stock C++ and Python clients do after their creation timed out.",
    (Measure("stuck", "the next waiter is not promoted within 5 s"),),
    _failed_promotion,
)


def _unload(stage: Stage) -> Findings:
    stage.client().producer(stage.topic, EXCLUSIVE, name="A")
    waiters = [stage.client().waiter(stage.topic, name=name) for name in ("B", "C")]
    stage.admin("PUT", "unload")
    return {
        "forgotten": not all(
            _is_notified(waiter, stage.patience.unload_seconds) for waiter in waiters
        )
    }


def _is_notified(waiter: RawProducer, seconds: float) -> bool:
    """Anything that lets a client go on: the grant, an error, the end of its connection."""
    connection, request_id = waiter.client, waiter.command.request_id
    return holds_within(
        lambda: (
            waiter.is_ready
            or connection.is_closed
            or connection.has_received(pb.CommandError, lambda c: c.request_id == request_id)
        ),
        seconds,
    )


UNLOAD = Scenario(
    "unload",
    "A topic moves while others wait",
    "A (Exclusive) holds, B and C wait. The topic is unloaded through the admin API, as it happens "
    "when a broker is drained or load is balanced.",
    (
        Measure(
            "forgotten",
            "a waiter is not notified within 3 s and waits in a queue that no longer exists",
        ),
    ),
    _unload,
)


def _two_groups(stage: Stage, mode: Any) -> Findings:
    """Two clients that ask for all partitions at once, as the C++ library does, in either order."""
    stage.admin("PUT", "partitions", PARTITIONS)
    names = [f"{stage.topic}-partition-{number}" for number in range(PARTITIONS)]
    clients = stage.client(), stage.client()
    for client in clients:
        for name in names:
            client.lookup(name)
    requests: dict[int, list[RawProducer]] = {}
    start = threading.Barrier(len(clients))

    def ask(number: int, client: RawClient) -> None:
        start.wait()
        order = names if number == 0 else names[::-1]
        requests[number] = [client.ask_producer(full(name), mode) for name in order]

    askers = [threading.Thread(target=ask, args=pair) for pair in enumerate(clients)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    if mode == EXCLUSIVE:
        held = {n: sum(answer_to(p) == GRANTED for p in requests[n]) for n in requests}
    else:
        holds_within(
            lambda: any(all(p.is_ready for p in requests[n]) for n in requests),
            stage.patience.group_seconds,
        )
        held = {n: sum(p.is_ready for p in requests[n]) for n in requests}
    return {
        "nobody": max(held.values()) < PARTITIONS,
        "split": all(held.values()),
    }


def _two_exclusive_groups(stage: Stage) -> Findings:
    return _two_groups(stage, EXCLUSIVE)


def _two_waiting_groups(stage: Stage) -> Findings:
    return _two_groups(stage, WAIT)


_GROUP_STORY = (
    f"Two clients request the {PARTITIONS} partitions of a topic at the same time, all at once as the "
    "C++ library does. One starts with the first partition, the other with the last."
)

EXCLUSIVE_GROUPS = Scenario(
    "exclusive-groups",
    "Two clients on a partitioned topic, Exclusive",
    _GROUP_STORY,
    (
        Measure("split", "each gets some of the partitions"),
        Measure("nobody", "neither gets all: both clients fail"),
    ),
    _two_exclusive_groups,
)

WAITING_GROUPS = Scenario(
    "waiting-groups",
    "Two clients on a partitioned topic, WaitForExclusive",
    _GROUP_STORY,
    (
        Measure("split", "each holds some of the partitions"),
        Measure("nobody", "neither holds all after 2 s: each waits for the other"),
    ),
    _two_waiting_groups,
)


def _frozen_holder(stage: Stage) -> Findings:
    figures = measure_takeovers(stage.side.service_url, fault=Fault.SILENT, rounds=1)
    (done,) = figures.rounds
    return {"seconds": done.fault_to_append / 1000}


FROZEN_HOLDER = Scenario(
    "frozen-holder",
    "A frozen holder",
    "Two processes with the stock Python client, both WaitForExclusive. The one that leads is frozen "
    "(SIGSTOP): its sockets stay open and it does not answer.",
    (
        Measure(
            "seconds",
            "time until the other process has its first receipt",
            Kind.SECONDS,
            is_fault=False,
        ),
    ),
    _frozen_holder,
    rounds_max=FROZEN_ROUNDS_MAX,
)

WAITING = (
    GHOSTS,
    FAILED_PROMOTION,
    UNLOAD,
    EXCLUSIVE_GROUPS,
    WAITING_GROUPS,
    FROZEN_HOLDER,
)
