"""The commands that the relay changes, so that a client stays on the relay and the broker gets the pod's token. Pure."""

from __future__ import annotations

from typing import Final

from google.protobuf.message import Message

from onewriter._config import Address, parse_service_url
from onewriter._errors import ConfigurationError
from onewriter_core.errors import ProtocolError
from onewriter_core.wire.commands import decode_by_protobuf, encode_command
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

TOKEN_METHOD: Final = "token"  # noqa: S105 - the name of a method
_LENGTHS_LENGTH = 8


def decoded(frame: bytes) -> Message:
    """The command of a frame without a payload. Raises ProtocolError."""
    command = decode_by_protobuf(frame[_LENGTHS_LENGTH:])
    if not isinstance(command, Message):
        raise ProtocolError(f"{type(command).__name__} is not expected here")
    return command


def has_credentials(connect: pb.CommandConnect) -> bool:
    """Whether the client authenticates by itself."""
    return connect.auth_method_name not in {"", "none"}


def connect_to_broker(connect: pb.CommandConnect, token: str | None) -> bytes:
    """The client's CONNECT as the broker gets it: with the token, unless it is None.

    Everything that the client says of itself stays, so client and broker agree on features as without the relay.
    """
    changed = pb.CommandConnect()
    changed.CopyFrom(connect)
    changed.ClearField("proxy_to_broker_url")
    if token is not None:
        changed.auth_method_name = TOKEN_METHOD
        changed.auth_data = token.encode()
        changed.feature_flags.supports_auth_refresh = True
    return encode_command(changed)


def answer_to_challenge(client_version: str, token: str) -> bytes:
    """The AUTH_RESPONSE with a fresh token."""
    data = pb.AuthData(auth_method_name=TOKEN_METHOD, auth_data=token.encode())
    return encode_command(pb.CommandAuthResponse(client_version=client_version, response=data))


def lookup_answer(frame: bytes, *, is_tls: bool) -> tuple[bytes, Address | None]:
    """A LOOKUP_RESPONSE that directs the client to the relay, and the broker that it names.

    The client then connects to the relay, and names the broker in its CONNECT, as with Pulsar's own proxy. ``is_tls``
    says which of the broker's addresses the relay uses. Raises ProtocolError.
    """
    answer = decoded(frame)
    if not isinstance(answer, pb.CommandLookupResponse):
        raise ProtocolError("not an answer to a look-up")
    if answer.response == pb.CommandLookupResponse.FAILED:
        return frame, None
    url = answer.broker_service_url_tls if is_tls else answer.broker_service_url
    try:
        broker = parse_service_url(url)[0]
    except ConfigurationError as error:
        raise ProtocolError(f"the look-up named no usable address: {error}") from error
    answer.broker_service_url = str(broker._replace(is_tls=False))
    answer.ClearField("broker_service_url_tls")
    answer.proxy_through_service_url = True
    return encode_command(answer), broker


def closing_without_address(frame: bytes) -> bytes:
    """A CLOSE_PRODUCER or CLOSE_CONSUMER that names no other broker: the client looks the topic up again.

    Raises ProtocolError.
    """
    command = decoded(frame)
    if not isinstance(command, pb.CommandCloseProducer | pb.CommandCloseConsumer):
        raise ProtocolError("not the end of a producer or a consumer")
    command.ClearField("assigned_broker_service_url")
    command.ClearField("assigned_broker_service_url_tls")
    return encode_command(command)


def named_broker(connect: pb.CommandConnect) -> Address | None:
    """The broker that a CONNECT asks for, by its plain address; None: any broker. Raises ProtocolError."""
    wanted = connect.proxy_to_broker_url
    if not wanted:
        return None
    try:
        (broker,) = parse_service_url(wanted if "://" in wanted else f"pulsar://{wanted}")
    except (ConfigurationError, ValueError) as error:
        raise ProtocolError(f"CONNECT names no broker: {wanted[:200]!r}") from error
    return broker._replace(is_tls=False)
