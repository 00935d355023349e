"""What the nodes of a Valkey Cluster say about it: parsing of their views, and the map that follows from them. Pure.

Each node has its own view (CLUSTER NODES). Views are combined by the cluster's own rule: for each slot, the claim
with the highest configuration epoch is the newest.
"""

from __future__ import annotations

import binascii
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from onewriter_core.errors import Undecided

SLOTS = 16_384
"""Slots of every cluster; a key's hash tag chooses one."""

Address = tuple[str, int]


def first_slot(shard: int, shards: int) -> int:
    """The first slot of a shard when a cluster of that number of shards is formed."""
    return shard * SLOTS // shards


@lru_cache(4096)
def slot_of(key: str) -> int:
    """The slot of a key: that of its hash tag, if it has one."""
    start = key.find("{")
    if start >= 0:
        end = key.find("}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return binascii.crc_hqx(key.encode(), 0) % SLOTS


@dataclass(frozen=True, slots=True)
class Node:
    """One node as another node, or itself, describes it.

    ``host`` is its announced hostname, otherwise its address; empty if the node does not know its own.
    ``follows`` is the id of its primary, empty for a primary. ``slots`` are inclusive ranges. ``ip`` and
    ``bus_port``: the address for other nodes. ``is_linked``: whether the node that describes it is connected to it.
    """

    node_id: str
    host: str
    port: int
    flags: frozenset[str]
    follows: str
    epoch: int
    slots: tuple[tuple[int, int], ...]
    ip: str = ""
    bus_port: int = 0
    is_linked: bool = True

    @property
    def address(self) -> Address:
        """Host and port for clients."""
        return self.host, self.port

    @property
    def is_usable(self) -> bool:
        """Whether it may be connected to: it has an address and belongs to the cluster."""
        return bool(self.host) and self.port > 0 and not self.flags & {"noaddr", "handshake"}


@dataclass(frozen=True, slots=True)
class ClusterView:
    """What one node knows about the cluster; ``me`` is its own id."""

    me: str
    nodes: tuple[Node, ...]

    def node(self, node_id: str) -> Node | None:
        """What it knows about one node; None if it does not know it."""
        return next((node for node in self.nodes if node.node_id == node_id), None)

    @property
    def own(self) -> Node:
        """What it says about itself."""
        return next(node for node in self.nodes if node.node_id == self.me)


def parse_view(text: str, asked: Address) -> ClusterView:
    """Parse the reply to CLUSTER NODES of the node at ``asked``. Raises Undecided for another text."""
    nodes = []
    me = ""
    for line in text.splitlines():
        words = line.split()
        if not words:
            continue
        try:
            node = _parse_node(words)
        except (ValueError, IndexError):
            raise Undecided(f"{asked[0]}:{asked[1]} describes a node as {line[:200]!r}") from None
        if "myself" in node.flags:
            me = node.node_id
            if not node.host:  # it does not know its address before another node told it
                node = replace(node, host=asked[0])
        nodes.append(node)
    if not me:
        raise Undecided(f"{asked[0]}:{asked[1]} did not name itself among its nodes")
    return ClusterView(me, tuple(nodes))


def _parse_node(words: Sequence[str]) -> Node:
    node_id, place, flags, follows, _ping, _pong, epoch, link, *slots = words
    address, *rest = place.split(",")
    client_address, _, bus_port = address.partition("@")
    host, _, port = client_address.rpartition(":")
    hostname = rest[0] if rest and "=" not in rest[0] else ""
    return Node(
        node_id=node_id,
        host=hostname or host,
        port=int(port),
        flags=frozenset(flags.split(",")),
        follows="" if follows == "-" else follows,
        epoch=int(epoch),
        slots=tuple(_parse_range(word) for word in slots if not word.startswith("[")),
        ip=host,
        bus_port=int(bus_port or 0),
        is_linked=link == "connected",
    )


def _parse_range(word: str) -> tuple[int, int]:
    first, _, last = word.partition("-")
    start, end = int(first), int(last or first)
    if not 0 <= start <= end < SLOTS:
        raise ValueError(word)
    return start, end


@dataclass(frozen=True, slots=True)
class Shard:
    """A primary, its replicas, and the inclusive ranges of slots that it owns."""

    primary: Node
    replicas: tuple[Node, ...]
    ranges: tuple[tuple[int, int], ...]


class SlotMap:
    """The newest primaries of all slots, combined from several views."""

    def __init__(self, views: Iterable[ClusterView]) -> None:
        self.nodes: dict[str, Node] = {}
        """Every node by its id, as the view with the highest epoch describes it."""
        views = list(views)
        for view in views:
            for node in view.nodes:
                known = self.nodes.get(node.node_id)
                is_own = "myself" in node.flags
                if known is None or is_own or node.epoch > known.epoch:
                    if known is not None and "myself" in known.flags and not is_own:
                        continue  # a node knows its own address and role best
                    self.nodes[node.node_id] = node
        claims = sorted(
            {
                (node.epoch, node.node_id, claimed)
                for view in views
                for node in view.nodes
                if not node.follows
                for claimed in node.slots
            }
        )
        owners: list[str] = [""] * SLOTS
        for _, node_id, (start, end) in claims:
            owners[start : end + 1] = [node_id] * (end + 1 - start)
        self._starts, self._owners = _runs(owners)
        self.answered = frozenset(view.me for view in views)
        """The ids of the nodes whose views these are."""

    def primary_of(self, slot: int) -> Node | None:
        """The primary of a slot; None if the slot has none."""
        return self.nodes.get(self._owners[bisect_right(self._starts, slot) - 1])

    def shards(self) -> list[Shard]:
        """The primaries that own slots, in the order of their lowest slots."""
        ranges: dict[str, list[tuple[int, int]]] = {}
        ends = [*self._starts[1:], SLOTS]
        for start, end, owner in zip(self._starts, ends, self._owners, strict=True):
            if owner in self.nodes:
                ranges.setdefault(owner, []).append((start, end - 1))
        return [
            Shard(
                self.nodes[owner],
                tuple(
                    sorted(
                        (node for node in self.nodes.values() if node.follows == owner),
                        key=lambda node: node.address,
                    )
                ),
                tuple(found),
            )
            for owner, found in ranges.items()
        ]

    def unclaimed(self, first: int, last: int) -> int:
        """The number of slots between these, both included, that no node claims."""
        return sum(
            max(0, min(last, end - 1) - max(first, start) + 1)
            for start, end, owner in zip(
                self._starts, [*self._starts[1:], SLOTS], self._owners, strict=True
            )
            if not owner
        )

    @property
    def is_complete(self) -> bool:
        """Whether every slot has a primary."""
        return all(owner in self.nodes for owner in self._owners)

    @property
    def is_by_majority(self) -> bool:
        """Whether more than half of the primaries that own slots have contributed their view."""
        primaries = {owner for owner in self._owners if owner}
        return 2 * len(primaries & self.answered) > len(primaries)

    @property
    def addresses(self) -> frozenset[Address]:
        """The addresses of the primaries that own slots."""
        return frozenset(self.nodes[owner].address for owner in self._owners if owner in self.nodes)


def _runs(owners: Sequence[str]) -> tuple[list[int], list[str]]:
    starts, names = [0], [owners[0]]
    for slot, owner in enumerate(owners):
        if owner != names[-1]:
            starts.append(slot)
            names.append(owner)
    return starts, names
