"""The embedded cluster: several Valkey processes on this machine that replicate each other.

Each process has a directory for its data and the cluster's own file ``nodes.conf``. The processes elect primaries
among themselves. This module forms the cluster once, restarts processes, and lets a process whose directory was
emptied join again.

A process without data never serves as a primary, because its replicas would copy the emptiness: before each start,
a directory without an append-only file loses its ``nodes.conf`` too. The process then comes back with a new id and
without slots. The others elect a replica in place of the old id, and the new process becomes its replica.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from onewriter_broker.local.datadir import DirectoryLock
from onewriter_broker.local.embedded import (
    USER,
    EmbeddedServer,
    EmbeddedSettings,
    find_program,
    write_private,
)
from onewriter_broker.log.store.redis.connection import Reply
from onewriter_broker.log.store.redis.primary import Endpoint, ask, connected, parse_info
from onewriter_broker.log.store.redis.script_calls import Word
from onewriter_core.cluster_views import ClusterView, SlotMap, first_slot, parse_view
from onewriter_core.errors import ConfigurationError, Unavailable, Undecided

HOST = "127.0.0.1"

SHARDS_MIN = 3
"""A lost primary is replaced by the vote of a majority of the primaries: one of two is not a majority."""

SHARDS_MAX = 16
REPLICAS_MAX = 4

PORT_DEFAULT = 7100

NODE_TIMEOUT_MS = 2000
"""After this time without an answer the other nodes vote a primary down."""

FORM_SECONDS_MAX = 120.0
"""Time until all slots are served and all replicas are connected."""

COMMAND_SECONDS_MAX = 5.0
"""Time limit of one command to a node."""

REPAIR_SECONDS = 0.5
"""Interval in which a node that joins again is examined."""

SUPERVISOR = "supervisor"
"""The ACL user of this module, and of the replication."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """The configuration of the embedded cluster.

    ``port``: the first port; the nodes use consecutive ports for clients, and as many after them for each
    other. ``replicas``: of each of the ``shards``. ``server``: what all processes have in common; its
    ``directory`` gets a directory for each node, its memory is divided among them.
    """

    server: EmbeddedSettings
    shards: int
    replicas: int
    port: int = PORT_DEFAULT
    node_timeout_ms: int = NODE_TIMEOUT_MS

    def __post_init__(self) -> None:
        if self.shards < SHARDS_MIN:
            raise ConfigurationError(
                f"a cluster needs at least {SHARDS_MIN} shards, not {self.shards}: the primaries vote when one of"
                " them is lost, and with fewer no majority is left. Use --shards 3, or leave --shards out for a"
                " single process"
            )
        if self.shards > SHARDS_MAX or not 0 <= self.replicas <= REPLICAS_MAX:
            raise ConfigurationError(
                f"a cluster on one machine has up to {SHARDS_MAX} shards with 0 to {REPLICAS_MAX} replicas each"
            )
        if not 0 < self.port <= 65535 - 2 * self.nodes:
            raise ConfigurationError(
                f"store port {self.port}: the cluster needs {2 * self.nodes} ports from there on"
            )

    @property
    def nodes(self) -> int:
        """The number of processes."""
        return self.shards * (1 + self.replicas)

    def first_slot(self, shard: int) -> int:
        """The first slot of a shard when the cluster is formed."""
        return first_slot(shard, self.shards)


class ClusterNode(EmbeddedServer):
    """One process of the cluster. Node ``number`` belongs to the shard ``number`` modulo the shards."""

    LOADED = (
        *EmbeddedServer.LOADED,
        b"-MOVED ",
        b"-CLUSTERDOWN ",
    )  # another node may have the key

    def __init__(self, settings: ClusterSettings, number: int, passwords: tuple[str, str]) -> None:
        directory = settings.server.directory / f"node-{number}"
        server = EmbeddedSettings(
            directory,
            program=settings.server.program,
            append_sync=settings.server.append_sync,
            memory_bytes_max=settings.server.memory_bytes_max // settings.nodes,
            restart_seconds=settings.server.restart_seconds,
            steady_seconds=settings.server.steady_seconds,
            orphan_seconds_max=settings.server.orphan_seconds_max,
        )
        super().__init__(server)
        # Outside of the directory, which may be deleted while the process runs.
        self._lock = DirectoryLock(
            settings.server.directory.absolute(),
            what="an embedded Valkey server",
            name=f"{directory.name}.lock",
        )
        self.shard = number % settings.shards
        self.port = settings.port + number
        self.bus_port = settings.port + settings.nodes + number
        self._cluster = settings
        self._password, self._supervisor_password = passwords

    async def ask(self, *words: Word) -> Reply:
        """The reply to a command of the supervisor's user. Raises Undecided."""
        endpoint = Endpoint(
            path=str(self._socket), username=SUPERVISOR, password=self._supervisor_password
        )
        async with connected(endpoint, COMMAND_SECONDS_MAX) as connection:
            try:
                return await ask(connection, words)
            except ConnectionError as error:
                raise Undecided(str(error)) from error

    async def view(self) -> ClusterView:
        """What the node knows about the cluster. Raises Undecided."""
        reply = await self.ask("CLUSTER", "NODES")
        return parse_view(reply.decode() if isinstance(reply, bytes) else "", (HOST, self.port))

    async def has_copied(self) -> bool:
        """Whether it is a replica that is connected to its primary and has its data."""
        return parse_info(await self.ask("INFO", "replication")).get("master_link_status") == "up"

    def _read_password(self) -> str:
        return self._password

    def _check_data(self) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self._has_data():
            membership = self._directory / "nodes.conf"
            if membership.exists():
                _log.warning("cluster.node_emptied", directory=str(self._directory))
                membership.unlink()

    def _configuration(self) -> str:
        replication = self._supervisor_password
        lines = [
            f"port {self.port}",
            f"bind {HOST}",
            f"masteruser {SUPERVISOR}",
            f"masterauth {replication}",
            f"user {SUPERVISOR} on >{replication} ~* &* +@all",
            "cluster-enabled yes",
            "cluster-config-file nodes.conf",
            f"cluster-port {self.bus_port}",
            f"cluster-announce-ip {HOST}",
            f"cluster-node-timeout {self._cluster.node_timeout_ms}",
            "cluster-require-full-coverage no",
            "cluster-allow-replica-migration no",
            "cluster-replica-validity-factor 10",
            "cluster-allow-reads-when-down no",
            "repl-diskless-load disabled",
            "repl-diskless-sync-delay 0",
            "repl-backlog-size 64mb",
            "min-replicas-to-write 0",
        ]
        common = super()._configuration().replace("\nport 0\n", "\n", 1)
        return common + "\n".join(lines) + "\n"


class EmbeddedCluster:
    """The processes of one cluster; ``url`` names them for brokers, valid after ``start``.

    ``progress`` gets sentences for people while the cluster starts.
    """

    def __init__(
        self, settings: ClusterSettings, progress: Callable[[str], None] = lambda _text: None
    ) -> None:
        self._settings = settings
        self._directory = settings.server.directory.absolute()
        self._progress = progress
        self._nodes: list[ClusterNode] = []
        self._password = ""
        self._is_formed = False

    @property
    def url(self) -> str:
        """The address for brokers, with user and password."""
        places = ",".join(f"{HOST}:{node.port}" for node in self._nodes)
        return f"redis+cluster://{USER}:{self._password}@{places}"

    @property
    def nodes(self) -> Sequence[ClusterNode]:
        """The processes, by their numbers."""
        return self._nodes

    async def start(self) -> None:
        """Start the processes, and form the cluster or wait until it is complete again.

        Raises ConfigurationError if the directory belongs to another kind of store or a shard has no data left,
        Unavailable if a process does not start.
        """
        settings = self._settings
        await find_program(settings.server.program)
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        passwords = self._read_layout()
        self._password = passwords[0]
        self._nodes = [ClusterNode(settings, number, passwords) for number in range(settings.nodes)]
        replicas = "1 replica" if settings.replicas == 1 else f"{settings.replicas} replicas"
        self._progress(
            f"starting a cluster of {settings.shards} shards with {replicas} each"
            f" on the ports {settings.port} to {settings.port + settings.nodes - 1}"
        )
        if settings.replicas == 0:
            self._progress(
                "without replicas, the topics of a shard stand still while its process is down, and losing its"
                " directory loses them"
            )
        failure: Exception | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                for node in self._nodes:
                    tasks.create_task(node.start())
            async with asyncio.timeout(FORM_SECONDS_MAX):
                if not self._is_formed:
                    await self._form()
                await self._complete()
        except* (ConfigurationError, Unavailable) as errors:
            failure = errors.exceptions[0]
        except* TimeoutError:
            failure = Unavailable(
                f"the cluster in {self._directory} is not complete after {FORM_SECONDS_MAX:.0f} s:"
                f" {await self._missing()}"
            )
        except* BaseException:
            await self._stop_nodes()
            raise
        if failure is not None:
            await self._stop_nodes()
            raise failure
        self._progress("the cluster serves all buckets")

    async def watch(self, on_restart: Callable[[], None] = lambda: None) -> None:
        """Restart processes that end, and let emptied ones join again, until ``stop`` or until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            watches = [tasks.create_task(node.watch(on_restart)) for node in self._nodes]
            repairing = tasks.create_task(self._repair_for_ever())
            await asyncio.wait(watches)
            repairing.cancel()

    async def stop(self) -> None:
        """Stop all processes cleanly, with their data on disk."""
        await self._stop_nodes()

    async def _stop_nodes(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for node in self._nodes:
                tasks.create_task(node.stop())

    # The layout

    def _read_layout(self) -> tuple[str, str]:
        """The passwords of brokers and supervisor. Raises ConfigurationError for another layout."""
        settings = self._settings
        wanted = {"shards": settings.shards, "replicas": settings.replicas, "port": settings.port}
        path = self._directory / "cluster.json"
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            stored = {
                **wanted,
                "formed": False,
                "password": secrets.token_hex(24),
                "supervisorPassword": secrets.token_hex(24),
            }
            write_private(path, json.dumps(stored))
        except ValueError as error:
            raise ConfigurationError(f"{path} cannot be read: {error}") from error
        for name, value in wanted.items():
            if stored.get(name) != value:
                raise ConfigurationError(
                    f"{self._directory} holds a cluster with {name} {stored.get(name)}, not {value}: start it"
                    " with its own layout, or choose another data directory"
                )
        self._is_formed = bool(stored["formed"])
        return str(stored["password"]), str(stored["supervisorPassword"])

    def _note_formed(self) -> None:
        path = self._directory / "cluster.json"
        stored = json.loads(path.read_text(encoding="utf-8"))
        write_private(path, json.dumps({**stored, "formed": True}))
        self._is_formed = True

    # Formation and repair

    async def _form(self) -> None:
        """Give the slots to the first node of each shard; only for a cluster that never had data."""
        settings = self._settings
        for node in self._nodes:  # of an earlier attempt that did not come to its end
            view = await node.view()
            if len(view.nodes) > 1 or any(known.slots for known in view.nodes):
                with contextlib.suppress(
                    Undecided
                ):  # a replica refuses it, and is emptied by the reset
                    await node.ask("FLUSHALL")
                await node.ask("CLUSTER", "RESET", "HARD")
        for shard in range(settings.shards):
            first, end = settings.first_slot(shard), settings.first_slot(shard + 1)
            await self._nodes[shard].ask("CLUSTER", "ADDSLOTSRANGE", first, end - 1)
        for number, node in enumerate(self._nodes):
            await node.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        await self._meet(self._nodes[1:], self._nodes[0])
        self._progress("the processes know each other")
        while not await self._settled():
            await self._join_all()
            await asyncio.sleep(REPAIR_SECONDS / 5)
        self._note_formed()

    async def _complete(self) -> None:
        """Wait until every slot has a primary that answers, and every node has its place."""
        while not await self._settled():
            await self._join_all()
            await asyncio.sleep(REPAIR_SECONDS / 5)

    async def _settled(self) -> bool:
        """Whether all nodes agree that all slots are served, and all others have copied their primary."""
        try:
            views = [await node.view() for node in self._nodes]
            found = SlotMap(views)
            primaries = {shard.primary.node_id for shard in found.shards()}
            if not found.is_complete or len(primaries) != self._settings.shards:
                return False
            for node, view in zip(self._nodes, views, strict=True):
                state = await node.ask("CLUSTER", "INFO")
                is_served = isinstance(state, bytes) and b"cluster_state:ok" in state
                if not is_served or len(_members(view)) < len(self._nodes):
                    return False
                if view.me not in primaries and not await node.has_copied():
                    return False
        except Undecided:
            return False
        return True

    async def _repair_for_ever(self) -> None:
        while True:
            await asyncio.sleep(REPAIR_SECONDS)
            await self._join_all()

    async def _join_all(self) -> None:
        """Let each node that belongs to no shard become a replica of its shard's primary."""
        views: dict[ClusterNode, ClusterView] = {}
        for node in self._nodes:
            with contextlib.suppress(Undecided):
                views[node] = await node.view()
        found = SlotMap(views.values())
        by_id = {view.me: node for node, view in views.items()}
        for node, view in views.items():
            me = found.nodes[view.me]
            if me.slots or me.follows:
                continue
            primary = found.primary_of(self._settings.first_slot(node.shard))
            if primary is None or by_id.get(primary.node_id) in {None, node}:
                continue  # the vote is not over, or the primary is about to be restarted
            try:
                await self._join(node, view, by_id[primary.node_id], primary.node_id, set(by_id))
            except Undecided as error:
                _log.info("cluster.node_waits", node=node.port, reason=str(error))

    async def _join(
        self,
        node: ClusterNode,
        view: ClusterView,
        primary: ClusterNode,
        primary_id: str,
        alive: set[str],
    ) -> None:
        if primary_id not in {known.node_id for known in view.nodes}:
            await self._meet([node], primary)
            return
        # What is left here is of no use: the primary has the shard's data.
        await node.ask("FLUSHALL")
        await node.ask("CLUSTER", "REPLICATE", primary_id)
        _log.info("cluster.node_joined", node=node.port, primary=primary.port)
        for other in self._nodes:  # the ids that processes had before they were emptied
            with contextlib.suppress(Undecided):
                for known in (await other.view()).nodes:
                    is_gone = known.node_id not in alive and known.flags & {"fail", "noaddr"}
                    if is_gone and not known.slots and len(alive) == len(self._nodes):
                        await other.ask("CLUSTER", "FORGET", known.node_id)

    async def _meet(self, nodes: Sequence[ClusterNode], first: ClusterNode) -> None:
        for node in nodes:
            await node.ask("CLUSTER", "MEET", HOST, first.port, first.bus_port)

    async def _missing(self) -> str:
        """What keeps the cluster from being complete."""
        problems = []
        views = []
        for node in self._nodes:
            try:
                views.append(await node.view())
            except Undecided as error:
                problems.append(f"port {node.port}: {error}")
        found = SlotMap(views)
        for shard in range(self._settings.shards):
            if found.primary_of(self._settings.first_slot(shard)) is None:
                directories = [node.directory.name for node in self._nodes if node.shard == shard]
                problems.append(
                    f"no process has the data of shard {shard}: bring one of the directories"
                    f" {', '.join(directories)} back from a backup"
                )
        return "; ".join(problems) or "replicas are not connected"


def _members(view: ClusterView) -> set[str]:
    return {node.node_id for node in view.nodes if not node.flags & {"handshake", "fail", "noaddr"}}


def stored_cluster(data_directory: Path) -> EmbeddedCluster | None:
    """The cluster whose data is in this directory; None if there is none. Raises ConfigurationError."""
    directory = data_directory / "valkey-cluster"
    path = directory / "cluster.json"
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        numbers = [int(stored[name]) for name in ("shards", "replicas", "port")]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
    return EmbeddedCluster(ClusterSettings(EmbeddedSettings(directory), *numbers))


def refuse_other_store(data_directory: Path, *, is_cluster: bool) -> None:
    """Refuse to start a store of one kind beside the data of the other. Raises ConfigurationError."""
    single = data_directory / "valkey" / "dataset-id"
    cluster = data_directory / "valkey-cluster" / "cluster.json"
    if is_cluster and single.exists():
        raise ConfigurationError(
            f"{data_directory} holds the data of a single process: start without --shards, or choose another"
            " data directory for the cluster"
        )
    if not is_cluster and cluster.exists():
        raise ConfigurationError(
            f"{data_directory} holds the data of a cluster: start with --shards, or choose another data directory"
        )
