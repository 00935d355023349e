"""RedisLogStore: the log store on Redis >= 7.0 or Valkey >= 8, one primary or a cluster.

Two connections to each primary, each opened by the first call that needs it: one carries the guarded writes in
the order of the calls, one the reads, the staged parts and the settings, so that a long read never delays a write.
script_calls.py and scripts/ contain the scripts and channel.py the connections; primary.py and topology.py find the
primaries. There are no background tasks: the caller waits.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from onewriter_broker.log.store import blocks, keys
from onewriter_broker.log.store.api import (
    UNWRITTEN,
    Append,
    Binding,
    BrokenKey,
    EpochStatus,
    Fence,
    Observation,
    Outcome,
    OwnedRecord,
    OwnWrite,
    ShardBeats,
    ShardState,
    StoredBlock,
    Unit,
)
from onewriter_broker.log.store.redis import script_calls
from onewriter_broker.log.store.redis.bound_reads import BoundReads
from onewriter_broker.log.store.redis.channel import (
    ClusterChannel,
    PrimaryChannel,
    StoreChannel,
    first_key,
)
from onewriter_broker.log.store.redis.cluster import Cluster
from onewriter_broker.log.store.redis.compacted import RedisCompactedStore
from onewriter_broker.log.store.redis.connection import Reply
from onewriter_broker.log.store.redis.primary import (
    Open,
    Primary,
    RedisSettings,
    open_primary,
    parse_info,
)
from onewriter_broker.log.store.redis.script_calls import Word
from onewriter_broker.log.store.redis.staged_parts import RedisStagedStore
from onewriter_broker.ticks import Ticks
from onewriter_core.api.topic import Durability
from onewriter_core.cluster_views import Shard, slot_of
from onewriter_core.errors import Undecided
from onewriter_core.ids import Position, TopicName
from onewriter_core.log_format.field_names import MARKER_FIELDS_RESERVED, STATE_FIELDS_RESERVED

NO_REPLID = "0" * 40
"""A server's value for an unknown previous dataset."""

AUDIT_RECORDS_PER_TICK = 100
"""Audit records that are parsed in one tick of the event loop, in one or two milliseconds."""

MEMBERS_SECONDS_MAX = 0.3
"""Time limit of a command for the heartbeats on one shard of a cluster. Writing and reading heartbeats must both fit
into the interval between two heartbeats."""

_OBSERVATION_COMMANDS: Sequence[list[Word]] = (["INFO", "replication"], ["INFO", "memory"])

_HEALTH_COMMANDS: Sequence[list[Word]] = (["INFO", "persistence"], ["INFO", "debug"])

_FAULTS: Mapping[str, str] = {
    "aof_last_write_status": UNWRITTEN,
    "aof_last_bgrewrite_status": "the append-only file could not be rewritten",
    "rdb_last_bgsave_status": "a snapshot could not be saved",
}
"""The meaning of a field of INFO persistence that is not ``ok``."""

_UNIT_FIELDS = ("gen", "owner", "version", "lastLedger", "born", "format", "replid", "lacks")


@dataclass(slots=True)
class _ReplicaCounts:
    """The WAIT requests on one connection, which count the replicas that have its writes."""

    primary: Primary
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    answered: int = 0
    """The number of requests that were answered."""
    replicas: int = 0
    """The answer to the last one."""


class RedisLogStore:
    """Implements LogStore (api.py), which documents the methods."""

    def __init__(self, settings: RedisSettings, open_: Open = open_primary) -> None:
        """``open_`` opens a connection to the primary, unless the store is a cluster."""
        self._settings = settings
        self._keys = keys.Keys(settings.buckets)
        self._writes: StoreChannel
        self._reads: StoreChannel
        self._cluster: Cluster | None = None
        if settings.is_cluster:
            self._cluster = Cluster(settings, self._keys)
            self._writes, self._reads = self._cluster.writes, self._cluster.reads
        else:
            self._writes = PrimaryChannel(settings, open_)
            self._reads = PrimaryChannel(settings, open_)
        # By run_id of the server process: the connection and the dataset of the last write there, for ``commit``.
        self._last_writes: dict[str, tuple[Primary, str]] = {}
        self._replica_counts: dict[tuple[str, int], _ReplicaCounts] = {}
        self._bound_reads = BoundReads(self._reads, self._slot_of)
        self.compacted = RedisCompactedStore(self._keys, self._send_one, self._read)
        self.staged = RedisStagedStore(self._keys, self._send_to_reads)

    @property
    def is_sharded(self) -> bool:
        return self._cluster is not None

    async def observe(self, buckets: Sequence[int]) -> Observation:
        units = [["HMGET", self._keys.unit(bucket), *_UNIT_FIELDS] for bucket in buckets]
        await self._writes.leave_deposed()
        primary, replies = await self._writes.send([*_OBSERVATION_COMMANDS, *units])
        return self._observed(primary, replies, buckets)

    async def observe_shards(self) -> list[ShardState]:
        if self._cluster is None:
            seen = await self.observe([])
            _, replies = await self._writes.send(_HEALTH_COMMANDS)
            seen = with_health(seen, replies)
            return [ShardState("", None, seen)]
        found = await self._cluster.shards()
        return await asyncio.gather(*(self._observe_shard(*each) for each in found))

    async def _observe_shard(self, shard: Shard, buckets: Sequence[int]) -> ShardState:
        host, port = shard.primary.address
        name, seen, problem = f"{host}:{port}", None, ""
        try:
            words = [*_OBSERVATION_COMMANDS, *_HEALTH_COMMANDS]
            primary, replies = await self._cluster_channel().send_to(shard.primary.address, words)
            seen = with_health(self._observed(primary, replies, ()), replies)
        except Undecided as error:
            problem = str(error)
        return ShardState(name, frozenset(buckets), seen, problem)

    def _cluster_channel(self) -> ClusterChannel:
        if self._cluster is None:
            raise ValueError("the store is not a cluster")
        return self._cluster.reads

    def _observed(
        self, primary: Primary, replies: Sequence[Reply], buckets: Sequence[int]
    ) -> Observation:
        replication, memory = parse_info(replies[0]), parse_info(replies[1])
        units = replies[len(_OBSERVATION_COMMANDS) :][: len(buckets)]
        is_primary = replication.get("role") == "master"
        if not is_primary:
            primary.connection.close()
        previous = replication.get("master_replid2", NO_REPLID)
        return Observation(
            replid=replication.get("master_replid", ""),
            previous_replid="" if previous == NO_REPLID else previous,
            is_primary=is_primary,
            replicas=int(replication.get("connected_slaves", "0")),
            units={
                bucket: _unit(self._keys.unit(bucket), reply)
                for bucket, reply in zip(buckets, units, strict=True)
            },
            memory_bytes_used=int(memory.get("used_memory", "0")),
            memory_bytes_max=int(memory.get("maxmemory", "0")),
            replication_lag_bytes=_lag_bytes(replication),
        )

    async def write_birthmark(self, bucket: int, birthmark: str) -> None:
        await self._writes.send([["HSET", self._keys.unit(bucket), "born", birthmark]])

    async def note_replid(
        self, bucket: int, replid: str, observed: int, registered: int, *, lacks: bool = False
    ) -> Outcome:
        words = script_calls.note_replid(
            self._keys, bucket, replid, observed, registered, lacks=lacks
        )
        _, (reply,) = await self._writes.send([words])
        return script_calls.outcome(reply)

    async def replicate(self, bucket: int) -> bool:
        words: list[Word] = ["HSET", self._keys.unit(bucket), "beat", "replicate"]
        primary, _ = await self._writes.send([words])
        needed = self._replicas(primary)
        return needed == 0 or await self._replicated(primary, needed) >= needed

    async def stamp(self, binding: Binding, *, birthmark: str = "") -> Outcome:
        words = script_calls.stamp(self._keys, binding, birthmark=birthmark)
        return await self._write(words, binding, confirms=True)

    async def fence(self, fences: Sequence[Fence]) -> list[Outcome | BrokenKey]:
        if not fences:
            return []
        for log in (log for fence in fences for log in fence.logs):
            blocks.check_fields(log.marker, MARKER_FIELDS_RESERVED)
            blocks.check_fields(log.state, STATE_FIELDS_RESERVED)
        if self._cluster is not None and len({each.binding.bucket for each in fences}) > 1:
            raise ValueError("in a cluster, a call fences logs of one bucket")
        words, order = script_calls.fence(self._keys, fences, self._settings.audit_records_max)
        primary, (reply,) = await self._writes.send([words])
        outcomes = script_calls.outcomes(reply, order)
        for fence, outcome in zip(fences, outcomes, strict=True):
            if outcome is Outcome.DONE:
                self._note_write(primary, fence.binding.replid)
        return outcomes

    async def append(self, appends: Sequence[Append]) -> list[Outcome | BrokenKey]:
        if not appends:
            return []
        for item in appends:
            blocks.check_append(item)
        if self._cluster is not None and len({item.binding.bucket for item in appends}) > 1:
            raise ValueError("in a cluster, a call appends to one bucket")
        words, order = script_calls.append(self._keys, appends)
        primary, (reply,) = await self._writes.send([words])
        outcomes = script_calls.outcomes(reply, order)
        for item, outcome in zip(appends, outcomes, strict=True):
            if outcome is Outcome.DONE:
                self._note_write(primary, item.binding.replid)
        return outcomes

    async def append_together(self, appends: Sequence[Append]) -> list[Outcome | BrokenKey]:
        blocks.check_together(appends)
        primary, (reply,) = await self._writes.send([script_calls.together(self._keys, appends)])
        outcomes = script_calls.outcomes(reply, range(len(appends)))
        if Outcome.DONE in outcomes:
            self._note_write(primary, appends[0].binding.replid)
        return outcomes

    async def commit(self, durability: Durability, *, replid: str = "") -> bool:
        if durability is Durability.NONE:
            return True
        primary = self._connection_of_last_write(replid)
        match durability:
            case Durability.LOCAL:
                # WAITAOF cannot prove it under `appendfsync everysec`: Valkey 9.1.2 answers at once, before the sync, if
                # it is sent after the write's reply.
                return primary.syncs_always
            case Durability.REPLICATED:
                needed = 1
            case Durability.ALL_REPLICAS:
                needed = max(1, self._replicas(primary))
        return await self._replicated(primary, needed) >= needed

    def _replicas(self, primary: Primary) -> int:
        """The number of replicas that are configured; in a cluster also those that have failed."""
        if self._cluster is None:
            return self._settings.replicas
        return max(self._settings.replicas, self._cluster.replicas_of(primary.endpoint))

    async def _replicated(self, primary: Primary, needed: int) -> int:
        """The number of replicas that have all writes made over this connection before the call.

        The buckets of one primary call at the same time, so callers share the next WAIT that is sent after their calls.
        """
        counts = self._replica_counts.get((primary.run_id, needed))
        if counts is None or counts.primary is not primary:
            counts = self._replica_counts[primary.run_id, needed] = _ReplicaCounts(primary)
        # A WAIT that is under way was sent before this call, so it does not count.
        wanted = counts.answered + (2 if counts.lock.locked() else 1)
        async with counts.lock:
            if counts.answered < wanted:
                seconds = self._settings.commit_timeout_seconds
                words: list[Word] = ["WAIT", needed, int(seconds * 1000)]
                (reply,) = (await self._writes.send([words], on=primary, patience=seconds))[1]
                replicas = reply[0] if isinstance(reply, list) and reply else reply
                counts.replicas = replicas if isinstance(replicas, int) else 0
                counts.answered += 1
            return counts.replicas

    async def check(
        self, binding: Binding, topic: TopicName, token: str, *, marks: bool = False
    ) -> EpochStatus | Outcome:
        words = script_calls.check(self._keys, binding, topic, token, marks=marks)
        primary, (reply,) = await self._writes.send([words])
        answer = script_calls.epoch_status(reply)
        if marks and isinstance(answer, EpochStatus):
            self._note_write(primary, binding.replid)
        return answer

    async def set_state(
        self,
        binding: Binding,
        topic: TopicName,
        token: str,
        fields: Mapping[str, str],
        remove: Sequence[str] = (),
    ) -> Outcome:
        blocks.check_state_changes(fields, remove)
        words = script_calls.set_state(self._keys, binding, topic, token, fields, remove)
        return await self._write(words, binding)

    async def swap_state(
        self,
        binding: Binding,
        topic: TopicName,
        token: str,
        field: str,
        expected: str | None,
        value: str | None,
    ) -> Outcome:
        blocks.check_state_changes({}, [field])
        words = script_calls.swap_state(self._keys, binding, topic, token, field, expected, value)
        return await self._write(words, binding)

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
        words = script_calls.trim(self._keys, binding, topic, token, before, fields, remove)
        return await self._write(words, binding)

    async def write_audit(self, binding: Binding, record: Mapping[str, str]) -> Outcome:
        limit = self._settings.audit_records_max
        words = script_calls.write_audit(self._keys, binding, record, limit)
        return await self._write(words, binding)

    async def set_catalog(
        self, binding: Binding, fields: Mapping[str, str], remove: Sequence[str] = ()
    ) -> Outcome:
        words = script_calls.set_catalog(self._keys, binding, fields, remove)
        return await self._write(words, binding)

    async def read_state(self, topic: TopicName, *, replid: str = "") -> dict[str, str]:
        return _hash(
            await self._read(["HGETALL", self._keys.state(topic)], replid), are_names_shared=True
        )

    async def own(self, write: OwnWrite) -> Outcome:
        words = script_calls.own(self._keys, write, self._settings.audit_records_max)
        return await self._write(
            words, write.binding, confirms=bool(write.records or write.dropped)
        )

    async def read_owned(self, bucket: int, *, replid: str = "") -> dict[str, OwnedRecord]:
        generations = _hash(await self._read(["HGETALL", self._keys.own(bucket)], replid))
        owners = _hash(await self._read(["HGETALL", self._keys.owners(bucket)], replid))
        try:
            return {
                name: OwnedRecord(int(number), owners.get(name, ""))
                for name, number in generations.items()
            }
        except ValueError as error:
            raise BrokenKey(f"{self._keys.own(bucket)}: {error}") from error

    async def read_catalog(self, bucket: int, *, replid: str = "") -> dict[str, str]:
        return _hash(await self._read(["HGETALL", self._keys.topics(bucket)], replid))

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
        key = self._keys.log(topic)
        low, high = str(start), "+" if end is None else str(end)
        command, first, second = ("XREVRANGE", high, low) if reverse else ("XRANGE", low, high)
        words: list[Word] = [command, key, first, second, "COUNT", count]
        reply = await self._read(words, replid, blocks=count)
        return [blocks.decode_entry(key, entry_id, fields) for entry_id, fields in _entries(reply)]

    async def read_audit(
        self, bucket: int, *, after: str = "", count: int, reverse: bool = False
    ) -> list[tuple[str, dict[str, str]]]:
        key, low = self._keys.audit(bucket), f"({after}" if after else "-"
        command, first, second = ("XREVRANGE", "+", low) if reverse else ("XRANGE", low, "+")
        reply = await self._read([command, key, first, second, "COUNT", count])
        ticks, found = Ticks(AUDIT_RECORDS_PER_TICK), list[tuple[str, dict[str, str]]]()
        for entry_id, fields in _entries(reply):
            found.append((_text(entry_id), _hash(fields)))
            await ticks.step()
        return found

    async def beat(self, member: str, value: str) -> None:
        await self._to_members(["HSET", member, value])

    async def members(self) -> list[ShardBeats]:
        found = await self._to_members(["HGETALL"])
        return [ShardBeats(buckets, _hash(reply)) for buckets, reply in found]

    async def forget_member(self, member: str) -> None:
        await self._to_members(["HDEL", member])

    async def _to_members(
        self, words: Sequence[Word]
    ) -> Sequence[tuple[frozenset[int] | None, Reply]]:
        """Send a command for the key of the heartbeats. A cluster has one such key on each shard.

        Returns the replies of the shards that answer, each with the shard's buckets (None: all). Raises the error of a
        shard only if no shard answered, or if it is not Undecided.
        """
        cluster = self._cluster
        if cluster is None:
            return [(None, await self._read([words[0], keys.MEMBERS, *words[1:]]))]
        placed = await cluster.member_keys()
        found = await asyncio.gather(
            *(self._to_shard(cluster, [words[0], key, *words[1:]]) for key, _ in placed),
            return_exceptions=True,
        )
        answers = [
            (buckets, reply)
            for (_, buckets), reply in zip(placed, found, strict=True)
            if not isinstance(reply, BaseException)
        ]
        for reply in found:
            if isinstance(reply, BaseException) and not (isinstance(reply, Undecided) and answers):
                raise reply
        return answers

    async def _to_shard(self, cluster: Cluster, words: Sequence[Word]) -> Reply:
        """One command for a heartbeat key. A shard that hangs must not delay those that answer.

        The next heartbeat then reads the map of the cluster. As soon as that names another primary, all calls that wait
        for this one end.
        """
        key = str(words[1])
        try:
            async with asyncio.timeout(MEMBERS_SECONDS_MAX):
                return await self._read(words)
        except TimeoutError as error:
            cluster.suspect(key)
            text = f"the shard with {key} did not answer within {MEMBERS_SECONDS_MAX} s"
            raise Undecided(text) from error

    async def read_settings(self) -> dict[str, str]:
        return _hash(await self._read(["HGETALL", keys.SETTINGS]))

    async def set_settings(self, fields: Mapping[str, str], remove: Sequence[str] = ()) -> None:
        commands: list[list[Word]] = []
        if fields:
            pairs = [word for pair in fields.items() for word in pair]
            commands.append(["HSET", keys.SETTINGS, *pairs])
        if remove:
            commands.append(["HDEL", keys.SETTINGS, *remove])
        if commands:
            await self._reads.send(commands)

    async def settle_setting(self, name: str, value: str) -> str:
        words = script_calls.settle_setting(name, value)
        return script_calls.settled((await self._reads.send([words]))[1][0])

    async def close(self) -> None:
        await self._writes.close()
        await self._reads.close()
        await self._bound_reads.close()
        if self._cluster is not None:
            await self._cluster.topology.close()

    async def _write(
        self, words: Sequence[Word], binding: Binding, *, confirms: bool = False
    ) -> Outcome:
        primary, (reply,) = await self._writes.send([words])
        outcome = script_calls.outcome(reply)
        if confirms and outcome is Outcome.DONE:
            self._note_write(primary, binding.replid)
        return outcome

    def _note_write(self, primary: Primary, replid: str) -> None:
        known = self._last_writes.get(primary.run_id)
        # A new server process replaces the former one; in a cluster, those whose connections are closed.
        if known is None:
            self._last_writes = {
                run_id: each
                for run_id, each in self._last_writes.items()
                if self._cluster is not None and each[0].connection.is_open
            }
            self._replica_counts = {
                key: each
                for key, each in self._replica_counts.items()
                if key[0] in self._last_writes
            }
        elif known[0] is primary and known[1] == replid:
            return
        self._last_writes[primary.run_id] = (primary, replid)

    def _connection_of_last_write(self, replid: str) -> Primary:
        """The connection of the last write to a dataset; of the last write at all if ``replid`` is empty.

        Raises Undecided if there is none.
        """
        if not self._last_writes:
            raise Undecided(
                "there is no write to commit: this broker has written nothing since it connected"
            )
        for primary, written in self._last_writes.values():
            if replid in {"", written}:
                return primary
        raise Undecided(f"the last write did not go to dataset {replid}")

    async def _send_one(self, words: Sequence[Word]) -> Reply:
        return (await self._writes.send([words]))[1][0]

    async def _send_to_reads(self, commands: Sequence[Sequence[Word]]) -> list[Reply]:
        return (await self._reads.send(commands))[1]

    async def _read(self, words: Sequence[Word], replid: str = "", *, blocks: int = 0) -> Reply:
        if not replid:
            return (await self._reads.send([words]))[1][0]
        return await self._bound_reads.read(words, replid, blocks=blocks)

    def _slot_of(self, words: Sequence[Word]) -> int:
        return 0 if self._cluster is None else slot_of(first_key([words]))


def _lag_bytes(replication: Mapping[str, str]) -> int:
    """Bytes that the slowest connected replica lacks; 0 without replicas."""
    offset = int(replication.get("master_repl_offset", "0"))
    lags = [0]
    for name, value in replication.items():
        if name.startswith("slave") and name[5:].isdigit():
            fields = dict(pair.partition("=")[::2] for pair in value.split(","))
            lags.append(offset - int(fields.get("offset", "0")))
    return max(lags)


def _text(word: Reply) -> str:
    # Values that other programs wrote may be invalid UTF-8; a reader must accept them.
    return word.decode("utf-8", "replace") if isinstance(word, bytes) else str(word)


def _entries(reply: Reply) -> list[tuple[bytes, list[bytes]]]:
    """The entries of a stream range: the id and the flat list of fields of each."""
    return [(entry[0], entry[1]) for entry in reply] if isinstance(reply, list) else []


def with_health(seen: Observation, replies: Sequence[Reply]) -> Observation:
    """Add the server's report on its files, from the replies to ``_HEALTH_COMMANDS``, the last ones of ``replies``."""
    persistence, debug = (parse_info(reply) for reply in replies[-len(_HEALTH_COMMANDS) :])
    return replace(
        seen,
        sync_seconds=int(debug.get("eventloop_duration_aof_sum", "0")) / 1_000_000,
        faults=tuple(
            text for field, text in _FAULTS.items() if persistence.get(field, "ok") != "ok"
        ),
    )


def _hash(reply: Reply, *, are_names_shared: bool = False) -> dict[str, str]:
    """The fields of a hash. ``are_names_shared``: many hashes in memory have the same names."""
    words = reply if isinstance(reply, list) else []
    names = map(_text, words[::2])
    if are_names_shared:
        names = map(sys.intern, names)
    return dict(zip(names, map(_text, words[1::2]), strict=True))


def _unit(key: str, reply: Reply) -> Unit:
    words = reply if isinstance(reply, list) else [None] * len(_UNIT_FIELDS)
    generation, owner, version, last_ledger, birthmark, log_format, note, lacks = (
        "" if word is None else _text(word) for word in words
    )
    try:
        return Unit(
            generation=int(generation or 0),
            owner=owner,
            version=int(version or 0),
            last_ledger=int(last_ledger or 0),
            birthmark=birthmark,
            format=int(log_format or 0),
            note=note,
            lacks=int(lacks or 0),
        )
    except ValueError as error:
        raise BrokenKey(f"{key}: {error}") from error
