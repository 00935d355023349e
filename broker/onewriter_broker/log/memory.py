"""MemoryLogStore: the log store over servers in memory, for tests and simulations.

Answers as RedisLogStore does, shown by one contract suite. Deterministic: no clock, no randomness.
Faults are asked for (``Faults``); what happens to the servers is in memory_server.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from onewriter_broker.log import blocks
from onewriter_broker.log.api import (
    Append,
    Binding,
    BrokenKey,
    Durability,
    Fence,
    Observation,
    Outcome,
    OwnedRecord,
    OwnWrite,
    Standing,
    StoredBlock,
    Unit,
)
from onewriter_broker.log.keys import BUCKETS_DEFAULT, Keys
from onewriter_broker.log.memory_append import MemoryAppends
from onewriter_broker.log.memory_compacted import MemoryCompactedStore
from onewriter_broker.log.memory_owned import owned_in, owning
from onewriter_broker.log.memory_scripts import (
    add_audit,
    bear,
    change_fields,
    change_state,
    check_key,
    fenceable,
    fencing,
    keep_cut,
    log_refusal,
    refusal,
)
from onewriter_broker.log.memory_server import Change, Dataset, Log, MemoryNode, no_change
from onewriter_broker.log.memory_staged import MemoryStagedStore
from onewriter_core.errors import Undecided
from onewriter_core.ids import Position, TopicName

Moment = Literal["before", "after"]
Hook = Callable[[str, Moment], Awaitable[None]]
"""Awaited with the method's name before a call is executed and before it is answered."""

_Result = TypeVar("_Result")


async def _no_delay(_call: str, _moment: Moment) -> None:
    return


@dataclass(slots=True)
class Faults:
    """What goes wrong between this store and its servers.

    ``fail_before``, ``fail_after``: that many of the next calls end Undecided without, or after
    being executed. ``hook`` may wait (latency), change the world, or raise Undecided itself.
    ``is_cut_off``: no server can be reached.
    """

    fail_before: int = 0
    fail_after: int = 0
    hook: Hook = _no_delay
    is_cut_off: bool = False


class MemoryLogStore:
    """One shard. Implements LogStore (api.py), which says what each method means.

    ``resolve`` names the node to connect to; the connection then stays, also to a node that is
    primary no more in anybody else's eyes, until the node drops it. ``replicas`` is the number that
    AllReplicas waits for; a commit that is not yet reached is looked at again once, after
    ``commit_timeout_seconds``.
    """

    def __init__(
        self,
        resolve: Callable[[], MemoryNode | None],
        *,
        buckets: int = BUCKETS_DEFAULT,
        replicas: int = 0,
        commit_timeout_seconds: float = 1.0,
        faults: Faults | None = None,
    ) -> None:
        self.faults = faults or Faults()
        self._resolve = resolve
        self._keys = Keys(buckets)
        self._replicas = replicas
        self._commit_timeout_seconds = commit_timeout_seconds
        self._write_turn = asyncio.Lock()
        self._read_turn = asyncio.Lock()
        self._node: MemoryNode | None = None
        self._epoch = 0
        self._closed = False
        # Connection, dataset and offset of the last write that a commit may vouch for.
        self._vouching: tuple[MemoryNode, int, str, int] | None = None
        self._appends = MemoryAppends(self._keys, self._execute)
        self.compacted = MemoryCompactedStore(self._keys, self._call, self._read)
        self.staged = MemoryStagedStore(self._configure, self._read)

    async def observe(self, buckets: Sequence[int]) -> Observation:
        def look(node: MemoryNode) -> Observation:
            for bucket in buckets:
                check_key(node.dataset, self._keys.unit(bucket))
            return Observation(
                replid=node.replid,
                previous_replid=node.previous_replid,
                is_primary=node.is_primary,
                replicas=len(node.linked_replicas),
                units={bucket: node.dataset.units.get(bucket, Unit()) for bucket in buckets},
            )

        return await self._call("observe", look)

    async def bear(self, bucket: int, birthmark: str) -> None:
        def run(node: MemoryNode) -> None:
            check_key(node.dataset, self._keys.unit(bucket))
            node.execute(lambda dataset: bear(dataset, bucket, birthmark))

        await self._call("bear", run)

    async def stamp(self, binding: Binding, *, birthmark: str = "") -> Outcome:
        def run(node: MemoryNode) -> Outcome:
            if node.replid != binding.replid:
                return Outcome.REFENCE
            check_key(node.dataset, self._keys.unit(binding.bucket))
            unit = node.dataset.units.get(binding.bucket, Unit())
            if unit.generation == 0 and (not birthmark or unit.birthmark != birthmark):
                return Outcome.LOST
            if unit.generation > binding.generation:
                return Outcome.REFENCE
            if unit.generation == binding.generation and (
                unit.version > binding.version
                or (unit.version == binding.version and unit.owner != binding.owner)
            ):
                return Outcome.FENCED

            def change(dataset: Dataset) -> None:
                dataset.units[binding.bucket] = replace(
                    dataset.units.get(binding.bucket, Unit()),
                    generation=binding.generation,
                    owner=binding.owner,
                    version=binding.version,
                    birthmark="",
                    format=blocks.FORMAT_VERSION,
                )

            self._execute(node, change, binding)
            return Outcome.DONE

        return await self._call("stamp", run)

    async def fence(self, fence: Fence) -> Outcome:
        for log in fence.logs:
            blocks.check_fields(log.marker, blocks.MARKER_FIELDS_RESERVED)
            blocks.check_fields(log.state, blocks.STATE_FIELDS_RESERVED)

        def run(node: MemoryNode) -> Outcome:
            refused = refusal(self._keys, node, fence.binding)
            if refused is not None:
                return refused
            missing = []
            for log in fence.logs:
                answer = fenceable(self._keys, node.dataset, fence, log)
                if answer is None:
                    missing.append(log)
                elif answer is not Outcome.DONE:
                    return answer
            self._execute(node, fencing(fence, missing), fence.binding)
            return Outcome.DONE

        return await self._call("fence", run)

    async def append(self, appends: Sequence[Append]) -> list[Outcome | BrokenKey]:
        if not appends:
            return []
        for item in appends:
            blocks.check_append(item)

        return await self._call("append", lambda node: self._appends.append(node, appends))

    async def append_together(self, appends: Sequence[Append]) -> list[Outcome | BrokenKey]:
        blocks.check_together(appends)
        return await self._call(
            "append_together", lambda node: self._appends.together(node, appends)
        )

    async def commit(self, durability: Durability, *, replid: str = "") -> bool:
        if durability is Durability.NONE:
            return True

        def check(node: MemoryNode) -> bool:
            if self._vouching is None:
                raise Undecided("no write was made that could be committed")
            written_to, epoch, written, offset = self._vouching
            if (written_to, epoch) != (node, self._epoch):
                raise Undecided("the connection that carried these writes is gone")
            if replid not in {"", written}:
                raise Undecided("the last write went to another dataset than the one to commit")
            copies = sum(len(replica.history) >= offset for replica in node.linked_replicas)
            match durability:
                case Durability.LOCAL:
                    return node.sync_always or node.synced >= offset
                case Durability.REPLICATED:
                    return copies >= 1
                case Durability.ALL_REPLICAS:
                    return copies >= max(1, self._replicas)

        if await self._call("commit", check):
            return True
        await asyncio.sleep(self._commit_timeout_seconds)
        return await self._call("commit", check)

    async def check(
        self, binding: Binding, topic: TopicName, token: str, *, marks: bool = False
    ) -> Standing | Outcome:
        def run(node: MemoryNode) -> Standing | Outcome:
            refused = log_refusal(self._keys, node, binding, topic, token)
            if refused is not None:
                return refused
            state = node.dataset.states[topic]
            if marks:
                self._execute(node, no_change, binding)
            return Standing(int(state.get("epoch", "0")), int(state.get("leads", "0")))

        return await self._call("check", run)

    async def set_state(
        self,
        binding: Binding,
        topic: TopicName,
        token: str,
        fields: Mapping[str, str],
        remove: Sequence[str] = (),
    ) -> Outcome:
        blocks.check_state_changes(fields, remove)
        fields, remove = dict(fields), tuple(remove)

        def run(node: MemoryNode) -> Outcome:
            refused = log_refusal(self._keys, node, binding, topic, token)
            if refused is None:
                node.execute(lambda dataset: change_state(dataset, topic, fields, remove))
            return refused or Outcome.DONE

        return await self._call("set_state", run)

    async def trim(
        self,
        binding: Binding,
        topic: TopicName,
        token: str,
        before: Position,
        fields: Mapping[str, str],
        remove: Sequence[str] = (),
    ) -> Outcome:
        blocks.check_state_changes(fields, remove)
        fields, remove = dict(fields), tuple(remove)

        def run(node: MemoryNode) -> Outcome:
            refused = log_refusal(self._keys, node, binding, topic, token)
            if refused is None:
                check_key(node.dataset, self._keys.log(topic))
                refused = None if topic in node.dataset.logs else Outcome.LOST
            if refused is not None:
                return refused
            end = min(before, Position(int(token.partition(":")[0]), 0))

            def change(dataset: Dataset) -> None:
                log = dataset.logs[topic]
                holding = max((b.position for b in log.blocks if b.position <= end), default=end)
                log.blocks = [block for block in log.blocks if block.position >= holding]
                state = dataset.states[topic]
                change_fields(state, keep_cut(state, dict(fields)), remove)

            node.execute(change)
            return Outcome.DONE

        return await self._call("trim", run)

    async def write_audit(self, binding: Binding, record: Mapping[str, str]) -> Outcome:
        if not record:
            raise ValueError("an audit record has at least one field")
        record = dict(record)

        def run(node: MemoryNode) -> Outcome:
            refused = refusal(self._keys, node, binding)
            if refused is None:
                check_key(node.dataset, self._keys.audit(binding.bucket))
                node.execute(lambda dataset: add_audit(dataset, binding.bucket, record))
            return refused or Outcome.DONE

        return await self._call("write_audit", run)

    async def set_catalog(
        self, binding: Binding, fields: Mapping[str, str], remove: Sequence[str] = ()
    ) -> Outcome:
        fields, remove = dict(fields), tuple(remove)

        def run(node: MemoryNode) -> Outcome:
            refused = refusal(self._keys, node, binding)
            if refused is None:
                check_key(node.dataset, self._keys.topics(binding.bucket))
                node.execute(
                    lambda dataset: change_fields(
                        dataset.catalogs.setdefault(binding.bucket, {}), fields, remove
                    )
                )
            return refused or Outcome.DONE

        return await self._call("set_catalog", run)

    async def read_state(self, topic: TopicName, *, replid: str = "") -> dict[str, str]:
        def read(dataset: Dataset) -> dict[str, str]:
            check_key(dataset, self._keys.state(topic))
            return dict(dataset.states.get(topic, {}))

        return await self._read("read_state", read, replid)

    async def own(self, write: OwnWrite) -> Outcome:
        def run(node: MemoryNode) -> Outcome:
            change = owning(self._keys, node, write)
            if isinstance(change, Outcome):
                return change
            if change is not None:
                self._execute(node, change, write.binding)
            return Outcome.DONE

        return await self._call("own", run)

    async def read_owned(self, bucket: int, *, replid: str = "") -> dict[str, OwnedRecord]:
        return await self._read(
            "read_owned", lambda dataset: owned_in(self._keys, dataset, bucket), replid
        )

    async def read_catalog(self, bucket: int, *, replid: str = "") -> dict[str, str]:
        def read(dataset: Dataset) -> dict[str, str]:
            check_key(dataset, self._keys.topics(bucket))
            return dict(dataset.catalogs.get(bucket, {}))

        return await self._read("read_catalog", read, replid)

    async def read_blocks(
        self,
        topic: TopicName,
        start: Position,
        end: Position | None = None,
        *,
        count: int,
        reverse: bool = False,
        replid: str = "",
    ) -> list[StoredBlock]:
        def read(dataset: Dataset) -> list[StoredBlock]:
            check_key(dataset, self._keys.log(topic))
            stored = dataset.logs.get(topic, Log()).blocks
            found = [
                b for b in stored if b.position >= start and (end is None or b.position <= end)
            ]
            return (found[::-1] if reverse else found)[:count]

        return await self._read("read_blocks", read, replid)

    async def read_audit(
        self, bucket: int, *, after: str = "", count: int, reverse: bool = False
    ) -> list[tuple[str, dict[str, str]]]:
        def read(dataset: Dataset) -> list[tuple[str, dict[str, str]]]:
            check_key(dataset, self._keys.audit(bucket))
            low = Position.parse(after) if after else Position(0, -1)
            found = [
                (record_id, dict(fields))
                for record_id, fields in dataset.audits.get(bucket, [])
                if Position.parse(record_id) > low
            ]
            return (found[::-1] if reverse else found)[:count]

        return await self._read("read_audit", read)

    async def beat(self, member: str, value: str) -> None:
        await self._configure("beat", lambda data: change_fields(data.members, {member: value}, ()))

    async def members(self) -> dict[str, str]:
        return await self._read("members", lambda dataset: dict(dataset.members))

    async def forget_member(self, member: str) -> None:
        await self._configure(
            "forget_member", lambda data: change_fields(data.members, {}, (member,))
        )

    async def read_settings(self) -> dict[str, str]:
        return await self._read("read_settings", lambda dataset: dict(dataset.settings))

    async def set_settings(self, fields: Mapping[str, str], remove: Sequence[str] = ()) -> None:
        fields, remove = dict(fields), tuple(remove)
        await self._configure(
            "set_settings", lambda data: change_fields(data.settings, fields, remove)
        )

    async def close(self) -> None:
        self._closed = True

    def _execute(self, node: MemoryNode, change: Change, binding: Binding) -> None:
        node.execute(change)
        self._vouching = (node, self._epoch, binding.replid, len(node.history))

    async def _configure(self, call: str, change: Change) -> None:
        await self._call(call, lambda node: node.execute(change), self._read_turn)

    async def _read(
        self, call: str, read: Callable[[Dataset], _Result], replid: str = ""
    ) -> _Result:
        def run(node: MemoryNode) -> _Result:
            if replid not in {"", node.replid}:
                raise Undecided(f"read from dataset {node.replid}, not {replid}")
            return read(node.dataset)

        return await self._call(call, run, self._read_turn)

    async def _call(
        self, call: str, run: Callable[[MemoryNode], _Result], turn: asyncio.Lock | None = None
    ) -> _Result:
        async with turn or self._write_turn:
            if self.faults.fail_before > 0:
                self.faults.fail_before -= 1
                raise Undecided("the store did not answer")
            node = self._connected()
            await self.faults.hook(call, "before")
            self._check_connection(node)
            result = run(node)
            await self.faults.hook(call, "after")
            self._check_connection(node)
            if self.faults.fail_after > 0:
                self.faults.fail_after -= 1
                raise Undecided("the store did not answer")
            return result

    def _connected(self) -> MemoryNode:
        if self._closed:
            raise Undecided("the store is closed")
        node = self._node
        if node is None or node.connection_epoch != self._epoch or not node.is_reachable:
            self._node = None
            node = self._resolve()
            if node is None or not node.is_reachable or self.faults.is_cut_off:
                raise Undecided("no connection to the store")
            if not node.is_primary:
                raise Undecided(f"the store at {node.name} is no primary")
            self._node, self._epoch = node, node.connection_epoch
        return node

    def _check_connection(self, node: MemoryNode) -> None:
        if self._closed or self.faults.is_cut_off or not node.is_reachable:
            self._node = None
            raise Undecided("the connection to the store was lost")
        if node.connection_epoch != self._epoch:
            self._node = None
            raise Undecided("the store dropped the connection")
