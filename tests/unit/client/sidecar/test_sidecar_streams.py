"""The sidecar's streams of messages: ordered answers, errors, bounds."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.client.fake_broker import FakeBroker, begin
from tests.unit.client.sidecar_world import SidecarWorld, lose_the_topic, ndjson, running_sidecar

from onewriter.sidecar.limits import SidecarLimits
from onewriter_core.wire.values import Send


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


async def test_answers_come_while_the_stream_continues(
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


async def test_a_fenced_stream_stops_and_reports_what_is_certain(
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


@pytest.mark.parametrize("limits", [SidecarLimits(stream_bytes_max=1_000)])
async def test_a_streams_messages_under_way_are_bounded(
    broker: FakeBroker, sidecar: SidecarWorld
) -> None:
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


async def test_a_client_that_disconnects_in_the_middle_leaves_no_state(
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
