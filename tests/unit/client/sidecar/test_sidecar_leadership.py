"""The sidecar's leadership: events, announcement, handover, probes and metrics."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.clock import skip
from tests.unit.client.fake_broker import Clock, FakeBroker, begin, until
from tests.unit.client.sidecar_world import SidecarWorld, lose_the_topic, running_sidecar

from onewriter import ConfigurationError
from onewriter.sidecar.app import serve
from onewriter.sidecar.limits import SidecarLimits
from onewriter.sidecar.settings import Settings
from onewriter_core.wire import replies
from onewriter_core.wire.messages import parse_metadata
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_testing.ports import free_ports


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


async def test_the_event_stream_reports_every_change_immediately(
    broker: FakeBroker, sidecar: SidecarWorld
) -> None:
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


async def test_event_streams_are_bounded_and_ping(broker: FakeBroker, tmp_path: Path) -> None:
    limits = SidecarLimits(ping_seconds=0.02)
    async with running_sidecar(broker, tmp_path, limits=limits, event_streams_max=1) as sidecar:
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
        request = await broker.received_of(pb.CommandProducer)
        broker.grant(broker.links[-1], request)
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
        metadata = parse_metadata(broker.payloads()[-1])
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


async def test_release_hands_over_and_queues_again(
    broker: FakeBroker, sidecar: SidecarWorld
) -> None:
    session = await sidecar.lead()
    broker.answers[pb.CommandProducer] = broker.queue
    answer = await sidecar.call("POST", "/release")
    assert (answer.status, answer.body["leading"]) == (200, False)
    assert len(broker.all(pb.CommandCloseProducer)) == 1
    assert (await sidecar.publish(b"late", session)).status == 409
    await broker.received_of(pb.CommandProducer, 2)


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


async def test_each_signal_releases_the_topic_and_the_sidecar_stays(
    broker: FakeBroker, sidecar: SidecarWorld
) -> None:
    session = await sidecar.lead()
    for _ in range(2):
        sidecar.standing_aside.set()
        await sidecar.until("standing-aside")
        refused = await sidecar.publish(b"late", session)
        assert (refused.status, refused.body["stored"]) == (409, False)
        assert (await sidecar.call("GET", "/healthz")).status == 200
        await sidecar.call("POST", "/rejoin")
        await sidecar.until("leading")


async def test_a_stop_waits_for_the_release_that_a_signal_began(
    broker: FakeBroker, sidecar: SidecarWorld
) -> None:
    await sidecar.lead()
    broker.answers[pb.CommandCloseProducer] = None
    sidecar.standing_aside.set()
    close = await broker.received_of(pb.CommandCloseProducer)
    sidecar.stopping.set()
    assert (await sidecar.standing())["phase"] == "stepping-down"
    broker.links[-1].write(replies.success(close.request_id))
    await broker.eventually(lambda: broker.links[-1].is_lost)
    assert len(broker.all(pb.CommandCloseProducer)) == 1


async def test_a_stop_releases_first_and_refuses_requests_until_the_end(
    broker: FakeBroker, sidecar: SidecarWorld
) -> None:
    session = await sidecar.lead()
    broker.answers[pb.CommandCloseProducer] = None
    sidecar.stopping.set()
    close = await broker.received_of(pb.CommandCloseProducer)
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


async def test_the_setting_accepts_a_release_without_a_key_over_the_port(
    broker: FakeBroker, tmp_path: Path
) -> None:
    port = free_ports(1)
    async with running_sidecar(broker, tmp_path, port=port, release_without_key=True) as sidecar:
        await sidecar.lead()
        async with (
            aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client,
            client.post("/release?rejoin=false") as answer,
        ):
            assert answer.status == 200
        assert (await sidecar.standing())["phase"] == "standing-aside"


@pytest.mark.parametrize(
    ("ready_when", "expected"), [("standing-by", (200, 200)), ("leading", (503, 200))]
)
async def test_ready_means_what_was_chosen(
    broker: FakeBroker, tmp_path: Path, ready_when: str, expected: tuple[int, int]
) -> None:
    broker.answers[pb.CommandProducer] = broker.queue
    async with running_sidecar(broker, tmp_path, ready_when=ready_when) as sidecar:
        request = await broker.received_of(pb.CommandProducer)

        async def is_connected() -> bool:
            return bool((await sidecar.standing())["connected"])

        await until(is_connected)
        waiting = (await sidecar.call("GET", "/readyz")).status
        broker.grant(broker.links[-1], request)
        await sidecar.lead()
        assert (waiting, (await sidecar.call("GET", "/readyz")).status) == expected
        broker.answers[pb.CommandLookup] = None
        broker.links[-1].cut()
        await broker.received_of(pb.CommandLookup, 2)
        assert (await sidecar.call("GET", "/readyz")).status == 503, "nobody knows us just now"


async def test_the_health_port_offers_probes_and_metrics_and_nothing_else(
    broker: FakeBroker, tmp_path: Path
) -> None:
    port = free_ports(1)
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


async def test_metrics_count_what_happened(broker: FakeBroker, sidecar: SidecarWorld) -> None:
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
    broker: FakeBroker, tmp_path: Path, clock: Clock
) -> None:
    limits = SidecarLimits(verify_seconds=5.0)
    async with running_sidecar(broker, tmp_path, limits=limits) as sidecar:
        await sidecar.lead()
        clock.ahead += 60.0
        assert (await sidecar.standing())["verified"] is True
        broker.answers[pb.CommandPing] = None
        clock.ahead += 60.0
        pings = len(broker.all(pb.CommandPing))
        asking = begin(sidecar.standing())
        await broker.received_of(pb.CommandPing, pings + 1)
        skip(5.0)
        standing = await asking
        assert (standing["leading"], standing["verified"]) == (True, False)


async def test_an_address_that_is_taken_is_a_configuration_error(
    broker: FakeBroker, tmp_path: Path
) -> None:
    port = int(broker.url.rpartition(":")[2])
    settings = Settings(topic="orders", service_url=broker.url, port=port)
    with pytest.raises(ConfigurationError, match="cannot listen"):
        await serve(settings, asyncio.Event(), asyncio.Event())
    health = Settings(
        topic="orders",
        port=0,
        socket=tmp_path / "s.sock",
        health_host="127.0.0.1",
        health_port=port,
    )
    with pytest.raises(ConfigurationError, match="cannot listen"):
        await serve(health, asyncio.Event(), asyncio.Event())
    assert not (tmp_path / "s.sock").exists()
