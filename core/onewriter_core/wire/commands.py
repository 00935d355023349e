"""Commands as typed values: bytes → command, command → frame.

Commands of the data path become the values of values.py, all others their protobuf message. The messages are checked:
all required fields are present, enum values are known, texts are valid. connection.py checks the order of commands.
replies.py builds the usual answers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Protocol, overload

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet

from onewriter_core.errors import ProtocolError
from onewriter_core.wire.decoding import (
    decode_ack,
    decode_delivery,
    decode_flow,
    decode_send,
    decode_send_receipt,
)
from onewriter_core.wire.encoding import encode_frame, encode_varint
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import Ack, Delivery, Flow, MessageId, Send, SendReceipt

BROKER_REQUEST_ID = 2**64 - 1
"""The request id of a CLOSE_PRODUCER or CLOSE_CONSUMER that a broker sends without a request."""
MESSAGE_LENGTH_MAX = 5_242_880
"""The maximum bytes of a message, as CONNECTED announces it. frames.FRAME_LENGTH_MAX is larger."""
PROTOCOL_VERSION = 21
"""The newest supported version of Pulsar's protocol."""
EXTENSIONS_VERSION = 1
"""The newest version of onewriter's own commands: BaseCommand numbers from 1000 on (docs/wire.md)."""
QUEUE_PRIORITY_FIELD = 14
"""The field number of the queue priority in CommandProducer, unless configured otherwise. PIP-440 defines no
number; this is the next free one."""

Command = (
    Send
    | Ack
    | Flow
    | SendReceipt
    | Delivery
    | pb.CommandConnect
    | pb.CommandConnected
    | pb.CommandSubscribe
    | pb.CommandProducer
    | pb.CommandSendError
    | pb.CommandUnsubscribe
    | pb.CommandSuccess
    | pb.CommandError
    | pb.CommandCloseProducer
    | pb.CommandCloseConsumer
    | pb.CommandProducerSuccess
    | pb.CommandPing
    | pb.CommandPong
    | pb.CommandRedeliverUnacknowledgedMessages
    | pb.CommandPartitionedMetadata
    | pb.CommandPartitionedMetadataResponse
    | pb.CommandLookup
    | pb.CommandLookupResponse
    | pb.CommandConsumerStats
    | pb.CommandConsumerStatsResponse
    | pb.CommandReachedEndOfTopic
    | pb.CommandSeek
    | pb.CommandGetLastMessageId
    | pb.CommandGetLastMessageIdResponse
    | pb.CommandActiveConsumerChange
    | pb.CommandGetTopicsOfNamespace
    | pb.CommandGetTopicsOfNamespaceResponse
    | pb.CommandGetSchema
    | pb.CommandGetSchemaResponse
    | pb.CommandAuthChallenge
    | pb.CommandAuthResponse
    | pb.CommandAckResponse
    | pb.CommandGetOrCreateSchema
    | pb.CommandGetOrCreateSchemaResponse
    | pb.CommandNewTxn
    | pb.CommandNewTxnResponse
    | pb.CommandAddPartitionToTxn
    | pb.CommandAddPartitionToTxnResponse
    | pb.CommandAddSubscriptionToTxn
    | pb.CommandAddSubscriptionToTxnResponse
    | pb.CommandEndTxn
    | pb.CommandEndTxnResponse
    | pb.CommandEndTxnOnPartition
    | pb.CommandEndTxnOnPartitionResponse
    | pb.CommandEndTxnOnSubscription
    | pb.CommandEndTxnOnSubscriptionResponse
    | pb.CommandTcClientConnectRequest
    | pb.CommandTcClientConnectResponse
    | pb.CommandCheck
    | pb.CommandCheckResponse
    | pb.CommandSeal
    | pb.CommandPublishTogether
    | pb.CommandPublishTogetherResponse
    | pb.CommandOwn
    | pb.CommandOwnResponse
    | pb.CommandDisown
    | pb.CommandOwnershipLost
    | pb.CommandQueueChanged
)

_HOT_CLASSES: Mapping[int, type[Command]] = {
    pb.BaseCommand.SEND: Send,
    pb.BaseCommand.SEND_RECEIPT: SendReceipt,
    pb.BaseCommand.MESSAGE: Delivery,
    pb.BaseCommand.ACK: Ack,
    pb.BaseCommand.FLOW: Flow,
}

# A sub-message's field number equals its command's type.
_NAMES: Mapping[int, str] = {
    number: field.name
    for number, field in pb.BaseCommand.DESCRIPTOR.fields_by_number.items()
    if number != pb.BaseCommand.TYPE_FIELD_NUMBER
}
_MESSAGE_CLASSES: Mapping[int, type[Message]] = {
    number: GetMessageClass(field.message_type)
    for number, field in pb.BaseCommand.DESCRIPTOR.fields_by_number.items()
    if field.message_type is not None
}
_TYPES: Mapping[type, int] = {
    kind: number for classes in (_MESSAGE_CLASSES, _HOT_CLASSES) for number, kind in classes.items()
}

_HOT_DECODERS: Mapping[
    int, Callable[[bytearray], Send | SendReceipt | Delivery | Ack | Flow | None]
] = {
    pb.BaseCommand.SEND: decode_send,
    pb.BaseCommand.SEND_RECEIPT: decode_send_receipt,
    pb.BaseCommand.MESSAGE: decode_delivery,
    pb.BaseCommand.ACK: decode_ack,
    pb.BaseCommand.FLOW: decode_flow,
}


def type_name(number: int) -> str:
    """A command's name in Pulsar's protocol; its number if the command is unknown."""
    name = _NAMES.get(number)
    return str(number) if name is None else name.upper()


def type_of(kind: type) -> int:
    """The BaseCommand.Type number of a class of commands; KeyError for any other class."""
    return _TYPES[kind]


def class_of(number: int) -> type:
    """The class of the commands that decode_command returns for a BaseCommand.Type number."""
    return _HOT_CLASSES.get(number) or _MESSAGE_CLASSES[number]


# ---- decoding ----------------------------------------------------------------------------------


def decode_command(data: bytes | bytearray | memoryview) -> Command:
    """Decode a whole BaseCommand. Raises ProtocolError for anything else."""
    if type(data) is not bytearray:
        data = bytearray(data)
    if len(data) > 4 and data[0] == 0x08:
        decode = _HOT_DECODERS.get(data[1])
        if decode is not None:
            command = decode(data)
            if command is not None:
                return command
    return decode_by_protobuf(bytes(data))


def decode_by_protobuf(data: bytes) -> Command:
    """As decode_command, without the hand-written decoders. This result is authoritative."""
    try:
        base = pb.BaseCommand.FromString(data)
    except DecodeError as error:
        raise ProtocolError("bytes that are not a command") from error
    # protobuf reads an unknown type as the first one, CONNECT: check that the field is present.
    if not base.HasField("type"):
        unknown = [field.data for field in _unknown_fields(base) if field.field_number == 1]
        raise ProtocolError(
            f"unknown command {unknown[-1]}" if unknown else "a command without type"
        )
    name = _NAMES[base.type]
    # The name is from the descriptor; the generated types do not cover this.
    if not base.HasField(name):  # type: ignore[arg-type]
        raise ProtocolError(f"{name.upper()} without its content")
    message = getattr(base, name)
    if not message.IsInitialized():
        missing = ", ".join(message.FindInitializationErrors()[:3])
        raise ProtocolError(f"{name.upper()} lacks {missing}, or has an unknown value there")
    _check_counts(message)
    check_values(message)
    from_proto = _FROM_PROTO.get(base.type)
    command: Command = message if from_proto is None else from_proto(message)
    return command


def _check_counts(message: Message) -> None:
    field, most = COUNTS_MAX.get(type(message), ("", 0))
    if field and len(getattr(message, field)) > most:
        raise ProtocolError(f"{message.DESCRIPTOR.name} has more than {most} {field}")


def check_values(message: Message) -> None:
    """Reject values that protobuf accepts: enum values that it reads as the default, texts that are not UTF-8.

    A future access mode must not be read as Shared. Raises ProtocolError.
    """
    if not _has_values_to_check(message.DESCRIPTOR):
        return
    if _has_enum(message.DESCRIPTOR):
        for unknown in _unknown_fields(message):
            field = message.DESCRIPTOR.fields_by_number.get(unknown.field_number)
            if field is not None:
                raise ProtocolError(
                    f"{message.DESCRIPTOR.name}: unknown {field.name} {unknown.data}"
                )
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_STRING:
            for text in value if field.is_repeated else (value,):
                if not isinstance(text, str):
                    raise ProtocolError(f"{message.DESCRIPTOR.name}: {field.name} is not UTF-8")
        elif field.message_type is not None and _has_values_to_check(field.message_type):
            for part in value if field.is_repeated else (value,):
                check_values(part)


class _UnknownField(Protocol):
    """The value of a field that the .proto does not define."""

    @property
    def field_number(self) -> int: ...
    @property
    def wire_type(self) -> int: ...
    @property
    def data(self) -> object: ...


def _unknown_fields(message: Message) -> list[_UnknownField]:
    # By index, because its type stubs do not support iteration.
    fields = UnknownFieldSet(message)
    return [fields[index] for index in range(len(fields))]


@cache
def _has_enum(descriptor: Descriptor) -> bool:
    return any(field.enum_type is not None for field in descriptor.fields)


@cache
def _has_values_to_check(descriptor: Descriptor) -> bool:
    return _has_enum(descriptor) or any(
        field.type == FieldDescriptor.TYPE_STRING
        or (
            field.message_type is not None
            and field.message_type is not descriptor
            and _has_values_to_check(field.message_type)
        )
        for field in descriptor.fields
    )


COUNTS_MAX: Mapping[type[Message], tuple[str, int]] = {
    pb.CommandAck: ("properties", 1_000),
    # A request above the limit of one request is decoded and rejected: these numbers take a few hundredths of a
    # second. A request above these numbers is not a mistake of counting.
    pb.CommandOwn: ("resources", 20_000),
    pb.CommandDisown: ("resources", 20_000),
}
"""The maximum count of a repeated field in a large command: an item takes more time than its size suggests.

A command with more of them closes the connection.
"""

IDS_AT_ONCE_MAX = 100
"""Ids of an ACK that are converted with the command. Further ids are converted when they are needed."""

ACK_SET_WORDS_MAX = 2049
"""The maximum of words that are read of an acknowledgement set: one more than any batch needs, to detect an excess."""


class MessageIds(Sequence[MessageId]):
    """The ids of a large command. Each is converted when it is accessed."""

    __slots__ = ("_messages",)

    def __init__(self, messages: Sequence[pb.MessageIdData]) -> None:
        self._messages = messages

    def __len__(self) -> int:
        return len(self._messages)

    @overload
    def __getitem__(self, index: int) -> MessageId: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[MessageId]: ...
    def __getitem__(self, index: int | slice) -> MessageId | Sequence[MessageId]:
        if isinstance(index, slice):
            return [message_id_from_proto(each) for each in self._messages[index]]
        return message_id_from_proto(self._messages[index])


def message_id_from_proto(message: pb.MessageIdData) -> MessageId:
    """Convert a MessageIdData."""
    words = message.ack_set
    return MessageId(
        message.ledger_id,
        message.entry_id,
        message.partition,
        message.batch_index,
        tuple(words[:ACK_SET_WORDS_MAX]) if words else (),
        message.batch_size if message.HasField("batch_size") else None,
        message_id_from_proto(message.first_chunk_message_id)
        if message.HasField("first_chunk_message_id")
        else None,
    )


def message_id_to_proto(message_id: MessageId) -> pb.MessageIdData:
    """Convert to a MessageIdData. Unset fields stay unset."""
    message = pb.MessageIdData(ledger_id=message_id.ledger, entry_id=message_id.entry)
    if message_id.partition != -1:
        message.partition = message_id.partition
    if message_id.batch_index != -1:
        message.batch_index = message_id.batch_index
    message.ack_set.extend(message_id.ack_set)
    if message_id.batch_size is not None:
        message.batch_size = message_id.batch_size
    if message_id.first_chunk is not None:
        message.first_chunk_message_id.CopyFrom(message_id_to_proto(message_id.first_chunk))
    return message


def _send_from_proto(message: pb.CommandSend) -> Send:
    return Send(
        message.producer_id,
        message.sequence_id,
        message.num_messages,
        message.highest_sequence_id,
        message.is_chunk,
        message.marker,
        message.txnid_least_bits,
        message.txnid_most_bits,
        message_id_from_proto(message.message_id) if message.HasField("message_id") else None,
    )


def _ack_from_proto(message: pb.CommandAck) -> Ack:
    return Ack(
        message.consumer_id,
        message.ack_type,
        MessageIds(message.message_id)
        if len(message.message_id) > IDS_AT_ONCE_MAX
        else tuple(message_id_from_proto(each) for each in message.message_id),
        message.request_id if message.HasField("request_id") else None,
        message.validation_error if message.HasField("validation_error") else None,
        tuple((each.key, each.value) for each in message.properties),
        message.txnid_least_bits,
        message.txnid_most_bits,
    )


def _flow_from_proto(message: pb.CommandFlow) -> Flow:
    return Flow(message.consumer_id, message.message_permits)


def _send_receipt_from_proto(message: pb.CommandSendReceipt) -> SendReceipt:
    return SendReceipt(
        message.producer_id,
        message.sequence_id,
        message_id_from_proto(message.message_id) if message.HasField("message_id") else None,
        message.highest_sequence_id,
    )


def _delivery_from_proto(message: pb.CommandMessage) -> Delivery:
    return Delivery(
        message.consumer_id,
        message_id_from_proto(message.message_id),
        message.redelivery_count,
        tuple(message.ack_set),
        message.consumer_epoch if message.HasField("consumer_epoch") else None,
    )


# Each function takes the message of its own type, which the type of a mapping cannot express.
_FROM_PROTO: Mapping[int, Callable[..., Command]] = {
    pb.BaseCommand.SEND: _send_from_proto,
    pb.BaseCommand.ACK: _ack_from_proto,
    pb.BaseCommand.FLOW: _flow_from_proto,
    pb.BaseCommand.SEND_RECEIPT: _send_receipt_from_proto,
    pb.BaseCommand.MESSAGE: _delivery_from_proto,
}


def queue_priority(
    producer: pb.CommandProducer, field_number: int = QUEUE_PRIORITY_FIELD
) -> int | None:
    """The int32 in a field of a PRODUCER that the .proto does not define, as PIP-440's priority.

    None if it is absent or not a number. The last value counts, as for any protobuf field.
    """
    priority: int | None = None
    for field in _unknown_fields(producer):
        if (
            field.field_number == field_number
            and isinstance(field.data, int)
            and field.wire_type == 0
        ):
            low = field.data & 0xFFFF_FFFF
            priority = low - 2**32 if low & 0x8000_0000 else low
    return priority


# ---- encoding ----------------------------------------------------------------------------------

_LENGTHS = struct.Struct(">II")
_PREFIXES: Mapping[type, bytes] = {
    kind: b"\x08" + encode_varint(number) + encode_varint(number << 3 | 2)
    for number, kind in _MESSAGE_CLASSES.items()
}
"""The bytes of a BaseCommand before its sub-message's length."""


def encode_command(message: Message) -> bytes:
    """The whole frame of a pb.Command... message. The class determines the command.

    Raises protobuf's EncodeError if a required field is missing, KeyError if the message is not a command.
    """
    return encode_body(type(message), message.SerializeToString())


def encode_body(kind: type[Message], body: bytes) -> bytes:
    """The whole frame of a command of that class whose encoding is ``body``."""
    return encode_frame(_PREFIXES[kind], body)


def command_frame(kind: type[Message], pieces: Sequence[bytes]) -> list[bytes]:
    """The frame, in parts, of a command of that class whose encoding is the concatenation of the pieces."""
    length = sum(map(len, pieces))
    head = _PREFIXES[kind] + encode_varint(length)
    return [_LENGTHS.pack(4 + len(head) + length, len(head) + length) + head, *pieces]
