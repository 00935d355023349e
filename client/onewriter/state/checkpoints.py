"""Checkpoints: stored states, so that opening a state takes only as long as reading the log after the checkpoint.

A checkpoint of position p is the fold of the log up to p. It is stored in a companion topic, as chunks and one
closing entry with their number, their hash and the fold's base. A checkpoint counts only if it is complete and the
log continues from it: the next entry names the version before itself. So a checkpoint can be useless, but not wrong;
its writer and its age do not matter.

A durable subscription holds back the log's retention (``KeepBehind``). Its position is the latest checkpoint that
was read back completely, and the broker keeps everything after it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import secrets
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar

from onewriter._client import Client
from onewriter._errors import OnewriterError, Refused, ServerError, Unavailable
from onewriter.state.errors import StateGap, UnreadableEntry
from onewriter.state.fold import Base
from onewriter.state.log import BEGINNING, Log, LogEntry, LogMessage
from onewriter.state.memory import MemoryLog
from onewriter.state.replica import Replica
from onewriter.state.topic_log import TopicLog, checkpoint_topic_of
from onewriter_core.ids import Position

CHUNKS_IN_FLIGHT_MAX = 4

READ_TIMEOUT_SECONDS = 30.0

POLL_SECONDS = 1.0
"""Interval at which a state checks whether a checkpoint is due."""

ID_BYTES = 16

_MAGIC = b"OWC1"
_HEADER = struct.Struct(f"<4s{ID_BYTES}sIqq")
_CLOSING = 0xFFFFFFFF
"""The closing entry's number, in the field of a chunk's number."""

S = TypeVar("S")
S_contra = TypeVar("S_contra", contravariant=True)

log = logging.getLogger("onewriter")


class Snapshots(Protocol[S]):
    """Converts states to bytes and back."""

    def dump(self, state: S) -> Iterator[bytes]:
        """Yield the state in parts of about ``CHUNK_BYTES``. Runs in a separate thread."""
        ...

    def load(self, chunks: Iterable[bytes]) -> S:
        """Return the state. Runs in a separate thread. An exception makes the checkpoint invalid."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """Conditions for writing checkpoints. The log's current writer writes one when all are met.

    The log since the last checkpoint must also be at least as large as that checkpoint, so that all checkpoints
    together are about as large as the log.

    With ``is_enabled=False`` checkpoints are neither read nor written, and do not hold back retention. With
    ``is_written=False`` they are only read.
    """

    is_enabled: bool = True
    is_written: bool = True
    writes: int = 50_000
    """Smallest number of writes since the last checkpoint."""
    seconds_min: float = 10.0
    """Smallest time between two checkpoints, in seconds."""
    read_timeout_seconds: float = READ_TIMEOUT_SECONDS
    """Limit of reading checkpoints; without a checkpoint the log is read from its first stored entry."""


@dataclass(frozen=True, slots=True)
class Closing:
    """The closing entry of a checkpoint, without which its chunks do not count."""

    chunks: int
    sha256: str
    position: Position
    version: int
    writers: tuple[tuple[bytes, int], ...]

    def encode(self) -> bytes:
        """Return the body of the entry."""
        return json.dumps(
            {
                "chunks": self.chunks,
                "sha256": self.sha256,
                "position": str(self.position),
                "version": self.version,
                "writers": [[writer.hex(), last] for writer, last in self.writers],
            }
        ).encode()

    @classmethod
    def decode(cls, body: bytes) -> Self:
        """Decode it. Raises ValueError."""
        try:
            read = json.loads(body)
            writers = tuple((bytes.fromhex(writer), int(last)) for writer, last in read["writers"])
            position = Position.parse(read["position"])
            return cls(
                int(read["chunks"]), str(read["sha256"]), position, int(read["version"]), writers
            )
        except (KeyError, TypeError) as error:
            raise ValueError("the closing entry is incomplete") from error


@dataclass(frozen=True, slots=True)
class Part:
    """One entry of the companion topic. ``first`` is the position of its checkpoint's first chunk."""

    checkpoint: bytes
    number: int
    first: Position
    body: bytes

    @property
    def is_closing(self) -> bool:
        """Whether it is the closing entry of its checkpoint."""
        return self.number == _CLOSING

    def encode(self) -> LogMessage:
        """Return the message."""
        header = _HEADER.pack(_MAGIC, self.checkpoint, self.number, *self.first)
        return LogMessage(header + self.body)

    @classmethod
    def decode(cls, entry: LogEntry) -> Self:
        """Decode it. Raises ValueError."""
        content = entry.messages[0].content
        if len(content) < _HEADER.size or content[:4] != _MAGIC:
            raise ValueError("the entry is not part of a checkpoint")
        _, checkpoint, number, ledger, index = _HEADER.unpack_from(content)
        first = Position(ledger, index)
        if first == BEGINNING:
            first = entry.position
        return cls(checkpoint, number, first, content[_HEADER.size :])


@dataclass(frozen=True, slots=True)
class Stored:
    """A complete checkpoint. ``first`` is its first position in the companion topic."""

    closing: Closing
    chunks: tuple[bytes, ...]
    first: Position


class Collector:
    """Assembles parts in the order of the topic, and keeps the latest complete checkpoint."""

    def __init__(self) -> None:
        self._chunks: dict[bytes, list[bytes]] = {}
        self.newest: Stored | None = None
        self.before: Stored | None = None
        """The complete checkpoint before the latest one."""

    def take(self, entry: LogEntry) -> None:
        """Add the next entry of the companion topic. Invalid entries are logged and skipped."""
        try:
            part = Part.decode(entry)
            if part.is_closing:
                self._close(part)
            elif part.number == 0:
                self._chunks = {part.checkpoint: [part.body]}
            elif len(self._chunks.get(part.checkpoint, ())) == part.number:
                self._chunks[part.checkpoint].append(part.body)
        except ValueError as error:
            log.warning("the checkpoint at %s does not count: %s", entry.position, error)

    def _close(self, part: Part) -> None:
        chunks = tuple(self._chunks.pop(part.checkpoint, ()))
        closing = Closing.decode(part.body)
        if len(chunks) != closing.chunks:
            raise ValueError(f"{len(chunks)} of its {closing.chunks} chunks are there")
        if _hash(chunks) != closing.sha256:
            raise ValueError("its chunks are damaged")
        self.before, self.newest = self.newest, Stored(closing, chunks, part.first)


class KeepBehind(Protocol):
    """Holds back a log's retention. Both methods raise Unavailable or Refused."""

    async def begin(self) -> None:
        """Keep all entries from now on, until ``advance`` allows their removal."""
        ...

    async def advance(self, position: Position) -> None:
        """Allow the removal of all entries up to this position."""
        ...


@dataclass(slots=True)
class CheckpointStore:
    """The companion log of checkpoints, and the retention holds of both logs."""

    checkpoint_topic: Log
    keep_log: KeepBehind | None = None
    keep_checkpoint_topic: KeepBehind | None = None

    @classmethod
    def beside(cls, client: Client, topic: str) -> Self:
        """Return the store in the companion topic ``{<topic>}-checkpoints``, which is in the same bucket."""
        source, checkpoint_topic = (
            TopicLog(client, topic),
            TopicLog(client, checkpoint_topic_of(topic), creates=False),
        )
        return cls(checkpoint_topic, source.retention(), checkpoint_topic.retention())

    @classmethod
    def in_memory(cls) -> Self:
        """Return a store in memory, for tests with a MemoryLog."""
        return cls(MemoryLog("memory-checkpoints"))

    async def begin(self) -> None:
        """Hold back retention from the beginning of both logs."""
        for keep in (self.keep_log, self.keep_checkpoint_topic):
            if keep is not None:
                await keep.begin()

    async def newest(self) -> Collector:
        """Return the latest complete checkpoint. Raises Unavailable, Refused.

        It reads the last entry first, and the whole topic only if that entry closes no valid checkpoint.
        """
        collector = Collector()
        end = await self.checkpoint_topic.end()
        if end == BEGINNING:
            return collector
        try:
            last = await self._one(end)
            part = Part.decode(last)
            if part.is_closing:
                await self._collect(collector, part.first.previous, end)
        except (ValueError, UnreadableEntry) as error:
            log.warning("%s: the last entry: %s", self.checkpoint_topic.name, error)
        if collector.newest is None:
            collector = Collector()
            await self._collect(collector, None, end)
        return collector

    async def _one(self, position: Position) -> LogEntry:
        async with aclosing(self.checkpoint_topic.follow(position.previous)) as entries:
            async for entry in entries:
                return entry
        raise Unavailable(f"no entry at {position}")

    async def _collect(self, into: Collector, after: Position | None, end: Position) -> None:
        """Read everything up to ``end``. Damaged entries are logged and skipped."""
        reached = after
        while reached is None or reached < end:
            try:
                async with aclosing(self.checkpoint_topic.follow(reached)) as entries:
                    async for entry in entries:
                        reached = entry.position
                        into.take(entry)
                        if reached >= end:
                            return
            except UnreadableEntry as error:
                log.warning("%s: left out: %s", self.checkpoint_topic.name, error)
                reached = error.position

    async def append(self, chunks: Iterator[bytes], base: Base[Any]) -> None:
        """Write one checkpoint. Raises Unavailable, Refused, Fenced; the checkpoint then does not count."""
        checkpoint = secrets.token_bytes(ID_BYTES)
        grant = await self.checkpoint_topic.acquire(lambda: None)
        try:
            digest, count, first = hashlib.sha256(), 0, BEGINNING
            receipts: list[asyncio.Future[object]] = []
            while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
                digest.update(chunk)
                part = Part(checkpoint, count, first, chunk)
                receipts.append(await grant.append([part.encode()]))
                if count == 0:
                    first = await _position_of(receipts[0])
                count += 1
                if len(receipts) >= CHUNKS_IN_FLIGHT_MAX:
                    await receipts.pop(0)
            for receipt in receipts:
                await receipt
            closing = Closing(count, digest.hexdigest(), base.position, base.version, base.writers)
            part = Part(checkpoint, _CLOSING, first, closing.encode())
            await (await grant.append([part.encode()]))
        finally:
            await grant.hand_over()


class Checkpointer(Generic[S]):
    """Writes checkpoints when they are due, and reads the latest one."""

    def __init__(
        self,
        store: CheckpointStore,
        source: Log,
        snapshots: Snapshots[S],
        policy: Checkpoints,
        is_holder: Callable[[], bool],
    ) -> None:
        self._store = store
        self._source = source
        self._snapshots = snapshots
        self._policy = policy
        self._is_holder = is_holder
        self._last_version = 0
        """Version of the latest known checkpoint."""
        self._bytes = 0
        """Size of its chunks."""
        self._folded_bytes = 0
        """Size of the folded log at the time of that checkpoint."""
        self._turn = asyncio.Lock()
        self._has_begun = False

    async def begin(self) -> None:
        """Hold back retention, before the first write. Raises Unavailable, Refused."""
        if not self._has_begun:
            await self._store.begin()
            self._has_begun = True

    async def recover(self) -> Base[S] | None:
        """Return the base of the latest valid checkpoint; None if there is none. Raises Unavailable, Refused."""
        try:
            async with asyncio.timeout(self._policy.read_timeout_seconds):
                collector = await self._store.newest()
                end = await self._source.end()
        except TimeoutError:
            log.warning("%s: checkpoints cannot be read in time", self._source.name)
            return None
        for stored in (collector.newest, collector.before):
            if stored is not None and (base := await self._load(stored, end)) is not None:
                self._last_version = base.version
                self._bytes = sum(map(len, stored.chunks))
                self._folded_bytes = 0
                return base
        return None

    async def _load(self, stored: Stored, end: Position) -> Base[S] | None:
        closing = stored.closing
        if end == BEGINNING:
            raise StateGap(
                f"there is a checkpoint of {closing.position}, but the log holds nothing:"
                " it was cut, or deleted without its checkpoints",
                position=closing.position,
            )
        if closing.position > end:
            log.warning(
                "%s: the checkpoint at %s is newer than the log, which ends at %s: it does not count",
                *(self._source.name, closing.position, end),
            )
            return None
        try:
            state = await asyncio.to_thread(self._loaded, stored.chunks)
        except Exception as error:  # noqa: BLE001 - whatever it is, the log holds the same
            log.warning("%s: a checkpoint does not count: %r", self._source.name, error)
            return None
        return Base(state, closing.version, closing.position, closing.writers)

    def _loaded(self, chunks: tuple[bytes, ...]) -> S:
        try:
            return self._snapshots.load(chunks)
        except StopIteration as error:  # a future cannot carry a StopIteration
            raise ValueError("the checkpoint ends too early") from error

    async def run(self, replica: Replica[S, Any]) -> None:
        """Write a checkpoint whenever one is due and this instance is the log's writer."""
        loop = asyncio.get_running_loop()
        written_at = loop.time()
        while True:
            await asyncio.sleep(min(POLL_SECONDS, self._policy.seconds_min))
            is_time = loop.time() - written_at >= self._policy.seconds_min
            if not (is_time and self._is_holder() and self._is_due(replica)):
                continue
            written_at = loop.time()
            self._folded_bytes = replica.fold.bytes
            try:
                await self.write(replica.fold.base())
            except OnewriterError as error:
                log.warning("%s: no checkpoint: %s", self._source.name, error)
            except Exception:  # an error of ``dump`` must not end the state
                log.exception("%s: no checkpoint", self._source.name)

    def _is_due(self, replica: Replica[S, Any]) -> bool:
        """Whether the conditions for a checkpoint are met."""
        fold = replica.fold
        self._folded_bytes = min(self._folded_bytes, fold.bytes)  # a new fold counts from 0
        return (
            self._policy.is_written
            and replica.is_complete
            and fold.version - self._last_version >= self._policy.writes
            and fold.bytes - self._folded_bytes >= self._bytes
        )

    async def write(self, base: Base[S]) -> None:
        """Write a checkpoint, read it back, and release the log up to the previous checkpoint.

        Raises Unavailable, Refused; nothing is released then.
        """
        async with self._turn:
            await self._store.append(self._snapshots.dump(base.state), base)
            newest = await self._read_back()
            if newest is None or newest.closing.version < base.version:
                raise Unavailable("the checkpoint was not read back")
            self._last_version = newest.closing.version
            self._bytes = sum(map(len, newest.chunks))
            if self._store.keep_log is not None:
                # Keep the last covered entry: it shows that the log reaches this position.
                await self._store.keep_log.advance(newest.closing.position.previous)
            if self._store.keep_checkpoint_topic is not None:
                await self._store.keep_checkpoint_topic.advance(newest.first.previous)

    async def _read_back(self) -> Stored | None:
        try:
            async with asyncio.timeout(self._policy.read_timeout_seconds):
                return (await self._store.newest()).newest
        except TimeoutError as error:
            raise Unavailable("the checkpoint was not read back in time") from error


async def _position_of(receipt: asyncio.Future[object]) -> Position:
    position = await receipt
    if not isinstance(position, Position) or position < (0, 0):
        raise Refused(ServerError.UNKNOWN_ERROR, "the first chunk's position is not known")
    return position


def _hash(chunks: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()
