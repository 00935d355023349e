"""Commands that have to wait, because the broker or the client's proof of identity is incomplete.

Until the broker has received its declarations, it cannot decide which topics exist and who has
which right. An identity that was proved while the API server is unavailable may keep what it holds,
and begin nothing new. The broker answers such commands with errors on which clients retry.
"""

from __future__ import annotations

from onewriter_broker.auth.authorization import DECLARATIONS_UNKNOWN
from onewriter_broker.connection.lookups import NO_OWNER
from onewriter_broker.connection.rights import refused
from onewriter_core.errors import Refused, ServerError
from onewriter_core.topic.model import AccessMode
from onewriter_core.wire import replies
from onewriter_core.wire.commands import Command
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

UNCONFIRMED = "the identity cannot be verified now: a producer can only resume"


def not_now(command: Command, *, has_declarations: bool, may_only_resume: bool) -> bytes | None:
    """The answer to a command that has to wait; None if it can be handled now.

    ``has_declarations``: the broker has received its declarations. ``may_only_resume``: as in Authenticated.
    """
    if not has_declarations:
        match command:
            case pb.CommandLookup():
                text = f"{NO_OWNER}: {DECLARATIONS_UNKNOWN}"
                return replies.lookup_failed(command.request_id, ServerError.METADATA_ERROR, text)
            case pb.CommandPartitionedMetadata():
                code = ServerError.METADATA_ERROR
                return replies.partitions_failed(
                    command.request_id, code, f"{NO_OWNER}: {DECLARATIONS_UNKNOWN}"
                )
            case (
                pb.CommandProducer()
                | pb.CommandSubscribe()
                | pb.CommandGetTopicsOfNamespace()
                | pb.CommandOwn()
            ):
                return replies.error(
                    command.request_id, ServerError.SERVICE_NOT_READY, DECLARATIONS_UNKNOWN
                )
            case _:
                return None
    if not may_only_resume:
        return None
    match command:
        case pb.CommandProducer() if not _is_resume(command):
            return replies.error(command.request_id, ServerError.SERVICE_NOT_READY, UNCONFIRMED)
        case pb.CommandSubscribe():
            return replies.error(command.request_id, ServerError.SERVICE_NOT_READY, UNCONFIRMED)
        case pb.CommandGetOrCreateSchema():
            return refused(command, Refused(ServerError.SERVICE_NOT_READY, UNCONFIRMED))
        case pb.CommandOwn() if not command.only_returns:
            return replies.error(command.request_id, ServerError.SERVICE_NOT_READY, UNCONFIRMED)
        case _:
            return None


def _is_resume(command: pb.CommandProducer) -> bool:
    """Whether a producer names the epoch that it holds. The topic machine compares it with the
    whole identity.
    """
    is_shared = AccessMode(command.producer_access_mode) is AccessMode.SHARED
    return command.HasField("topic_epoch") and not is_shared
