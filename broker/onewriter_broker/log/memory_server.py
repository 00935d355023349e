"""A world of store servers in memory: primaries, replicas with lag, failovers, torn restarts.

What a Redis or Valkey node does to a dataset and to its identity (``replid``), without sockets,
clocks or randomness: a test or a simulation says what happens and when. Used by MemoryLogStore
(memory.py), which adds the guarded writes. No production code runs on it.

A node's ``history`` is the list of its changes, one per executed script, so it is both the
append-only file and the replication stream; it is kept whole, because runs are bounded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from onewriter_broker.log.api import OwnedRecord, StoredBlock, Unit
from onewriter_broker.log.compacted import CompactedBlock
from onewriter_core.ids import EARLIEST, Position, TopicName


@dataclass(slots=True)
class Log:
    """A stream: its blocks in order, and the highest position ever added, which trims keep."""

    blocks: list[StoredBlock] = field(default_factory=list)
    last: Position = EARLIEST


@dataclass(slots=True)
class Dataset:
    """All that a node stores."""

    units: dict[int, Unit] = field(default_factory=dict)
    logs: dict[TopicName, Log] = field(default_factory=dict)
    states: dict[TopicName, dict[str, str]] = field(default_factory=dict)
    compacted: dict[tuple[TopicName, int], list[CompactedBlock]] = field(default_factory=dict)
    catalogs: dict[int, dict[str, str]] = field(default_factory=dict)
    audits: dict[int, list[tuple[str, dict[str, str]]]] = field(default_factory=dict)
    audits_written: int = 0
    owned: dict[int, dict[str, OwnedRecord]] = field(default_factory=dict)
    owned_settled: dict[int, int] = field(default_factory=dict)
    """By bucket, the registration from which on the records of ownerships are what was granted."""
    staged: dict[tuple[int, str], dict[int, bytes]] = field(default_factory=dict)
    staged_parts: dict[int, dict[str, str]] = field(default_factory=dict)
    members: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    foreign: set[str] = field(default_factory=set)
    """Keys that hold what no broker wrote there."""


Change = Callable[[Dataset], None]
"""What one script did; replaying the same changes gives an equal dataset."""


def _forget_everything(dataset: Dataset) -> None:
    empty = Dataset()
    for name in Dataset.__dataclass_fields__:
        setattr(dataset, name, getattr(empty, name))


def _forget_key(dataset: Dataset, key: str) -> None:
    """Drop what a bucket's key holds (keys.py names them)."""
    _, tag, kind, *name = key.split(":", 3)
    bucket = int(tag.strip("{b}"))
    dataset.foreign.discard(key)
    match kind:
        case "log":
            dataset.logs.pop(TopicName.parse(name[0]), None)
        case "state":
            dataset.states.pop(TopicName.parse(name[0]), None)
        case "unit":
            dataset.units.pop(bucket, None)
        case "audit":
            dataset.audits.pop(bucket, None)
        case "topics":
            dataset.catalogs.pop(bucket, None)
        case "own" | "owners":
            dataset.owned.pop(bucket, None)
        case "compacted0" | "compacted1":
            dataset.compacted.pop((TopicName.parse(name[0]), int(kind[-1])), None)
        case _:
            raise ValueError(f"no key of a bucket: {key}")


class MemoryNode:
    """One server process. Changed only through MemoryServer and the stores connected to it."""

    def __init__(self, name: str, replid: str, *, sync_always: bool) -> None:
        self.name = name
        self.replid = replid
        self.previous_replid = ""
        self.is_primary = True
        self.is_reachable = True
        self.sync_always = sync_always
        self.source: MemoryNode | None = None
        self.holds_replication = False
        self.dataset = Dataset()
        self.history: list[Change] = []
        self.synced = 0
        self.snapshot = 0
        self.connection_epoch = 0
        self.replicas: list[MemoryNode] = []

    @property
    def linked_replicas(self) -> list[MemoryNode]:
        """Replicas that follow this very dataset."""
        return [node for node in self.replicas if node.replid == self.replid]

    def execute(self, change: Change) -> None:
        """Apply one script's change here and, where replication does not lag, at the replicas."""
        change(self.dataset)
        self.history.append(change)
        if self.sync_always:
            self.synced = len(self.history)
        for replica in self.linked_replicas:
            if not replica.holds_replication:
                replica.follow()

    def follow(self, changes: int | None = None) -> None:
        """As a replica, take over up to ``changes`` more changes, or all; another dataset whole."""
        source = self.source
        if source is None:
            return
        if self.replid != source.replid:
            self.replid, self.previous_replid = source.replid, ""
            self.load(source.history)
            return
        start = len(self.history)
        for change in source.history[start : None if changes is None else start + changes]:
            self.execute(change)

    def load(self, history: list[Change]) -> None:
        """Become what these changes make of an empty dataset."""
        self.history = list(history)
        self.synced = self.snapshot = len(self.history)
        self.dataset = Dataset()
        for change in self.history:
            change(self.dataset)

    def drop_connections(self) -> None:
        """Every client has to connect anew."""
        self.connection_epoch += 1


class MemoryServer:
    """The nodes of one shard, and which of them discovery calls the primary."""

    def __init__(self, *, sync_always: bool = True) -> None:
        self._sync_always = sync_always
        self._datasets = 0
        self.nodes: dict[str, MemoryNode] = {}
        self.primary = self.add_primary("node-0")

    def resolve(self) -> MemoryNode | None:
        """What Sentinel or a Service would answer: the node to write to; None: nobody knows."""
        return self.primary

    def add_primary(self, name: str) -> MemoryNode:
        """An empty node with a dataset of its own."""
        node = MemoryNode(name, self._new_replid(), sync_always=self._sync_always)
        self.nodes[name] = node
        return node

    def add_replica(self, name: str, *, of: MemoryNode | None = None) -> MemoryNode:
        """A node that follows ``of``, by default the present primary."""
        node = self.add_primary(name)
        self.demote(node, of or self.primary)
        return node

    def promote(self, node: MemoryNode) -> None:
        """Make a replica, however far it lags, the primary that discovery names.

        The old primary stays writable until it is demoted.
        """
        self._unlink(node)
        node.is_primary = True
        self._new_identity(node, previous=node.replid)
        self.primary = node

    def demote(self, node: MemoryNode, source: MemoryNode) -> None:
        """Make a node the replica of another: it takes over the dataset, clients are dropped."""
        self._unlink(node)
        node.is_primary = False
        node.source = source
        source.replicas.append(node)
        node.drop_connections()
        node.follow()

    def restart(
        self, node: MemoryNode, *, keep: int | None = None, from_snapshot: bool = False
    ) -> None:
        """Restart a node from the first ``keep`` changes of its append-only file, or all of it.

        Or ``from_snapshot``: from what the last ``save`` stored, which alone names the previous
        dataset. A primary's dataset gets a new identity either way.
        """
        previous = node.replid if from_snapshot else ""
        node.load(node.history[: node.snapshot if from_snapshot else keep])
        node.drop_connections()
        if node.is_primary:
            self._new_identity(node, previous=previous)
        else:
            node.follow()

    def save(self, node: MemoryNode) -> None:
        """Store a snapshot of the dataset as it is."""
        node.snapshot = len(node.history)

    def sync(self, node: MemoryNode) -> None:
        """Sync the append-only file to disk, as ``everysec`` does now and then."""
        node.synced = len(node.history)

    def flush_all(self, node: MemoryNode) -> None:
        """Delete every key; the dataset keeps its identity."""
        node.execute(_forget_everything)

    def delete_key(self, node: MemoryNode, key: str) -> None:
        """Delete one key of a bucket, as a person with a terminal would."""
        node.execute(lambda dataset: _forget_key(dataset, key))

    def put_foreign_key(self, node: MemoryNode, key: str) -> None:
        """Replace one key of a bucket by something that is neither a stream nor a hash."""

        def change(dataset: Dataset) -> None:
            _forget_key(dataset, key)
            dataset.foreign.add(key)

        node.execute(change)

    def renew_identity(self, node: MemoryNode) -> None:
        """Change the dataset's identity and nothing else, as a long time without replicas does."""
        self._new_identity(node, previous="")

    def _new_identity(self, node: MemoryNode, *, previous: str) -> None:
        node.replid, node.previous_replid = self._new_replid(), previous

    def _new_replid(self) -> str:
        self._datasets += 1
        return f"{self._datasets:040x}"

    @staticmethod
    def _unlink(node: MemoryNode) -> None:
        if node.source is not None:
            node.source.replicas.remove(node)
            node.source = None


def no_change(_dataset: Dataset) -> None:
    """A change that is replicated and synced like any other and alters nothing."""
