"""Which broker serves a topic: look-ups, redirects, and one connection per broker."""

from __future__ import annotations

import asyncio

from onewriter._config import Address, ClientOptions, parse_service_url
from onewriter._errors import (
    Closed,
    ConfigurationError,
    Partitioned,
    Unavailable,
    answer_of,
)
from onewriter._transport.connection import Connection, Spawn
from onewriter_core.errors import ProtocolError
from onewriter_core.ids import TopicName
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

HOPS_MAX = 10
"""Largest number of redirects of one look-up."""

CONNECTIONS_MAX = 1_000
"""Largest number of brokers to which one client is connected at the same time."""


_Way = tuple[Address, Address | None]
"""The address to connect to, and the broker behind it if that address is a proxy."""


class Directory:
    """The brokers of one service URL. For one event loop; ``close`` closes its connections."""

    def __init__(self, service_url: str, options: ClientOptions, spawn: Spawn) -> None:
        self._addresses = parse_service_url(service_url)
        self._options = options
        self._spawn = spawn
        self._first = 0
        self._unreachable = ""
        self._connections: dict[_Way, Connection] = {}
        self._opening: dict[_Way, asyncio.Lock] = {}
        self._is_closed = False

    @property
    def unreachable(self) -> str:
        """Why the latest attempt reached no broker of the service URL; empty if it reached one."""
        return self._unreachable

    async def owner_of(self, topic: TopicName) -> Connection:
        """Return a connection to the broker that serves the topic.

        Raises Refused (permanent), Unavailable (retry), ConfigurationError, Closed.
        """
        connection = await self._any_broker()
        is_authoritative = False
        for _ in range(HOPS_MAX):
            answer = await self._look_up(connection, topic, is_authoritative=is_authoritative)
            address = self._address_in(answer)
            if answer.response == pb.CommandLookupResponse.CONNECT:
                if answer.proxy_through_service_url:
                    return await self._through(connection, address)
                return await self.connection(address)
            is_authoritative = answer.authoritative
            connection = await self.connection(address)
        raise Unavailable(f"the look-up of {topic} had more than {HOPS_MAX} redirects")

    async def any_broker(self) -> Connection:
        """Return a connection to any broker, for requests that every broker answers. Raises as ``owner_of``."""
        return await self._any_broker()

    def address_of(self, url: str, url_tls: str) -> Address | None:
        """Return the address that an answer names for this client's scheme; None if it names none."""
        try:
            found = url_tls if self._addresses[0].is_tls else url
            return parse_service_url(found)[0]
        except ConfigurationError:
            return None

    async def partitions_of(self, connection: Connection, topic: TopicName) -> int:
        """Return the number of partitions; 0 for a topic without partitions. Raises as ``owner_of``."""
        request = pb.CommandPartitionedMetadata(
            topic=str(topic), request_id=connection.next_request_id()
        )
        answer = await connection.request(request)
        if not isinstance(answer, pb.CommandPartitionedMetadataResponse):
            raise _misplaced(answer)
        if answer.response == pb.CommandPartitionedMetadataResponse.FAILED:
            raise answer_of(answer.error, answer.message)
        return answer.partitions

    async def check_partitions(self, connection: Connection, topic: TopicName) -> None:
        """Raise Partitioned for a partitioned topic. Call it on the producer's future connection.

        For the name of a partition, this request is how the broker knows that the producer competes for that
        partition alone.
        """
        partitions = await self.partitions_of(connection, topic)
        if partitions > 0:
            raise Partitioned(str(topic), partitions)

    async def connection(self, address: Address, proxied_to: Address | None = None) -> Connection:
        """Return the connection to a broker, opened if necessary. Raises as Connection.open does, Closed."""
        way = (address, proxied_to)
        lock = self._opening.setdefault(way, asyncio.Lock())
        async with lock:
            if self._is_closed:
                raise Closed("the client was closed")
            present = self._connections.get(way)
            if present is not None and not present.is_closed:
                return present
            self._forget_closed()
            if len(self._connections) >= CONNECTIONS_MAX:
                raise Unavailable(f"connected to {CONNECTIONS_MAX} brokers already")
            connection = await Connection.open(address, self._options, self._spawn, proxied_to)
            if self._is_closed:  # closed meanwhile: ``close`` has not seen this connection
                await connection.close()
                raise Closed("the client was closed")
            self._connections[way] = connection
            return connection

    async def close(self) -> None:
        """Close all connections."""
        self._is_closed = True
        for connection in list(self._connections.values()):
            await connection.close()
        self._connections.clear()

    async def _through(self, through: Connection, owner: Address) -> Connection:
        """Return a connection through the broker that was asked: a proxy, or Pulsar's standalone broker."""
        if through.address == owner:
            return through
        return await self.connection(through.address, owner)

    async def _any_broker(self) -> Connection:
        """Return a connection to a broker of the service URL; the last one that answered is tried first."""
        troubles: list[Unavailable] = []
        for number in range(len(self._addresses)):
            index = (self._first + number) % len(self._addresses)
            try:
                connection = await self.connection(self._addresses[index])
            except Unavailable as error:
                troubles.append(error)
                continue
            self._first = index
            self._unreachable = ""
            return connection
        self._unreachable = "; ".join(str(error) for error in troubles)
        raise Unavailable(self._unreachable)

    async def _look_up(
        self, connection: Connection, topic: TopicName, *, is_authoritative: bool
    ) -> pb.CommandLookupResponse:
        request = pb.CommandLookup(
            topic=str(topic),
            request_id=connection.next_request_id(),
            authoritative=is_authoritative,
        )
        try:
            answer = await connection.request(request)
        except Unavailable:
            # This broker may be down or frozen: the next look-up begins with another one.
            self._first = (self._first + 1) % len(self._addresses)
            raise
        if not isinstance(answer, pb.CommandLookupResponse):
            raise _misplaced(answer)
        if answer.response == pb.CommandLookupResponse.FAILED:
            raise answer_of(answer.error, answer.message)
        return answer

    def _address_in(self, answer: pb.CommandLookupResponse) -> Address:
        is_tls = self._addresses[0].is_tls
        url = answer.broker_service_url_tls if is_tls else answer.broker_service_url
        if not url:
            kind = "TLS address" if is_tls else "plain address"
            raise Unavailable(f"the look-up named a broker without a {kind}")
        try:
            return parse_service_url(url)[0]
        except ConfigurationError as error:
            raise Unavailable(f"the look-up named no usable address: {error}") from error

    def _forget_closed(self) -> None:
        for way, connection in list(self._connections.items()):
            if connection.is_closed:
                del self._connections[way]
                if not self._opening[way].locked():
                    del self._opening[way]


def _misplaced(answer: object) -> ProtocolError:
    return ProtocolError(f"a look-up was answered with {type(answer).__name__}")
