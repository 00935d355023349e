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
    Durability,
    Fence,
    FencedLog,
    Marker,
    Observation,
    Outcome,
    StoredBlock,
    Unit,
)
from onewriter_broker.log.keys import BUCKETS_DEFAULT, Keys
from onewriter_broker.log.memory_server import Change, Dataset, Log, MemoryNode, no_change
from onewriter_core.errors import Undecided
from onewriter_core.ids import Position, TopicName

AUDIT_RECORDS_MAX = 10_000
"""Audit records kept per bucket."""

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

    async def observe(self, buckets: Sequence[int]) -> Observation:
        def look(node: MemoryNode) -> Observation:
            return Observation(
                replid=node.replid,
                previous_replid=node.previous_replid,
                is_primary=node.is_primary,
                replicas=len(node.linked_replicas),
                units={bucket: node.dataset.units.get(bucket, Unit()) for bucket in buckets},
            )

        return await self._call("observe", look)

    async def stamp(self, binding: Binding, *, create: bool = False) -> Outcome:
        def run(node: MemoryNode) -> Outcome:
            if node.replid != binding.replid:
                return Outcome.REFENCE
            if binding.bucket not in node.dataset.units and not create:
                return Outcome.LOST
            unit = node.dataset.units.get(binding.bucket, Unit())
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
                )

            self._execute(node, change, binding)
            return Outcome.DONE

        return await self._call("stamp", run)

    async def fence(self, fence: Fence) -> Outcome:
        for log in fence.logs:
            blocks.check_fields(log.marker, blocks.MARKER_FIELDS_RESERVED)
            blocks.check_fields(log.state, blocks.STATE_FIELDS_RESERVED)

        def run(node: MemoryNode) -> Outcome:
            refused = _refusal(node, fence.binding)
            if refused is not None:
                return refused
            missing = []
            for log in fence.logs:
                answer = _fenceable(node.dataset, fence, log)
                if answer is None:
                    missing.append(log)
                elif answer is not Outcome.DONE:
                    return answer
            self._execute(node, _fencing(fence, missing), fence.binding)
            return Outcome.DONE

        return await self._call("fence", run)

    async def append(self, appends: Sequence[Append]) -> list[Outcome]:
        if not appends:
            return []
        for item in appends:
            blocks.check_block(item.block, item.token)

        def run(node: MemoryNode) -> list[Outcome]:
            broken: dict[TopicName, Outcome] = {}
            outcomes = []
            for item in appends:
                outcome = self._append(node, item, broken.get(item.topic))
                if outcome is not Outcome.DONE:
                    lost = outcome in {Outcome.LOST, Outcome.REFENCE}
                    broken[item.topic] = outcome if lost else Outcome.FENCED
                outcomes.append(outcome)
            return outcomes

        return await self._call("append", run)

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
            refused = _refusal(node, binding) or _token_refusal(node.dataset, topic, token)
            if refused is None:
                node.execute(lambda dataset: _change(dataset.states[topic], fields, remove))
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
            refused = _refusal(node, binding) or _token_refusal(node.dataset, topic, token)
            if refused is None and topic not in node.dataset.logs:
                refused = Outcome.LOST
            if refused is not None:
                return refused
            end = min(before, Position(int(token.partition(":")[0]), 0))

            def change(dataset: Dataset) -> None:
                log = dataset.logs[topic]
                holding = max((b.position for b in log.blocks if b.position <= end), default=end)
                log.blocks = [block for block in log.blocks if block.position >= holding]
                _change(dataset.states[topic], fields, remove)

            node.execute(change)
            return Outcome.DONE

        return await self._call("trim", run)

    async def write_audit(self, binding: Binding, record: Mapping[str, str]) -> Outcome:
        if not record:
            raise ValueError("an audit record has at least one field")
        record = dict(record)

        def run(node: MemoryNode) -> Outcome:
            refused = _refusal(node, binding)
            if refused is None:
                node.execute(lambda dataset: _audit(dataset, binding.bucket, record))
            return refused or Outcome.DONE

        return await self._call("write_audit", run)

    async def set_catalog(
        self, binding: Binding, fields: Mapping[str, str], remove: Sequence[str] = ()
    ) -> Outcome:
        fields, remove = dict(fields), tuple(remove)

        def run(node: MemoryNode) -> Outcome:
            refused = _refusal(node, binding)
            if refused is None:
                node.execute(
                    lambda dataset: _change(
                        dataset.catalogs.setdefault(binding.bucket, {}), fields, remove
                    )
                )
            return refused or Outcome.DONE

        return await self._call("set_catalog", run)

    async def read_state(self, topic: TopicName, *, replid: str = "") -> dict[str, str]:
        return await self._read("read_state", lambda data: dict(data.states.get(topic, {})), replid)

    async def read_catalog(self, bucket: int, *, replid: str = "") -> dict[str, str]:
        return await self._read(
            "read_catalog", lambda data: dict(data.catalogs.get(bucket, {})), replid
        )

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
            low = Position.parse(after) if after else Position(0, -1)
            found = [
                (record_id, dict(fields))
                for record_id, fields in dataset.audits.get(bucket, [])
                if Position.parse(record_id) > low
            ]
            return (found[::-1] if reverse else found)[:count]

        return await self._read("read_audit", read)

    async def beat(self, member: str, value: str) -> None:
        await self._configure("beat", lambda data: _change(data.members, {member: value}, ()))

    async def members(self) -> dict[str, str]:
        return await self._read("members", lambda dataset: dict(dataset.members))

    async def forget_member(self, member: str) -> None:
        await self._configure("forget_member", lambda data: _change(data.members, {}, (member,)))

    async def read_settings(self) -> dict[str, str]:
        return await self._read("read_settings", lambda dataset: dict(dataset.settings))

    async def set_settings(self, fields: Mapping[str, str], remove: Sequence[str] = ()) -> None:
        fields, remove = dict(fields), tuple(remove)
        await self._configure("set_settings", lambda data: _change(data.settings, fields, remove))

    async def close(self) -> None:
        self._closed = True

    def _append(self, node: MemoryNode, item: Append, broken: Outcome | None) -> Outcome:
        dataset, binding, block = node.dataset, item.binding, item.block
        refused = _refusal(node, binding)
        outcome = refused or _token_refusal(dataset, item.topic, item.token) or broken
        log = dataset.logs.get(item.topic)
        if outcome is None and log is None:
            outcome = Outcome.LOST
        if outcome is None and log is not None and block.position > log.last:
            self._execute(node, lambda data: _add(data, item.topic, block), binding)
            return Outcome.DONE
        if outcome not in {None, Outcome.FENCED}:
            return outcome or Outcome.FENCED
        stored = log.blocks if log is not None else []
        for present in stored:
            if present.position == block.position:
                if isinstance(present, Marker) or present.chain != block.chain:
                    return Outcome.FENCED
                if refused is not None:
                    return Outcome.UNKNOWN
                self._execute(node, no_change, binding)
                return Outcome.DONE
        is_definite = item.never_sent or (stored and stored[0].position <= block.position)
        return Outcome.FENCED if is_definite else Outcome.UNKNOWN

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


def _refusal(node: MemoryNode, binding: Binding) -> Outcome | None:
    """The guard of scripts/guard.lua."""
    if node.replid != binding.replid:
        return Outcome.REFENCE
    unit = node.dataset.units.get(binding.bucket)
    if unit is None:
        return Outcome.LOST
    if unit.generation > binding.generation:
        return Outcome.REFENCE
    if unit.owner != binding.owner:
        return Outcome.FENCED
    return None if unit.version == binding.version else Outcome.REFENCE


def _token_refusal(dataset: Dataset, topic: TopicName, token: str) -> Outcome | None:
    held = dataset.states.get(topic, {}).get("tok")
    if held is None:
        return Outcome.LOST
    return None if held == token else Outcome.FENCED


def _fenceable(dataset: Dataset, fence: Fence, fenced: FencedLog) -> Outcome | None:
    """DONE when the log already carries this very fence, None when it may be fenced."""
    log, state = dataset.logs.get(fenced.topic), dataset.states.get(fenced.topic, {})
    held = state.get("tok")
    if log is not None and held == fence.binding.token(fence.ledger):
        for block in log.blocks:
            if isinstance(block, Marker) and block.position == Position(fence.ledger, 0):
                return Outcome.DONE
    if not fenced.create and (log is None or held is None):
        return Outcome.LOST
    if log is not None and log.last.ledger >= fence.ledger:
        return Outcome.FENCED
    if int(state.get("ledger", "0")) >= fence.ledger:
        return Outcome.FENCED
    return None


def _fencing(fence: Fence, logs: Sequence[FencedLog]) -> Change:
    if not logs:
        return no_change
    binding, ledger = fence.binding, fence.ledger
    own = {"owner": binding.owner, "gen": str(binding.generation)}
    token = {"tok": binding.token(ledger), "ledger": str(ledger)}
    markers = [(log.topic, Marker(Position(ledger, 0), {**own, **log.marker})) for log in logs]
    states = [(log.topic, {**token, **log.state}) for log in logs]
    audit = dict(fence.audit)

    def change(dataset: Dataset) -> None:
        for topic, marker in markers:
            _add(dataset, topic, marker)
        for topic, state in states:
            dataset.states.setdefault(topic, {}).update(state)
        unit = dataset.units[binding.bucket]
        dataset.units[binding.bucket] = replace(unit, last_ledger=max(unit.last_ledger, ledger))
        if audit:
            _audit(dataset, binding.bucket, audit)

    return change


def _add(dataset: Dataset, topic: TopicName, block: StoredBlock) -> None:
    log = dataset.logs.setdefault(topic, Log())
    log.blocks.append(block)
    log.last = block.position


def _audit(dataset: Dataset, bucket: int, record: Mapping[str, str]) -> None:
    dataset.audits_written += 1
    records = dataset.audits.setdefault(bucket, [])
    records.append((f"{dataset.audits_written}-0", dict(record)))
    del records[:-AUDIT_RECORDS_MAX]


def _change(target: dict[str, str], fields: Mapping[str, str], remove: Sequence[str]) -> None:
    target.update(fields)
    for name in remove:
        target.pop(name, None)
