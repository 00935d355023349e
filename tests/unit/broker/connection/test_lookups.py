"""A look-up waits for a bucket that is moving, and finally, or at once, states why it has no owner."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from onewriter_broker.anchor.api import Addresses
from onewriter_broker.auth.authorization import Authorization
from onewriter_broker.connection.lookups import (
    NO_OWNER,
    WAITING_MAX,
    Lookups,
)
from onewriter_broker.ownership.owner_waits import (
    ANSWERS_PER_POLL_MAX,
    CALLERS_MAX,
    HINDERED_WAIT_SECONDS,
    LATE_WAIT_SECONDS,
    OWNER_POLL_SECONDS,
    OWNER_WAIT_SECONDS,
    OwnerWaits,
)
from onewriter_broker.settings import Settings
from onewriter_broker.tls import over_plain, over_tls
from onewriter_broker.topic.registry.topics import Topics
from onewriter_core.api.manifests import DesiredState
from onewriter_core.errors import ServerError, Undecided
from onewriter_core.ids import Identity, TopicName
from onewriter_core.wire.commands import decode_command
from onewriter_core.wire.frames import FrameReader
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

pytestmark = pytest.mark.looptime

HERE = Addresses("pulsar://here:6650", "http://here:8080")
THERE = Addresses("pulsar://there:6650", "http://there:8080")
TOPIC = "persistent://public/default/orders"


class Ownership:
    """Somebody else's opinion of who owns what."""

    def __init__(self) -> None:
        self.owner: Addresses | None = None
        self.reason = ""
        self.is_late = False
        self.buckets = {3: "held"}

    def held(self) -> dict[int, str]:
        return self.buckets

    def owner_of(self, bucket: int) -> Addresses | None:
        return self.owner

    def is_in_doubt(self, bucket: int) -> bool:
        return self.is_late

    def waiting_reason(self, bucket: int) -> str:
        return self.reason


class World:
    """Look-ups at a broker; ``answers`` is what they wrote."""

    def __init__(self, *, callers_max: int = CALLERS_MAX) -> None:
        self.ownership = Ownership()
        self.answers: list[bytes] = []
        topics = SimpleNamespace(
            ownership=self.ownership,
            owner_waits=OwnerWaits(self.ownership, callers_max=callers_max),
            desired=DesiredState(),
            bucket_of=lambda _name: 3,
            partitions_of=self._partitions_of,
        )
        self.settings = Settings()
        self.lookups = Lookups(
            cast("Topics", topics),
            Authorization(Settings(), (), DesiredState),
            Identity(),
            lambda owner: over_tls(owner, self.settings),
            lambda owner: over_plain(owner, self.settings),
        )

    async def _partitions_of(self, name: TopicName) -> int | None:
        raise Undecided("the store does not answer")

    async def look_up(self) -> tuple[pb.CommandLookupResponse, float]:
        """The answer, and after how many seconds it came."""
        clock = asyncio.get_running_loop()
        asked_at = clock.time()
        await self.lookups.lookup(pb.CommandLookup(topic=TOPIC, request_id=7), self.answers.append)
        answer = self.answer()
        assert isinstance(answer, pb.CommandLookupResponse)
        return answer, clock.time() - asked_at

    def answer(self) -> object:
        ((frame, _),) = FrameReader().feed(self.answers.pop())
        return decode_command(bytes(frame))


def named(frame: bytes) -> tuple[int, str]:
    found = decode_command(frame[8:])
    assert isinstance(found, pb.CommandLookupResponse)
    return found.request_id, found.broker_service_url


async def test_a_known_owner_is_named_without_waiting() -> None:
    world = World()
    world.ownership.owner = THERE
    command = pb.CommandLookup(topic="t", request_id=7)
    assert world.lookups.answer(command, world.answers.append)
    assert [named(each) for each in world.answers] == [(7, THERE.broker_url)]


async def test_a_look_up_without_a_task_is_answered_when_the_owner_is_known() -> None:
    world = World()
    for request_id in (7, 8):
        command = pb.CommandLookup(topic=TOPIC, request_id=request_id)
        assert world.lookups.answer(command, world.answers.append)
    await asyncio.sleep(1.0)
    assert world.answers == []
    world.ownership.owner = HERE
    await asyncio.sleep(2 * OWNER_POLL_SECONDS)
    assert [named(each) for each in world.answers] == [(7, HERE.broker_url), (8, HERE.broker_url)]


async def test_a_broker_whose_heartbeat_is_late_is_named_with_its_next_heartbeat() -> None:
    world = World()
    world.ownership.owner, world.ownership.is_late = THERE, True
    asyncio.get_running_loop().call_later(0.5, setattr, world.ownership, "is_late", False)
    answer, seconds = await world.look_up()
    assert answer.broker_service_url == THERE.broker_url
    assert 0.5 <= seconds <= 0.5 + 2 * OWNER_POLL_SECONDS


async def test_the_successor_of_a_broker_that_died_is_named_instead_of_it() -> None:
    world = World()
    world.ownership.owner, world.ownership.is_late = THERE, True
    loop = asyncio.get_running_loop()
    loop.call_later(1.5, setattr, world.ownership, "owner", None)
    loop.call_later(3.0, setattr, world.ownership, "is_late", False)
    loop.call_later(3.0, setattr, world.ownership, "owner", HERE)
    answer, seconds = await world.look_up()
    assert answer.broker_service_url == HERE.broker_url
    assert 3.0 <= seconds <= 3.0 + 2 * OWNER_POLL_SECONDS


async def test_a_broker_that_stays_late_is_named_in_the_end() -> None:
    world = World()
    world.ownership.owner, world.ownership.is_late = THERE, True
    answer, seconds = await world.look_up()
    assert answer.broker_service_url == THERE.broker_url
    assert seconds == pytest.approx(LATE_WAIT_SECONDS, abs=2 * OWNER_POLL_SECONDS)


async def test_further_look_ups_of_a_connection_name_a_late_broker_at_once() -> None:
    world = World()
    world.ownership.owner, world.ownership.is_late = THERE, True
    command = pb.CommandLookup(topic=TOPIC, request_id=7)
    for _ in range(WAITING_MAX):
        assert world.lookups.answer(command, world.answers.append)
    assert world.answers == []
    command = pb.CommandLookup(topic=TOPIC, request_id=8)
    assert world.lookups.answer(command, world.answers.append)
    assert [named(each) for each in world.answers] == [(8, THERE.broker_url)]
    world.ownership.owner = None  # the next one counts as a request, which a connection has few of
    assert not world.lookups.answer(command, world.answers.append)
    world.ownership.owner, world.ownership.is_late = HERE, False
    await asyncio.sleep(2 * OWNER_POLL_SECONDS)
    assert len(world.answers) == WAITING_MAX + 1
    world.ownership.is_late = True  # all have their answers: the next one waits again
    assert world.lookups.answer(command, world.answers.append)
    assert len(world.answers) == WAITING_MAX + 1


async def test_look_ups_above_the_limit_of_the_broker_do_not_wait_for_a_late_one() -> None:
    world = World(callers_max=0)
    world.ownership.owner, world.ownership.is_late = THERE, True
    command = pb.CommandLookup(topic=TOPIC, request_id=7)
    assert world.lookups.answer(command, world.answers.append)
    assert [named(each) for each in world.answers] == [(7, THERE.broker_url)]


async def test_thousands_of_look_ups_get_their_answers_in_several_ticks() -> None:
    ownership = Ownership()
    waits, answers = OwnerWaits(ownership), list[Addresses | None]()
    for _ in range(2 * ANSWERS_PER_POLL_MAX + 1):
        assert waits.call(3, answers.append)
    ownership.owner = HERE
    await asyncio.sleep(OWNER_POLL_SECONDS * 1.5)
    assert answers == [HERE] * (2 * ANSWERS_PER_POLL_MAX + 1)


async def test_a_caller_with_less_time_gets_a_late_broker_at_its_end() -> None:
    ownership = Ownership()
    ownership.owner, ownership.is_late = THERE, True
    waits, clock = OwnerWaits(ownership), asyncio.get_running_loop()
    asked_at = clock.time()

    async def timed(wait_seconds: float) -> float:
        assert await waits.wait(3, wait_seconds) == THERE
        return clock.time() - asked_at

    seconds = await asyncio.gather(*map(timed, (OWNER_WAIT_SECONDS, 0.5, 0.0)))
    assert seconds == pytest.approx([LATE_WAIT_SECONDS, 0.5, 0.0], abs=2 * OWNER_POLL_SECONDS)


async def test_the_owner_is_named_as_soon_as_there_is_one() -> None:
    world = World()
    asyncio.get_running_loop().call_later(2.0, setattr, world.ownership, "owner", HERE)
    answer, seconds = await world.look_up()
    assert answer.response == pb.CommandLookupResponse.CONNECT
    assert answer.broker_service_url == HERE.broker_url
    assert 2.0 <= seconds <= 2.0 + 2 * OWNER_POLL_SECONDS


async def test_a_plain_address_is_named_unless_tls_alone_is_served() -> None:
    world = World()
    world.ownership.owner = Addresses("pulsar://here:6650", "http://here:8080")
    world.settings = Settings(tls_cert_file=Path("cert"))
    answer, _ = await world.look_up()
    assert answer.broker_service_url == "pulsar://here:6650"
    assert answer.broker_service_url_tls == "pulsar+ssl://here:6651"
    world.settings = world.settings.model_copy(update={"tls_only": True})
    answer, _ = await world.look_up()
    assert not answer.HasField("broker_service_url")
    assert answer.broker_service_url_tls == "pulsar+ssl://here:6651"


async def test_a_look_up_that_waited_in_vain_may_be_repeated_on_the_same_connection() -> None:
    """ServiceNotReady would make Java's and Go's clients close it, with all that leads on it."""
    answer, seconds = await World().look_up()
    assert answer.response == pb.CommandLookupResponse.FAILED
    assert ServerError(answer.error) is ServerError.METADATA_ERROR
    assert answer.message.startswith(NO_OWNER)
    assert seconds == pytest.approx(OWNER_WAIT_SECONDS, abs=2 * OWNER_POLL_SECONDS)


async def test_a_look_up_does_not_wait_for_an_absent_broker() -> None:
    world = World()
    world.ownership.reason = "the store holds nothing of bucket 3"
    answer, seconds = await world.look_up()
    assert ServerError(answer.error) is ServerError.METADATA_ERROR
    assert answer.message.endswith("has no owner now: the store holds nothing of bucket 3")
    assert seconds == pytest.approx(HINDERED_WAIT_SECONDS, abs=2 * OWNER_POLL_SECONDS)


async def test_an_unknown_listener_is_refused_with_the_message_of_pulsar() -> None:
    world = World()
    world.ownership.owner = HERE
    command = pb.CommandLookup(topic=TOPIC, request_id=7, advertised_listener_name="test")
    await world.lookups.lookup(command, world.answers.append)
    answer = world.answer()
    assert isinstance(answer, pb.CommandLookupResponse)
    assert ServerError(answer.error) is ServerError.NOT_ALLOWED_ERROR
    assert answer.message == "the broker do not have test listener"


@pytest.mark.parametrize(
    ("buckets", "code", "stays"),
    [({3: "held"}, ServerError.METADATA_ERROR, True), ({}, ServerError.SERVICE_NOT_READY, False)],
)
async def test_unreadable_partitions_are_requested_again(
    buckets: dict[int, str], code: ServerError, *, stays: bool
) -> None:
    """On the same connection, unless nothing is served here: then perhaps somewhere else."""
    world = World()
    world.ownership.buckets = buckets
    command = pb.CommandPartitionedMetadata(topic=TOPIC, request_id=8)
    await world.lookups.partitions(command, world.answers.append)
    answer = world.answer()
    assert isinstance(answer, pb.CommandPartitionedMetadataResponse)
    assert ServerError(answer.error) is code
    assert answer.message.startswith(NO_OWNER) == stays
    assert "the store does not answer" in answer.message
