"""Every request of a connection is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import pytest

from onewriter_broker.connection.requests import REQUESTS_MAX, Requests
from onewriter_broker.log.store.blocks import MalformedBlock
from onewriter_broker.quotas.book import Quota, QuotaBook
from onewriter_broker.quotas.requests import RequestsInFlight
from onewriter_broker.topic.registry.loaded_topic import Detection
from onewriter_core.errors import Refused, ServerError, Unavailable, Undecided
from onewriter_core.ids import InvalidTopicName
from onewriter_core.wire import replies
from onewriter_core.wire.proto import PulsarApi_pb2 as pb


class Line:
    """A Link that keeps what is written."""

    has_space = True
    extensions_version = 0

    def __init__(self) -> None:
        self.detection: Detection | None = None
        self.may_only_resume = False
        self.last_inbound = 0.0
        self.written: list[bytes | memoryview] = []
        self.work: list[Coroutine[object, object, None]] = []
        self.resumed = 0

    def is_silent_since(self, moment: float) -> bool:
        return False

    def write(self, *parts: bytes | memoryview) -> None:
        self.written += parts

    def close(self, reason: str) -> None:
        raise AssertionError(reason)

    def auth_response(self, command: pb.CommandAuthResponse) -> None:
        raise AssertionError(command)

    def spawn(self, work: Coroutine[object, object, None]) -> None:
        self.work.append(work)

    def pending_changed(self, difference: int) -> None:
        raise AssertionError(difference)

    def hold_back(self) -> None:
        raise AssertionError("there is room")

    async def wait_for_space(self) -> None: ...

    def resume(self) -> None:
        self.resumed += 1


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Refused(ServerError.CONSUMER_BUSY, "taken"), ServerError.CONSUMER_BUSY),
        (InvalidTopicName("no name"), ServerError.INVALID_TOPIC_NAME),
        (Unavailable("not now"), ServerError.SERVICE_NOT_READY),
        (Undecided("no answer"), ServerError.SERVICE_NOT_READY),
        (MalformedBlock("5-1 cannot be read"), ServerError.PERSISTENCE_ERROR),
    ],
)
async def test_an_exception_of_a_request_is_its_answer(error: Exception, code: ServerError) -> None:
    line = Line()
    requests = Requests(line, RequestsInFlight(QuotaBook()), "subject a")

    async def fail() -> None:
        await asyncio.sleep(0)
        raise error

    requests.run(7, fail())
    await line.work[0]
    assert line.written == [replies.error(7, code, str(error))]


async def test_at_the_bound_no_further_request_begins_until_half_are_answered() -> None:
    line = Line()
    requests = Requests(line, RequestsInFlight(QuotaBook()), "subject a")

    async def wait() -> None: ...

    for _ in range(REQUESTS_MAX - 1):
        requests.beside(wait())
    assert not requests.is_full
    requests.beside(wait())
    assert requests.is_full
    for work in line.work[: REQUESTS_MAX // 2 - 1]:
        await work
    assert requests.is_full
    assert line.resumed == 0
    await line.work[REQUESTS_MAX // 2 - 1]
    assert not requests.is_full
    assert line.resumed == 1
    for work in line.work[REQUESTS_MAX // 2 :]:
        await work
    assert line.resumed == 1


async def test_beyond_a_subject_s_quota_none_of_its_connections_begins_another() -> None:
    in_flight = RequestsInFlight(QuotaBook({Quota.REQUESTS_PER_SUBJECT: 4}))
    lines = [Line(), Line()]
    first, second = (Requests(line, in_flight, "subject a") for line in lines)
    others = Line()
    other = Requests(others, in_flight, "subject b")

    async def answer() -> None: ...

    for number in range(3):
        first.run(number, answer())
    assert not first.is_full
    second.run(3, answer())
    other.run(4, answer())
    assert second.is_full
    assert not other.is_full
    assert in_flight.most() == 4
    await lines[0].work[0]
    assert second.is_full, "three of four are still worked on"
    await lines[0].work[1]
    assert not second.is_full
    assert lines[1].resumed == 1
    await lines[0].work[2]
    await lines[1].work[0]
    assert in_flight.most() == 1, "of the other subject"
    await others.work[0]


async def test_a_lost_connection_is_not_notified_of_free_space() -> None:
    in_flight = RequestsInFlight(QuotaBook({Quota.REQUESTS_PER_SUBJECT: 1}))
    lines = [Line(), Line()]
    first, second = (Requests(line, in_flight, "subject a") for line in lines)

    async def answer() -> None: ...

    first.run(1, answer())
    second.run(2, answer())
    second.lost()
    await lines[0].work[0]
    await lines[1].work[0]
    assert in_flight.most() == 0
