"""Frames out of a byte stream: lengths, limits, slabs that are never written twice."""

from __future__ import annotations

import pytest

from onewriter_core.errors import ProtocolError
from onewriter_core.wire import frames
from onewriter_core.wire.frames import Frame, FrameReader

# Built by hand: total, command length, command, then what the command carries.
PING = bytes.fromhex("00000009 00000005 0812920100")
SEND = bytes.fromhex("0000001e 00000008 0806320408021005")
ENTRY = bytes.fromhex("0e01 aabbccdd 00000002 0a00") + b"content"
BROKER_METADATA = bytes.fromhex("0e02 00000002 0805")


def send_frame(payload: bytes) -> bytes:
    command = SEND[8:]
    return (
        (4 + len(command) + len(payload)).to_bytes(4) + len(command).to_bytes(4) + command + payload
    )


def contents(frame: Frame) -> tuple[bytes, bytes | None]:
    command, payload = frame
    return bytes(command), None if payload is None else bytes(payload)


def test_a_command_alone_has_no_payload() -> None:
    [frame] = FrameReader().feed(PING)
    assert contents(frame) == (PING[8:], None)


def test_the_payload_is_the_entry_verbatim() -> None:
    [frame] = FrameReader().feed(send_frame(ENTRY))
    assert contents(frame) == (SEND[8:], ENTRY)


def test_an_old_client_sends_an_entry_without_a_checksum() -> None:
    entry = bytes.fromhex("00000002 0a00") + b"content"
    [frame] = FrameReader().feed(send_frame(entry))
    assert contents(frame) == (SEND[8:], entry)


def test_broker_entry_metadata_is_dropped_for_a_broker_and_kept_for_a_client() -> None:
    stream = send_frame(BROKER_METADATA + ENTRY)
    [frame] = FrameReader().feed(stream)
    assert contents(frame) == (SEND[8:], ENTRY)
    [frame] = FrameReader(keep_broker_entry_metadata=True).feed(stream)
    assert contents(frame) == (SEND[8:], BROKER_METADATA + ENTRY)


@pytest.mark.parametrize("cut", range(1, len(send_frame(ENTRY) + PING)))
def test_a_stream_may_be_cut_anywhere(cut: int) -> None:
    stream = send_frame(ENTRY) + PING
    reader = FrameReader()
    received = reader.feed(stream[:cut]) + reader.feed(stream[cut:])
    assert [contents(frame) for frame in received] == [
        (SEND[8:], ENTRY),
        (PING[8:], None),
    ]
    assert reader.buffered_bytes == 0


@pytest.mark.parametrize(
    ("damaged", "complaint"),
    [
        (b"GET / HTTP/1.1\r\n", "a frame of 1195725856 bytes; at most 5253120 are accepted"),
        ((5_253_121).to_bytes(4) + bytes(4), "a frame of 5253121 bytes"),
        (bytes(8), "a command of 0 bytes in a frame of 0"),
        ((8).to_bytes(4) + (5).to_bytes(4) + bytes(8), "a command of 5 bytes in a frame of 8"),
        ((2_000_000).to_bytes(4) + (1_500_000).to_bytes(4), "a command of 1500000 bytes; at most"),
        (send_frame(b"\x00\x00\x00"), "a payload without metadata"),
        (send_frame(b"\x0e\x02\x00\x00\x00"), "broker entry metadata is cut short"),
        (send_frame(b"\x0e\x02\x00\x00\x00\x09abcdefghi"), "broker entry metadata is cut short"),
        (send_frame(b"\x0e\x02\xff\xff\xff\xff" + ENTRY), "broker entry metadata is cut short"),
    ],
)
def test_an_invalid_frame_is_refused_after_the_valid_frames(damaged: bytes, complaint: str) -> None:
    reader = FrameReader()
    stream = PING + damaged
    buffer = reader.get_buffer(65536)
    buffer[: len(stream)] = stream
    received = reader.buffer_updated(len(stream))
    assert contents(next(received)) == (PING[8:], None)
    with pytest.raises(ProtocolError, match=complaint):
        next(received)


def test_the_limits_are_settings() -> None:
    with pytest.raises(ProtocolError, match="at most 8 are accepted"):
        FrameReader(frame_length_max=8).feed(PING)
    with pytest.raises(ProtocolError, match="at most 4 are accepted"):
        FrameReader(command_length_max=4).feed(PING)


def test_the_largest_frame_passes_and_its_slab_grows_only_as_it_arrives() -> None:
    entry = ENTRY + bytes(frames.FRAME_LENGTH_MAX - 12 - len(ENTRY))
    frame = send_frame(entry)
    assert len(frame) == 4 + frames.FRAME_LENGTH_MAX
    reader = FrameReader()
    assert reader.feed(frame[:100]) == []
    assert len(reader.get_buffer()) <= frames.SLAB_LENGTH_MIN + 100, "announcing is not sending"
    [received] = reader.feed(frame[100:])
    assert contents(received) == (SEND[8:], entry)


def test_a_long_frame_in_small_pieces_is_moved_a_few_times_only() -> None:
    stream = send_frame(ENTRY + bytes(2_000_000))
    reader = FrameReader()
    slabs = [reader.get_buffer().obj]
    received: list[Frame] = []
    for start in range(0, len(stream), 1400):
        received += reader.feed(stream[start : start + 1400])
        slab = reader.get_buffer().obj
        if slab is not slabs[-1]:
            slabs.append(slab)
    assert [contents(frame)[1] for frame in received] == [stream[16:]]
    assert len(slabs) < 12


def test_payloads_stay_as_they_were_while_more_arrives() -> None:
    reader = FrameReader()
    entries = [ENTRY + bytes([number]) * (number * 37) for number in range(200)]
    held = [frame for entry in entries for frame in reader.feed(send_frame(entry))]
    reader.feed(send_frame(ENTRY + b"\xff" * 100_000))
    assert [contents(frame) for frame in held] == [(SEND[8:], entry) for entry in entries]


def test_an_abandoned_iterator_loses_nothing() -> None:
    reader = FrameReader()
    stream = PING * 3
    buffer = reader.get_buffer()
    buffer[: len(stream)] = stream
    assert contents(next(reader.buffer_updated(len(stream)))) == (PING[8:], None)
    assert reader.buffered_bytes == 2 * len(PING)
    more = reader.get_buffer()
    more[: len(PING)] = PING
    assert len(list(reader.buffer_updated(len(PING)))) == 3
    assert list(reader.frames()) == []


def test_unread_frames_never_leave_the_buffer_without_space() -> None:
    reader = FrameReader()
    for _ in range(2_000):
        buffer = reader.get_buffer()
        assert len(buffer) > 0
        count = min(len(buffer), len(PING))
        buffer[:count] = PING[:count]
        reader.buffer_updated(count)
    assert reader.buffered_bytes > frames.SLAB_LENGTH_MIN


def fill(reader: FrameReader, frame: bytes, times: int) -> None:
    """Receive as much as fits each time, as from a socket that has plenty."""
    stream = frame * times
    while stream:
        buffer = reader.get_buffer(65536)
        count = min(len(buffer), len(stream))
        buffer[:count] = stream[:count]
        stream = stream[count:]
        for _ in reader.buffer_updated(count):
            pass


def test_slabs_grow_while_data_flows_and_shrink_for_pings() -> None:
    reader = FrameReader()
    assert len(reader.get_buffer()) == frames.SLAB_LENGTH_MIN
    fill(reader, send_frame(ENTRY + bytes(1000)), 2_000)
    flowing = max(len(reader.get_buffer()), len(reader.get_buffer()))
    assert frames.SLAB_LENGTH_MIN < flowing <= frames.SLAB_LENGTH_MAX
    for _ in range(100):
        reader.feed(PING)
    assert len(reader.get_buffer()) <= frames.SLAB_LENGTH_MIN
