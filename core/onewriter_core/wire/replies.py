"""A broker's usual answers, each as a whole frame.

encoding.py builds receipts, deliveries and ack responses. CONNECTED and similar answers change the state of the
connection and are methods of server.ServerConnection. commands.encode_command builds rare answers.

Error texts must not contain the name of another error: the Go client searches for names.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from onewriter_core.errors import ServerError
from onewriter_core.wire.commands import (
    BROKER_REQUEST_ID,
    encode_body,
    encode_command,
    message_id_to_proto,
)
from onewriter_core.wire.encoding import encode_varint
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import MessageId

TransactionCommand = (
    pb.CommandNewTxn
    | pb.CommandAddPartitionToTxn
    | pb.CommandAddSubscriptionToTxn
    | pb.CommandEndTxn
    | pb.CommandEndTxnOnPartition
    | pb.CommandEndTxnOnSubscription
    | pb.CommandTcClientConnectRequest
)

CONNECT_ANSWERS_MAX = 512
"""Brokers whose answers to LOOKUP are kept without the request's id: clients of a lost broker look all topics up."""

PING = encode_command(pb.CommandPing())
PONG = encode_command(pb.CommandPong())


def wire_code(code: ServerError) -> pb.ServerError.ValueType:
    """An error code in the type of the generated messages. The numbers are the same."""
    return pb.ServerError.ValueType(code)


def success(request_id: int) -> bytes:
    """Answers SUBSCRIBE, UNSUBSCRIBE, SEEK and both CLOSE commands."""
    return encode_command(pb.CommandSuccess(request_id=request_id))


def error(request_id: int, code: ServerError, message: str) -> bytes:
    """Rejects a request. Not for LOOKUP and PARTITIONED_METADATA, which have their own ids."""
    return encode_command(
        pb.CommandError(request_id=request_id, error=wire_code(code), message=message)
    )


def producer_success(
    request_id: int,
    producer_name: str,
    *,
    ready: bool = True,
    topic_epoch: int | None = None,
    last_sequence_id: int = -1,
    schema_version: bytes = b"",
    guard_is_atomic: bool | None = None,
    registration: str | None = None,
) -> bytes:
    """Answers PRODUCER. ``ready=False``: the producer waits for the topic.

    A waiter gets a second answer with the same request id, with ``ready`` and its ``topic_epoch``.
    ``guard_is_atomic`` (of guarded producers) and ``registration`` (of holders, see publish_rights.py) are for
    clients that announced onewriter's own commands.
    """
    return encode_command(
        pb.CommandProducerSuccess(
            request_id=request_id,
            producer_name=producer_name,
            last_sequence_id=last_sequence_id,
            schema_version=schema_version,
            topic_epoch=topic_epoch,
            producer_ready=ready,
            guard_is_atomic=guard_is_atomic,
            registration=registration,
        )
    )


def send_error(producer_id: int, sequence_id: int, code: ServerError, message: str) -> bytes:
    """Rejects one SEND. For most codes C++ and Go clients then close their connection."""
    return encode_command(
        pb.CommandSendError(
            producer_id=producer_id,
            sequence_id=sequence_id,
            error=wire_code(code),
            message=message,
        )
    )


def close_producer(
    producer_id: int,
    *,
    request_id: int = BROKER_REQUEST_ID,
    broker_url: str = "",
    broker_url_tls: str = "",
) -> bytes:
    """Closes a created producer, never a waiting one. The client asks again, at the URL if it is given."""
    return encode_command(
        pb.CommandCloseProducer(
            producer_id=producer_id,
            request_id=request_id,
            assigned_broker_service_url=broker_url or None,
            assigned_broker_service_url_tls=broker_url_tls or None,
        )
    )


def close_consumer(
    consumer_id: int,
    *,
    request_id: int = BROKER_REQUEST_ID,
    broker_url: str = "",
    broker_url_tls: str = "",
) -> bytes:
    """Closes a consumer. The client subscribes again, at the URL if it is given."""
    return encode_command(
        pb.CommandCloseConsumer(
            consumer_id=consumer_id,
            request_id=request_id,
            assigned_broker_service_url=broker_url or None,
            assigned_broker_service_url_tls=broker_url_tls or None,
        )
    )


def lookup_connect(
    request_id: int, broker_url: str, *, broker_url_tls: str = "", authoritative: bool = True
) -> bytes:
    """Answers LOOKUP: the topic is served at ``broker_url`` (empty if only TLS is served). Connect there."""
    before, after = _connect_parts(broker_url, broker_url_tls, authoritative)
    return encode_body(pb.CommandLookupResponse, before + encode_varint(request_id) + after)


@lru_cache(CONNECT_ANSWERS_MAX)
def _connect_parts(
    broker_url: str, broker_url_tls: str, authoritative: bool
) -> tuple[bytes, bytes]:
    """The fields of ``lookup_connect`` before and after the value of the request's id, in their order."""
    before = pb.CommandLookupResponse(
        broker_service_url=broker_url or None,
        broker_service_url_tls=broker_url_tls or None,
        response=pb.CommandLookupResponse.CONNECT,
    )
    after = pb.CommandLookupResponse(authoritative=authoritative)
    tag = pb.CommandLookupResponse.REQUEST_ID_FIELD_NUMBER << 3
    return (
        before.SerializePartialToString() + encode_varint(tag),
        after.SerializePartialToString(),
    )


def lookup_failed(request_id: int, code: ServerError, message: str) -> bytes:
    """Rejects a LOOKUP. On SERVICE_NOT_READY C++ and Go clients close their connection."""
    return encode_command(
        pb.CommandLookupResponse(
            request_id=request_id,
            response=pb.CommandLookupResponse.FAILED,
            error=wire_code(code),
            message=message,
        )
    )


def partitions(request_id: int, count: int) -> bytes:
    """Answers PARTITIONED_METADATA; 0 for a topic without partitions."""
    return encode_command(
        pb.CommandPartitionedMetadataResponse(
            request_id=request_id,
            partitions=count,
            response=pb.CommandPartitionedMetadataResponse.SUCCESS,
        )
    )


def partitions_failed(request_id: int, code: ServerError, message: str) -> bytes:
    """Rejects PARTITIONED_METADATA. On SERVICE_NOT_READY C++ and Go close their connection."""
    return encode_command(
        pb.CommandPartitionedMetadataResponse(
            request_id=request_id,
            response=pb.CommandPartitionedMetadataResponse.FAILED,
            error=wire_code(code),
            message=message,
        )
    )


def queue_changed(producer_id: int, waiting: int) -> bytes:
    """Notifies a holder of the number of waiters, only for clients that announced onewriter's extensions."""
    return encode_command(pb.CommandQueueChanged(producer_id=producer_id, waiting=waiting))


def active_consumer_change(consumer_id: int, *, is_active: bool) -> bytes:
    """Notifies a Failover consumer whether it is the active one."""
    return encode_command(
        pb.CommandActiveConsumerChange(consumer_id=consumer_id, is_active=is_active)
    )


def reached_end_of_topic(consumer_id: int) -> bytes:
    """The topic is terminated and the consumer got all messages. Not every client supports this command."""
    return encode_command(pb.CommandReachedEndOfTopic(consumer_id=consumer_id))


def last_message_id(
    request_id: int, message_id: MessageId, mark_delete: MessageId | None = None
) -> bytes:
    """Answers GET_LAST_MESSAGE_ID, with values.EARLIEST_ID for an empty topic."""
    return encode_command(
        pb.CommandGetLastMessageIdResponse(
            request_id=request_id,
            last_message_id=message_id_to_proto(message_id),
            consumer_mark_delete_position=None
            if mark_delete is None
            else message_id_to_proto(mark_delete),
        )
    )


def check_response(
    request_id: int, *, epoch: int, is_current: bool, last_message_id: MessageId
) -> bytes:
    """Answers CHECK, with values.EARLIEST_ID for an empty topic."""
    return encode_command(
        pb.CommandCheckResponse(
            request_id=request_id,
            epoch=epoch,
            is_current=is_current,
            last_message_id=message_id_to_proto(last_message_id),
        )
    )


def published_together(request_id: int, message_ids: Iterable[MessageId]) -> bytes:
    """Answers PUBLISH_TOGETHER with the position of each part, in their order."""
    return encode_command(
        pb.CommandPublishTogetherResponse(
            request_id=request_id,
            message_ids=[message_id_to_proto(message_id) for message_id in message_ids],
        )
    )


def topics_of_namespace(
    request_id: int,
    topics: Iterable[str],
    *,
    filtered: bool = False,
    topics_hash: str = "",
    changed: bool = True,
) -> bytes:
    """Answers GET_TOPICS_OF_NAMESPACE; ``filtered``: the client's pattern was applied."""
    return encode_command(
        pb.CommandGetTopicsOfNamespaceResponse(
            request_id=request_id,
            topics=topics,
            filtered=filtered,
            topics_hash=topics_hash or None,
            changed=changed,
        )
    )


def transaction_refused(command: TransactionCommand, code: ServerError, message: str) -> bytes:
    """Answers a request about transactions with the response of its type."""
    refusal = _REFUSALS[command.DESCRIPTOR.full_name]
    return encode_command(
        refusal(request_id=command.request_id, error=wire_code(code), message=message)
    )


_REFUSALS = {
    request.DESCRIPTOR.full_name: response
    for request, response in (
        (pb.CommandNewTxn, pb.CommandNewTxnResponse),
        (pb.CommandAddPartitionToTxn, pb.CommandAddPartitionToTxnResponse),
        (pb.CommandAddSubscriptionToTxn, pb.CommandAddSubscriptionToTxnResponse),
        (pb.CommandEndTxn, pb.CommandEndTxnResponse),
        (pb.CommandEndTxnOnPartition, pb.CommandEndTxnOnPartitionResponse),
        (pb.CommandEndTxnOnSubscription, pb.CommandEndTxnOnSubscriptionResponse),
        (pb.CommandTcClientConnectRequest, pb.CommandTcClientConnectResponse),
    )
}
