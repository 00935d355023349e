"""Which primary of a Valkey Cluster serves which slot, according to the cluster itself.

The nodes elect primaries among themselves. This module reads the views of all known nodes
(CLUSTER NODES) and combines them (onewriter_core/cluster_views.py). A node that was cut off from the others
keeps an old view; the views of a majority of the primaries are therefore needed before a dataset is adopted
(``refreshed``). A wrong map is harmless for writes: a node that does not own a slot answers MOVED, and the
scripts check the dataset.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace

from onewriter_broker.log.store.redis.connection import RedisConnection
from onewriter_broker.log.store.redis.primary import (
    Endpoint,
    RedisSettings,
    ask,
    connect,
    log_in,
    seeds_of,
    unreachable,
)
from onewriter_core.cluster_views import Address, ClusterView, Node, SlotMap, parse_view
from onewriter_core.errors import ConfigurationError, Undecided

NODES_MAX = 128
"""Nodes that are asked for their view at most."""

VIEW_SECONDS_MAX = 1.0
"""Time limit for the answer of one node."""

REFRESH_SECONDS_MIN = 0.05
"""Shortest interval between the ends of one reading of all views and the begin of the next."""

ReadView = Callable[[Endpoint], Awaitable[str]]
"""The reply of one node to CLUSTER NODES."""


class Topology:
    """The present slot map of one cluster. ``changed`` is called with each map that is read.

    There is no background task: the caller that needs a map waits until it is read. Callers share a
    reading, and readings have a pause between them (REFRESH_SECONDS_MIN).
    """

    def __init__(
        self,
        settings: RedisSettings,
        changed: Callable[[SlotMap], None] = lambda _found: None,
        read_view: ReadView | None = None,
    ) -> None:
        self._settings = settings
        self._changed = changed
        self._connections: dict[Endpoint, RedisConnection] = {}
        self._read_view = self._ask if read_view is None else read_view
        self._map: SlotMap | None = None
        self._suspected: set[int] = set()
        self._readings = 0
        self._is_asking = False
        self._turn = asyncio.Lock()
        self._is_closed = False

    @property
    def last(self) -> SlotMap | None:
        """The map that was read last; None before the first."""
        return self._map

    def endpoint_of(self, address: Address) -> Endpoint:
        """How to connect to a node: with the credentials and the TLS of the seeds."""
        seed = seeds_of(self._settings)[0]
        return replace(seed, host=address[0], port=address[1])

    def suspect(self, slot: int) -> None:
        """Note that the slot's primary did not serve it: its next caller reads the map again."""
        self._suspected.add(slot)

    async def primary_of(self, slot: int) -> Address:
        """The address of the slot's primary. Raises Undecided if none is known."""
        found = self._map
        if found is None or slot in self._suspected:
            self._suspected.discard(slot)
            found = await self.read()
        primary = found.primary_of(slot)
        if primary is None:
            self._suspected.add(slot)
            raise Undecided(f"no primary of the cluster serves hash slot {slot} of Valkey")
        return primary.address

    async def refreshed(self) -> SlotMap:
        """A map that a majority of the primaries has contributed to. Raises Undecided."""
        found = await self.read()
        if not found.is_by_majority:
            raise Undecided("less than half of the cluster's primaries answered")
        return found

    async def read(self) -> SlotMap:
        """Read the views of all known nodes. Raises Undecided if no node answers."""
        # A reading that has asked nodes before this call may be too old.
        wanted = self._readings + (2 if self._is_asking else 1)
        async with self._turn:
            if self._is_closed:
                raise Undecided("the store is closed")
            if self._map is None or self._readings < wanted:
                try:
                    await self._read()
                finally:
                    self._is_asking = False
                self._readings += 1
            return self._required()

    async def close(self) -> None:
        """Close the connections."""
        self._is_closed = True
        for connection in self._connections.values():
            connection.close()
            await connection.wait_closed()
        self._connections.clear()

    def _required(self) -> SlotMap:
        if self._map is None:
            raise Undecided("no map of the cluster was read yet")
        return self._map

    async def _read(self) -> None:
        if self._map is not None:
            await asyncio.sleep(REFRESH_SECONDS_MIN)
        self._is_asking = True
        views: dict[str, ClusterView] = {}
        failures: dict[Endpoint, str] = {}
        known = () if self._map is None else self._map.nodes.values()
        await self._ask_all(self._endpoints(known), views, failures)
        if not views:
            # Without a map, or if none of its nodes answers, the seeds name the nodes.
            await self._ask_all(seeds_of(self._settings), views, failures)
            learned = SlotMap(views.values()).nodes.values()
            others = [node for node in learned if node.node_id not in views]
            await self._ask_all(self._endpoints(others), views, failures)
        if not views:
            reasons = "; ".join(f"{endpoint}: {text}" for endpoint, text in failures.items())
            raise Undecided(f"no node of the cluster answers: {reasons}")
        self._map = SlotMap(views.values())
        self._forget_connections(self._map)
        self._changed(self._map)

    def _endpoints(self, nodes: Iterable[Node]) -> list[Endpoint]:
        return [self.endpoint_of(node.address) for node in nodes if node.is_usable]

    async def _ask_all(
        self,
        endpoints: Sequence[Endpoint],
        views: dict[str, ClusterView],
        failures: dict[Endpoint, str],
    ) -> None:
        """Ask these nodes; stop as soon as all have answered, or a majority and all that are quick."""
        async with asyncio.TaskGroup() as tasks:
            pending = {
                tasks.create_task(self._add_view(endpoint, views, failures))
                for endpoint in endpoints[:NODES_MAX]
            }
            while pending:
                has_majority = SlotMap(views.values()).is_by_majority
                done, pending = await asyncio.wait(
                    pending,
                    timeout=REFRESH_SECONDS_MIN if has_majority else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if not done:
                    break
            for task in pending:
                task.cancel()

    async def _add_view(
        self, endpoint: Endpoint, views: dict[str, ClusterView], failures: dict[Endpoint, str]
    ) -> None:
        try:
            view = await self._view(endpoint)
        except Undecided as error:
            failures[endpoint] = str(error)
        else:
            views[view.me] = view

    async def _view(self, endpoint: Endpoint) -> ClusterView:
        try:
            async with asyncio.timeout(VIEW_SECONDS_MAX):
                text = await self._read_view(endpoint)
        except (OSError, TimeoutError) as error:
            self._drop(endpoint)
            raise unreachable(endpoint, error) from error
        except BaseException:
            self._drop(endpoint)
            raise
        return parse_view(text, (endpoint.host, endpoint.port))

    async def _ask(self, endpoint: Endpoint) -> str:
        connection = self._connections.get(endpoint)
        if connection is None or not connection.is_open:
            connection = await connect(endpoint)
            self._connections[endpoint] = connection
            await log_in(connection, endpoint)
        reply = await ask(connection, ["CLUSTER", "NODES"])
        if not isinstance(reply, bytes):
            raise ConfigurationError(f"{endpoint} is not a node of a cluster")
        return reply.decode(errors="replace")

    def _drop(self, endpoint: Endpoint) -> None:
        connection = self._connections.pop(endpoint, None)
        if connection is not None:
            connection.close()

    def _forget_connections(self, found: SlotMap) -> None:
        addresses = {node.address for node in found.nodes.values()}
        seeds = set(seeds_of(self._settings))
        for endpoint in [*self._connections]:
            if (endpoint.host, endpoint.port) not in addresses and endpoint not in seeds:
                self._drop(endpoint)
