"""A writer is killed, frozen, or woken: the next writer, the time until it writes, and which sends of the old
one count.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pulsar import MessageId
from pulsar import ProducerAccessMode as Mode
from tests.integration.conftest import ATTENTIVE, ROUNDS, RawClients, StockClients
from tests.integration.http_calls import OWN, Http
from tests.integration.raw import (
    BROKERS_OWN_REQUEST,
    EXCLUSIVE,
    FENCING,
    RefusedByBroker,
    contents_of,
    eventually,
)

from onewriter_core.errors import ServerError
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import SendReceipt
from onewriter_testing.processes import LocalBrokers

CLOCKS_MS = 1_000
"""How far the wall clock of the clients and the monotonic clock of the broker may drift apart during a test."""

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "leader_election.py"


class Candidate:
    """One process of the leader election example, and its output."""

    def __init__(self, brokers: LocalBrokers, topic: str, name: str, folder: Path) -> None:
        self.name = name
        self._path = folder / f"{name}.log"
        options = ["--url", brokers.service_url, "--topic", topic, "--name", name]
        with self._path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(EXAMPLE), *options, "--interval", "0.05"],
                stdout=log,
                stderr=log,
            )

    @property
    def said(self) -> str:
        return self._path.read_text(errors="replace")

    @property
    def wrote(self) -> list[int]:
        """Return the numbers of the messages that it has a receipt for."""
        return [int(n) for n in re.findall(rf"^{self.name}: wrote (\d+) ", self.said, re.MULTILINE)]

    @property
    def is_leading(self) -> bool:
        return len(self.wrote) > 0

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()


@pytest.fixture
def candidates(attentive: LocalBrokers, topic: str, tmp_path: Path) -> Iterator[list[Candidate]]:
    """Two processes of the example: the first one leads, the second one waits."""
    found: list[Candidate] = []
    try:
        for name in ("ada", "bob"):
            found.append(Candidate(attentive, topic, name, tmp_path))
            eventually(lambda: found[0].is_leading)
        eventually(lambda: "waiting to lead" in found[1].said)
        time.sleep(0.3)
        assert not found[1].is_leading
        yield found
    finally:
        for candidate in found:
            candidate.end()


def test_the_leader_is_killed(
    attentive: LocalBrokers, topic: str, candidates: list[Candidate]
) -> None:
    leader, other = candidates
    leader.signal(signal.SIGKILL)
    eventually(lambda: other.is_leading)
    stored = [text.decode() for text in contents_of(attentive.address(), topic)]
    assert set(stored) >= {f"ada {n}" for n in leader.wrote}
    assert len(stored) == len(set(stored))


def published(brokers: LocalBrokers, stock: StockClients, topic: str) -> list[tuple[str, int]]:
    """Each message with the wall clock of its client in milliseconds."""
    reader = stock(brokers.service_url).create_reader(topic, MessageId.earliest)
    found: list[tuple[str, int]] = []
    while reader.has_message_available():
        message = reader.read_next(60_000)
        found.append((message.data().decode(), message.publish_timestamp()))
    return found


def check_reported_outage(brokers: LocalBrokers, stock: StockClients, topic: str) -> None:
    """Compare the outage in the status and in the history with what the clients prove."""
    http = Http(brokers.http_url)

    def last() -> dict[str, Any]:
        found: dict[str, Any] = http("GET", f"{OWN}/{topic}")[1]["transitions"][-1]
        return found

    eventually(lambda: last()["firstMessageMs"] is not None)
    reported = last()
    assert reported["cause"] == "Silent"
    assert reported["detectionMs"] >= 1000 * float(ATTENTIVE["silent_after_seconds"])
    assert reported["outageMs"] == reported["detectionMs"] + reported["handoverMs"]
    # Its last sign of life is not earlier than its last message, and its successor publishes after the grant.
    messages = published(brokers, stock, topic)
    former = max(at for text, at in messages if text.startswith("ada "))
    successor = min(at for text, at in messages if text.startswith("bob "))
    assert reported["outageMs"] <= successor - former + CLOCKS_MS

    def granted() -> dict[str, Any]:
        records = http("GET", f"{OWN}/{topic}/history")[1]["records"]
        return next(r for r in records if (r["kind"], r["epoch"]) == ("grant", reported["epoch"]))

    names = ("detectionMs", "handoverMs", "outageMs", "firstMessageMs", "leaderlessMs", "at")
    eventually(
        lambda: [granted().get(name) for name in names] == [reported[name] for name in names]
    )


def test_the_leader_is_frozen_and_wakes_up(
    attentive: LocalBrokers, topic: str, candidates: list[Candidate], stock: StockClients
) -> None:
    leader, other = candidates
    leader.signal(signal.SIGSTOP)
    eventually(lambda: other.is_leading)
    wrote = leader.wrote
    leader.signal(signal.SIGCONT)
    eventually(lambda: "fenced, another producer leads" in leader.said)
    time.sleep(0.3)
    stored = [text.decode() for text in contents_of(attentive.address(), topic)]
    of_leader = [int(text.split()[1]) for text in stored if text.startswith("ada ")]
    # The message in flight when it froze is stored once or not at all; nothing after it.
    assert of_leader in (wrote, [*wrote, len(wrote) + 1])
    # Its receipt may have arrived before the freeze: the process reports it when it wakes.
    assert leader.wrote in (wrote, of_leader)
    first_of_other = next(i for i, text in enumerate(stored) if text.startswith("bob "))
    assert all(text.startswith("bob ") for text in stored[first_of_other:])
    check_reported_outage(attentive, stock, topic)


def test_the_loser_is_notified_immediately(
    broker: LocalBrokers, raw: RawClients, topic: str
) -> None:
    loser = raw(broker.address()).producer(topic, EXCLUSIVE)
    raw(broker.address()).producer(topic, FENCING)
    loser.closed_by_broker()


def test_other_producers_on_the_losers_connection_are_not_disturbed(
    broker: LocalBrokers, stock: StockClients, raw: RawClients, topic: str
) -> None:
    client = stock(broker.service_url)
    client.create_producer(topic, access_mode=Mode.Exclusive)
    other = client.create_producer(f"{topic}-other")
    raw(broker.address()).producer(topic, FENCING)
    for number in range(20):
        other.send(str(number).encode())
    assert len(contents_of(broker.address(), f"{topic}-other")) == 20
    assert other.is_connected()


@pytest.mark.campaign
@pytest.mark.timeout(360 + 10 * ROUNDS)
def test_receipts_of_appended_entries_precede_the_close(
    broker: LocalBrokers, raw: RawClients, topic: str
) -> None:
    """Messages in flight at a takeover have a receipt and are in the log, or neither. None follows the close."""
    for number in range(ROUNDS):
        name = f"{topic}-{number}"
        loser = raw(broker.address()).producer(name, EXCLUSIVE)
        taker = raw(broker.address())
        request = None
        for sequence in range(400):
            loser.send(b"%d" % sequence)
            if sequence == 40 * (number % 10):
                request = taker.ask_producer(name, FENCING)
        assert request is not None
        request.ready().publish(b"the new one's first")
        loser.closed_by_broker()
        receipted = [c.sequence_id for c, _ in loser.client.received if isinstance(c, SendReceipt)]
        loser.client.ping()
        assert not loser.client.is_closed
        later = [c.sequence_id for c, _ in loser.client.received if isinstance(c, SendReceipt)]
        assert later == receipted
        stored = contents_of(broker.address(), name)
        assert stored == [*(b"%d" % n for n in receipted), b"the new one's first"]
        assert receipted == list(range(len(receipted)))  # no hole in the middle


def test_sends_of_a_woken_writer_are_refused_and_not_in_the_log(
    attentive: LocalBrokers, raw: RawClients, topic: str
) -> None:
    """A frozen raw client, silent for long enough, loses the topic. Then it sends."""
    frozen = raw(attentive.address()).producer(topic, EXCLUSIVE)
    frozen.publish(b"before")
    waiter = raw(attentive.address()).waiter(topic)
    frozen.client.freeze()
    waiter.ready().publish(b"after")
    with contextlib.suppress(OSError):
        for _ in range(10):
            frozen.send(b"zombie")
    frozen.client.thaw()
    frozen.client.wait_closed()
    back = raw(attentive.address())
    with pytest.raises(RefusedByBroker) as found:
        back.producer(topic, EXCLUSIVE, name=frozen.name, epoch=frozen.epoch, reconnects=1)
    assert found.value.code is ServerError.PRODUCER_FENCED
    assert contents_of(attentive.address(), topic) == [b"before", b"after"]


def test_a_stale_fencer_deposes_no_holder(
    broker: LocalBrokers, raw: RawClients, topic: str
) -> None:
    """Pulsar disconnects all producers before it compares the epoch."""
    stale = raw(broker.address()).producer(topic, FENCING)
    owner = raw(broker.address()).producer(topic, FENCING)
    waiter = raw(broker.address()).waiter(topic)
    for reconnects in range(1, 4):
        with pytest.raises(RefusedByBroker) as found:
            raw(broker.address()).producer(
                topic, FENCING, name=stale.name, epoch=stale.epoch, reconnects=reconnects
            )
        assert found.value.code is ServerError.PRODUCER_FENCED
    owner.publish(b"undisturbed")
    owner.close()
    waiter.ready()


def test_a_waiter_with_an_old_epoch_is_fenced_and_not_queued(
    broker: LocalBrokers, raw: RawClients, topic: str
) -> None:
    """Pulsar queues it, and at its promotion the topic epoch falls."""
    first = raw(broker.address()).producer(topic, EXCLUSIVE)
    second = raw(broker.address()).producer(topic, FENCING)
    with pytest.raises(RefusedByBroker) as found:
        raw(broker.address()).producer(
            topic, pb.WAIT_FOR_EXCLUSIVE, name=first.name, epoch=first.epoch, reconnects=1
        )
    assert found.value.code is ServerError.PRODUCER_FENCED
    second.close()
    third = raw(broker.address()).producer(topic, EXCLUSIVE)
    assert (first.epoch or 0) < (second.epoch or 0) < (third.epoch or 0)


@pytest.mark.campaign
@pytest.mark.timeout(360 + 10 * ROUNDS)
def test_of_a_concurrent_fencer_sharer_and_waiter_only_one_writes(
    broker: LocalBrokers, raw: RawClients, topic: str
) -> None:
    """Pulsar allows two exclusive writers at once while old sends are in flight."""
    for number in range(ROUNDS):
        name = f"{topic}-{number}"
        old = raw(broker.address()).producer(name, EXCLUSIVE)
        for _ in range(300):
            old.send(b"old")
        fencer, sharer, waiter = (raw(broker.address()) for _ in range(3))
        taking = fencer.ask_producer(name, FENCING)
        sharing = sharer.ask_producer(name)
        waiting = waiter.ask_producer(name, pb.WAIT_FOR_EXCLUSIVE)
        taken = taking.ready()
        with pytest.raises(RefusedByBroker):
            sharing.ready()
        waiting.waits()
        taken.publish(b"mine")
        waiter.ping()
        assert not waiting.is_ready
        stored = contents_of(broker.address(), name)
        assert stored[-1] == b"mine"
        assert set(stored[:-1]) <= {b"old"}
        taken.close()
        assert (waiting.ready().epoch or 0) > (taken.epoch or 0)
        assert not old.client.has_received(
            pb.CommandCloseProducer, lambda c: c.request_id != BROKERS_OWN_REQUEST
        )
