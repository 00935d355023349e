"""What a scenario plays on: one broker, a topic of its own, a connection for each actor.

The actors speak the bare protocol through the raw client that the project's integration tests use,
so a client library's own repairs hide nothing. Not here: what is counted (scenario.py).
"""

from __future__ import annotations

import contextlib
import json
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Self

from tests.integration.raw import (
    NOTHING_STORED,
    RawClient,
    RawConsumer,
    RawProducer,
    RefusedByBroker,
)

from onewriter_core.wire.encoding import encode_send_header
from onewriter_core.wire.messages import entry_payload, parse_metadata
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import MessageId, SendReceipt

MESSAGE_BYTES = 1024

GRANTED, WAITS = "granted", "waits"

# A proxy from the environment is no way to a server on this machine.
_LOOPBACK = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the scenarios wait for what a correct broker does. What does not happen by then counts as missing."""

    http_seconds: float = 10.0
    receipt_seconds: float = 5.0
    """A producer without a receipt after this time does not write."""
    notified_seconds: float = 1.0
    promotion_seconds: float = 5.0
    unload_seconds: float = 3.0
    group_seconds: float = 2.0


@dataclass(frozen=True, slots=True)
class Side:
    """One of the brokers compared."""

    name: str
    address: tuple[str, int]
    admin_url: str
    patience: Patience = Patience()

    @property
    def service_url(self) -> str:
        host, port = self.address
        return f"pulsar://{host}:{port}"

    def admin(self, method: str, path: str, body: object = None) -> object:
        """A call of Pulsar's admin API below /admin/v2; raises OSError."""
        request = urllib.request.Request(  # noqa: S310 - the URL of a server that we started
            f"{self.admin_url}/admin/v2{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with _LOOPBACK.open(request, timeout=self.patience.http_seconds) as response:
            answer = response.read()
        return json.loads(answer) if answer else None


class Stored(NamedTuple):
    """One entry of a topic's log."""

    position: tuple[int, int]
    producer: str
    sequence_id: int
    content: bytes


class Stage:
    """One round: ``topic`` is new, ``number`` the round's; its connections are closed at the end."""

    def __init__(self, side: Side, topic: str, number: int) -> None:
        self.side = side
        self.patience = side.patience
        self.topic = topic
        self.number = number
        self._cleanup = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    def client(self, address: tuple[str, int] | None = None) -> RawClient:
        """A new connection, which has looked the topic up as every client does first."""
        client = self._cleanup.enter_context(RawClient(address or self.side.address))
        client.lookup(self.topic)
        return client

    def admin(self, method: str, action: str, body: object = None) -> object:
        """A call of the admin API about this round's topic."""
        return self.side.admin(method, f"/persistent/public/default/{self.topic}/{action}", body)

    def writes(self, producer: RawProducer) -> bool:
        """Whether a send of the producer gets a receipt."""
        try:
            sequence_id = producer.send(b"still here")
            producer.client.expect(
                SendReceipt,
                lambda c: (c.producer_id, c.sequence_id) == (producer.producer_id, sequence_id),
                seconds=self.patience.receipt_seconds,
            )
        except OSError:  # closed, or TimeoutError: no receipt
            return False
        return True

    def log(self) -> list[Stored]:
        """The topic's log to its end as it is now."""
        client = self.client()
        consumer = client.subscribe(self.topic, "the-record", permits=0, durable=False)
        end = last_position(consumer)
        found: list[Stored] = []
        while end is not None:
            consumer.flow(1)
            delivery, payload = consumer.receive()
            metadata = parse_metadata(payload)
            position = (delivery.message_id.ledger, delivery.message_id.entry)
            content = bytes(entry_payload(payload))
            found.append(Stored(position, metadata.producer_name, metadata.sequence_id, content))
            if position >= end:
                break
        client.close()
        return found


def last_position(consumer: RawConsumer) -> tuple[int, int] | None:
    """The end of the topic as the broker tells it; None: nothing is stored."""
    client = consumer.client
    request_id = client.next_request_id()
    client.say(pb.CommandGetLastMessageId(consumer_id=consumer.consumer_id, request_id=request_id))
    last = client.answer(pb.CommandGetLastMessageIdResponse, request_id).last_message_id
    end = (last.ledger_id, last.entry_id)
    return None if end == NOTHING_STORED else end


def answer_to(producer: RawProducer) -> str:
    """The first answer to its PRODUCER: ``granted``, ``waits``, or the error's name."""
    try:
        found = producer.client.answer(pb.CommandProducerSuccess, producer.command.request_id)
    except RefusedByBroker as refusal:
        return refusal.code.name
    producer.name = found.producer_name
    if found.producer_ready and found.HasField("topic_epoch"):
        producer.epoch = found.topic_epoch
    return GRANTED if found.producer_ready else WAITS


def is_promoted(producer: RawProducer, seconds: float) -> bool:
    """Whether it is told within so long that it may write."""
    request_id = producer.command.request_id
    try:
        found = producer.client.expect(
            pb.CommandProducerSuccess,
            lambda c: c.request_id == request_id and c.producer_ready,
            seconds=seconds,
        )
    except TimeoutError:
        return False
    producer.name, producer.epoch = found.producer_name, found.topic_epoch
    return True


def send_burst(producer: RawProducer, count: int, first: int = 0) -> None:
    """Sends with the sequence ids from ``first`` on, in one piece, without waiting for receipts.

    Raises OSError when the connection does not take them all.
    """
    frames = []
    for number in range(first, first + count):
        entry = producer.entry(b"%d;" % number + bytes(MESSAGE_BYTES), number)
        frames += [encode_send_header(producer.producer_id, number, len(entry)), entry]
    producer.client.write(b"".join(frames))


def receipts(producer: RawProducer) -> dict[int, MessageId]:
    """All receipts that have come for it, by sequence id; they stay with the client."""
    return {
        command.sequence_id: command.message_id
        for command, _ in list(producer.client.received)
        if isinstance(command, SendReceipt)
        and command.producer_id == producer.producer_id
        and command.message_id is not None
    }


def holds_within(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether it becomes true within so long; returns as soon as it does."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True
