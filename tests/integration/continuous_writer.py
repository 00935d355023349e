"""A producer that publishes without pause through all faults, and the conditions that must hold afterwards.

Every value is unique. An acknowledged value is remembered with its position. After a reconnect, other values
are sent again with the same sequence id, as stock clients do. ``stored_topic`` reads the log from the store,
``check`` compares both.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Self

from tests.integration.raw import EXCLUSIVE, RawClient, RawProducer, RefusedByBroker, eventually
from tests.violation import require

from onewriter_broker.log.store.api import Block, Marker
from onewriter_broker.log.store.redis.primary import RedisSettings
from onewriter_broker.log.store.redis.store import RedisLogStore
from onewriter_broker.log.topic_log.log import last_position, payloads
from onewriter_core.errors import ServerError, Unavailable
from onewriter_core.ids import EARLIEST, Position, TopicName
from onewriter_core.wire.messages import entry_payload
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import SendReceipt
from onewriter_testing.processes import LocalBrokers

WINDOW = 16
"""The maximum number of unanswered sends."""

PAUSE_SECONDS = 0.002
RECONNECT_SECONDS = 0.05

REST_SECONDS = 0.1
UNCHANGED_POLLS = 10
"""If this many successive checks find no new acknowledgement, all data in transit has arrived.

One long wait would not be sufficient: this process may itself be suspended meanwhile.
"""

WAIT_SECONDS = 120.0


class ContinuousWriter:
    """One exclusive writer of one topic, in its own thread. ``with`` starts and stops it.

    The writer asks each of ``brokers`` in turn which broker serves the topic. ``epochs`` are those that it was
    granted, in order, one for each new producer. ``resumed`` counts the reconnects that kept their epoch.
    """

    window = WINDOW
    pause_seconds = PAUSE_SECONDS
    name = "writer"

    def __init__(self, topic: str, *brokers: LocalBrokers, mode: Any = EXCLUSIVE) -> None:
        self.topic = topic
        self.acked: dict[bytes, Position] = {}
        self.epochs: list[int] = []
        self.resumed = 0
        self.refusals: list[str] = []
        self._brokers = itertools.cycle(brokers)
        self._mode = mode
        self._unanswered: dict[int, bytes] = {}
        self._numbers = itertools.count()
        self._is_over = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop publishing, and wait a moment for answers."""
        self._is_over.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def has_stored(self, more: int) -> None:
        """Wait until this number of values that were sent after the call is acknowledged.

        The first values that are acknowledged after the call may have been stored before it.
        """
        self.has_acked(self.window + more)

    def has_acked(self, more: int, *, seconds: float = WAIT_SECONDS) -> None:
        """Wait until this number of further messages is acknowledged."""
        goal = len(self.acked) + more
        eventually(
            lambda: len(self.acked) >= goal or not self._thread.is_alive(),
            seconds,
            what=f"{goal - len(self.acked)} of {more} not acknowledged; heard {self.refusals[-3:]}",
        )

    def at_rest(self) -> int:
        """Return the number of acknowledged messages, once a fault prevents further ones."""
        found, polls = -1, 0

        def is_at_rest() -> bool:
            nonlocal found, polls
            before, found = found, len(self.acked)
            polls = polls + 1 if before == found else 0
            time.sleep(REST_SECONDS)
            return polls >= UNCHANGED_POLLS

        eventually(is_at_rest, WAIT_SECONDS, what="it is acknowledged on and on")
        return found

    def _run(self) -> None:
        try:
            name, generation, reconnects = "", 0, 0
            while not self._is_over.is_set():
                epoch = self.epochs[-1] if name else None
                name = name or f"{self.name}-{generation}"
                try:
                    host, port = self._address()
                    with self._connect((host, port)) as client:
                        producer = client.ask_producer(
                            self.topic, self._mode, name=name, epoch=epoch, reconnects=reconnects
                        ).ready()
                        assert producer.epoch is not None
                        if epoch is None:
                            self._granted(producer.epoch)
                        else:
                            assert producer.epoch == epoch, "a resume that changed the epoch"
                            self.resumed += 1
                        reconnects += 1
                        self._publish(client, producer)
                except RefusedByBroker as refused:
                    self.refusals.append(str(refused))
                    if refused.code is ServerError.PRODUCER_FENCED:
                        # The client does not know the result of unanswered sends; a new producer starts again.
                        self._unanswered.clear()
                        name, generation, reconnects = "", generation + 1, 0
                        self._fenced()
                    elif not epoch:
                        name = ""
                except (OSError, TimeoutError, Unavailable) as error:
                    self.refusals.append(repr(error)[:200])
                    name = "" if epoch is None and len(self.epochs) <= generation else name
                self._is_over.wait(RECONNECT_SECONDS)
        except BaseException as failure:  # noqa: BLE001 - raised again in the thread that waits
            self._failure = failure

    def _connect(self, address: tuple[str, int]) -> RawClient:
        return RawClient(address)

    def _granted(self, epoch: int) -> None:
        """Note a new epoch."""
        self.epochs.append(epoch)

    def _fenced(self) -> None:
        """React to the end of the present epoch."""

    def _may_publish(self) -> bool:
        """Whether to send new values."""
        return True

    def _value(self, producer: RawProducer, number: int) -> bytes:
        """A value that no other producer sends."""
        return f"{producer.name}/{number}".encode()

    def _acknowledged(self, value: bytes, position: Position) -> None:
        """Note a receipt."""
        self.acked[value] = position

    def _address(self) -> tuple[str, int]:
        return named_owner(next(self._brokers), self.topic)

    def _publish(self, client: RawClient, producer: RawProducer) -> None:
        for number, value in self._unanswered.items():
            producer.send(value, number)
        while not client.is_closed:
            self._receive(client, producer)
            if client.has_received(pb.CommandCloseProducer):
                return
            if self._is_over.is_set():
                with contextlib.suppress(TimeoutError):
                    eventually(
                        lambda: self._receive(client, producer) == 0 or client.is_closed, 5.0
                    )
                return
            while len(self._unanswered) < self.window and self._may_publish():
                number = next(self._numbers)
                self._unanswered[number] = self._value(producer, number)
                producer.send(self._unanswered[number], number)
            time.sleep(self.pause_seconds)

    def _receive(self, client: RawClient, producer: RawProducer) -> int:
        """Read the receipts that have arrived; return the number of unanswered sends."""
        with client._changed:
            receipts = [c for c, _ in client.received if isinstance(c, SendReceipt)]
            client.received[:] = [h for h in client.received if not isinstance(h[0], SendReceipt)]
        for receipt in receipts:
            value = self._unanswered.pop(receipt.sequence_id, None)
            if value is not None:
                assert receipt.message_id is not None
                ledger, entry = receipt.message_id.ledger, receipt.message_id.entry
                self._acknowledged(value, Position(ledger, entry))
        return len(self._unanswered)


def named_owner(brokers: LocalBrokers, topic: str) -> tuple[str, int]:
    """Return the broker that a look-up at the first of these brokers names. Raises Unavailable, OSError."""
    with RawClient(brokers.address()) as client:
        url = client.lookup(topic).broker_service_url
    if not url:
        raise Unavailable(f"no broker serves {topic}")
    host, _, port = url.removeprefix("pulsar://").rpartition(":")
    return host, int(port)


@dataclass
class StoredTopic:
    """A log as it is in the store: its markers' epochs by ledger, its entries in order."""

    epochs: dict[int, int] = field(default_factory=dict)
    entries: list[tuple[Position, bytes]] = field(default_factory=list)


def stored_topic(url: str, topic: str, *, buckets: int = 64) -> StoredTopic:
    """Read a log directly from the store."""

    async def read() -> StoredTopic:
        store = RedisLogStore(RedisSettings(url=url, buckets=buckets))
        stored, after = StoredTopic(), EARLIEST
        try:
            while blocks := await store.read_blocks(TopicName.parse(topic), after, count=500):
                for block in blocks:
                    _add(stored, block)
                last = last_position(blocks[-1])
                after = Position(last.ledger, last.entry + 1)
        finally:
            await store.close()
        return stored

    return asyncio.run(read())


def _add(stored: StoredTopic, block: Block | Marker) -> None:
    if isinstance(block, Marker):
        if "epoch" in block.fields:
            stored.epochs[block.position.ledger] = int(block.fields["epoch"])
        return
    ledger, first = block.position
    for index, payload in enumerate(payloads(block)):
        position = Position(ledger, first + index)
        stored.entries.append((position, bytes(entry_payload(payload))))


def reported_losses(brokers: Iterable[LocalBrokers], topic: str) -> list[tuple[Position, Position]]:
    """Return the losses of the topic in the brokers' logs: after the first position, up to the second."""
    name = str(TopicName.parse(topic))
    return [
        (Position.parse(str(event["after"])), Position.parse(str(event["last"])))
        for each in brokers
        for event in each.events("entries.lost")
        if event["topic"] == name
    ]


def check(
    writer: ContinuousWriter, stored: StoredTopic, lost: list[tuple[Position, Position]]
) -> int:
    """Compare the writer's records with the log; return the number of lost acknowledged values.

    Each acknowledged value is at its acknowledged position, or that position was reported lost and the log does
    not contain the value. No value is stored twice or before an earlier one, and no epoch falls.
    """
    positions = [position for position, _ in stored.entries]
    values = [value for _, value in stored.entries]
    require(positions == sorted(set(positions)), "an entry was appended below another")
    require(len(set(values)) == len(values), "a value stands twice")
    numbers = [int(value.rpartition(b"/")[2]) for value in values]
    require(numbers == sorted(numbers), "values changed places")
    require(writer.epochs == sorted(set(writer.epochs)), f"epochs went back: {writer.epochs}")
    epochs = [epoch for _, epoch in sorted(stored.epochs.items())]
    require(epochs == sorted(epochs), f"epochs in the log went back: {stored.epochs}")
    ahead = {ledger: epoch for ledger, epoch in stored.epochs.items() if epoch > ledger}
    require(not ahead, f"ledgers with a later epoch: {ahead}")
    there = dict(stored.entries)
    missing = [(p, v) for v, p in writer.acked.items() if there.get(p) != v]
    silent = [(p, v) for p, v in missing if not any(a < p <= last for a, last in lost)]
    require(not silent, f"{len(silent)} acknowledged values lost silently: {silent[:3]}; {lost}")
    announced = [p for p in positions if any(after < p <= last for after, last in lost)]
    require(not announced, f"reported lost, but there: {announced[:3]}")
    back = {v for _, v in missing} & set(values)
    require(not back, f"acknowledged there, standing elsewhere: {sorted(back)[:3]}")
    return len(missing)
