"""The broker's usual answers, as a client reads them."""

from __future__ import annotations

import pytest

from onewriter_core.errors import ServerError
from onewriter_core.wire import replies
from onewriter_core.wire.commands import BROKER_REQUEST_ID, Command, decode_command, encode_command
from onewriter_core.wire.encoding import (
    encode_ack_response,
    encode_message_header,
    encode_send_receipt,
)
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import EARLIEST_ID, MessageId


def read(frame: bytes) -> Command:
    assert int.from_bytes(frame[:4]) == len(frame) - 4
    assert int.from_bytes(frame[4:8]) == len(frame) - 8
    return decode_command(frame[8:])


@pytest.mark.parametrize(
    ("frame", "command"),
    [
        (replies.PING, pb.CommandPing()),
        (replies.PONG, pb.CommandPong()),
        (replies.success(5), pb.CommandSuccess(request_id=5)),
        (
            replies.error(5, ServerError.PRODUCER_BUSY, "taken"),
            pb.CommandError(request_id=5, error=pb.PRODUCER_BUSY, message="taken"),
        ),
        (
            replies.producer_success(5, "p", ready=False),
            pb.CommandProducerSuccess(
                request_id=5,
                producer_name="p",
                last_sequence_id=-1,
                schema_version=b"",
                producer_ready=False,
            ),
        ),
        (
            replies.send_error(1, 2, ServerError.CHECKSUM_ERROR, "damaged"),
            pb.CommandSendError(
                producer_id=1, sequence_id=2, error=pb.CHECKSUM_ERROR, message="damaged"
            ),
        ),
        (
            replies.close_producer(1),
            pb.CommandCloseProducer(producer_id=1, request_id=BROKER_REQUEST_ID),
        ),
        (
            replies.close_producer(1, request_id=4, broker_url="a", broker_url_tls="b"),
            pb.CommandCloseProducer(
                producer_id=1,
                request_id=4,
                assigned_broker_service_url="a",
                assigned_broker_service_url_tls="b",
            ),
        ),
        (
            replies.close_consumer(1),
            pb.CommandCloseConsumer(consumer_id=1, request_id=BROKER_REQUEST_ID),
        ),
        (
            replies.lookup_connect(5, "pulsar://here"),
            pb.CommandLookupResponse(
                request_id=5,
                response=pb.CommandLookupResponse.CONNECT,
                broker_service_url="pulsar://here",
                authoritative=True,
            ),
        ),
        (
            replies.lookup_failed(5, ServerError.TOPIC_NOT_FOUND, "no such topic"),
            pb.CommandLookupResponse(
                request_id=5,
                response=pb.CommandLookupResponse.FAILED,
                error=pb.TOPIC_NOT_FOUND,
                message="no such topic",
            ),
        ),
        (
            replies.partitions(5, 3),
            pb.CommandPartitionedMetadataResponse(
                request_id=5, partitions=3, response=pb.CommandPartitionedMetadataResponse.SUCCESS
            ),
        ),
        (
            replies.partitions_failed(5, ServerError.TOPIC_NOT_FOUND, "no such topic"),
            pb.CommandPartitionedMetadataResponse(
                request_id=5,
                response=pb.CommandPartitionedMetadataResponse.FAILED,
                error=pb.TOPIC_NOT_FOUND,
                message="no such topic",
            ),
        ),
        (
            replies.active_consumer_change(1, is_active=True),
            pb.CommandActiveConsumerChange(consumer_id=1, is_active=True),
        ),
        (
            replies.last_message_id(5, MessageId(1, 2, batch_index=3)),
            pb.CommandGetLastMessageIdResponse(
                request_id=5,
                last_message_id=pb.MessageIdData(ledger_id=1, entry_id=2, batch_index=3),
            ),
        ),
        (
            replies.last_message_id(5, EARLIEST_ID, MessageId(1, 2)),
            pb.CommandGetLastMessageIdResponse(
                request_id=5,
                last_message_id=pb.MessageIdData(ledger_id=2**64 - 1, entry_id=2**64 - 1),
                consumer_mark_delete_position=pb.MessageIdData(ledger_id=1, entry_id=2),
            ),
        ),
        (
            replies.topics_of_namespace(5, ["a", "b"], filtered=True, topics_hash="h"),
            pb.CommandGetTopicsOfNamespaceResponse(
                request_id=5, topics=["a", "b"], filtered=True, topics_hash="h", changed=True
            ),
        ),
        (
            encode_ack_response(1, 5),
            pb.CommandAckResponse(consumer_id=1, request_id=5),
        ),
        (
            encode_ack_response(1, 5, ServerError.CONSUMER_NOT_FOUND, "gone"),
            pb.CommandAckResponse(
                consumer_id=1, request_id=5, error=pb.CONSUMER_NOT_FOUND, message="gone"
            ),
        ),
        (
            replies.transaction_refused(
                pb.CommandNewTxn(request_id=5), ServerError.NOT_ALLOWED_ERROR, "none here"
            ),
            pb.CommandNewTxnResponse(request_id=5, error=pb.NOT_ALLOWED_ERROR, message="none here"),
        ),
        (
            replies.transaction_refused(
                pb.CommandTcClientConnectRequest(request_id=5),
                ServerError.NOT_ALLOWED_ERROR,
                "none here",
            ),
            pb.CommandTcClientConnectResponse(
                request_id=5, error=pb.NOT_ALLOWED_ERROR, message="none here"
            ),
        ),
    ],
)
def test_an_answer_survives_a_round_trip(frame: bytes, command: Command) -> None:
    assert read(frame) == command


def test_hot_frames_byte_by_byte() -> None:
    assert encode_send_receipt(2, 5, 7, 300, 9) == bytes.fromhex(
        "00000015 00000011 08073a0d 0802 1005 1a05 0807 10ac02 2009"
    )
    assert encode_message_header(1, 7, 8, 100) == bytes.fromhex(
        "00000074 0000000c 08094a08 0801 1204 0807 1008"
    )
    assert encode_message_header(
        1, 7, 8, 0, redelivery_count=2, partition=3, batch_index=4, ack_set=(-1,), consumer_epoch=5
    ) == bytes.fromhex(
        "00000023 0000001f 08094a1b 0801 1208 0807 1008 1803 2004 180220ffffffffffffffffff01 2805"
    )


@pytest.mark.parametrize("request_id", [0, 1, 127, 128, 300, 2**32, 2**64 - 1])
@pytest.mark.parametrize("tls", ["", "pulsar+ssl://here"])
@pytest.mark.parametrize("authoritative", [True, False])
def test_the_parts_of_the_answer_to_a_look_up_are_those_of_the_whole_message(
    request_id: int, tls: str, *, authoritative: bool
) -> None:
    for plain in ("pulsar://here", "") if tls else ("pulsar://here",):
        message = pb.CommandLookupResponse(
            request_id=request_id,
            response=pb.CommandLookupResponse.CONNECT,
            broker_service_url=plain or None,
            broker_service_url_tls=tls or None,
            authoritative=authoritative,
        )
        answer = replies.lookup_connect(
            request_id, plain, broker_url_tls=tls, authoritative=authoritative
        )
        assert answer == encode_command(message)
