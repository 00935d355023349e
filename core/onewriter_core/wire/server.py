"""The broker's end of one connection. connection.py has the order of commands.

replies.py and encoding.py build the answers that do not change the state of the connection.
"""

from __future__ import annotations

from onewriter_core.errors import ProtocolError, ServerError
from onewriter_core.wire import replies
from onewriter_core.wire.command_limits import (
    HANDSHAKE_LENGTH_MAX,
    UNCHECKED_LENGTH_MAX,
    check_length,
    known_type,
)
from onewriter_core.wire.commands import (
    BROKER_REQUEST_ID,
    EXTENSIONS_VERSION,
    MESSAGE_LENGTH_MAX,
    PROTOCOL_VERSION,
    Command,
    encode_command,
    type_name,
)
from onewriter_core.wire.connection import FROM_CLIENT, TRANSITIONS, Connection, State
from onewriter_core.wire.frames import FRAME_LENGTH_MAX, FrameReader
from onewriter_core.wire.proto import PulsarApi_pb2 as pb


class ServerConnection(Connection):
    """Checks the type and the size of a client's commands, decodes them, and checks their order.

    ``peer`` is the client's CONNECT, None before it. ``frame_length_max``: bytes of a frame.
    """

    __slots__ = ("_frame_length_max", "peer")

    def __init__(self, *, frame_length_max: int = FRAME_LENGTH_MAX) -> None:
        self.peer: pb.CommandConnect | None = None
        self._frame_length_max = frame_length_max
        super().__init__(FrameReader(frame_length_max=HANDSHAKE_LENGTH_MAX), FROM_CLIENT)

    @property
    def protocol_version(self) -> int:
        """The protocol version that both sides support; 0 before CONNECT."""
        return 0 if self.peer is None else min(PROTOCOL_VERSION, self.peer.protocol_version)

    @property
    def extensions_version(self) -> int:
        """The version of onewriter's own commands that both sides support; 0: none."""
        return 0 if self.peer is None else min(EXTENSIONS_VERSION, self.peer.onewriter_extensions)

    def connected(
        self,
        server_version: str,
        *,
        max_message_size: int = MESSAGE_LENGTH_MAX,
        get_partitions_without_auto_creation: bool = True,
    ) -> bytes:
        """Accept the client. Raises RuntimeError if the connection is in another state."""
        self._sending(pb.BaseCommand.CONNECTED)
        return encode_command(
            pb.CommandConnected(
                server_version=server_version,
                protocol_version=self.protocol_version,
                max_message_size=max_message_size,
                onewriter_extensions=self.extensions_version or None,
                feature_flags=pb.FeatureFlags(
                    supports_get_partitioned_metadata_without_auto_creation=(
                        get_partitions_without_auto_creation
                    ),
                ),
            )
        )

    def challenge(self, server_version: str, method: str, data: bytes = b"") -> bytes:
        """Ask for (new) credentials. The client answers AUTH_RESPONSE."""
        self._sending(pb.BaseCommand.AUTH_CHALLENGE)
        return encode_command(
            pb.CommandAuthChallenge(
                server_version=server_version,
                challenge=pb.AuthData(auth_method_name=method, auth_data=data),
                protocol_version=self.protocol_version,
            )
        )

    def refuse(self, code: ServerError, message: str) -> bytes:
        """Reject the client instead of CONNECTED: write this frame, then close the socket."""
        self.close()
        return replies.error(BROKER_REQUEST_ID, code, message)

    def _check_undecoded(self, data: bytearray) -> None:
        number = known_type(data)
        if number not in FROM_CLIENT or (self._state, number) not in TRANSITIONS:
            raise ProtocolError(f"{type_name(number)} is not expected while {self._state.value}")
        check_length(number, len(data))

    def _enter(self, state: State) -> None:
        super()._enter(state)
        is_connected = state is State.CONNECTED
        self._unchecked_length_max = UNCHECKED_LENGTH_MAX if is_connected else -1
        self._reader.frame_length_max = (
            self._frame_length_max if is_connected else HANDSHAKE_LENGTH_MAX
        )

    def _on_transition(self, command: Command, state: State | None) -> None:
        super()._on_transition(command, state)
        if isinstance(command, pb.CommandConnect):
            self.peer = command
