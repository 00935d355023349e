"""CLOSE_PRODUCER: each one is answered, after the receipts of earlier entries."""

from __future__ import annotations

from collections.abc import Coroutine
from types import SimpleNamespace
from typing import cast

import pytest
from tests.unit.broker.topic.fence_path_world import Gates, World, serving, until

from onewriter_broker.connection.clients import Clients
from onewriter_broker.connection.producers import ProducerCommands
from onewriter_broker.connection.requests import Requests
from onewriter_broker.quotas.book import QuotaBook
from onewriter_broker.quotas.requests import RequestsInFlight
from onewriter_broker.topic.producers.producer import IDLE_CALLS_MAX, Producer
from onewriter_broker.topic.registry.loaded_topic import Detection, LoadedTopic
from onewriter_broker.topic.runner import TopicRunner
from onewriter_core.errors import ProtocolError
from onewriter_core.ids import Identity
from onewriter_core.topic.model import WHOLE, AccessMode, Request, TransitionCause
from onewriter_core.wire.commands import decode_command
from onewriter_core.wire.frames import FrameReader
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import SendReceipt


class Line:
    """A Link that records what the client receives, in order."""

    has_space = True
    extensions_version = 0

    def __init__(self) -> None:
        self.detection: Detection | None = None
        self.may_only_resume = False
        self.last_inbound = 0.0
        self.channel: list[object] = []
        self.unanswered_bytes = 0
        self._frames = FrameReader()

    def is_silent_since(self, moment: float) -> bool:
        return False

    def write(self, *parts: bytes | memoryview) -> None:
        for part in parts:
            self.channel += [self._read(bytes(frame)) for frame, _ in self._frames.feed(part)]

    @staticmethod
    def _read(frame: bytes) -> object:
        match decode_command(frame):
            case pb.CommandSuccess(request_id=request_id):
                return f"success {request_id}"
            case SendReceipt(sequence_id=sequence_id):
                return f"receipt {sequence_id}"
            case command:
                return type(command).__name__

    def close(self, reason: str) -> None:
        self.channel.append(reason)

    def auth_response(self, command: pb.CommandAuthResponse) -> None:
        raise AssertionError(command)

    def spawn(self, work: Coroutine[object, object, None]) -> None:
        raise AssertionError(work)

    def pending_changed(self, difference: int) -> None:
        self.unanswered_bytes += difference

    def hold_back(self) -> None:
        raise AssertionError("there is room")

    async def wait_for_space(self) -> None: ...

    def resume(self) -> None:
        raise AssertionError("nothing waits")


class Client:
    """A connection with one granted producer."""

    def __init__(self, world: World, runner: TopicRunner) -> None:
        self.line = Line()
        self.world = world
        self.runner = runner
        identity = Identity()
        settings = SimpleNamespace(buckets=64)
        clients = cast(
            "Clients",
            SimpleNamespace(
                appender=world.appender,
                topics=None,
                ownerships=None,
                settings=settings,
                quotas=QuotaBook(),
            ),
        )
        self.producing = ProducerCommands(
            clients,
            self.line,
            Requests(self.line, RequestsInFlight(QuotaBook()), "subject a"),
            name="c1",
            address="",
            identity=identity,
            client_version="",
        )

    async def connected(self, name: str, former: Producer | None = None) -> Producer:
        """Create the producer. With ``former``, it resumes as that one."""
        request = Request(
            registration=f"c1/{id(self)}",
            connection="c1",
            producer_name=name,
            name_given=True,
            mode=AccessMode.EXCLUSIVE,
            topic_epoch=None if former is None else former.epoch,
            reconnects=0 if former is None else 1,
        )
        log = self.runner.logs[WHOLE]
        producer = Producer(self.producing, 1, 1, request, log, self.world.appender.append_soon)
        self.producing._producers[1] = producer
        self.producing._topics_of[1] = cast("LoadedTopic", SimpleNamespace(runner=self.runner))
        self.producing._exclusive += 1
        self.runner.request(producer)
        await until(lambda: producer.is_active)
        self.line.channel.clear()
        return producer

    def close(self, request_id: int) -> None:
        self.producing.close(pb.CommandCloseProducer(producer_id=1, request_id=request_id))


async def cut_off(world: World, runner: TopicRunner, *numbers: int) -> tuple[Producer, Gates]:
    """A producer that lost its connection while the store has not answered for these entries."""
    former, _ = await world.granted(runner, AccessMode.EXCLUSIVE, "writer")
    gates = Gates(world.store, "append")
    for number in numbers:
        world.send(former, number)
    await gates.reached("append")
    runner.gone(former, TransitionCause.CONNECTION_LOST)
    return former, gates


async def test_every_close_is_answered_after_the_receipts() -> None:
    async with serving() as world:
        client = Client(world, await world.load())
        producer = await client.connected("writer")
        world.send(producer, 0)
        client.close(7)
        client.close(8)
        assert client.line.channel == []
        await until(lambda: len(client.line.channel) == 3)
        assert client.line.channel == ["receipt 0", "success 7", "success 8"]
        assert not client.runner.producers
        client.close(9)
        assert client.line.channel[-1] == "success 9"


async def test_a_close_follows_the_receipts_of_attached_resends() -> None:
    async with serving() as world:
        runner = await world.load()
        former, gates = await cut_off(world, runner, 0, 1)
        client = Client(world, runner)
        back = await client.connected("writer", former)
        world.send(back, 0)
        world.send(back, 1)
        client.close(7)
        assert client.line.channel == []
        gates.open("append")
        await until(lambda: len(client.line.channel) == 3)
        assert client.line.channel == ["receipt 0", "receipt 1", "success 7"]
        assert sum((await world.entries_by_ledger()).values()) == 2


async def test_a_close_does_not_wait_for_what_the_former_connection_alone_sent() -> None:
    async with serving() as world:
        runner = await world.load()
        former, gates = await cut_off(world, runner, 0)
        client = Client(world, runner)
        await client.connected("writer", former)
        client.close(7)
        assert client.line.channel == ["success 7"]
        gates.open("append")


async def test_a_close_is_answered_although_the_resends_never_are() -> None:
    """The topic leaves while resends are attached, so they get no receipt any more."""
    async with serving() as world:
        runner = await world.load()
        former, gates = await cut_off(world, runner, 0)
        client = Client(world, runner)
        back = await client.connected("writer", former)
        world.send(back, 0)
        client.close(7)
        runner.unload("the topic is moving")
        assert client.line.channel[0] == "success 7"
        gates.open("append")


async def test_a_producer_that_is_closed_without_end_loses_its_connection() -> None:
    async with serving() as world:
        client = Client(world, await world.load())
        producer = await client.connected("writer")
        world.send(producer, 0)
        for number in range(IDLE_CALLS_MAX):
            client.close(number)
        with pytest.raises(ProtocolError):
            client.close(IDLE_CALLS_MAX)
