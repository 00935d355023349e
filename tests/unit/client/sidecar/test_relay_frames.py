"""The relay's frames: splitting a stream, and the commands that it changes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onewriter._config import Address
from onewriter.sidecar.relay import answers
from onewriter.sidecar.relay.splitter import PASSES, Splitter
from onewriter_core.errors import ProtocolError, ServerError
from onewriter_core.wire import replies
from onewriter_core.wire.commands import encode_command
from onewriter_core.wire.encoding import encode_send_receipt
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

PONG, LOOKUP = pb.BaseCommand.PONG, pb.BaseCommand.LOOKUP_RESPONSE
FRAMES = (
    replies.PING,
    replies.PONG,
    replies.lookup_connect(7, "pulsar://b:6650"),
    encode_command(pb.CommandSuccess(request_id=1)),
    encode_command(pb.CommandQueueChanged(producer_id=1, waiting=2)),
    (2000).to_bytes(4, "big") + (4).to_bytes(4, "big") + b"\x08\x09\x4a\x00" + bytes(1992),
)
"""The last one carries a payload; QUEUE_CHANGED has a number above a thousand."""


def frame_of(connect: pb.CommandConnect) -> pb.CommandConnect:
    found = answers.decoded(answers.connect_to_broker(connect, "secret"))
    assert isinstance(found, pb.CommandConnect)
    return found


@given(st.lists(st.sampled_from(FRAMES), max_size=12), st.data())
def test_every_byte_passes_once_however_it_is_cut(frames: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(frames)
    splitter = Splitter({PONG, LOOKUP}, 1000)
    parts: list[tuple[int, bytes]] = []
    at = 0
    while at < len(stream):
        size = data.draw(st.integers(1, len(stream) - at))
        parts += splitter.feed(stream[at : at + size])
        at += size
    assert b"".join(part for _, part in parts) == stream
    assert [part for kind, part in parts if kind != PASSES] == [
        frame for frame in frames if frame in FRAMES[1:3]
    ]
    assert splitter.left == 0


@pytest.mark.parametrize(
    "written", [b"\x83\x00", b"\x83\x80\x00", b"\x93\x80\x01"], ids=["two", "three", "large"]
)
def test_a_type_has_one_spelling(written: bytes) -> None:
    """Otherwise a frame of a wanted type could pass as another one: \\x83\\x00 is a long way to write 3."""
    command = b"\x08" + written + bytes(8)
    head = (len(command) + 4).to_bytes(4, "big") + len(command).to_bytes(4, "big")
    whole = Splitter({3}, 1000)
    with pytest.raises(ProtocolError):
        whole.feed(head + command)
    cut = Splitter({3}, 1000)
    assert cut.feed((head + command)[:10]) == []
    with pytest.raises(ProtocolError):
        cut.feed((head + command)[10:])


def test_a_frame_that_passes_is_not_kept() -> None:
    splitter = Splitter({PONG}, 1000)
    head = (5_000_000).to_bytes(4, "big") + (4).to_bytes(4, "big") + b"\x08\x09"
    assert splitter.feed(head) == [(PASSES, head)]
    assert splitter.left == 5_000_004 - len(head)
    assert splitter.feed(b"x" * 1000) == [(PASSES, b"x" * 1000)]


def test_a_frame_that_waits_for_its_end_is_bounded() -> None:
    long = encode_command(pb.CommandLookupResponse(request_id=1, message="x" * 2000))
    with pytest.raises(ProtocolError, match="at most 1000"):
        Splitter({LOOKUP}, 1000).feed(long[:20])


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        bytes(20),
        b"\xff" * 20,
        (6).to_bytes(4, "big") + (9).to_bytes(4, "big") + b"\x08\x12" + bytes(9),
        (6).to_bytes(4, "big") + (2).to_bytes(4, "big") + b"\x12\x08" + bytes(9),
    ],
)
def test_bytes_that_are_no_frame_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        Splitter({PONG}, 1000).feed(data)


# ---------------------------------------------------------------- commands


def test_a_connection_keeps_what_the_client_states_about_itself() -> None:
    connect = pb.CommandConnect(
        client_version="Pulsar-CPP-v3",
        protocol_version=19,
        proxy_to_broker_url="b:6651",
        feature_flags=pb.FeatureFlags(supports_broker_entry_metadata=True),
    )
    found = frame_of(connect)
    assert (found.client_version, found.protocol_version) == ("Pulsar-CPP-v3", 19)
    assert (found.auth_method_name, found.auth_data) == ("token", b"secret")
    assert not found.HasField("proxy_to_broker_url")
    assert found.feature_flags.supports_broker_entry_metadata
    assert found.feature_flags.supports_auth_refresh, "so that the broker asks for a fresh token"


def test_a_clients_own_credentials_stay() -> None:
    connect = pb.CommandConnect(client_version="c", auth_method_name="token", auth_data=b"its own")
    assert answers.has_credentials(connect)
    sent = answers.decoded(answers.connect_to_broker(connect, None))
    assert sent == connect
    for method in ("", "none"):
        assert not answers.has_credentials(
            pb.CommandConnect(client_version="c", auth_method_name=method)
        )


@pytest.mark.parametrize(("is_tls", "port"), [(False, 6650), (True, 6651)])
def test_a_look_up_leads_back_to_the_relay(is_tls: bool, port: int) -> None:
    frame = replies.lookup_connect(3, "pulsar://b:6650", broker_url_tls="pulsar+ssl://b:6651")
    changed, broker = answers.lookup_answer(frame, is_tls=is_tls)
    found = answers.decoded(changed)
    assert isinstance(found, pb.CommandLookupResponse)
    assert found.broker_service_url == f"pulsar://b:{port}"
    assert not found.HasField("broker_service_url_tls")
    assert found.proxy_through_service_url
    assert broker == Address("b", port, is_tls)


def test_a_failed_look_up_passes() -> None:
    frame = replies.lookup_failed(3, ServerError.METADATA_ERROR, "no owner")
    assert answers.lookup_answer(frame, is_tls=True) == (frame, None)


def test_a_look_up_without_an_address_that_the_relay_can_use_is_refused() -> None:
    with pytest.raises(ProtocolError, match="no usable address"):
        answers.lookup_answer(replies.lookup_connect(3, "pulsar://b:6650"), is_tls=True)


@pytest.mark.parametrize("close", [replies.close_producer, replies.close_consumer])
def test_a_redirected_client_looks_up_the_topic_again(close: object) -> None:
    assert callable(close)
    frame = close(7, broker_url="pulsar://b:6650", broker_url_tls="pulsar+ssl://b:6651")
    assert answers.closing_without_address(frame) == close(7)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("", None),
        ("b:6651", Address("b", 6651, False)),
        ("pulsar+ssl://b:6651", Address("b", 6651, False)),
        ("[::1]:6650", Address("::1", 6650, False)),
    ],
)
def test_the_broker_that_a_client_asks_for(wanted: str, found: Address | None) -> None:
    connect = pb.CommandConnect(client_version="c", proxy_to_broker_url=wanted)
    assert answers.named_broker(connect) == found


@pytest.mark.parametrize("wanted", ["b:99999", "a:1,b:2", "http://b", "://"])
def test_no_broker_is_refused(wanted: str) -> None:
    connect = pb.CommandConnect(client_version="c", proxy_to_broker_url=wanted)
    with pytest.raises(ProtocolError, match="names no broker"):
        answers.named_broker(connect)


def test_commands_with_other_contents_are_refused() -> None:
    with pytest.raises(ProtocolError):
        answers.lookup_answer(replies.PING, is_tls=True)
    with pytest.raises(ProtocolError):
        answers.closing_without_address(replies.PING)
    with pytest.raises(ProtocolError, match="SendReceipt is not expected"):
        answers.decoded(encode_send_receipt(1, 2, 3, 4))
