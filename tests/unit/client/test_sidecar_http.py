"""The sidecar's HTTP against a scripted broker: sessions, publishing, events, leaving."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.unit.client.fake_broker import Clock, FakeBroker, begin, until
from tests.unit.client.sidecar_world import SidecarWorld, running_sidecar

from onewriter import ConfigurationError
from onewriter.sidecar import admission, publishing
from onewriter.sidecar.app import serve
from onewriter.sidecar.settings import Settings
from onewriter_core.wire import replies
from onewriter_core.wire.hot import Send
from onewriter_core.wire.messages import parse_metadata
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

MALFORMED = ("", "7", "7-", "x-0123456789abcdef", "7-0123456789ABCDEF", "7-0123456789abcdef0")


def lose_the_topic(broker: FakeBroker, *, producer_id: int = 1) -> None:
    """Depose the holder; from now on whoever brings an epoch is fenced, and others wait."""
    broker.answers[pb.CommandProducer] = lambda link, command: (
        broker.fence if command.HasField("topic_epoch") else broker.queue
    )(link, command)
    broker.links[-1].write(replies.close_producer(producer_id))


def ndjson(*messages: Any) -> bytes:
    return b"".join(json.dumps(message).encode() + b"\n" for message in messages)


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
    asked = await broker.heard_of(pb.CommandProducer, 3)
    broker.epoch = 8
    broker.grant(broker.links[-1], asked)
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


async def test_a_publish_whose_fate_nobody_knows_is_a_504(
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
        await broker.heard_of(pb.CommandLookup, 2)
        answer = await sidecar.publish(b"never left", session)
        assert (answer.status, answer.body["stored"]) == (503, False)
        assert answer.headers["Retry-After"] == "1"
        standing = await sidecar.standing()
        assert (standing["leading"], standing["connected"]) == (True, False)
        assert standing["verified"] is False


# ---------------------------------------------------------------- one message


async def test_what_a_message_has_besides_its_content(
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
    metadata = parse_metadata(broker.heard[-1][2])
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


async def test_publishes_at_once_are_bounded_in_number_and_bytes(
    broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "BODIES_BYTES_MAX", 1_000)
    async with running_sidecar(broker, tmp_path, requests_max=2) as sidecar:
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
    async with running_sidecar(broker, tmp_path, publish_timeout_seconds=0.2) as sidecar:
        session = await sidecar.lead()
        first = await sidecar.publish(b"x", session, Idempotency_Key="order-1")
        again = await sidecar.publish(b"x", session, Idempotency_Key="order-1")
        assert (again.status, again.body) == (200, first.body)
        assert (await sidecar.publish(b"y", session, Idempotency_Key="order-1")).status == 422
        assert (await sidecar.publish(b"y", session, Idempotency_Key="k" * 300)).status == 400
        broker.answers[Send] = None
        for _ in range(2):
            answer = await sidecar.publish(b"z", session, Idempotency_Key="order-2")
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


# ---------------------------------------------------------------- streams


async def test_a_stream_of_lines_is_answered_in_order(
    broker: FakeBroker, sidecar: SidecarWorld
) -> None:
    session = await sidecar.lead()
    lines = await sidecar.stream(
        ndjson(
            {"content": "text", "key": "k", "properties": {"a": "b"}, "eventTimeMs": 5},
            {"contentBase64": "AAE="},
            {"json": {"n": 1}},
        )
        + b"\n  \n"
        + ndjson({"content": "the last line has no end"})[:-1],
        session,
    )
    assert broker.contents() == [b"text", b"\x00\x01", b'{"n": 1}', b"the last line has no end"]
    assert [line["messageId"] for line in lines[:-1]] == ["7:1:-1", "7:2:-1", "7:3:-1", "7:4:-1"]
    assert lines[-1] == {"end": True, "published": 4, "failed": 0}


async def test_a_stream_of_length_prefixed_messages(
    broker: FakeBroker, sidecar: SidecarWorld
) -> None:
    session = await sidecar.lead()
    contents = [b"", b"\n\x00", b"x" * 100_000]
    body = b"".join(len(each).to_bytes(4, "big") + each for each in contents)
    kind = "application/vnd.onewriter.messages"
    lines = await sidecar.stream(body, session, kind)
    assert broker.contents() == contents
    assert lines[-1]["published"] == 3
    lines = await sidecar.stream(body[:-1], session, kind)
    assert lines[-2]["status"] == 400
    assert lines[-1] == {"end": True, "published": 2, "failed": 1}


async def test_answers_come_while_the_stream_goes_on(
    broker: FakeBroker, sidecar: SidecarWorld
) -> None:
    session = await sidecar.lead()
    may_go_on = asyncio.Event()

    async def body() -> Any:
        yield ndjson({"content": "first"})
        await may_go_on.wait()
        yield ndjson({"content": "second"})

    headers = {"Onewriter-Session": session, "Content-Type": "application/x-ndjson"}
    async with sidecar.session.post(
        "http://sidecar/publish", data=body(), headers=headers
    ) as response:
        assert json.loads(await response.content.readline())["entry"] == 1
        may_go_on.set()
        assert json.loads(await response.content.readline())["entry"] == 2
        assert json.loads(await response.content.readline())["end"]


@pytest.mark.parametrize(
    "line",
    [
        b"{\n",
        b"[]\n",
        b"{}\n",
        b'{"content": 7}\n',
        b'{"content": "a", "json": 1}\n',
        b'{"content": "a", "colour": "red"}\n',
        b'{"content": "a", "key": 7}\n',
        b'{"content": "a", "eventTimeMs": true}\n',
        b'{"content": "a", "eventTimeMs": -1}\n',
        b'{"content": "a", "properties": {"b": 1}}\n',
        b'{"content": "\\ud800"}\n',
        b'{"content": "a", "key": "\\ud800"}\n',
        b'{"contentBase64": "*"}\n',
        b'{"content": "\xff"}\n',
        b"[" * 100_000 + b"\n",
    ],
)
async def test_a_line_that_makes_no_sense_ends_the_stream(
    broker: FakeBroker, sidecar: SidecarWorld, line: bytes
) -> None:
    session = await sidecar.lead()
    lines = await sidecar.stream(
        ndjson({"content": "good"}) + line + ndjson({"content": "behind it"}), session
    )
    assert [each.get("status") for each in lines] == [None, 400, None]
    assert lines[-1] == {"end": True, "published": 1, "failed": 1}
    assert broker.contents() == [b"good"]


@pytest.mark.parametrize("is_one_line", [True, False])
async def test_a_line_beyond_the_limit_ends_the_stream(
    broker: FakeBroker, tmp_path: Path, is_one_line: bool
) -> None:
    async with running_sidecar(broker, tmp_path, message_bytes_max=100) as sidecar:
        session = await sidecar.lead()
        body = ndjson({"content": "x" * 101})
        if not is_one_line:
            body = b"x" * 200_000  # and no end of the line in sight
        lines = await sidecar.stream(body, session)
        assert lines[0]["status"] == 413
    assert broker.sends() == []


async def test_a_stream_under_a_wrong_session_gets_its_409_as_a_status(
    broker: FakeBroker, sidecar: SidecarWorld
) -> None:
    await sidecar.lead()
    answer = await sidecar.publish(
        ndjson({"content": "x"}), f"6-{'0' * 16}", Content_Type="application/x-ndjson"
    )
    assert (answer.status, answer.body["epoch"]) == (409, 7)


async def test_a_stream_that_is_fenced_stops_and_says_what_is_certain(
    broker: FakeBroker, sidecar: SidecarWorld
) -> None:
    session = await sidecar.lead()

    def third_is_too_late(link: Any, send: Send) -> None:
        if send.sequence_id < 2:
            broker.receipt(link, send)
        elif send.sequence_id == 2:
            lose_the_topic(broker)

    broker.answers[Send] = third_is_too_late
    lines = await sidecar.stream(ndjson(*({"content": str(n)} for n in range(1_000))), session)
    assert [line.get("stored") for line in lines[:3]] == [True, True, False]
    failures = lines[2:-1]
    assert {line["status"] for line in failures} <= {409, 503}
    assert {line["stored"] for line in failures} == {False}
    assert (lines[2]["sessionEpoch"], lines[2]["epoch"]) == (7, 8)
    assert lines[-1]["published"] == 2


async def test_streams_are_bounded_in_number(broker: FakeBroker, tmp_path: Path) -> None:
    async with running_sidecar(broker, tmp_path, streams_max=1) as sidecar:
        session = await sidecar.lead()
        may_end = asyncio.Event()

        async def body() -> Any:
            yield ndjson({"content": "x"})
            await may_end.wait()

        headers = {"Onewriter-Session": session, "Content-Type": "application/x-ndjson"}
        async with sidecar.session.post(
            "http://sidecar/publish", data=body(), headers=headers
        ) as response:
            await response.content.readline()
            answer = await sidecar.publish(b"", session, Content_Type="application/x-ndjson")
            assert answer.status == 429
            may_end.set()
            await response.read()
        assert (await sidecar.stream(b"", session)) == [{"end": True, "published": 0, "failed": 0}]


async def test_a_streams_messages_under_way_are_bounded(
    broker: FakeBroker, sidecar: SidecarWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "STREAM_BYTES_MAX", 1_000)
    session = await sidecar.lead()
    held: list[Send] = []
    broker.answers[Send] = lambda _link, send: held.append(send)
    body = ndjson(*({"content": "x" * 400} for _ in range(10)))
    streaming = begin(sidecar.stream(body, session))
    await broker.eventually(lambda: len(held) == 2)
    await asyncio.sleep(0.05)
    assert len(held) == 2
    for number in range(10):
        await broker.eventually(lambda number=number: len(held) > number)  # type: ignore[misc]
        broker.receipt(broker.links[-1], held[number])
    assert (await streaming)[-1]["published"] == 10


async def test_a_client_that_leaves_in_the_middle_leaves_nothing_behind(
    broker: FakeBroker, sidecar: SidecarWorld
) -> None:
    session = await sidecar.lead()
    headers = {"Onewriter-Session": session, "Content-Type": "application/x-ndjson"}

    async def body() -> Any:
        yield ndjson({"content": "x"})
        await asyncio.sleep(60)

    response = await sidecar.session.post("http://sidecar/publish", data=body(), headers=headers)
    await response.content.readline()
    response.close()
    for _ in range(20):
        answer = await sidecar.stream(ndjson({"content": "next"}), session)
        assert answer[-1]["published"] == 1


# ---------------------------------------------------------------- events


async def read_event(response: aiohttp.ClientResponse) -> dict[str, Any]:
    """The next event's data; comments and settings are passed over."""
    data: dict[str, Any] = {}
    while True:
        line = (await response.content.readline()).decode()
        assert line, "the stream ended"
        if line.startswith("data: "):
            data = json.loads(line.removeprefix("data: "))
        elif line == "\n" and data:
            return data


async def test_events_tell_every_change_at_once(broker: FakeBroker, sidecar: SidecarWorld) -> None:
    session = await sidecar.lead()
    async with sidecar.session.get(
        "http://sidecar/leadership", headers={"Accept": "text/event-stream"}
    ) as response:
        assert response.content_type == "text/event-stream"
        first = await read_event(response)
        assert (first["phase"], first["session"]) == ("leading", session)
        lose_the_topic(broker)
        suspended = await read_event(response)
        assert (suspended["phase"], suspended["connected"]) == ("leading", False)
        lost = await read_event(response)
        assert (lost["phase"], lost["session"], lost["latestEpoch"]) == ("queueing", None, 8)
        sidecar.stopping.set()
        while (await response.content.readline()) != b"":
            pass


async def test_event_streams_are_bounded_and_ping(
    broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onewriter.sidecar.streams.PING_SECONDS", 0.02)
    async with running_sidecar(broker, tmp_path, event_streams_max=1) as sidecar:
        await sidecar.lead()
        accept = {"Accept": "text/event-stream"}
        async with sidecar.session.get("http://sidecar/leadership", headers=accept) as response:
            await read_event(response)
            assert (
                await sidecar.call("GET", "/leadership", Accept="text/event-stream")
            ).status == 429
            assert (await response.content.readline()).startswith(b": ")

        async def is_free_again() -> bool:
            async with sidecar.session.get("http://sidecar/leadership", headers=accept) as again:
                return again.status == 200

        await until(is_free_again)


async def test_a_poll_waits_for_a_phase_or_its_time(
    broker: FakeBroker, sidecar: SidecarWorld
) -> None:
    await sidecar.lead()
    answer = await sidecar.call("GET", "/leadership?until=queueing&timeoutSeconds=0.05")
    assert answer.body["phase"] == "leading"
    polling = begin(sidecar.until("queueing"))
    await asyncio.sleep(0.05)
    lose_the_topic(broker)
    assert (await polling)["phase"] == "queueing"
    assert (await sidecar.call("GET", "/leadership?until=happy")).status == 400
    assert (await sidecar.call("GET", "/leadership?until=leading&timeoutSeconds=x")).status == 400


# ---------------------------------------------------------------- resume info


async def test_resume_info_is_the_first_message_of_each_takeover(
    broker: FakeBroker, tmp_path: Path
) -> None:
    broker.answers[pb.CommandProducer] = broker.queue
    async with running_sidecar(broker, tmp_path, priority=9) as sidecar:
        await sidecar.until("queueing")
        assert (await sidecar.call("GET", "/resume-info")).status == 404
        answer = await sidecar.call(
            "PUT", "/resume-info", b'{"offset": 12}', Content_Type="application/json"
        )
        assert (answer.status, answer.body) == (200, {"published": None})
        assert broker.sends() == []
        asked = await broker.heard_of(pb.CommandProducer)
        broker.grant(broker.links[-1], asked)
        session = await sidecar.lead()
        (announcement,) = (json.loads(content) for content in broker.contents())
        assert announcement.pop("at").endswith("Z")
        assert announcement.pop("host")
        assert announcement == {
            "kind": "leader",
            "version": 1,
            "topic": "orders",
            "epoch": 7,
            "identity": "writer-0",
            "priority": 9,
            "producerName": sidecar.settings.name,
            "resumeInfo": {"offset": 12},
        }
        metadata = parse_metadata(broker.heard[-1][2])
        assert metadata.partition_key == "onewriter.leader"
        properties = {item.key: item.value for item in metadata.properties}
        assert properties == {"onewriter.kind": "leader", "onewriter.epoch": "7"}

        answer = await sidecar.call("PUT", "/resume-info", b"plain", session=session)
        assert answer.body["published"]["entry"] == 2
        assert json.loads(broker.contents()[-1])["resumeInfo"] == "plain"
        assert (await sidecar.call("GET", "/resume-info")).body == "plain"
        answer = await sidecar.call("PUT", "/resume-info", b"\xff", session=session)
        assert json.loads(broker.contents()[-1])["resumeInfoBase64"] == "/w=="


async def test_resume_info_that_is_refused_changes_nothing(
    broker: FakeBroker, tmp_path: Path
) -> None:
    async with running_sidecar(broker, tmp_path, resume_info_bytes_max=10) as sidecar:
        await sidecar.lead()
        put = "PUT", "/resume-info"
        assert (await sidecar.call(*put, b"good")).status == 200
        assert (await sidecar.call(*put, b"x" * 11)).status == 413
        assert (await sidecar.call(*put, b"{", Content_Type="application/json")).status == 400
        assert (await sidecar.call(*put, b"late", session=f"6-{'0' * 16}")).status == 409
        assert (await sidecar.call("GET", "/resume-info")).body == "good"
    assert broker.sends() == []


async def test_without_resume_info_nothing_is_announced_unless_asked_for(
    broker: FakeBroker, tmp_path: Path
) -> None:
    async with running_sidecar(broker, tmp_path) as sidecar:
        await sidecar.lead()
    assert broker.sends() == []
    async with running_sidecar(broker, tmp_path, announce=True) as sidecar:
        await sidecar.lead()
    assert "resumeInfo" not in json.loads(broker.contents()[0])


# ---------------------------------------------------------------- leaving, probes


async def test_release_hands_over_and_queues_again(
    broker: FakeBroker, sidecar: SidecarWorld
) -> None:
    session = await sidecar.lead()
    broker.answers[pb.CommandProducer] = broker.queue
    answer = await sidecar.call("POST", "/release")
    assert (answer.status, answer.body["leading"]) == (200, False)
    assert len(broker.all(pb.CommandCloseProducer)) == 1
    assert (await sidecar.publish(b"late", session)).status == 409
    await broker.heard_of(pb.CommandProducer, 2)


async def test_release_may_stand_aside_until_rejoin(
    broker: FakeBroker, sidecar: SidecarWorld
) -> None:
    await sidecar.lead()
    assert (await sidecar.call("POST", "/release?rejoin=perhaps")).status == 400
    answer = await sidecar.call("POST", "/release?rejoin=false")
    assert answer.body["phase"] == "standing-aside"
    assert (await sidecar.call("GET", "/readyz")).status == 503
    await sidecar.call("POST", "/rejoin")
    assert (await sidecar.until("leading"))["epoch"] == 8


async def test_a_stop_releases_first_and_refuses_meanwhile(
    broker: FakeBroker, sidecar: SidecarWorld
) -> None:
    session = await sidecar.lead()
    broker.answers[pb.CommandCloseProducer] = None
    sidecar.stopping.set()
    close = await broker.heard_of(pb.CommandCloseProducer)
    answer = await sidecar.publish(b"too late", session)
    assert (answer.status, answer.body["phase"]) == (409, "stepping-down")
    assert (await sidecar.call("GET", "/readyz")).status == 503
    assert (await sidecar.call("GET", "/healthz")).status == 200
    broker.links[-1].write(replies.success(close.request_id))
    await broker.eventually(lambda: broker.links[-1].is_lost)
    assert broker.sends() == []


async def test_a_stop_does_not_wait_for_ever(broker: FakeBroker, tmp_path: Path) -> None:
    async with running_sidecar(broker, tmp_path, stop_seconds=0.1) as sidecar:
        await sidecar.lead()
        broker.answers[pb.CommandCloseProducer] = None
    assert broker.all(pb.CommandCloseProducer)


@pytest.mark.parametrize(
    ("ready_when", "expected"), [("standing-by", (200, 200)), ("leading", (503, 200))]
)
async def test_ready_means_what_was_chosen(
    broker: FakeBroker, tmp_path: Path, ready_when: str, expected: tuple[int, int]
) -> None:
    broker.answers[pb.CommandProducer] = broker.queue
    async with running_sidecar(broker, tmp_path, ready_when=ready_when) as sidecar:
        asked = await broker.heard_of(pb.CommandProducer)

        async def is_connected() -> bool:
            return bool((await sidecar.standing())["connected"])

        await until(is_connected)
        waiting = (await sidecar.call("GET", "/readyz")).status
        broker.grant(broker.links[-1], asked)
        await sidecar.lead()
        assert (waiting, (await sidecar.call("GET", "/readyz")).status) == expected
        broker.answers[pb.CommandLookup] = None
        broker.links[-1].cut()
        await broker.heard_of(pb.CommandLookup, 2)
        assert (await sidecar.call("GET", "/readyz")).status == 503, "nobody knows us just now"


async def test_the_health_port_offers_probes_and_metrics_and_nothing_else(
    broker: FakeBroker, tmp_path: Path
) -> None:
    port = free_port()
    async with running_sidecar(
        broker, tmp_path, health_host="127.0.0.1", health_port=port
    ) as sidecar:
        session = await sidecar.lead()
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as probe:
            for path in ("/healthz", "/readyz", "/metrics"):
                async with probe.get(path) as answer:
                    assert answer.status == 200, path
            for method, path in (
                ("GET", "/leadership"),
                ("POST", "/publish"),
                ("POST", "/release"),
            ):
                headers = {"Onewriter-Session": session}
                async with probe.request(method, path, headers=headers) as answer:
                    assert answer.status == 404, path
    assert broker.sends() == []


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


async def test_metrics_tell_what_happened(broker: FakeBroker, sidecar: SidecarWorld) -> None:
    session = await sidecar.lead()
    await sidecar.publish(b"x", session)
    await sidecar.publish(b"x", f"6-{'0' * 16}")
    text = (await sidecar.call("GET", "/metrics")).body
    samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    prefix = "onewriter_sidecar_"
    assert samples[f"{prefix}leading"] == samples[f"{prefix}connected"] == "1.0"
    assert samples[f"{prefix}latest_epoch"] == "7.0"
    assert samples[f"{prefix}terms_total"] == "1.0"
    assert samples[f"{prefix}session_conflicts_total"] == "1.0"
    assert samples[f'{prefix}publishes_total{{outcome="stored"}}'] == "1.0"
    assert samples[f'{prefix}publishes_total{{outcome="not-your-turn"}}'] == "1.0"
    assert samples[f"{prefix}publish_seconds_count"] == "2.0"


async def test_leadership_is_verified_when_it_is_asked_about(
    broker: FakeBroker, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onewriter.sidecar.candidate.VERIFY_SECONDS", 0.1)
    async with running_sidecar(broker, tmp_path) as sidecar:
        await sidecar.lead()
        clock.ahead += 60.0
        assert (await sidecar.standing())["verified"] is True
        broker.answers[pb.CommandPing] = None
        clock.ahead += 60.0
        standing = await sidecar.standing()
        assert (standing["leading"], standing["verified"]) == (True, False)


async def test_an_address_that_is_taken_is_a_configuration_error(
    broker: FakeBroker, tmp_path: Path
) -> None:
    port = int(broker.url.rpartition(":")[2])
    settings = Settings(topic="orders", service_url=broker.url, port=port)
    with pytest.raises(ConfigurationError, match="cannot listen"):
        await serve(settings, asyncio.Event())
    health = Settings(
        topic="orders",
        port=0,
        socket=tmp_path / "s.sock",
        health_host="127.0.0.1",
        health_port=port,
    )
    with pytest.raises(ConfigurationError, match="cannot listen"):
        await serve(health, asyncio.Event())
    assert not (tmp_path / "s.sock").exists()
