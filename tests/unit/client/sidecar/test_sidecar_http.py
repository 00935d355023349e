"""The sidecar's HTTP against a scripted broker: sessions, and publishing one message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.clock import skip
from tests.unit.client.fake_broker import FakeBroker, begin
from tests.unit.client.sidecar_world import SidecarWorld, lose_the_topic, running_sidecar

from onewriter.sidecar.limits import SidecarLimits
from onewriter_core.wire.messages import parse_metadata
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import Send

MALFORMED = ("", "7", "7-", "x-0123456789abcdef", "7-0123456789ABCDEF", "7-0123456789abcdef0")

PUBLISH_SECONDS = 30.0
"""The limit of a publish without an answer. The test skips it."""


# ---------------------------------------------------------------- sessions


async def test_a_session_is_an_epoch_and_a_nonce_and_publishes(
    broker: FakeBroker, sidecar: SidecarWorld
) -> None:
    standing = await sidecar.until("leading")
    assert standing["session"].startswith("7-")
    assert (standing["epoch"], standing["latestEpoch"]) == (7, 7)
    assert standing["verified"] is True
    answer = await sidecar.publish(b"\x00binary", standing["session"])
    assert answer.status == 200
    assert answer.body == {
        "messageId": "7:1:-1",
        "ledger": 7,
        "entry": 1,
        "epoch": 7,
        "stored": True,
    }
    assert broker.contents() == [b"\x00binary"]


async def test_without_a_session_nothing_is_published(
    broker: FakeBroker, sidecar: SidecarWorld
) -> None:
    await sidecar.lead()
    assert (await sidecar.publish(b"x", None)).status == 428
    for session in MALFORMED:
        answer = await sidecar.publish(b"x", session)
        assert answer.status == (400 if session else 428), session
        assert answer.body["stored"] is False
    assert broker.sends() == []


async def test_a_waiting_sidecar_answers_a_definite_409(
    broker: FakeBroker, sidecar: SidecarWorld
) -> None:
    session = await sidecar.lead()
    lose_the_topic(broker)
    await sidecar.until("queueing")
    standing = await sidecar.standing()
    assert standing["session"] is None
    assert standing["lastLoss"]["epoch"] == 7
    answer = await sidecar.publish(b"late", session)
    assert answer.status == 409
    assert answer.body["stored"] is False
    assert (answer.body["sessionEpoch"], answer.body["epoch"]) == (7, 8)
    assert broker.sends() == []


async def test_a_session_never_rides_on_a_grant_won_back(
    broker: FakeBroker, sidecar: SidecarWorld
) -> None:
    session = await sidecar.lead()
    lose_the_topic(broker)
    request = await broker.received_of(pb.CommandProducer, 3)
    broker.epoch = 8
    broker.grant(broker.links[-1], request)
    won_back = await sidecar.lead()
    assert won_back != session
    answer = await sidecar.publish(b"for the former term", session)
    assert answer.status == 409
    assert (answer.body["sessionEpoch"], answer.body["epoch"]) == (7, 9)
    same_epoch_of_another = f"9-{'0' * 16}"
    assert (await sidecar.publish(b"x", same_epoch_of_another)).status == 409
    assert (await sidecar.publish(b"for this one", won_back)).status == 200
    assert broker.contents() == [b"for this one"]


async def test_a_publish_that_is_fenced_on_its_way_gets_its_409(
    broker: FakeBroker, sidecar: SidecarWorld
) -> None:
    session = await sidecar.lead()
    broker.answers[Send] = lambda _link, _send: lose_the_topic(broker)
    answer = await sidecar.publish(b"refused", session)
    assert (answer.status, answer.body["stored"]) == (409, False)
    assert (answer.body["sessionEpoch"], answer.body["epoch"]) == (7, 8)


async def test_a_publish_with_an_unknown_result_is_answered_504(
    broker: FakeBroker, sidecar: SidecarWorld
) -> None:
    session = await sidecar.lead()

    def cut(_link: Any, _send: Any) -> None:
        lose_the_topic(broker)
        broker.links[-1].cut()

    broker.answers[Send] = cut
    answer = await sidecar.publish(b"who knows", session)
    assert (answer.status, answer.body["stored"]) == (504, None)


async def test_a_publish_that_no_broker_takes_in_time_is_a_503(
    broker: FakeBroker, tmp_path: Path
) -> None:
    async with running_sidecar(broker, tmp_path, publish_timeout_seconds=0.2) as sidecar:
        session = await sidecar.lead()
        broker.answers[pb.CommandLookup] = None
        broker.links[-1].cut()
        await broker.received_of(pb.CommandLookup, 2)
        answer = await sidecar.publish(b"never left", session)
        assert (answer.status, answer.body["stored"]) == (503, False)
        assert answer.headers["Retry-After"] == "1"
        standing = await sidecar.standing()
        assert (standing["leading"], standing["connected"]) == (True, False)
        assert standing["verified"] is False


# ---------------------------------------------------------------- one message


async def test_a_message_has_key_properties_and_time(
    broker: FakeBroker, sidecar: SidecarWorld
) -> None:
    session = await sidecar.lead()
    answer = await sidecar.publish(
        b"x",
        session,
        Onewriter_Key="customer-7",
        Onewriter_Properties='{"a": "b"}',
        Onewriter_Event_Time="1234",
    )
    assert answer.status == 200
    metadata = parse_metadata(broker.payloads()[-1])
    assert metadata.partition_key == "customer-7"
    assert {item.key: item.value for item in metadata.properties} == {"a": "b"}
    assert metadata.event_time == 1234


@pytest.mark.parametrize(
    "headers",
    [
        {"Onewriter_Properties": "{"},
        {"Onewriter_Properties": '{"a": 1}'},
        {"Onewriter_Properties": "[]"},
        {"Onewriter_Event_Time": "yesterday"},
        {"Onewriter_Event_Time": "9" * 30},
    ],
)
async def test_headers_that_make_no_sense(
    broker: FakeBroker, sidecar: SidecarWorld, headers: dict[str, str]
) -> None:
    session = await sidecar.lead()
    answer = await sidecar.publish(b"x", session, **headers)
    assert (answer.status, answer.body["stored"]) == (400, False)
    assert broker.sends() == []


async def test_a_message_beyond_the_limit_is_refused(broker: FakeBroker, tmp_path: Path) -> None:
    async with running_sidecar(broker, tmp_path, message_bytes_max=100) as sidecar:
        session = await sidecar.lead()

        async def chunked() -> Any:
            yield b"x" * 101

        for body in (b"x" * 101, chunked()):
            answer = await sidecar.publish(body, session)
            assert (answer.status, answer.body["error"]) == (413, "too-large")
        assert (await sidecar.publish(b"x" * 100, session)).status == 200


async def test_concurrent_publishes_are_limited_in_number_and_bytes(
    broker: FakeBroker, tmp_path: Path
) -> None:
    limits = SidecarLimits(bodies_bytes_max=1_000)
    async with running_sidecar(broker, tmp_path, limits=limits, requests_max=2) as sidecar:
        session = await sidecar.lead()
        broker.answers[Send] = None
        first = begin(sidecar.publish(b"x" * 600, session))
        await broker.eventually(lambda: len(broker.sends()) == 1)
        assert (await sidecar.publish(b"x" * 600, session)).status == 429
        second = begin(sidecar.publish(b"x", session))
        await broker.eventually(lambda: len(broker.sends()) == 2)
        assert (await sidecar.publish(b"x", session)).status == 429
        for send in broker.sends():
            broker.receipt(broker.links[-1], send)
        assert [(await each).status for each in (first, second)] == [200, 200]
        del broker.answers[Send]
        assert (await sidecar.publish(b"x" * 600, session)).status == 200


async def test_a_retry_with_the_same_key_is_not_stored_twice(
    broker: FakeBroker, tmp_path: Path
) -> None:
    async with running_sidecar(
        broker, tmp_path, publish_timeout_seconds=PUBLISH_SECONDS
    ) as sidecar:
        session = await sidecar.lead()
        first = await sidecar.publish(b"x", session, Idempotency_Key="order-1")
        again = await sidecar.publish(b"x", session, Idempotency_Key="order-1")
        assert (again.status, again.body) == (200, first.body)
        assert (await sidecar.publish(b"y", session, Idempotency_Key="order-1")).status == 422
        assert (await sidecar.publish(b"y", session, Idempotency_Key="k" * 300)).status == 400
        broker.answers[Send] = None
        unanswered = begin(sidecar.publish(b"z", session, Idempotency_Key="order-2"))
        await broker.received_of(Send, 2)
        skip(PUBLISH_SECONDS)
        repeated = await sidecar.publish(b"z", session, Idempotency_Key="order-2")
        for answer in (await unanswered, repeated):
            assert (answer.status, answer.body["stored"]) == (504, None)
        assert broker.contents() == [b"x", b"z"]
        lose_the_topic(broker)
        await sidecar.until("queueing")
        again = await sidecar.publish(b"x", session, Idempotency_Key="order-1")
        assert (again.status, again.body) == (200, first.body), "it is in the log, whoever leads"


async def test_a_page_in_a_browser_may_do_nothing(
    broker: FakeBroker, sidecar: SidecarWorld
) -> None:
    session = await sidecar.lead()
    answer = await sidecar.publish(b"x", session, Origin="http://sidecar")
    assert answer.status == 403
    assert broker.sends() == []


async def test_paths_and_methods_that_are_not_there(sidecar: SidecarWorld) -> None:
    assert (await sidecar.call("GET", "/nothing")).status == 404
    answer = await sidecar.call("GET", "/publish")
    assert (answer.status, answer.body["error"]) == (405, "http")
