"""The session of one client connection: its commands, and what answers them.

SEND, ACK and FLOW take a short path. Nothing in this module blocks: what must wait for the store
runs as a task, a bounded number of them per connection (requests.py), and long work is done in
steps.
"""

from __future__ import annotations

from collections.abc import Iterator

from onewriter_broker.connection.admission import not_now
from onewriter_broker.connection.checks import Checks
from onewriter_broker.connection.clients import Clients
from onewriter_broker.connection.consumers import ConsumerCommands
from onewriter_broker.connection.lookups import Lookups
from onewriter_broker.connection.ownerships import OwnershipCommands
from onewriter_broker.connection.producers import ProducerCommands
from onewriter_broker.connection.requests import Link, Requests
from onewriter_broker.connection.rights import CommandRights
from onewriter_broker.connection.schemas import SchemaRequests
from onewriter_broker.connection.together import TogetherRequests
from onewriter_broker.quotas.book import subject_of
from onewriter_core.errors import ProtocolError, ServerError
from onewriter_core.ids import Identity
from onewriter_core.topic.model import TransitionCause
from onewriter_core.wire import replies
from onewriter_core.wire.commands import Command
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import Ack, Flow, Send

_DONE = object()


class Session:
    """One authenticated connection. ``handle`` takes its commands; ``lost`` ends it."""

    def __init__(
        self,
        clients: Clients,
        link: Link,
        *,
        name: str,
        address: str,
        identity: Identity,
        client_version: str,
    ) -> None:
        self.name = name
        self.peer_address = address
        self.identity = identity
        self.client_version = client_version
        self._clients = clients
        self._link = link
        self._requests = Requests(
            link,
            clients.in_flight,
            subject_of(identity, address),
            requests_max=clients.limits.requests_max,
        )
        self._steps: Iterator[None] | None = None
        self._lookups = Lookups(
            clients.topics,
            clients.authorization,
            identity,
            clients.over_tls,
            clients.over_plain,
            clients.listings,
        )
        self._schemas = SchemaRequests(clients, subject_of(identity, address), link.write)
        self._checks = Checks(clients.topics, clients.appender.prove)
        self._producers = ProducerCommands(
            clients,
            link,
            self._requests,
            name=name,
            address=address,
            identity=identity,
            client_version=client_version,
        )
        self._ownerships = OwnershipCommands(clients, link, identity, self._producers.watch_closely)
        self._together = TogetherRequests(
            link, clients.appender, self._producers.active, clients.settings.buckets
        )
        self._consumers = ConsumerCommands(
            clients,
            link,
            self._requests,
            address,
            subject_of(identity, address),
            client_version=client_version,
            identity=identity,
            owner=self._ownerships,
        )
        self._rights = CommandRights(clients.authorization, identity, self._consumers.topic_of)

    def handle(self, command: Command, payload: memoryview | None) -> bool:
        """Handle one command. Raises ProtocolError if the connection cannot continue.

        Returns False for a message, which takes little time. Any other command may take longer, or
        have steps left.
        """
        if isinstance(command, Send):
            if payload is None:
                raise ProtocolError("SEND without a message")
            self._producers.send(command, payload)
            return False
        if isinstance(command, Ack):
            self._steps = self._consumers.acknowledge(command)
        elif isinstance(command, Flow):
            self._consumers.flow(command)
        else:
            self._other(command)
        return True

    @property
    def has_steps(self) -> bool:
        """The last command is not finished: ``step`` continues it. No other command is handled
        before.
        """
        return self._steps is not None

    def step(self) -> None:
        """Continue the last command, for about a millisecond."""
        if self._steps is not None and next(self._steps, _DONE) is _DONE:
            self._steps = None

    @property
    def must_wait(self) -> bool:
        """The next command must not be handled now."""
        return self._steps is not None or self._requests.is_full

    @property
    def is_held_back(self) -> bool:
        """Whether a log that it writes to has no room in the store."""
        return self._producers.is_held_back

    def read_ended(self) -> None:
        """Note that all commands of one read were handled."""
        self._producers.read_ended()

    def _other(self, command: Command) -> None:
        refusal = not_now(
            command,
            has_declarations=self._clients.has_declarations,
            may_only_resume=self._link.may_only_resume,
        )
        if refusal is None:
            refusal = self._rights.refusal(command)
        if refusal is not None:
            self._link.write(refusal)
            return
        match command:
            case pb.CommandPing():
                self._link.write(replies.PONG)
            case pb.CommandAuthResponse():
                self._link.auth_response(command)
            case pb.CommandPong():
                pass  # the link has noted this sign of life
            case pb.CommandProducer():
                self._producers.open(command)
            case pb.CommandCloseProducer():
                self._producers.close(command)
            case pb.CommandSubscribe():
                self._producers.named_partitions.consumer_opened(command.topic)
                self._consumers.open(command)
            case pb.CommandCloseConsumer():
                self._consumers.close(command)
            case pb.CommandUnsubscribe():
                self._requests.run(command.request_id, self._consumers.unsubscribe(command))
            case pb.CommandRedeliverUnacknowledgedMessages():
                self._steps = self._consumers.redeliver(command)
            case pb.CommandSeek():
                self._requests.run(command.request_id, self._consumers.seek(command))
            case pb.CommandGetLastMessageId():
                self._requests.run(command.request_id, self._consumers.last_message_id(command))
            case pb.CommandConsumerStats():
                self._consumers.stats(command)
            case pb.CommandPartitionedMetadata():
                self._producers.named_partitions.metadata_requested(command.topic)
                self._requests.beside(self._lookups.partitions(command, self._link.write))
            case pb.CommandLookup():
                if not self._lookups.answer(command, self._link.write):
                    self._requests.beside(self._lookups.lookup(command, self._link.write))
            case pb.CommandGetTopicsOfNamespace():
                self._requests.beside(
                    self._lookups.topics_of_namespace(
                        command, self._link.write, self._link.wait_for_space
                    )
                )
            case pb.CommandGetSchema():
                self._requests.run(command.request_id, self._schemas.find(command))
            case pb.CommandGetOrCreateSchema():
                self._requests.run(command.request_id, self._schemas.make(command))
            case (
                pb.CommandNewTxn()
                | pb.CommandAddPartitionToTxn()
                | pb.CommandAddSubscriptionToTxn()
                | pb.CommandEndTxn()
                | pb.CommandEndTxnOnPartition()
                | pb.CommandEndTxnOnSubscription()
                | pb.CommandTcClientConnectRequest()
            ):
                text = "transactions are not supported; see onewriter's guarded writes"
                self._link.write(
                    replies.transaction_refused(command, ServerError.NOT_ALLOWED_ERROR, text)
                )
            case _:
                self._extension(command)

    def _extension(self, command: Command) -> None:
        """Handle one of onewriter's own commands (docs/wire.md)."""
        match command:
            case pb.CommandCheck():
                work = self._checks.check(command, self._link.write)
            case pb.CommandSeal():
                work = self._producers.seal(command)
            case pb.CommandPublishTogether():
                work = self._together.publish(command)
            case pb.CommandOwn():
                work = self._ownerships.own(command)
            case pb.CommandDisown():
                work = self._ownerships.disown(command)
            case _:
                raise ProtocolError(f"unexpected {type(command).__name__}")
        self._requests.run(command.request_id, work)

    def space_freed(self) -> None:
        """The socket accepts data again."""
        self._consumers.space_freed()

    def silent(self) -> None:
        """Fence the topics of this connection now: the broker has received nothing from it for too
        long.
        """
        self._producers.depart(TransitionCause.SILENT)
        self._link.close("silent")

    @property
    def consumers(self) -> ConsumerCommands:
        """Its consumers."""
        return self._consumers

    def declarations_changed(self) -> None:
        """Apply changed declarations."""
        self._producers.declarations_changed()

    def lost(self) -> None:
        """The socket is closed."""
        self._requests.lost()
        self._producers.lost()
        self._ownerships.lost()
        self._consumers.lost()
