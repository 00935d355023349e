"""Staged parts of atomic publishes. The store keeps them until they are published, or expire.

A lost part never counts as empty, because a publish request names the content of each part.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

import structlog

from onewriter_broker.log.store.api import LogStore
from onewriter_broker.log.store.staged_parts import (
    CHUNK_BYTES,
    Damaged,
    StagedPart,
    Stager,
    decode_part,
)
from onewriter_broker.log.topic_log.atomic_publish import TooLarge
from onewriter_broker.ticks import Ticks
from onewriter_broker.topic.publish import staged_rows
from onewriter_core.errors import OnewriterError, Refused, ServerError, Undecided
from onewriter_core.ids import Identity, InvalidTopicName, TopicName
from onewriter_core.log_format.limits import PUBLISH_BYTES_MAX, PUBLISH_ENTRIES_MAX

PART_BYTES_MAX: Final = 16 * 1024 * 1024
"""Size limit of a part. Larger data needs several parts."""

STAGED_BYTES_MAX: Final = 1024 * 1024 * 1024
"""Size limit of all parts of a namespace in a bucket, if no other namespace has parts there."""

STAGED_PARTS_MAX: Final = 5_000
"""Limit on the number of these parts, because each new part causes a scan of its bucket."""

OTHERS_COUNT: Final = 0.5
"""The share of other namespaces' parts in a bucket that reduces the limits of a namespace. So each namespace has room,
and all together have at most twice the limits of one."""

NOTED_PER_TICK: Final = 200
"""Parts scanned between two yields to the event loop: 1 ms to 2 ms."""

STAGED_SECONDS: Final = 6 * 3600.0
"""How long the store keeps a part. A batch that takes longer fails."""

POLL_SECONDS: Final = 5.0
"""Polling interval for buckets whose parts are not known yet."""

POLLS_PER_SWEEP: Final = 12
"""Polls between two scans of all buckets for expired parts."""

ENTRY_MEMORY_BYTES: Final = 256
"""Approximate memory of an entry of a publish, in addition to its bytes."""

LOADED_BYTES_MAX: Final = PUBLISH_BYTES_MAX + ENTRY_MEMORY_BYTES * PUBLISH_ENTRIES_MAX
"""Memory for the publishes of all topics. It suffices for one publish of the maximal size."""

TOPIC_MEMORY_BYTES: Final = 32 * 1024 * 1024
"""Memory for small publishes of a topic, separate from that for larger ones."""

SMALL_TOPICS_MAX: Final = 4
"""Topics that may use all of that memory at the same time."""


@dataclass(frozen=True, slots=True)
class StagingLimits:
    """Limits of the staged parts and of the publishes of one broker: see the constants."""

    bytes_max: int = STAGED_BYTES_MAX
    parts_max: int = STAGED_PARTS_MAX
    loaded_bytes_max: int = LOADED_BYTES_MAX
    topic_memory_bytes: int = TOPIC_MEMORY_BYTES


KEY_CHARACTERS_SHOWN: Final = 200
"""Characters of a part's key in an error message."""

CHUNKS_AT_ONCE: Final = 4
"""Chunks of a part that are read or written in parallel: 2 MiB, which delay other calls."""

log = structlog.get_logger(__name__)


class MissingPart(OnewriterError):
    """A part of a publish request is missing, or has other content."""


@dataclass(frozen=True, slots=True)
class Changer:
    """A caller that stages, replaces or drops parts.

    ``epoch``: the leading epoch, if the caller proved that it holds the epoch or acts for the holder.
    ``was_holder`` returns whether the caller proved that it held another epoch.
    """

    identity: Identity
    epoch: int | None = None
    is_administrator: bool = False
    was_holder: Callable[[int], bool] = lambda _epoch: False

    @property
    def stager(self) -> Stager:
        """The stager that its parts record."""
        return Stager(self.identity, self.epoch)

    def may_change(self, part: StagedPart) -> bool:
        """Whether the caller may replace or drop a part: as its stager, the holder, or an administrator."""
        if self.epoch is not None or self.is_administrator:
            return True
        stager = part.stager
        if stager is None:
            return False
        return stager.identity == self.identity or (
            stager.epoch is not None and self.was_holder(stager.epoch)
        )


BROKER: Final = Changer(Identity(), is_administrator=True)
"""The broker itself, which drops published parts."""


class StagedPartRef(NamedTuple):
    """A reference to a staged part, as its stager got it: the key and the content."""

    key: str
    rows: int
    bytes: int
    checksum: str


class Staging:
    """The staged parts of the buckets that this broker holds. ``run`` must be running."""

    def __init__(
        self,
        store: LogStore,
        bucket_of: Callable[[TopicName], int],
        held: Callable[[], Sequence[int]],
        wall_ms: Callable[[], int],
        *,
        limits: StagingLimits = StagingLimits(),
    ) -> None:
        self._limits = limits
        self._store = store
        self._bucket_of = bucket_of
        self._held = held
        self._wall_ms = wall_ms
        self._sizes: dict[int, Counter[str]] = {}
        """Staged bytes by topic, of each held bucket that was scanned."""
        self._small_bytes: Counter[TopicName] = Counter()
        self._loaded_bytes: Counter[TopicName] = Counter()

    def sizes(self) -> Counter[TopicName]:
        """Staged bytes of each topic in the held buckets that were scanned."""
        found: Counter[TopicName] = Counter()
        for bucket in self._held():
            for text, size in self._sizes.get(bucket, {}).items():
                with suppress(InvalidTopicName):
                    found[TopicName.parse(text, is_stored=True).base] += size
        return found

    async def keep(
        self, topic: TopicName, key: str, body: bytes, changer: Changer = BROKER
    ) -> StagedPartRef:
        """Store a part. It replaces a part with the same key.

        Raises ProtocolError for a malformed part; TooLarge if the parts of its version alone exceed the limit;
        Refused if too much is staged, or if another caller staged a part with that key; Undecided if the
        caller should retry.
        """
        rows = await staged_rows.check(body)
        bucket, name = self._bucket_of(topic), _name(topic, key)
        noted = await self._sweep(bucket)
        others = {other: part.bytes for other, part in noted.items() if other != name}
        _check_space(others, topic, key.rsplit("/", 2)[0], len(body), self._limits)
        staged = self._store.staged
        present = noted.get(name)
        if present is not None:
            if not changer.may_change(present):
                raise _not_the_stager(key)
            await staged.drop(bucket, name, present.chunks)
        until = self._wall_ms() + int(1000 * STAGED_SECONDS)
        unfinished = StagedPart(-1, len(body), "", until, changer.stager)
        self._count(bucket, name, len(body) - (0 if present is None else present.bytes))
        await staged.note(bucket, name, unfinished)
        await self._write(bucket, name, body)
        checksum = await staged_rows.checksum(body)
        part = StagedPart(rows, len(body), checksum, until, changer.stager)
        await staged.note(bucket, name, part)
        return StagedPartRef(key, rows, part.bytes, part.checksum)

    async def _write(self, bucket: int, name: str, body: bytes) -> None:
        """Write several chunks in parallel, so that a store that syncs each write to disk syncs once for them."""
        for some in _chunk_ranges(len(body)):
            writes = [
                self._store.staged.write(
                    bucket, name, number, body[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES]
                )
                for number in some
            ]
            # Wait for all writes: a chunk written after the part was dropped would stay forever.
            for outcome in await asyncio.gather(*writes, return_exceptions=True):
                if outcome is not None:
                    raise outcome

    @contextmanager
    def loading(self, topic: TopicName, parts: Sequence[StagedPartRef]) -> Iterator[None]:
        """Reserve memory for the parts of a publish.

        Raises TooLarge, and Refused if the memory is in use. Small publishes of other topics keep their
        memory even if the publishes of a topic never end.
        """
        size = _check_size(parts)
        size += ENTRY_MEMORY_BYTES * min(sum(part.rows for part in parts), PUBLISH_ENTRIES_MAX)
        limits, small = self._limits, self._small_bytes
        if (
            small[topic] + size <= limits.topic_memory_bytes
            and small.total() + size <= SMALL_TOPICS_MAX * limits.topic_memory_bytes
        ):
            with _taken(small, topic, size):
                yield
        elif self._loaded_bytes.total() + size <= limits.loaded_bytes_max:
            with _taken(self._loaded_bytes, topic, size):
                yield
        else:
            text = "other publishes use all memory for publishes; retry later"
            raise Refused(ServerError.TOO_MANY_REQUESTS, text)

    async def load(self, topic: TopicName, part: StagedPartRef) -> bytes:
        """The bytes of a part. Raises MissingPart, Undecided."""
        bucket, name = self._bucket_of(topic), _name(topic, part.key)
        chunks: list[bytes] = []
        for some in _chunk_ranges(part.bytes):
            reads = (self._store.staged.read(bucket, name, number) for number in some)
            for chunk in await asyncio.gather(*reads):
                if chunk is None:
                    raise MissingPart(
                        f"the staged part {part.key} is missing: it was dropped, published, or has expired"
                    )
                chunks.append(chunk)
        body = b"".join(chunks)
        checksum = await staged_rows.checksum(body)
        if len(body) != part.bytes or checksum != part.checksum:
            raise MissingPart(f"the staged part {part.key} has other content than the request says")
        rows = await staged_rows.count(body)
        if rows != part.rows:
            raise MissingPart(f"the staged part {part.key} has {rows} rows, not {part.rows}")
        return body

    async def drop(self, topic: TopicName, prefix: str, changer: Changer = BROKER) -> int:
        """Drop the parts whose keys start with ``prefix`` and that ``changer`` may drop, and return their number.

        Raises Undecided.
        """
        start = _name(topic, prefix)
        noted = await self._sweep(self._bucket_of(topic))
        meant = {
            name: part
            for name, part in noted.items()
            if name.startswith(start) and changer.may_change(part)
        }
        return await self._drop(topic, meant)

    async def drop_parts(
        self, topic: TopicName, keys: Collection[str], changer: Changer = BROKER
    ) -> int:
        """Drop exactly these parts, and return how many existed.

        Raises Refused, without dropping any, if ``changer`` may not drop one of them. Raises Undecided.
        """
        noted = await self._sweep(self._bucket_of(topic))
        meant = {name: noted[name] for key in keys if (name := _name(topic, key)) in noted}
        for name, part in meant.items():
            if not changer.may_change(part):
                raise _not_the_stager(name.rpartition("|")[2])
        return await self._drop(topic, meant)

    async def _drop(self, topic: TopicName, parts: Mapping[str, StagedPart]) -> int:
        bucket = self._bucket_of(topic)
        for name, part in parts.items():
            await self._store.staged.drop(bucket, name, part.chunks)
            self._count(bucket, name, -part.bytes)
        return len(parts)

    def _count(self, bucket: int, name: str, size: int) -> None:
        """Add staged bytes of a name to the sum. The next sweep computes all sums again."""
        sizes = self._sizes.get(bucket)
        if sizes is not None:
            sizes[_topic(name)] += size

    async def run(self) -> None:
        """Drop expired parts and scan the held buckets, until cancelled."""
        for sweep in itertools.count(1):
            await asyncio.sleep(POLL_SECONDS)
            held = self._held()
            self._sizes = {bucket: self._sizes[bucket] for bucket in held if bucket in self._sizes}
            for bucket in held:
                if bucket in self._sizes and sweep % POLLS_PER_SWEEP:
                    continue
                try:
                    await self._sweep(bucket)
                except Undecided as error:
                    log.info("staging.waits", bucket=bucket, reason=str(error))
                    break

    async def _sweep(self, bucket: int) -> dict[str, StagedPart]:
        """Scan a bucket: drop its expired parts, and return the others."""
        kept: dict[str, StagedPart] = {}
        sizes: Counter[str] = Counter()
        ticks = Ticks(NOTED_PER_TICK)
        for name, text in (await self._store.staged.noted(bucket)).items():
            await ticks.step()
            try:
                part = decode_part(text)
            except Damaged as error:
                log.warning("staging.damaged", part=name, reason=str(error))
                continue
            if part.until_ms < self._wall_ms():
                await self._store.staged.drop(bucket, name, part.chunks)
            else:
                kept[name] = part
                sizes[_topic(name)] += part.bytes
        self._sizes[bucket] = sizes
        return kept


def _not_the_stager(key: str) -> Refused:
    text = (
        f"the staged part {key[:KEY_CHARACTERS_SHOWN]} was staged by another subject: that subject, the"
        " topic's holder, or an administrator may replace or drop it"
    )
    return Refused(ServerError.AUTHORIZATION_ERROR, text)


def _check_size(parts: Sequence[StagedPartRef]) -> int:
    """The size of a publish in bytes. Raises TooLarge."""
    size = sum(part.bytes for part in parts)
    if size > PUBLISH_BYTES_MAX:
        raise TooLarge(f"at most {PUBLISH_BYTES_MAX} bytes are published as a whole")
    return size


def _check_space(
    others: Mapping[str, int], topic: TopicName, version: str, size: int, limits: StagingLimits
) -> None:
    """Check whether a bucket with these parts has room for another part of a ``version`` of an app.

    Raises TooLarge if that version alone exceeds the limits of its namespace, so that a retry cannot help.
    Raises Refused if other parts use the room.
    """
    start = f"{topic.domain}://{topic.namespace_name}/"
    own = {name: each for name, each in others.items() if name.startswith(start)}
    foreign_parts = len(others) - len(own)
    foreign_bytes = sum(others.values()) - sum(own.values())
    parts_max = limits.parts_max - int(OTHERS_COUNT * foreign_parts)
    bytes_max = limits.bytes_max - int(OTHERS_COUNT * foreign_bytes)
    if len(own) < parts_max and sum(own.values()) + size <= bytes_max:
        return
    of_version = [
        each for name, each in own.items() if name.rpartition("|")[2].startswith(f"{version}/")
    ]
    space = (
        f"a bucket takes {limits.parts_max} parts and {limits.bytes_max} bytes of staged rows of a"
        " namespace"
    )
    if len(of_version) >= limits.parts_max or sum(of_version) + size > limits.bytes_max:
        raise TooLarge(
            f"{space}, and {version} has {len(of_version)} parts of {sum(of_version)} bytes in the topic's"
            " bucket: each task stages at least one for each partition it has rows for, so use fewer"
            " tasks (coalesce), or smaller batches. What earlier attempts have staged counts until it"
            " is dropped, or expires"
        )
    text = f"{space}, and others fill the topic's bucket: fewer tasks (coalesce) need fewer parts"
    raise Refused(ServerError.TOO_MANY_REQUESTS, text)


def _chunk_ranges(size: int) -> Iterator[range]:
    """The chunk numbers of ``size`` bytes, in groups that are read or written in parallel."""
    chunks = -(-size // CHUNK_BYTES)
    for start in range(0, chunks, CHUNKS_AT_ONCE):
        yield range(start, min(chunks, start + CHUNKS_AT_ONCE))


def _name(topic: TopicName, key: str) -> str:
    return f"{topic}|{key}"


def _topic(name: str) -> str:
    """The topic of a part's name. Its key has no ``|``."""
    return name.rpartition("|")[0]


@contextmanager
def _taken(memory: Counter[TopicName], topic: TopicName, size: int) -> Iterator[None]:
    memory[topic] += size
    try:
        yield
    finally:
        memory[topic] -= size
        if not memory[topic]:
            del memory[topic]
