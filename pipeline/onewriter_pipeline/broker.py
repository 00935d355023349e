"""A client of the brokers for pipelines: what topics hold, their blocks, their audit, and trimming.

Blocking, for one thread; make one where it is used, from an Access, which can be pickled. A *log* is a
topic without partitions or one partition, by its full or short name (``orders-partition-0``).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self
from urllib.parse import quote

from onewriter_core.errors import ProtocolError
from onewriter_core.ids import EARLIEST, InvalidTopicName, Position, TopicName
from onewriter_pipeline.connection import (
    Access,
    Broken,
    Connection,
    Patience,
    failure,
    position_of,
)
from onewriter_pipeline.errors import Damaged, Invalid, LogEnds, PipelineError
from onewriter_pipeline.frames import (
    BlockFrame,
    Chunk,
    EndFrame,
    ErrorFrame,
    Frames,
    Gatherer,
    MarkerFrame,
)

PAGES_MAX: Final = 100_000
"""Requests for the segments of one log: each reads 64 MiB of it at most."""

EXPIRED: Final = 401
"""The status with which a stream ends when its reader's token does."""

_ROOT: Final = "/onewriter/v1"
_ADMIN: Final = "/admin/v2/persistent"


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive blocks of a segment: ``newest_ms`` is the time of the newest."""

    first: Position
    entries: int
    bytes: int
    newest_ms: int


@dataclass(frozen=True, slots=True)
class Segment:
    """A ledger, as far as it is kept and committed.

    ``epoch``, ``producer``, ``subject``: whose it is, None where nobody had it alone, or its marker was
    trimmed and the audit does not tell any more. ``is_open``: it may still grow. ``is_whole``:
    nothing of it was trimmed. ``first``, ``last``: entries, None while it has none. ``chain``: the
    hash of its last block, in hex. Times are the broker's, milliseconds since 1970.
    """

    ledger: int
    epoch: int | None
    producer: str | None
    subject: str | None
    cause: str | None
    mode: str | None
    is_open: bool
    is_whole: bool
    first: Position | None
    last: Position | None
    entries: int
    messages: int
    bytes: int
    blocks: int
    oldest_ms: int | None
    newest_ms: int | None
    chain: str | None
    stretches: tuple[Stretch, ...]

    @property
    def end(self) -> Position:
        """The position behind its last entry."""
        return Position(self.ledger, 1 if self.last is None else self.last.entry + 1)


@dataclass(frozen=True, slots=True)
class Segments:
    """What a log holds. ``first``: where its first block stands; ``end``: behind what is committed.

    ``epoch`` is the newest that was granted, ``ledger`` the current one: what ``trim`` may be told.
    """

    log: str
    epoch: int
    ledger: int
    first: Position
    end: Position
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class Trim:
    """What a request to trim did.

    ``before``: the position below which the log was cut, or may be; ``first``: its first block now;
    ``limited_by``: what kept more from going (``ledger``, ``subscription``, ``deduplication``,
    ``compaction``), None: all that was asked for may go; ``name``: which subscription.
    """

    asked: Position
    before: Position
    first: Position
    limited_by: str | None
    name: str | None


class Broker:
    """The brokers of one installation, as one. Use it as a context manager, or ``close`` it."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._connection = Connection(access)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._connection.close()

    # ------------------------------------------------------------ topics

    def topic(self, name: str) -> dict[str, Any]:
        """A topic's status (docs/http.md, "A topic"). Raises PipelineError, as everything here."""
        topic = _name(name).base
        return self._connection.ask("GET", _path(topic), owner=str(topic))

    def topics(self, namespace: str = "") -> Iterator[dict[str, Any]]:
        """All topics by name, or those of ``tenant/namespace``: what is known of each in general."""
        after: str | None = None
        while True:
            query = {"namespace": namespace or None, "after": after}
            page = self._connection.ask("GET", f"{_ROOT}/topics", query=query)
            yield from page["topics"]
            after = page["next"]
            if after is None:
                return

    def logs(self, name: str) -> list[str]:
        """The logs of a topic, by their full names: its partitions, or itself."""
        topic = _name(name)
        partitions = 0 if topic.partition is not None else int(self.topic(name)["partitions"])
        if not partitions:
            return [str(topic)]
        return [str(topic.with_partition(number)) for number in range(partitions)]

    # ------------------------------------------------------------ reading

    def segments(self, log: str, after: Position = EARLIEST) -> Segments:
        """The segments of a log that end behind a position, oldest first."""
        name = _name(log)
        found: dict[int, Segment] = {}
        for _ in range(PAGES_MAX):
            query = {"after": _shown(after)}
            page = self._ask(name, "GET", "/segments", query=query)
            try:
                for each in page["segments"]:
                    segment = _segment(each)
                    found[segment.ledger] = segment
                if page["complete"]:
                    last = position_of(page["last"])
                    end = Position(last.ledger, last.entry + 1)
                    first = position_of(page["first"])
                    kept = tuple(
                        replace(each, is_open=each.ledger == last.ledger)  # by the last page
                        for each in found.values()
                        if each.end > first
                    )
                    numbers = int(page["epoch"]), int(page["ledger"])
                    return Segments(str(page["topic"]), *numbers, first, end, kept)
                after = position_of(page["next"])
            except (KeyError, TypeError, ValueError) as error:
                raise _unexplained(error) from error
        raise Damaged(f"{name} has more segments than a client asks for")

    def frames(
        self, log: str, start: Position | None = None, end: Position | None = None
    ) -> Generator[BlockFrame | MarkerFrame, None, None]:
        """The blocks and markers of [start, end), whole as they are stored, in order, each once.

        ``start`` None: from the first that is kept; ``end`` None: up to what is committed now. The
        first block may begin in front of the range, the last one end behind it. A stream that breaks is
        taken up again behind the last whole block. Raises Trimmed, LogEnds, Damaged, Away and others;
        what was given until then is right.
        """
        name = _name(log)
        at, patience = start, Patience(self._access.patience_seconds)
        while True:
            with patience.trying():
                last: EndFrame | None = None
                for frame in self._attempt(name, at, end):
                    if isinstance(frame, ErrorFrame):
                        raise _broken_off(frame)
                    if isinstance(frame, EndFrame):
                        last = frame  # what is left is the end of the HTTP answer
                        continue
                    yield frame
                    at = _behind(frame)
                    patience.renew()
                if last is None:
                    raise Broken("the stream ended too early")
                _check_end(name, last, end or start)
                return

    def _attempt(
        self, name: TopicName, start: Position | None, end: Position | None
    ) -> Iterator[BlockFrame | MarkerFrame | EndFrame | ErrorFrame]:
        """One stream, until it breaks; raises Broken, PipelineError."""
        query = {"from": start and _shown(start), "to": end and _shown(end)}
        path, owner, frames = f"{_path(name)}/blocks", str(name.base), Frames()
        try:
            for data in self._connection.stream(path, owner=owner, query=query):
                yield from frames.feed(data)
        except ProtocolError as error:
            raise Damaged(str(error)) from error

    def read(
        self, log: str, start: Position | None = None, end: Position | None = None
    ) -> Generator[Chunk, None, None]:
        """The entries of [start, end) in chunks of about 8 MiB. As ``frames`` besides."""
        gatherer = Gatherer(start or EARLIEST, end)
        for frame in self.frames(log, start, end):
            if isinstance(frame, BlockFrame):
                gatherer.add(frame)
                if gatherer.is_due:
                    yield from _one(gatherer)
        yield from _one(gatherer)

    def position_at(self, log: str, time_ms: int) -> Position | None:
        """The first entry that its producer published at that time or later; None: there is none."""
        name = _name(log)
        path = f"{_ADMIN}/{name.tenant}/{name.namespace}/{_local(name)}/messageid/{time_ms}"
        said = self._connection.ask("GET", path, owner=str(name.base))
        try:
            found = int(said["ledgerId"]), int(said["entryId"])
        except (KeyError, TypeError, ValueError) as error:
            raise _unexplained(error) from error
        return Position(*found) if found[0] >= 0 else None

    def buckets(self) -> int:
        """How many buckets there are, each with an audit."""
        return int(self._connection.ask("GET", f"{_ROOT}/brokers")["buckets"])

    def audit(self, bucket: int, after: str = "") -> Iterator[dict[str, Any]]:
        """The audit records of a bucket behind an id, oldest first; each has its ``id``."""
        while True:
            query = {"after": after or None}
            page = self._connection.ask(
                "GET", f"{_ROOT}/audit/{bucket}", owner=f"bucket {bucket}", query=query
            )
            yield from page["records"]
            after = page["next"] or ""
            if page["complete"]:
                return

    # ------------------------------------------------------------ changing

    def trim(self, log: str, before: Position, *, epoch: int, ledger: int | None = None) -> Trim:
        """Drop what is below a position, as far as it may go; for administrators.

        ``epoch`` is the log's newest and ``ledger`` its current one, as ``segments`` told: raises
        Conflict where they are others by now. May be repeated.
        """
        body: dict[str, object] = {"before": _shown(before), "epoch": epoch}
        if ledger is not None:
            body["ledger"] = ledger
        said = self._ask(_name(log), "POST", "/trim", body=body)
        try:
            limit = said["limitedBy"] or {"what": None, "name": None}
            return Trim(
                before,
                position_of(said["trimmedBefore"]),
                position_of(said["first"]),
                limit["what"],
                limit["name"],
            )
        except (KeyError, TypeError) as error:
            raise _unexplained(error) from error

    def _ask(
        self,
        name: TopicName,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | int | None] | None = None,
        body: Mapping[str, object] | None = None,
    ) -> dict[str, Any]:
        return self._connection.ask(
            method, _path(name) + path, owner=str(name.base), query=query, body=body
        )


def _name(text: str) -> TopicName:
    try:
        name = TopicName.parse(text)
    except InvalidTopicName as error:
        raise Invalid(str(error)) from error
    if name.domain != "persistent":
        raise Invalid(f"{name} is no persistent topic, and only those are kept")
    return name


def _path(name: TopicName) -> str:
    return f"{_ROOT}/topics/{quote(name.tenant)}/{quote(name.namespace)}/{_local(name)}"


def _local(name: TopicName) -> str:
    """The last part of a log's path, with the partition's suffix."""
    return quote(str(name).split("/", 4)[4], safe="")


def _shown(position: Position) -> str:
    return f"{position.ledger}:{position.entry}"


def _behind(frame: BlockFrame | MarkerFrame) -> Position:
    ledger, entry = frame.last if isinstance(frame, BlockFrame) else frame.position
    return Position(ledger, entry + 1)


def _broken_off(frame: ErrorFrame) -> PipelineError | Broken:
    """What the last frame of a stream means; a token that expired meanwhile may be renewed by now."""
    if frame.status == EXPIRED:
        return Broken(frame.message)
    return failure(frame.status, frame.message, frame.details)


def _check_end(name: TopicName, frame: EndFrame, end: Position | None) -> None:
    if end is not None and frame.end < end:
        raise LogEnds(
            f"{name} ends at {_shown(frame.end)}, in front of {_shown(end)}: its tail was lost,"
            " or nobody has written it yet",
            frame.end,
        )


def _one(gatherer: Gatherer) -> Iterator[Chunk]:
    chunk = gatherer.chunk()
    if chunk is not None:
        yield chunk


def _segment(said: dict[str, Any]) -> Segment:
    return Segment(
        ledger=int(said["ledger"]),
        epoch=said["epoch"],
        producer=said["producer"],
        subject=said["subject"],
        cause=said["cause"],
        mode=said["mode"],
        is_open=bool(said["open"]),
        is_whole=bool(said["whole"]),
        first=None if said["first"] is None else position_of(said["first"]),
        last=None if said["last"] is None else position_of(said["last"]),
        entries=int(said["entries"]),
        messages=int(said["messages"]),
        bytes=int(said["bytes"]),
        blocks=int(said["blocks"]),
        oldest_ms=said["oldestMs"],
        newest_ms=said["newestMs"],
        chain=said["chain"],
        stretches=tuple(
            Stretch(
                position_of(each["first"]),
                int(each["entries"]),
                int(each["bytes"]),
                int(each["newestMs"]),
            )
            for each in said["stretches"]
        ),
    )


def _unexplained(error: Exception) -> PipelineError:
    return Damaged(f"a broker of another version? It answers without what was expected: {error}")
