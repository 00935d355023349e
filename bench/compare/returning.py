"""Scenarios in which a holder loses its connection and comes back: epochs, ghosts, duplicates."""

from __future__ import annotations

import time
from collections import Counter
from itertools import pairwise

from bench.compare.scenario import Findings, Kind, Measure, Scenario
from bench.compare.stage import (
    GRANTED,
    WAITS,
    Stage,
    answer_to,
    holds_within,
    is_promoted,
    receipts,
    send_burst,
)
from tests.integration.cutting_proxy import CuttingProxy
from tests.integration.raw import EXCLUSIVE, FENCING, WAIT, RawProducer, RefusedByBroker

PROMOTION_SECONDS = 3.0
RECONNECT_SECONDS = 0.1
"""What stock clients wait before they come back."""

STREAM = 1000
CUTS = 2
BYTES_BETWEEN_CUTS = 200_000
"""So that both cuts come while the stream runs."""

RETURN_SECONDS_MAX = 90.0
"""A holder that is not let in again after so long has lost its topic to its own ghost."""


def _epoch_back(stage: Stage) -> Findings:
    first = stage.client()
    holder = first.producer(stage.topic, WAIT, name="A")
    waiter = stage.client().waiter(stage.topic, name="B")
    first.close()
    waiter.ready()
    comeback = stage.client().ask_producer(
        stage.topic, WAIT, name="A", epoch=holder.epoch, reconnects=1
    )
    answer = answer_to(comeback)
    waiter.close()
    granted = [holder.epoch or 0, waiter.epoch or 0]
    if answer == WAITS and is_promoted(comeback, PROMOTION_SECONDS):
        granted.append(comeback.epoch or 0)
        comeback.close()
    last = stage.client().producer(stage.topic, EXCLUSIVE, name="C")
    granted.append(last.epoch or 0)
    return {
        "let-in": answer in {WAITS, GRANTED},
        "back": any(later < earlier for earlier, later in pairwise(granted)),
        "twice": len(set(granted)) < len(granted),
    }


EPOCH_BACK = Scenario(
    "epoch-back",
    "The topic epoch decreases",
    "A (WaitForExclusive) holds, B waits. A's connection drops, B is promoted. A reconnects with "
    "its former epoch. B leaves and waiters are promoted. Then C requests the topic as Exclusive.",
    (
        Measure("let-in", "A, which was fenced, is accepted into the queue under its old epoch"),
        Measure("back", "a lower epoch is granted after a higher one"),
        Measure("twice", "two holders get the same epoch"),
    ),
    _epoch_back,
)


def _own_ghost(stage: Stage) -> Findings:
    findings: dict[str, float] = {}
    for key, mode in (("exclusive", EXCLUSIVE), ("waits", WAIT), ("fencing", FENCING)):
        topic = f"{stage.topic}-{key}"
        frozen, fresh = stage.client(), stage.client()
        frozen.lookup(topic)
        holder = frozen.producer(topic, mode, name="A")
        frozen.freeze()  # its network died: nobody told the broker
        comeback = fresh.ask_producer(topic, mode, name="A", epoch=holder.epoch, reconnects=1)
        findings[key] = answer_to(comeback) != GRANTED
    return findings


OWN_GHOST = Scenario(
    "own-ghost",
    "A holder reconnects before the broker has detected that its old connection is dead",
    "A holds the topic. Its network fails without closing the connection. A reconnects from a new "
    "address with its name and its epoch. No other producer requests the topic.",
    (
        Measure("exclusive", "Exclusive: refused because of its own dead connection"),
        Measure("waits", "WaitForExclusive: waits for its own dead connection"),
        Measure("fencing", "ExclusiveWithFencing: refused"),
    ),
    _own_ghost,
)


def _reconnected(
    stage: Stage, proxy: CuttingProxy, before: RawProducer | None, reconnects: int
) -> tuple[RawProducer, int]:
    """As a stock client comes back: same name, same epoch; how often it was refused meanwhile."""
    deadline = time.monotonic() + RETURN_SECONDS_MAX
    refusals = 0
    while True:
        client = stage.client(proxy.address)
        epoch = None if before is None else before.epoch
        try:
            producer = client.producer(
                stage.topic, EXCLUSIVE, name="A", epoch=epoch, reconnects=reconnects + refusals
            )
        except RefusedByBroker:
            client.close()
            if before is None or time.monotonic() > deadline:
                raise
            refusals += 1
            time.sleep(RECONNECT_SECONDS)
            continue
        return producer, refusals


def _cut_stream(stage: Stage) -> Findings:
    """Each connection sends all that has no receipt yet; the proxy cuts the first two of them."""
    answered: set[int] = set()
    refused = 0
    with CuttingProxy(
        stage.side.address, cuts=CUTS, bytes_between=BYTES_BETWEEN_CUTS, seed=stage.number
    ) as proxy:
        producer, _ = _reconnected(stage, proxy, None, 0)
        connections = 1
        while True:
            first = max(answered, default=-1) + 1
            is_sent = _sends(producer, first)
            holds_within(
                lambda: producer.client.is_closed or STREAM - 1 in receipts(producer),  # noqa: B023
                RETURN_SECONDS_MAX if is_sent else RECONNECT_SECONDS,
            )
            answered |= set(receipts(producer))
            if STREAM - 1 in answered:
                break
            producer.client.close()
            time.sleep(RECONNECT_SECONDS)
            producer, refusals = _reconnected(stage, proxy, producer, connections)
            connections += 1 + refusals
            refused += refusals
        cuts = CUTS - max(proxy.cuts_left, 0)
        producer.client.close()
    times = Counter(entry.sequence_id for entry in stage.log())
    return {
        "cuts": cuts,
        "duplicated": sum(times.values()) - len(times),
        "rounds": any(count > 1 for count in times.values()),
        "missing": STREAM - len(times),
        "refused": refused > 0,
    }


def _sends(producer: RawProducer, first: int) -> bool:
    try:
        send_burst(producer, STREAM - first, first)
    except OSError:  # cut
        return False
    return True


CUT_STREAM = Scenario(
    "cut-stream",
    "A connection cut in mid-stream",
    f"A (Exclusive) sends {STREAM} messages through a proxy that resets its connection twice in the "
    "middle. Each time A does what stock clients do: it reconnects after 100 ms with its name and "
    "epoch and resends all messages without a receipt. Both sides have default settings.",
    (
        Measure("cuts", "connections cut", Kind.TOTAL, is_fault=False),
        Measure("duplicated", "messages stored more than once", Kind.TOTAL),
        Measure("rounds", "rounds with duplicates"),
        Measure("missing", "messages missing", Kind.TOTAL),
        Measure("refused", "A is fenced by its own cut connection (a stock client gives up here)"),
    ),
    _cut_stream,
)

RETURNING = (EPOCH_BACK, OWN_GHOST, CUT_STREAM)
