"""RedisLogStore: the log store on Redis >= 7.0 or Valkey >= 8.

Two connections, each opened by the first call that needs it: one carries the guarded writes in the
order of the calls, one the reads and the housekeeping, so that a long read never delays a write.
script_calls.py and scripts/ contain the scripts, primary.py finds the primary. There are no
background tasks: the caller waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import hiredis

from onewriter_broker.log.store import blocks, keys
from onewriter_broker.log.store.api import (
    Append,
    Binding,
    BrokenKey,
    Durability,
    EpochStatus,
    Fence,
    Observation,
    Outcome,
    OwnedRecord,
    OwnWrite,
    StoredBlock,
    Unit,
)
from onewriter_broker.log.store.redis import script_calls
from onewriter_broker.log.store.redis.compacted import RedisCompactedStore
from onewriter_broker.log.store.redis.connection import RedisConnection, Reply
from onewriter_broker.log.store.redis.primary import (
    Open,
    Primary,
    RedisSettings,
    find_primary,
    open_primary,
    parse_info,
)
from onewriter_broker.log.store.redis.script_calls import Word
from onewriter_broker.log.store.redis.staged_parts import RedisStagedStore
from onewriter_broker.ticks import Ticks
from onewriter_core.errors import OnewriterError, Undecided
from onewriter_core.ids import Position, TopicName
from onewriter_core.log_format.field_names import MARKER_FIELDS_RESERVED, STATE_FIELDS_RESERVED

NO_REPLID = "0" * 40
"""A server's value for an unknown previous dataset."""

AUDIT_RECORDS_PER_TICK = 100
"""Audit records that are parsed in one iteration of the event loop: one or two milliseconds."""

_UNIT_FIELDS = ("gen", "owner", "version", "lastLedger", "born", "format")

_START_OVER = ("READONLY", "MASTERDOWN", "CLUSTERDOWN", "MOVED", "NOAUTH", "UNBLOCKED", "NOSCRIPT")
"""Errors after which the connection may not lead to a primary with our scripts: reconnect.

NOSCRIPT is one of them, although nothing was executed: if this module sent the call again, it could overtake
other calls; the caller's own retry cannot.
"""


class RedisLogStore:
    """One shard. Implements LogStore (api.py), which documents the methods."""

    def __init__(self, settings: RedisSettings, open_: Open = open_primary) -> None:
        """``open_`` opens a connection to the primary, which replaces the given one, if any."""
        self._settings = settings
        self._keys = keys.Keys(settings.buckets)
        self._writes = _Channel(settings, open_)
        self._reads = _Channel(settings, open_)
        # The connection and the dataset of the last write that a WAIT may confirm.
        self._confirmable: tuple[Primary, str] | None = None
        self.compacted = RedisCompactedStore(self._keys, self._send_one, self._read)
        self.staged = RedisStagedStore(self._keys, self._send_aside)

    async def observe(self, buckets: Sequence[int]) -> Observation:
        commands: list[list[Word]] = [["INFO", "replication"], ["INFO", "memory"]]
        commands += [["HMGET", self._keys.unit(bucket), *_UNIT_FIELDS] for bucket in buckets]
        await self._writes.leave_deposed()
        replies = (await self._writes.send(commands))[1]
        replication, memory = parse_info(replies[0]), parse_info(replies[1])
        is_primary = replication.get("role") == "master"
        if not is_primary:
            self._writes.drop()
        previous = replication.get("master_replid2", NO_REPLID)
        return Observation(
            replid=replication.get("master_replid", ""),
            previous_replid="" if previous == NO_REPLID else previous,
            is_primary=is_primary,
            replicas=int(replication.get("connected_slaves", "0")),
            units={
                bucket: _unit(self._keys.unit(bucket), reply)
                for bucket, reply in zip(buckets, replies[2:], strict=True)
            },
            memory_bytes_used=int(memory.get("used_memory", "0")),
            memory_bytes_max=int(memory.get("maxmemory", "0")),
        )

    async def bear(self, bucket: int, birthmark: str) -> None:
        await self._writes.send([["HSET", self._keys.unit(bucket), "born", birthmark]])

    async def stamp(self, binding: Binding, *, birthmark: str = "") -> Outcome:
        words = script_calls.stamp(self._keys, binding, birthmark=birthmark)
        return await self._write(words, binding, confirms=True)

    async def fence(self, fence: Fence) -> Outcome:
        for log in fence.logs:
            blocks.check_fields(log.marker, MARKER_FIELDS_RESERVED)
            blocks.check_fields(log.state, STATE_FIELDS_RESERVED)
        words = script_calls.fence(self._keys, fence, self._settings.audit_records_max)
        return await self._write(words, fence.binding, confirms=True)

    async def append(self, appends: Sequence[Append]) -> list[Outcome | BrokenKey]:
        if not appends:
            return []
        for item in appends:
            blocks.check_append(item)
        words, order = script_calls.append(self._keys, appends)
        primary, (reply,) = await self._writes.send([words])
        outcomes = script_calls.append_outcomes(reply, order)
        for item, outcome in zip(appends, outcomes, strict=True):
            if outcome is Outcome.DONE:
                self._confirmable = (primary, item.binding.replid)
        return outcomes

    async def append_together(self, appends: Sequence[Append]) -> list[Outcome | BrokenKey]:
        blocks.check_together(appends)
        primary, (reply,) = await self._writes.send([script_calls.together(self._keys, appends)])
        outcomes = script_calls.append_outcomes(reply, range(len(appends)))
        if Outcome.DONE in outcomes:
            self._confirmable = (primary, appends[0].binding.replid)
        return outcomes

    async def commit(self, durability: Durability, *, replid: str = "") -> bool:
        if durability is Durability.NONE:
            return True
        if self._confirmable is None:
            raise Undecided("no write was made that could be committed")
        primary, written = self._confirmable
        if replid not in {"", written}:
            raise Undecided("the last write went to another dataset than the one to commit")
        timeout_ms = int(self._settings.commit_timeout_seconds * 1000)
        words: list[Word]
        match durability:
            case Durability.LOCAL:
                # Not by WAITAOF under everysec: sent after the write's reply it was answered at
                # once, before any sync (measured on Valkey 9.1.2).
                return primary.syncs_always
            case Durability.REPLICATED:
                words, needed = ["WAIT", 1, timeout_ms], 1
            case Durability.ALL_REPLICAS:
                needed = max(1, self._settings.replicas)
                words = ["WAIT", needed, timeout_ms]
        patience_seconds = self._settings.commit_timeout_seconds
        (reply,) = (await self._writes.send([words], on=primary, patience=patience_seconds))[1]
        reached = reply[0] if isinstance(reply, list) and reply else reply
        return isinstance(reached, int) and reached >= needed

    async def check(
        self, binding: Binding, topic: TopicName, token: str, *, marks: bool = False
    ) -> EpochStatus | Outcome:
        words = script_calls.check(self._keys, binding, topic, token, marks=marks)
        primary, (reply,) = await self._writes.send([words])
        answer = script_calls.epoch_status(reply)
        if marks and isinstance(answer, EpochStatus):
            self._confirmable = (primary, binding.replid)
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
        return _hash(await self._read(["HGETALL", self._keys.state(topic)], replid))

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
        reply = await self._read([command, key, first, second, "COUNT", count], replid)
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
        await self._read(["HSET", keys.MEMBERS, member, value])

    async def members(self) -> dict[str, str]:
        return _hash(await self._read(["HGETALL", keys.MEMBERS]))

    async def forget_member(self, member: str) -> None:
        await self._read(["HDEL", keys.MEMBERS, member])

    async def read_settings(self) -> dict[str, str]:
        return _hash(await self._read(["HGETALL", keys.SETTINGS]))

    async def set_settings(self, fields: Mapping[str, str], remove: Sequence[str] = ()) -> None:
        commands: list[list[Word]] = []
        if fields:
            pairs = [word for pair in fields.items() for word in pair]
            commands.append(["HSET", keys.SETTINGS, *pairs])
        if remove:
            commands.append(["HDEL", keys.SETTINGS, *remove])
        await self._reads.send(commands)

    async def settle_setting(self, name: str, value: str) -> str:
        words = script_calls.settle_setting(name, value)
        return script_calls.settled((await self._reads.send([words]))[1][0])

    async def close(self) -> None:
        await self._writes.close()
        await self._reads.close()

    async def _write(
        self, words: Sequence[Word], binding: Binding, *, confirms: bool = False
    ) -> Outcome:
        primary, (reply,) = await self._writes.send([words])
        outcome = script_calls.outcome(reply)
        if confirms and outcome is Outcome.DONE:
            self._confirmable = (primary, binding.replid)
        return outcome

    async def _send_one(self, words: Sequence[Word]) -> Reply:
        return (await self._writes.send([words]))[1][0]

    async def _send_aside(self, commands: Sequence[Sequence[Word]]) -> list[Reply]:
        return (await self._reads.send(commands))[1]

    async def _read(self, words: Sequence[Word], replid: str = "") -> Reply:
        if not replid:
            return (await self._reads.send([words]))[1][0]
        commands: list[Sequence[Word]] = [["MULTI"], ["INFO", "replication"], words, ["EXEC"]]
        results = (await self._reads.send(commands))[1][3]
        if not isinstance(results, list) or len(results) != 2:
            raise Undecided(f"the store answered {str(results)[:200]} to a read")
        if isinstance(results[1], hiredis.ReplyError):
            raise _error_of(words, results[1]) from results[1]
        found = parse_info(results[0]).get("master_replid")
        if found != replid:
            self._reads.drop()
            raise Undecided(f"read from dataset {found}, not {replid}")
        return results[1]


class _Channel:
    """A connection that is opened when needed; commands go out in the order of the calls."""

    def __init__(self, settings: RedisSettings, open_: Open) -> None:
        self._settings = settings
        self._open = open_
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
        """Send pipelined commands. Returns their replies, and the connection that carried them.

        ``on``: only over that connection. ``patience``: additional seconds that the server was asked
        to wait. Raises Undecided if a command failed or got no answer in time, BrokenKey if a command
        found a key of another type.
        """
        try:
            async with asyncio.timeout(self._settings.call_timeout_seconds + patience):
                async with self._turn:
                    primary = await self._connected(on)
                    connection = primary.connection
                    await connection.writable()
                    awaited = [connection.submit(words) for words in commands]
                replies = [await reply for reply in awaited]
        except ConnectionError as error:
            raise Undecided(str(error)) from error
        except TimeoutError as error:
            self.drop()
            raise Undecided("the store did not answer in time") from error
        for words, reply in zip(commands, replies, strict=True):
            self._raise_for_error(words, reply, connection)
        return primary, replies

    async def ready(self) -> Primary:
        """The open connection; opens one if there is none. Raises Undecided."""
        async with self._turn:
            return await self._connected(None)

    async def leave_deposed(self) -> None:
        """Close a connection to a node that is no longer the primary according to the Sentinels.

        A primary that was cut off stays writable until it is demoted, and keeps its connections.
        """
        primary = self._primary
        if primary is None or not self._settings.sentinels:
            return
        try:
            endpoint = await find_primary(self._settings)
        except Undecided:
            return  # no Sentinel answers: the node's own report must suffice, and the guards decide
        if endpoint != primary.endpoint:
            primary.connection.close()

    def drop(self) -> None:
        """Drop the connection, so that the next call searches for the primary again."""
        if self._primary is not None:
            self._primary.connection.close()

    async def close(self) -> None:
        """Close the connection permanently."""
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

    def _raise_for_error(
        self, words: Sequence[Word], reply: Reply, connection: RedisConnection
    ) -> None:
        if isinstance(reply, ConnectionError):
            raise Undecided(str(reply)) from reply
        if isinstance(reply, hiredis.ReplyError):
            if str(reply).startswith(_START_OVER):
                connection.close()
            raise _error_of(words, reply) from reply


def _error_of(words: Sequence[Word], reply: hiredis.ReplyError) -> OnewriterError:
    """The error for the server's error reply to a command; scripts report broken keys themselves."""
    text = str(reply)
    if text.startswith("WRONGTYPE"):
        return BrokenKey(f"{words[1]!s}: {text}")
    return Undecided(f"the store refused: {text}")


def _text(word: Reply) -> str:
    # Values that other programs wrote may be invalid UTF-8; a reader must accept them.
    return word.decode(errors="replace") if isinstance(word, bytes) else str(word)


def _entries(reply: Reply) -> list[tuple[bytes, list[bytes]]]:
    """A range of stream entries: id and flat field list each."""
    return [(entry[0], entry[1]) for entry in reply] if isinstance(reply, list) else []


def _hash(reply: Reply) -> dict[str, str]:
    words = reply if isinstance(reply, list) else []
    return {_text(name): _text(value) for name, value in zip(words[::2], words[1::2], strict=True)}


def _unit(key: str, reply: Reply) -> Unit:
    words = reply if isinstance(reply, list) else [None] * len(_UNIT_FIELDS)
    generation, owner, version, last_ledger, birthmark, log_format = (
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
        )
    except ValueError as error:
        raise BrokenKey(f"{key}: {error}") from error
