"""Channels to the store: connections that are opened when needed, to one primary or to those of a cluster.

A channel sends the commands of a bucket in the order of the calls. If a command has no answer in time, the channel
drops the connection that carried it, and a later command goes out only after the server has closed that
connection: a late command never overtakes a later one.

In a cluster, the first key of a call names the bucket's slot, and each primary has a connection of its own. A
reply that names another primary (MOVED), or says that a slot is being moved (ASK, TRYAGAIN), ends that call with
Undecided and changes nothing for the other buckets of the connection. The caller sends the call again; if this
module did that, it could overtake other calls of the bucket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import hiredis

from onewriter_broker.log.store.api import BrokenKey
from onewriter_broker.log.store.redis.connection import Reply
from onewriter_broker.log.store.redis.primary import (
    Open,
    OpenAt,
    Primary,
    RedisSettings,
    find_primary,
    open_at,
)
from onewriter_broker.log.store.redis.script_calls import Word
from onewriter_broker.log.store.redis.topology import Topology
from onewriter_core.cluster_views import Address, SlotMap, slot_of
from onewriter_core.errors import OnewriterError, Undecided

_START_OVER = ("READONLY", "MASTERDOWN", "CLUSTERDOWN", "MOVED", "NOAUTH", "UNBLOCKED", "NOSCRIPT")
"""Errors after which the connection may not lead to a primary with our scripts: reconnect.

NOSCRIPT is one of them, although nothing was executed: if this module sent the call again, it could overtake
other calls; the caller's own retry cannot.
"""

_ELSEWHERE = ("MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN")
"""Errors of a cluster that concern one slot: the connection stays."""

CHANNELS_MAX = 256
"""Nodes whose last connection a channel of a cluster remembers."""


class Sent(NamedTuple):
    """Commands that are in a socket."""

    primary: Primary
    commands: Sequence[Sequence[Word]]
    awaited: Sequence[asyncio.Future[Reply]]


class StoreChannel(Protocol):
    """What RedisLogStore needs of the way to its servers."""

    async def send(
        self,
        commands: Sequence[Sequence[Word]],
        *,
        on: Primary | None = None,
        patience: float = 0.0,
    ) -> tuple[Primary, list[Reply]]:
        """Send pipelined commands. Returns their replies, and the connection that carried them.

        ``on``: only over that connection. ``patience``: additional seconds that the server was asked
        to wait. Raises Undecided if a command failed or got no answer in time, BrokenKey if a command
        found a key of another type.
        """

    async def leave_deposed(self) -> None:
        """Close connections to nodes that are no longer primaries according to the Sentinels or the cluster.

        A primary that was cut off stays writable until it is demoted, and keeps its connections.
        """

    def drop(self, primary: Primary) -> None:
        """Drop this connection, so that the next call searches for the primary again."""

    async def close(self) -> None:
        """Close the connections permanently."""


class PrimaryChannel:
    """A channel to one primary.

    ``is_in_cluster``: replies that concern one slot do not drop the connection.
    """

    def __init__(
        self, settings: RedisSettings, open_: Open, *, is_in_cluster: bool = False
    ) -> None:
        self._settings = settings
        self._open = open_
        self._is_in_cluster = is_in_cluster
        # The lock is fair, so it keeps the order of the calls; it is held until the commands are in the socket.
        self._turn = asyncio.Lock()
        self._primary: Primary | None = None
        self._closed = False

    async def send(
        self,
        commands: Sequence[Sequence[Word]],
        *,
        on: Primary | None = None,
        patience: float = 0.0,
    ) -> tuple[Primary, list[Reply]]:
        try:
            async with asyncio.timeout(self._settings.call_timeout_seconds + patience):
                sent = await self.submit(commands, on)
                replies = [await reply for reply in sent.awaited]
        except ConnectionError as error:
            raise Undecided(str(error)) from error
        except TimeoutError as error:
            self.drop()
            raise Undecided("the store did not answer in time") from error
        self.check(sent, replies)
        return sent.primary, replies

    async def submit(self, commands: Sequence[Sequence[Word]], on: Primary | None = None) -> Sent:
        """Put the commands into the socket. Raises Undecided, ConnectionError."""
        async with self._turn:
            primary = await self._connected(on)
            connection = primary.connection
            await connection.writable(len(commands))
            return Sent(primary, commands, connection.submit_all(commands))

    def check(self, sent: Sent, replies: Sequence[Reply]) -> None:
        """Raise the error of the first reply that is one."""
        for words, reply in zip(sent.commands, replies, strict=True):
            if isinstance(reply, ConnectionError):
                raise Undecided(str(reply)) from reply
            if isinstance(reply, hiredis.ReplyError):
                text = str(reply)
                stays = self._is_in_cluster and text.startswith(_ELSEWHERE)
                if text.startswith(_START_OVER) and not stays:
                    sent.primary.connection.close()
                raise error_of(words, reply) from reply

    async def ready(self) -> Primary:
        """The open connection; opens one if there is none. Raises Undecided."""
        async with self._turn:
            return await self._connected(None)

    async def leave_deposed(self) -> None:
        primary = self._primary
        if primary is None or not self._settings.sentinels:
            return
        try:
            endpoint = await find_primary(self._settings)
        except Undecided:
            return  # no Sentinel answers: the node's own report must suffice, and the guards decide
        if endpoint != primary.endpoint:
            primary.connection.close()

    def drop(self, primary: Primary | None = None) -> None:
        """Drop the present connection, or this one."""
        dropped = self._primary if primary is None else primary
        if dropped is not None:
            dropped.connection.close()

    async def close(self) -> None:
        self._closed = True
        self.drop()
        if self._primary is not None:
            await self._primary.connection.wait_closed()

    async def _connected(self, on: Primary | None) -> Primary:
        if self._closed:
            raise Undecided("the store is closed")
        primary = self._primary
        if primary is not None and primary.connection.is_open:
            if on is None or on is primary:
                return primary
        elif on is None:
            self._primary = await self._open(self._settings, primary)
            return self._primary
        raise Undecided("the connection that carried these writes is gone")


class ClusterChannel:
    """A channel to the primaries of a cluster: the first key of a call chooses one."""

    def __init__(
        self, settings: RedisSettings, topology: Topology, open_: OpenAt = open_at
    ) -> None:
        """``open_`` opens a connection to the primary at an address."""
        self._settings = settings
        self._topology = topology
        self._open = open_
        self._nodes: dict[Address, PrimaryChannel] = {}
        # Per slot, and fair: calls of a slot get their primary and reach its socket in their order.
        self._turns: dict[int, asyncio.Lock] = {}
        self._is_closed = False

    async def send(
        self,
        commands: Sequence[Sequence[Word]],
        *,
        on: Primary | None = None,
        patience: float = 0.0,
    ) -> tuple[Primary, list[Reply]]:
        node: PrimaryChannel | None = None
        slot = -1 if on is not None else slot_of(first_key(commands))
        try:
            async with asyncio.timeout(self._settings.call_timeout_seconds + patience):
                if on is not None:
                    node = self._node((on.endpoint.host, on.endpoint.port))
                    sent = await node.submit(commands, on)
                else:
                    async with self._turn(slot):
                        node = self._node(await self._topology.primary_of(slot))
                        sent = await node.submit(commands)
                replies = [await reply for reply in sent.awaited]
        except ConnectionError as error:
            self._suspect(slot)
            raise Undecided(str(error)) from error
        except TimeoutError as error:
            if node is not None:
                node.drop()
            self._suspect(slot)
            raise Undecided("the store did not answer in time") from error
        except Undecided:
            self._suspect(slot)
            raise
        if any(_is_elsewhere(reply) for reply in replies):
            self._suspect(slot)
        node.check(sent, replies)
        return sent.primary, replies

    async def send_to(
        self, address: Address, commands: Sequence[Sequence[Word]]
    ) -> tuple[Primary, list[Reply]]:
        """Send commands without keys to one primary. Raises like ``send``."""
        return await self._node(address).send(commands)

    async def leave_deposed(self) -> None:
        await self._topology.refreshed()

    def keep(self, found: SlotMap) -> None:
        """Drop the connections to nodes that are not primaries any more: calls that wait there end."""
        for address, node in [*self._nodes.items()]:
            if address not in found.addresses:
                node.drop()
                if len(self._nodes) > CHANNELS_MAX:
                    del self._nodes[address]

    def drop(self, primary: Primary) -> None:
        primary.connection.close()

    async def close(self) -> None:
        self._is_closed = True
        for node in self._nodes.values():
            await node.close()

    def _node(self, address: Address) -> PrimaryChannel:
        if self._is_closed:
            raise Undecided("the store is closed")
        node = self._nodes.get(address)
        if node is None:
            endpoint = self._topology.endpoint_of

            async def open_(settings: RedisSettings, replaces: Primary | None) -> Primary:
                # A rotated password applies from the next connection on.
                return await self._open(endpoint(address), settings, replaces)

            node = PrimaryChannel(self._settings, open_, is_in_cluster=True)
            self._nodes[address] = node
        return node

    def _turn(self, slot: int) -> asyncio.Lock:
        turn = self._turns.get(slot)
        if turn is None:
            turn = self._turns[slot] = asyncio.Lock()
        return turn

    def _suspect(self, slot: int) -> None:
        if slot >= 0:
            self._topology.suspect(slot)


_KEYLESS = frozenset({"INFO", "MULTI", "EXEC", "WAIT", "CONFIG", "CLUSTER"})


def first_key(commands: Sequence[Sequence[Word]]) -> str:
    """The first key that the commands name. Raises ValueError if they name none."""
    for words in commands:
        if words[0] not in _KEYLESS:
            return str(words[3] if words[0] == "EVALSHA" else words[1])
    raise ValueError("in a cluster, a call names a key")


def _is_elsewhere(reply: Reply) -> bool:
    return isinstance(reply, hiredis.ReplyError) and str(reply).startswith(_ELSEWHERE)


def error_of(words: Sequence[Word], reply: hiredis.ReplyError) -> OnewriterError:
    """The error for the server's error reply to a command; scripts report broken keys themselves."""
    text = str(reply)
    if text.startswith("WRONGTYPE"):
        return BrokenKey(f"{words[1]!s}: {text}")
    return Undecided(f"the store refused: {text}")
