"""The client's end of one connection, the counterpart of server.py.

For the SDK, and for raw clients in tests and benchmarks. encoding.py encodes the commands of the data path, this
module all others.
"""

from __future__ import annotations

from google.protobuf.message import Message

from onewriter_core.wire.commands import EXTENSIONS_VERSION, encode_command, type_of
from onewriter_core.wire.connection import FROM_BROKER, FROM_CLIENT, Connection
from onewriter_core.wire.frames import FRAME_LENGTH_MAX, FrameReader
from onewriter_core.wire.proto import PulsarApi_pb2 as pb


class ClientConnection(Connection):
    """Decodes the commands of a broker, checks their order, and numbers requests.

    A payload starts with the broker's entry metadata, if there is any (messages.split_broker_entry_metadata).
    """

    __slots__ = ("_request_id",)

    def __init__(self, *, frame_length_max: int = FRAME_LENGTH_MAX) -> None:
        self._request_id = 0
        reader = FrameReader(
            frame_length_max=frame_length_max,
            command_length_max=frame_length_max,
            keep_broker_entry_metadata=True,
        )
        super().__init__(reader, FROM_BROKER)

    def next_request_id(self) -> int:
        """A request id that is new on this connection."""
        self._request_id += 1
        return self._request_id

    def connect(
        self,
        client_version: str,
        *,
        protocol_version: int = 20,
        auth_method: str = "none",
        auth_data: bytes = b"",
        proxy_to_broker_url: str = "",
        extensions_version: int = EXTENSIONS_VERSION,
    ) -> bytes:
        """The first frame; the broker answers CONNECTED, AUTH_CHALLENGE or ERROR.

        ``proxy_to_broker_url``: ``host:port`` of the broker to which a proxy connects.
        ``extensions_version``: the version of onewriter's own commands; 0: none, as a stock client.
        """
        return self.encode(
            pb.CommandConnect(
                client_version=client_version,
                protocol_version=protocol_version,
                auth_method_name=auth_method,
                auth_data=auth_data or None,
                proxy_to_broker_url=proxy_to_broker_url or None,
                onewriter_extensions=extensions_version or None,
                feature_flags=pb.FeatureFlags(
                    supports_auth_refresh=True, supports_broker_entry_metadata=True
                ),
            )
        )

    def auth_response(self, client_version: str, method: str, data: bytes) -> bytes:
        """Answers AUTH_CHALLENGE."""
        return self.encode(
            pb.CommandAuthResponse(
                client_version=client_version,
                response=pb.AuthData(auth_method_name=method, auth_data=data),
            )
        )

    def encode(self, message: Message) -> bytes:
        """The frame of a command. Raises RuntimeError if a client may not send it now."""
        number = type_of(type(message))
        if number not in FROM_CLIENT:
            raise RuntimeError(f"{type(message).__name__} is not a client's to send")
        frame = encode_command(message)
        self._sending(number)
        return frame
