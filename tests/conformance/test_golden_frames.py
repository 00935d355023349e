"""The codec reads the bytes that Pulsar's Python client sends, as recorded by record_frames.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf.message import Message

from onewriter_core.wire import messages
from onewriter_core.wire.commands import (
    Command,
    decode_by_protobuf,
    decode_command,
    encode_command,
)
from onewriter_core.wire.connection import Received
from onewriter_core.wire.frames import FrameReader
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.server import ServerConnection
from onewriter_core.wire.values import Ack, Flow, MessageId, Send

RECORDINGS = sorted((Path(__file__).parent / "frames").glob("*.bin"))


@pytest.fixture(params=RECORDINGS, ids=lambda path: path.stem)
def recording(request: pytest.FixtureRequest) -> bytes:
    path: Path = request.param
    return path.read_bytes()


def conversation(recording: bytes) -> list[Received]:
    """Return all frames of the client; the test accepts it as soon as it has introduced itself."""
    server = ServerConnection()
    buffer = server.get_buffer()
    buffer[: len(recording)] = recording
    received = server.buffer_updated(len(recording))
    first = next(received)
    server.connected("stub")
    return [first, *received]


def test_there_is_a_recording() -> None:
    assert RECORDINGS


def test_the_client_introduces_itself(recording: bytes) -> None:
    connect, _ = conversation(recording)[0]
    assert isinstance(connect, pb.CommandConnect)
    assert connect.protocol_version == 20
    assert connect.auth_method_name == "none"
    assert connect.feature_flags.supports_auth_refresh
    assert connect.feature_flags.supports_broker_entry_metadata
    assert not connect.feature_flags.supports_topic_watchers


def test_producers_send_the_configured_request(recording: bytes) -> None:
    producers = [
        command for command, _ in conversation(recording) if isinstance(command, pb.CommandProducer)
    ]
    assert [producer.producer_access_mode for producer in producers] == [
        pb.WAIT_FOR_EXCLUSIVE,
        pb.EXCLUSIVE,
        pb.SHARED,
    ]
    assert [(property_.key, property_.value) for property_ in producers[0].metadata] == [
        ("onewriter.queue-priority", "7")
    ]
    assert [producer.producer_name for producer in producers] == ["", "named", ""]
    assert [producer.user_provided_producer_name for producer in producers] == [False, True, False]
    assert not any(producer.HasField("topic_epoch") for producer in producers)


def test_sends_carry_their_entries(recording: bytes) -> None:
    sends = [
        (command, payload)
        for command, payload in conversation(recording)
        if isinstance(command, Send)
    ]
    assert [command for command, _ in sends] == [
        Send(0, 0),
        Send(0, 1),
        Send(1, 0, num_messages=3),
        Send(2, 0, is_chunk=True),
        Send(2, 0, is_chunk=True),
    ]
    entries = [payload for _, payload in sends if payload is not None]
    assert len(entries) == len(sends)
    assert all(messages.entry_checksum_ok(entry) for entry in entries)
    summaries = [messages.summarize(entry) for entry in entries]
    assert [summary.is_batch for summary in summaries] == [False, False, True, False, False]
    assert [summary.num_messages for summary in summaries] == [1, 1, 3, 1, 1]
    assert summaries[0].partition_key == "k"
    assert summaries[1].event_time_ms == 1_700_000_000_000
    assert summaries[2].compression == pb.MessageMetadata.ZLIB
    assert [(summary.chunk_id, summary.num_chunks) for summary in summaries[3:]] == [(0, 2), (1, 2)]
    assert bytes(messages.entry_payload(entries[0])) == b"first"


def test_an_entry_is_rebuilt_to_the_same_bytes(recording: bytes) -> None:
    for _, payload in conversation(recording):
        if payload is not None:
            rebuilt = messages.build_entry(
                messages.parse_metadata(payload), messages.entry_payload(payload)
            )
            assert rebuilt == payload


def test_consumers_and_readers(recording: bytes) -> None:
    received = [command for command, _ in conversation(recording)]
    subscribes = [command for command in received if isinstance(command, pb.CommandSubscribe)]
    assert [(command.sub_type, command.durable) for command in subscribes] == [
        (pb.CommandSubscribe.SHARED, True),
        (pb.CommandSubscribe.EXCLUSIVE, False),
        (pb.CommandSubscribe.FAILOVER, True),
    ]
    assert [command for command in received if isinstance(command, Flow)] == [
        Flow(0, 1000),
        Flow(1, 1000),
        Flow(2, 1000),
    ]
    first, batch = MessageId(7, 1), MessageId(7, 3, ack_set=(0b110,))
    assert [command for command in received if isinstance(command, Ack)] == [
        Ack(0, 0, (first, batch)),
        Ack(1, 1, (first,)),
        Ack(2, 1, (first,)),
    ]


def test_both_decoders_agree_and_protobuf_writes_the_same_bytes(recording: bytes) -> None:
    for data, payload in FrameReader().feed(recording):
        command: Command = decode_command(data)
        assert command == decode_by_protobuf(bytes(data))
        if isinstance(command, Message):
            assert payload is None
            assert encode_command(command)[8:] == data


def test_the_recording_may_arrive_cut_anywhere(recording: bytes) -> None:
    whole = FrameReader().feed(recording)
    byte_by_byte = FrameReader()
    pieces = [frame for byte in recording for frame in byte_by_byte.feed(bytes((byte,)))]
    assert pieces == whole
    for cut in range(0, len(recording), 7):
        reader = FrameReader()
        assert reader.feed(recording[:cut]) + reader.feed(recording[cut:]) == whole
