"""The right that each command of the wire protocol needs. The session checks it before it handles
the command.

The table has every BaseCommand type. A command without an entry is not answered, and the broker
closes the connection that sends it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from onewriter_broker.auth.authorization import Authorization
from onewriter_broker.connection.properties import mode_of
from onewriter_broker.connection.requests import code_of, error_reply
from onewriter_core.authorization import Action, RequestedProducer
from onewriter_core.errors import ProtocolError, Refused
from onewriter_core.ids import Identity, InvalidTopicName, TopicName
from onewriter_core.wire import replies
from onewriter_core.wire.commands import Command, encode_command, type_name, type_of
from onewriter_core.wire.proto import PulsarApi_pb2 as pb


@dataclass(frozen=True, slots=True)
class OnTopic:
    """These rights to the topic that the command names."""

    actions: tuple[Action, ...]


@dataclass(frozen=True, slots=True)
class OnConsumersTopic:
    """These rights to the topic of the consumer that the command names."""

    actions: tuple[Action, ...]


@dataclass(frozen=True, slots=True)
class OnEach:
    """This right to each object that the command names, or the answer contains only what is
    allowed.

    ``where`` is the function that checks it.
    """

    action: Action
    where: str


@dataclass(frozen=True, slots=True)
class NoneNeeded:
    """No right, with the reason."""

    why: str


@dataclass(frozen=True, slots=True)
class FromBrokers:
    """Only brokers send it. The broker closes the connection of a client that does."""


Rule = OnTopic | OnConsumersTopic | OnEach | NoneNeeded | FromBrokers

_OWN_PRODUCER: Final = NoneNeeded("it is about a producer that PRODUCER opened on this connection")
_OWN_CONSUMER: Final = NoneNeeded("it is about a consumer that SUBSCRIBE opened on this connection")
_REFUSED: Final = NoneNeeded("transactions are refused to everybody")
_PROOF: Final = NoneNeeded("it proves the identity that all rights are about")
_BROKERS: Final = FromBrokers()

_Type = pb.BaseCommand

RULES: Final[Mapping[int, Rule]] = MappingProxyType(
    {
        _Type.CONNECT: _PROOF,
        _Type.AUTH_RESPONSE: _PROOF,
        _Type.PING: NoneNeeded("it only shows that the peer lives"),
        _Type.PONG: NoneNeeded("it only shows that the peer lives"),
        # writing
        _Type.PRODUCER: OnTopic((Action.PRODUCE,)),
        _Type.SEND: _OWN_PRODUCER,
        _Type.CLOSE_PRODUCER: _OWN_PRODUCER,
        _Type.SEAL: _OWN_PRODUCER,
        _Type.PUBLISH_TOGETHER: _OWN_PRODUCER,
        # reading
        _Type.SUBSCRIBE: OnTopic((Action.CONSUME, Action.CREATE_TOPIC)),
        _Type.FLOW: _OWN_CONSUMER,
        _Type.ACK: _OWN_CONSUMER,
        _Type.REDELIVER_UNACKNOWLEDGED_MESSAGES: _OWN_CONSUMER,
        _Type.CLOSE_CONSUMER: _OWN_CONSUMER,
        _Type.CONSUMER_STATS: _OWN_CONSUMER,
        _Type.SEEK: OnConsumersTopic((Action.CHANGE_SUBSCRIPTION,)),
        _Type.UNSUBSCRIBE: OnConsumersTopic((Action.CHANGE_SUBSCRIPTION,)),
        _Type.GET_LAST_MESSAGE_ID: OnConsumersTopic((Action.CONSUME,)),
        # looking up
        _Type.LOOKUP: OnTopic((Action.LOOK_UP,)),
        _Type.PARTITIONED_METADATA: OnTopic((Action.LOOK_UP,)),
        _Type.GET_TOPICS_OF_NAMESPACE: OnEach(Action.OBSERVE, "Lookups.topics_of_namespace"),
        _Type.CHECK: OnTopic((Action.GUARD, Action.CREATE_TOPIC)),
        # schemas
        _Type.GET_SCHEMA: OnTopic((Action.READ_SCHEMA,)),
        _Type.GET_OR_CREATE_SCHEMA: OnTopic((Action.CREATE_SCHEMA,)),
        # owning
        _Type.OWN: OnEach(Action.OWN, "OwnershipCommands.own"),
        _Type.DISOWN: NoneNeeded("it gives up only what this connection owns"),
        # transactions
        _Type.NEW_TXN: _REFUSED,
        _Type.ADD_PARTITION_TO_TXN: _REFUSED,
        _Type.ADD_SUBSCRIPTION_TO_TXN: _REFUSED,
        _Type.END_TXN: _REFUSED,
        _Type.END_TXN_ON_PARTITION: _REFUSED,
        _Type.END_TXN_ON_SUBSCRIPTION: _REFUSED,
        _Type.TC_CLIENT_CONNECT_REQUEST: _REFUSED,
        # answers and news
        _Type.CONNECTED: _BROKERS,
        _Type.SEND_RECEIPT: _BROKERS,
        _Type.SEND_ERROR: _BROKERS,
        _Type.MESSAGE: _BROKERS,
        _Type.SUCCESS: _BROKERS,
        _Type.ERROR: _BROKERS,
        _Type.PRODUCER_SUCCESS: _BROKERS,
        _Type.PARTITIONED_METADATA_RESPONSE: _BROKERS,
        _Type.LOOKUP_RESPONSE: _BROKERS,
        _Type.CONSUMER_STATS_RESPONSE: _BROKERS,
        _Type.REACHED_END_OF_TOPIC: _BROKERS,
        _Type.GET_LAST_MESSAGE_ID_RESPONSE: _BROKERS,
        _Type.ACTIVE_CONSUMER_CHANGE: _BROKERS,
        _Type.GET_TOPICS_OF_NAMESPACE_RESPONSE: _BROKERS,
        _Type.GET_SCHEMA_RESPONSE: _BROKERS,
        _Type.AUTH_CHALLENGE: _BROKERS,
        _Type.ACK_RESPONSE: _BROKERS,
        _Type.GET_OR_CREATE_SCHEMA_RESPONSE: _BROKERS,
        _Type.NEW_TXN_RESPONSE: _BROKERS,
        _Type.ADD_PARTITION_TO_TXN_RESPONSE: _BROKERS,
        _Type.ADD_SUBSCRIPTION_TO_TXN_RESPONSE: _BROKERS,
        _Type.END_TXN_RESPONSE: _BROKERS,
        _Type.END_TXN_ON_PARTITION_RESPONSE: _BROKERS,
        _Type.END_TXN_ON_SUBSCRIPTION_RESPONSE: _BROKERS,
        _Type.TC_CLIENT_CONNECT_RESPONSE: _BROKERS,
        _Type.CHECK_RESPONSE: _BROKERS,
        _Type.PUBLISH_TOGETHER_RESPONSE: _BROKERS,
        _Type.OWN_RESPONSE: _BROKERS,
        _Type.OWNERSHIP_LOST: _BROKERS,
        _Type.QUEUE_CHANGED: _BROKERS,
    }
)


class CommandRights:
    """Checks the rights of one connection. ``topic_of`` finds the topic of one of its consumers."""

    def __init__(
        self,
        authorization: Authorization,
        identity: Identity,
        topic_of: Callable[[int], TopicName | None],
    ) -> None:
        self._authorization = authorization
        self._identity = identity
        self._topic_of = topic_of

    def refusal(self, command: Command) -> bytes | None:
        """The answer to a command that its sender has no right to; None if it has.

        Raises ProtocolError for a command that no client sends.
        """
        number = type_of(type(command))
        rule = RULES.get(number)
        if rule is None or isinstance(rule, FromBrokers):
            raise ProtocolError(f"unexpected {type_name(number)}")
        try:
            self._check(rule, command)
        except (Refused, InvalidTopicName) as error:
            return refused(command, error)
        return None

    def _check(self, rule: Rule, command: Any) -> None:
        match rule:
            case OnTopic(actions):
                name: TopicName | None = TopicName.parse(command.topic)
            case OnConsumersTopic(actions):
                name = self._topic_of(command.consumer_id)
            case _:
                return
        if name is None:
            return  # the answer will be that there is no such consumer
        requested = None
        if isinstance(command, pb.CommandProducer):
            requested = RequestedProducer(mode_of(command))
        for action in actions:
            self._authorization.require(self._identity, action, name, requested)


def refused(command: Any, error: Refused | InvalidTopicName) -> bytes:
    """A refusal in the shape that clients expect as the answer to the command."""
    code, text = code_of(error), str(error)
    match command:
        case pb.CommandLookup():
            return replies.lookup_failed(command.request_id, code, text)
        case pb.CommandPartitionedMetadata():
            return replies.partitions_failed(command.request_id, code, text)
        case pb.CommandGetSchema():
            return encode_command(
                pb.CommandGetSchemaResponse(
                    request_id=command.request_id,
                    error_code=replies.wire_code(code),
                    error_message=text,
                )
            )
        case pb.CommandGetOrCreateSchema():
            return encode_command(
                pb.CommandGetOrCreateSchemaResponse(
                    request_id=command.request_id,
                    error_code=replies.wire_code(code),
                    error_message=text,
                )
            )
        case _:
            return error_reply(command.request_id, error)
