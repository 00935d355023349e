"""Scenarios in which somebody deposes a holder: who may write afterwards, and who is told what."""

from __future__ import annotations

import time

from bench.compare.scenario import Findings, Kind, Measure, Scenario
from bench.compare.stage import (
    GRANTED,
    Stage,
    answer_to,
    holds_within,
    is_promoted,
    last_position,
    receipts,
    send_burst,
)
from tests.integration.raw import EXCLUSIVE, FENCING, SHARED, WAIT, RawClient, RawProducer

from onewriter_core.wire.proto import PulsarApi_pb2 as pb

IN_FLIGHT = 800
SETTLE_SECONDS = 0.5
"""From the takeover until everything that was in flight has been decided."""

WAITER_DELAYS_MS = 20
"""The waiter asks 1 to so many milliseconds after the fencer, a millisecond later each round."""

NOTHING_YET = (-1, -1)

PROMOTION_SECONDS = 1.0
"""A waiter that is not promoted so long after its request keeps waiting."""


def _busy_owner(stage: Stage) -> tuple[RawProducer, RawClient, RawClient]:
    """A holds the topic and has sends in flight; connections for B and C stand ready."""
    owner = stage.client().producer(stage.topic, EXCLUSIVE, name="A")
    others = stage.client(), stage.client()
    send_burst(owner, IN_FLIGHT)
    return owner, *others


def _shared_beside_owner(stage: Stage) -> Findings:
    _, second, third = _busy_owner(stage)
    fencer = second.ask_producer(stage.topic, FENCING, name="B").ready()
    time.sleep(SETTLE_SECONDS)
    newcomer = third.ask_producer(stage.topic, SHARED, name="C")
    is_let_in = answer_to(newcomer) == GRANTED
    return {
        "let-in": is_let_in,
        "both-write": is_let_in and stage.writes(newcomer) and stage.writes(fencer),
    }


SHARED_BESIDE_OWNER = Scenario(
    "shared-beside-owner",
    "Two writers at once: a Shared producer in addition to the new holder",
    f"A (Exclusive) has {IN_FLIGHT} sends in flight. B (ExclusiveWithFencing) takes the topic and is "
    "granted. Half a second later C requests it as Shared.",
    (
        Measure("let-in", "C is granted the topic in addition to B"),
        Measure("both-write", "B and C both get receipts"),
    ),
    _shared_beside_owner,
)


def _two_exclusive_owners(stage: Stage) -> Findings:
    _, second, third = _busy_owner(stage)
    fencer = second.ask_producer(stage.topic, FENCING, name="B")
    time.sleep((stage.number % WAITER_DELAYS_MS + 1) / 1000)
    waiter = third.ask_producer(stage.topic, WAIT, name="C")
    fencer.ready()
    is_granted = is_promoted(waiter, PROMOTION_SECONDS)
    # The fencer writes last: a waiter that was promoted writes beside it, not after it.
    both = is_granted and stage.writes(waiter) and stage.writes(fencer)
    return {"granted": is_granted, "both-write": both}


TWO_EXCLUSIVE_OWNERS = Scenario(
    "two-exclusive-owners",
    "Two writers at once: two exclusive producers",
    f"A (Exclusive) has {IN_FLIGHT} sends in flight. B (ExclusiveWithFencing) requests the topic, "
    f"and C (WaitForExclusive) 1 to {WAITER_DELAYS_MS} ms later. B stays.",
    (
        Measure("granted", "C is granted the topic while B holds it"),
        Measure("both-write", "B and C both get receipts"),
    ),
    _two_exclusive_owners,
)


def _missed_by_new_owner(stage: Stage) -> Findings:
    second = stage.client()
    reader = second.subscribe(stage.topic, "the-new-owner", permits=0, durable=False)
    owner, _, _ = _busy_owner(stage)
    fencer = second.ask_producer(stage.topic, FENCING, name="B").ready()
    end = last_position(reader) or NOTHING_YET
    time.sleep(SETTLE_SECONDS)
    fencer.publish(b"the new owner's first")
    log = stage.log()
    stored = [entry.sequence_id for entry in log if entry.producer == "A"]
    own_first = next(entry.position for entry in log if entry.producer == "B")
    late = [entry for entry in log if entry.producer == "A" and entry.position > end]
    return {
        "stored": len(stored),
        "missed": bool(late),
        "after": sum(entry.position > own_first for entry in late),
        "lost": len(set(receipts(owner)) - set(stored)),
        "unordered": stored != list(range(len(stored))),
    }


MISSED_BY_NEW_OWNER = Scenario(
    "missed-by-new-owner",
    "A new holder that reads to the end before it writes",
    f"A (Exclusive) has {IN_FLIGHT} sends in flight. B (ExclusiveWithFencing) takes the topic. As "
    "soon as it is granted, it asks for the last message id, up to which it would rebuild its state.",
    (
        Measure("stored", "sends of A that are in the log", Kind.MEDIAN, is_fault=False),
        Measure("missed", "entries of A were stored after the end that B had read"),
        Measure("after", "entries of A after B's first entry", Kind.TOTAL),
        Measure("lost", "receipts of A whose entry is not in the log", Kind.TOTAL),
        Measure("unordered", "the stored entries of A are not a gapless prefix of what it sent"),
    ),
    _missed_by_new_owner,
)


def _stale_fencer(stage: Stage) -> Findings:
    first, second = stage.client(), stage.client()
    stale = first.producer(stage.topic, FENCING, name="A")
    owner = second.producer(stage.topic, FENCING, name="B")
    first.close()
    comeback = stage.client().ask_producer(
        stage.topic, FENCING, name="A", epoch=stale.epoch, reconnects=1
    )
    is_granted = answer_to(comeback) == GRANTED
    newcomer = answer_to(stage.client().ask_producer(stage.topic, EXCLUSIVE, name="D"))
    return {
        "stale-granted": is_granted,
        "newcomer-granted": newcomer == GRANTED,
        "owner-gone": not stage.writes(owner),
    }


STALE_FENCER = Scenario(
    "stale-fencer",
    "A stale fencer reconnects",
    "B fences A; both use ExclusiveWithFencing. A's connection drops, and A's client reconnects by "
    "itself with its former topic epoch. Then D requests the topic as Exclusive.",
    (
        Measure("stale-granted", "A is granted the topic again"),
        Measure("newcomer-granted", "D is granted the topic although B never left"),
        Measure("owner-gone", "B, the rightful holder, can no longer write"),
    ),
    _stale_fencer,
)


def _loser(stage: Stage) -> Findings:
    connection = stage.client()
    loser = connection.producer(stage.topic, EXCLUSIVE, name="A")
    elsewhere = f"{stage.topic}-elsewhere"
    connection.lookup(elsewhere)
    other_client = connection.producer(elsewhere, SHARED, name="bystander")
    winner = stage.client().producer(stage.topic, FENCING, name="B")

    def is_notified() -> bool:
        return connection.has_received(
            pb.CommandCloseProducer, lambda c: c.producer_id == loser.producer_id
        )

    was_notified = holds_within(is_notified, stage.patience.notified_seconds)
    loser.send(b"late")
    is_cut = holds_within(lambda: connection.is_closed, PROMOTION_SECONDS)
    assert stage.writes(winner)
    return {
        "not-told": not was_notified,
        "cut": is_cut,
        "bystander": not stage.writes(other_client),
        "late": sum(entry.content == b"late" for entry in stage.log()),
    }


LOSER = Scenario(
    "loser",
    "What the fenced producer learns",
    "A (Exclusive) is idle and shares its connection with a producer on another topic. B "
    "(ExclusiveWithFencing) takes the topic. A second later A sends a message.",
    (
        Measure("not-told", "A is not notified before it sends"),
        Measure("cut", "A loses its whole connection when it sends"),
        Measure("bystander", "the producer on the other topic is disconnected as well"),
        Measure("late", "messages in the log that A sent afterwards", Kind.TOTAL),
    ),
    _loser,
)

DEPOSING = (SHARED_BESIDE_OWNER, TWO_EXCLUSIVE_OWNERS, MISSED_BY_NEW_OWNER, STALE_FENCER, LOSER)
