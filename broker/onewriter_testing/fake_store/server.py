"""A world of fake store servers: primaries, replicas that lag, failovers, torn restarts.

A test or a simulation says what happens and when. A node's ``history`` is a list of units, one per script, transaction
or command that changed something, each with the writes that it made: it is both the append-only file and the
replication stream, so a replica or a restart has whole units, never a part of one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import hiredis

from onewriter_testing.fake_store.commands import Call, CommandError, Reply, Status, Words
from onewriter_testing.fake_store.keyspace import Keyspace
from onewriter_testing.fake_store.scripting import Scripts

Unit = tuple[Words, ...]
"""The writes of one script, transaction or command."""

NO_REPLID = "0" * 40


class FakeNode:
    """One server process. ``syncs_always``: its append-only file is synced before every reply."""

    def __init__(self, name: str, replid: str, *, scripts: Scripts, syncs_always: bool) -> None:
        self.name = name
        self.replid = replid
        self.previous_replid = ""
        self.is_primary = True
        self.is_reachable = True
        self.is_frozen = False
        """Whether it answers nothing, and executes nothing of what is sent meanwhile."""
        self.syncs_always = syncs_always
        self.source: FakeNode | None = None
        self.holds_replication = False
        self.keyspace = Keyspace()
        self.history: list[Unit] = []
        self.snapshot = 0
        self.replicas: list[FakeNode] = []
        self.scripts = scripts
        self.generation = 0
        """The number of times that all its connections were dropped."""
        self.redirection: Callable[[bytes], str] = _no_redirection
        """The error with which a node of a cluster refuses a key; empty: it serves the key."""
        self.confirms_for_others = False
        """A bug for mutants: WAIT does not compare what this connection has written."""

    @property
    def linked_replicas(self) -> list[FakeNode]:
        """Replicas that follow this dataset."""
        return [node for node in self.replicas if node.replid == self.replid]

    def call(self) -> Call:
        """Begin a command or a script on this node."""
        return Call(self.keyspace, self.information, self.is_primary)

    def run(self, *words: bytes | str | int) -> Reply:
        """Execute one command as an administrator would. Raises CommandError."""
        call = self.call()
        try:
            return call.run(tuple(_word(word) for word in words))
        finally:
            self.commit(call)

    def commit(self, call: Call) -> None:
        """Store the writes of a command or script, and pass them to the replicas that do not lag."""
        if call.writes:
            self._append(tuple(call.writes))

    def _append(self, unit: Unit) -> None:
        self.history.append(unit)
        for replica in self.linked_replicas:
            if not replica.holds_replication:
                replica.follow()

    def follow(self, units: int | None = None) -> None:
        """As a replica, take over up to ``units`` more units, or all; another dataset as a whole."""
        source = self.source
        if source is None:
            return
        if self.replid != source.replid:
            self.replid, self.previous_replid = source.replid, ""
            self.load(source.history)
            return
        start = len(self.history)
        for unit in source.history[start : None if units is None else start + units]:
            self._apply(unit)
            self._append(unit)

    def load(self, history: Sequence[Unit]) -> None:
        """Replace the keyspace by an empty one with these units applied."""
        self.history = list(history)
        self.snapshot = len(self.history)
        self.keyspace = Keyspace()
        for unit in self.history:
            self._apply(unit)

    def _apply(self, unit: Unit) -> None:
        call = Call(self.keyspace, self.information)
        for words in unit:
            call.run(words)

    def drop_connections(self) -> None:
        """Drop all connections: every client has to connect again."""
        self.generation += 1

    def information(self, section: bytes) -> str:
        """The lines of INFO that the store reads."""
        facts: dict[str, object] = {}
        match section:
            case b"server":
                facts = {"run_id": self.name}
            case b"memory":
                facts = {"used_memory": 0, "maxmemory": 0}
            case b"persistence":
                facts = {"aof_enabled": 1}
            case b"debug":
                facts = {"eventloop_duration_aof_sum": 0}
            case b"replication":
                facts = {
                    "role": "master" if self.is_primary else "slave",
                    "connected_slaves": len(self.linked_replicas),
                    "master_replid": self.replid,
                    "master_replid2": self.previous_replid or NO_REPLID,
                }
            case _:
                raise CommandError(f"ERR the fake has no INFO {section.decode(errors='replace')}")
        return "".join(f"{name}:{value}\r\n" for name, value in facts.items())


def _no_redirection(_key: bytes) -> str:
    return ""


def _word(word: bytes | str | int) -> bytes:
    return word if isinstance(word, bytes) else str(word).encode()


class FakeConnection:
    """A client's connection to a node, as ``RedisConnection`` is one to a server.

    Commands are executed as they are submitted. ``reaches``: whether the client's network reaches the node now.
    """

    def __init__(self, node: FakeNode, reaches: Callable[[], bool]) -> None:
        self.node = node
        self._reaches = reaches
        self._generation = node.generation
        self._is_closed = False
        self._queued: list[Words] | None = None
        self._is_refused = False
        self._written = 0
        """The length of the node's history after the last write of this connection."""

    @property
    def is_open(self) -> bool:
        return (
            not self._is_closed
            and self.node.is_reachable
            and self.node.generation == self._generation
            and self._reaches()
        )

    def submit(self, words: Sequence[bytes | str | int]) -> asyncio.Future[object]:
        """Execute a command; the future's result is its reply, which may be an error."""
        if not self.is_open:
            raise ConnectionError("the connection to the store was lost")
        reply: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        command = tuple(_word(word) for word in words)
        if self.node.is_frozen:
            return reply
        if command[0].upper() == b"WAIT":
            self._wait(command, reply)
        else:
            reply.set_result(self._answer(command))
        return reply

    def submit_all(
        self, commands: Sequence[Sequence[bytes | str | int]]
    ) -> list[asyncio.Future[object]]:
        """Execute consecutive commands."""
        return [self.submit(words) for words in commands]

    async def writable(self, commands: int = 1) -> None:
        """There is always space."""

    def close(self) -> None:
        self._is_closed = True

    async def wait_closed(self) -> None:
        """It closes at once."""

    def _answer(self, words: Words) -> object:
        try:
            return self._execute(words)
        except CommandError as error:
            return hiredis.ReplyError(str(error))

    def _execute(self, words: Words) -> object:
        name = words[0].upper()
        match name:
            case b"MULTI":
                self._queued = []
                return Status(b"OK")
            case b"EXEC":
                queued, self._queued = self._queued or [], None
                was_refused, self._is_refused = self._is_refused, False
                if was_refused:
                    raise CommandError(
                        "EXECABORT Transaction discarded because of previous errors."
                    )
                return [self._answer(each) for each in queued]
            case _ if self._queued is not None:
                if error := self._redirection(words):
                    self._is_refused = True
                    raise CommandError(error)
                self._queued.append(words)
                return Status(b"QUEUED")
            case b"SCRIPT":
                return self.node.scripts.load(words[2])
            case b"CLIENT":
                return id(self) if words[1].upper() == b"ID" else Status(b"OK")
            case b"CONFIG":
                value = b"always" if self.node.syncs_always else b"everysec"
                return [words[2], value] if words[2] == b"appendfsync" else []
            case b"AUTH":
                return Status(b"OK")
            case _:
                pass
        if error := self._redirection(words):
            raise CommandError(error)
        call = self.node.call()
        try:
            if name == b"EVALSHA":
                count = int(words[2])
                keys, arguments = words[3 : 3 + count], words[3 + count :]
                return self.node.scripts.evaluate(words[1], keys, arguments, call)
            return call.run(words)
        finally:
            # Writes before an error stay.
            self.node.commit(call)
            if call.writes:
                self._written = len(self.node.history)

    def _redirection(self, words: Words) -> str:
        """The error of a node of a cluster that does not serve the command's first key; empty: it does."""
        if words[0].upper() == b"INFO":
            return ""
        return self.node.redirection(words[3 if words[0].upper() == b"EVALSHA" else 1])

    def _copies(self) -> int:
        if self.node.confirms_for_others:
            return len(self.node.linked_replicas)
        return sum(len(node.history) >= self._written for node in self.node.linked_replicas)

    def _wait(self, words: Words, reply: asyncio.Future[object]) -> None:
        """WAIT answers when enough replicas have this connection's last write, or when its time is over.

        A time of 0 ms, which a server treats as unlimited, ends immediately here.
        """
        needed, seconds = int(words[1]), int(words[2]) / 1000
        if self._copies() >= needed or seconds == 0:
            reply.set_result(self._copies())
            return

        def end() -> None:
            if reply.done():
                return
            if self.is_open:
                reply.set_result(self._copies())
            else:
                reply.set_result(ConnectionError("the connection to the store was lost"))

        asyncio.get_running_loop().call_later(seconds, end)


class FakeServer:
    """The nodes of one shard, and which of them discovery calls the primary."""

    def __init__(self, *, syncs_always: bool = True, name: str = "node", datasets: int = 0) -> None:
        """``name`` begins the names of the nodes; the replids are those above number ``datasets``."""
        self._syncs_always = syncs_always
        self._datasets = datasets
        self._scripts = Scripts()
        self.nodes: dict[str, FakeNode] = {}
        self.primary = self.add_primary(f"{name}-0")

    def resolve(self) -> FakeNode | None:
        """The node that Sentinel or a Service would name as primary; None if there is none."""
        return self.primary

    def add_primary(self, name: str) -> FakeNode:
        """An empty node with a new dataset."""
        node = FakeNode(
            name, self._new_replid(), scripts=self._scripts, syncs_always=self._syncs_always
        )
        self.nodes[name] = node
        return node

    def add_replica(self, name: str) -> FakeNode:
        """A node that follows the present primary."""
        node = self.add_primary(name)
        self.demote(node, self.primary)
        return node

    def promote(self, node: FakeNode) -> None:
        """Make a replica, however far it lags, the primary that discovery names.

        The old primary stays writable until it is demoted.
        """
        self._unlink(node)
        node.is_primary = True
        self._new_identity(node, previous=node.replid)
        self.primary = node

    def demote(self, node: FakeNode, source: FakeNode) -> None:
        """Make a node the replica of another: it takes over the dataset, clients are dropped."""
        self._unlink(node)
        node.is_primary = False
        node.source = source
        source.replicas.append(node)
        node.drop_connections()
        node.follow()

    def restart(
        self, node: FakeNode, *, keep: int | None = None, from_snapshot: bool = False
    ) -> None:
        """Restart a node from the first ``keep`` units of its append-only file, or all of it.

        Or ``from_snapshot``: from what the last ``save`` stored, which alone names the previous dataset. A primary's
        dataset gets a new identity either way.
        """
        previous = node.replid if from_snapshot else ""
        node.load(node.history[: node.snapshot if from_snapshot else keep])
        node.drop_connections()
        if node.is_primary:
            self._new_identity(node, previous=previous)
        else:
            node.follow()

    def lose_volume(self, node: FakeNode) -> None:
        """Restart a node without any data, as the same process would be with another volume."""
        node.load(())
        node.drop_connections()
        self._new_identity(node, previous="")

    def save(self, node: FakeNode) -> None:
        """Store a snapshot of the dataset as it is."""
        node.snapshot = len(node.history)

    def flush_all(self, node: FakeNode) -> None:
        """Delete every key; the dataset keeps its identity."""
        node.run("FLUSHALL")

    def delete_key(self, node: FakeNode, key: str) -> None:
        """Delete one key, like an administrator with a terminal."""
        node.run("DEL", key)

    def put_foreign_key(self, node: FakeNode, key: str) -> None:
        """Replace one key by a string, which no broker writes."""
        node.run("SET", key, "foreign")

    def renew_identity(self, node: FakeNode) -> None:
        """Change the dataset's identity and nothing else, as a long time without replicas does."""
        self._new_identity(node, previous="")

    def _new_identity(self, node: FakeNode, *, previous: str) -> None:
        node.replid, node.previous_replid = self._new_replid(), previous

    def _new_replid(self) -> str:
        self._datasets += 1
        return f"{self._datasets:040x}"

    @staticmethod
    def _unlink(node: FakeNode) -> None:
        if node.source is not None:
            node.source.replicas.remove(node)
            node.source = None
