"""A client of the brokers for pipelines: contents of topics, blocks, audit records, and trimming.

It is blocking, and for one thread. Create it where it is used, from an Access, which can be pickled. A *log* is a
topic without partitions or one partition, named by its full or short name (``orders-partition-0``).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, Self
from urllib.parse import quote

from onewriter_core.audit.logs import StoredState
from onewriter_core.errors import ProtocolError
from onewriter_core.ids import EARLIEST, Position, TopicName
from onewriter_core.witnesses import Witness, WitnessPost
from onewriter_pipeline.brokers.connection import (
    Access,
    Broken,
    Connection,
    failure,
    understood,
)
from onewriter_pipeline.brokers.frames import (
    BlockFrame,
    Chunk,
    EndFrame,
    ErrorFrame,
    Frames,
    Gatherer,
    MarkerFrame,
)
from onewriter_pipeline.brokers.names import (
    log_name,
    path_of,
    position_of,
    shown,
    topic_path,
)
from onewriter_pipeline.brokers.segments import Segment, Segments, Trim, segment_of
from onewriter_pipeline.errors import Damaged, LogEnds, PipelineError

PAGES_MAX: Final = 100_000
"""Requests for the segments of one log. Each reads at most 64 MiB of the log."""

EXPIRED: Final = 401
"""A stream ends with this status when its reader's token expires."""

_ROOT: Final = "/onewriter/v1"
_ADMIN: Final = "/admin/v2/persistent"


class Broker:
    """All brokers of one installation. Use it as a context manager, or ``close`` it."""

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
        """The status of a topic (docs/http.md, "A topic"). Raises PipelineError, as do all methods."""
        topic = log_name(name).base
        return self._connection.ask("GET", topic_path(topic), owner=str(topic))

    def service_url(self, name: str) -> str:
        """The service URL of the brokers (Pulsar's protocol), beginning with the broker that serves the topic. It
        uses TLS if the HTTP address does.
        """
        topic = log_name(name)
        path = f"/lookup/v2/topic/persistent/{path_of(topic)}"
        answer = self._connection.ask("GET", path, owner=str(topic.base))
        is_tls = self._access.addresses()[0].startswith("https")
        with understood():
            found = answer.get("serviceUrlTls" if is_tls else "serviceUrl")
            return str(found or answer["brokerUrlTls" if is_tls else "brokerUrl"])

    def topic_names(self) -> Iterator[str]:
        """The full names of all topics."""
        after: str | None = None
        while True:
            page = self._connection.ask("GET", f"{_ROOT}/topics", query={"after": after})
            with understood():
                names, after = [str(each["name"]) for each in page["topics"]], page["next"]
            yield from names
            if after is None:
                return

    def logs(self, name: str) -> list[str]:
        """The full names of a topic's logs: its partitions, or the topic itself."""
        topic = log_name(name)
        if topic.partition is not None:
            return [str(topic)]
        answer = self.topic(name)
        with understood():
            partitions = int(answer["partitions"])
        if not partitions:
            return [str(topic)]
        return [str(topic.with_partition(number)) for number in range(partitions)]

    # ------------------------------------------------------------ reading

    def segments(
        self, log: str, after: Position = EARLIEST, *, witnesses: bool = False
    ) -> Segments:
        """The segments of a log that end after a position, oldest first; with its witnesses, if requested."""
        name = log_name(log)
        found: dict[int, Segment] = {}
        for _ in range(PAGES_MAX):
            query = {"after": shown(after), "witnesses": "true" if witnesses else None}
            page = self._ask(name, "GET", "/segments", query=query)
            with understood():
                for each in page["segments"]:
                    segment = segment_of(each)
                    found[segment.ledger] = segment
                if page["complete"]:
                    last = position_of(page["last"])
                    end = last.next
                    first = position_of(page["first"])
                    kept = tuple(
                        replace(each, is_open=each.ledger == last.ledger)  # the last page decides
                        for each in found.values()
                        if each.end > first
                    )
                    numbers = int(page["epoch"]), int(page["ledger"])
                    stored, known = page.get("storedBlocks") is True, page.get("witnesses")
                    found_witnesses = None if known is None else tuple(map(Witness.of, known))
                    return Segments(
                        str(page["topic"]), *numbers, first, end, kept, stored, found_witnesses
                    )
                after = position_of(page["next"])
        raise Damaged(f"{name} has more segments than a client reads")

    def state(self, log: str, after: Position) -> StoredState:
        """The state of a log in the store now. ``after`` is any position of the log; near its end is cheapest."""
        name = log_name(log)
        query = {"after": shown(after), "state": "true"}
        answer = self._ask(name, "GET", "/segments", query=query)
        with understood():
            fields = answer["state"]
            return StoredState(
                int(fields["epoch"]),
                int(fields["ledger"]),
                int(fields["bucketLedger"]),
                {str(app): int(version) for app, version in fields["published"].items()},
                position_of(fields["trimmed"]) if fields.get("trimmed") else None,
            )

    def frames(
        self,
        log: str,
        start: Position | None = None,
        end: Position | None = None,
        *,
        payload: bool = True,
        publishers: bool = False,
        stored: bool = False,
    ) -> Generator[BlockFrame | MarkerFrame, None, None]:
        """The blocks and markers of [start, end), whole as they are stored, in order, each once.

        ``start`` None: from the first that the log has. ``end`` None: up to what is committed now. ``payload``
        False: blocks come without the entries' bytes. ``publishers``: with their publishers, if the broker's
        release returns them. ``stored``: as the store has them (``Segments.stored_blocks``); otherwise the newest may
        come from the broker's memory. The first block may begin before the range, and the last one may end after it. A
        broken stream is resumed after the last whole block. Raises Trimmed, LogEnds, Damaged, Away and others; the
        frames before the error are correct.
        """
        name = log_name(log)
        query = {
            "payload": None if payload else "false",
            "publishers": "true" if publishers else None,
            "stored": "true" if stored else None,
        }
        at, patience = start, self._access.patience()
        while True:
            with patience.trying():
                last: EndFrame | None = None
                for frame in self._attempt(name, at, end, query):
                    if isinstance(frame, ErrorFrame):
                        raise _broken_off(frame)
                    if isinstance(frame, EndFrame):
                        last = frame  # only the end of the HTTP answer is left
                        continue
                    yield frame
                    at = _behind(frame)
                    patience.renew()
                if last is None:
                    raise Broken("the stream ended too early")
                _check_end(name, last, end or start)
                return

    def _attempt(
        self,
        name: TopicName,
        start: Position | None,
        end: Position | None,
        options: Mapping[str, str | None],
    ) -> Iterator[BlockFrame | MarkerFrame | EndFrame | ErrorFrame]:
        """One stream, until it ends or breaks. Raises Broken, PipelineError."""
        query = {"from": start and shown(start), "to": end and shown(end), **options}
        path, owner, frames = f"{topic_path(name)}/blocks", str(name.base), Frames()
        try:
            for data in self._connection.stream(path, owner=owner, query=query):
                yield from frames.feed(data)
        except ProtocolError as error:
            raise Damaged(str(error)) from error

    def read(
        self, log: str, start: Position | None = None, end: Position | None = None
    ) -> Generator[Chunk, None, None]:
        """The entries of [start, end) in chunks of about 8 MiB. Otherwise like ``frames``."""
        gatherer = Gatherer(start or EARLIEST, end)
        for frame in self.frames(log, start, end):
            if isinstance(frame, BlockFrame):
                gatherer.add(frame)
                if gatherer.is_due:
                    yield from _one(gatherer)
        yield from _one(gatherer)

    def position_at(self, log: str, time_ms: int) -> Position | None:
        """The first entry that was published at that time or later, by its producer's clock; None: there is none."""
        name = log_name(log)
        path = f"{_ADMIN}/{path_of(name)}/messageid/{time_ms}"
        answer = self._connection.ask("GET", path, owner=str(name.base))
        with understood():
            found = Position(int(answer["ledgerId"]), int(answer["entryId"]))
        return found if found.ledger >= 0 else None

    def buckets(self) -> int:
        """The number of buckets. Each has its own audit."""
        answer = self._connection.ask("GET", f"{_ROOT}/brokers")
        with understood():
            return int(answer["buckets"])

    def audit(self, bucket: int, after: str = "") -> Iterator[dict[str, Any]]:
        """The audit records of a bucket after an id, oldest first; each has its ``id``."""
        while True:
            query = {"after": after or None}
            page = self._connection.ask(
                "GET", f"{_ROOT}/audit/{bucket}", owner=f"bucket {bucket}", query=query
            )
            with understood():
                records = [each | {"id": str(each["id"])} for each in page["records"]]
                after, is_complete = page["next"] or "", bool(page["complete"])
            yield from records
            if is_complete:
                return

    # ------------------------------------------------------------ changing

    def acknowledge(self, log: str, subscription: str, before: Position) -> Position:
        """Move a durable subscription forward to a position, and create it if it does not exist.

        It never moves back, so the request may be repeated. Returns the position before which everything is
        acknowledged. Raises Conflict while consumers use the subscription.
        """
        path = f"/acknowledged/{quote(subscription, safe='')}"
        answer = self._ask(log_name(log), "PUT", path, body={"before": shown(before)})
        with understood():
            return position_of(answer["before"])

    def add_to_witness(self, log: str, post: WitnessPost) -> Witness:
        """Add records to the witness of a table, and return the witness; for pipelines and administrators.

        Raises Conflict if they do not continue what is stored. The request may be repeated.
        """
        answer = self._ask(log_name(log), "POST", "/witnesses", body=post.document())
        with understood():
            return Witness.of(answer["witness"])

    def trim(
        self,
        log: str,
        before: Position,
        *,
        epoch: int,
        ledger: int | None = None,
        table: str | None = None,
    ) -> Trim:
        """Trim a log before a position, as far as its readers allow; for administrators.

        ``epoch`` is the log's newest and ``ledger`` its current one, as returned by ``segments``. ``table``: the id
        of the table that has the messages. Raises Conflict if the epoch or the ledger have changed, or if there is no
        witness of the table. The request may be repeated.
        """
        body: dict[str, object] = {"before": shown(before), "epoch": epoch}
        if table is not None:
            body["table"] = table
        if ledger is not None:
            body["ledger"] = ledger
        answer = self._ask(log_name(log), "POST", "/trim", body=body)
        with understood():
            limit = answer["limitedBy"] or {"what": None, "name": None}
            return Trim(
                before,
                position_of(answer["trimmedBefore"]),
                position_of(answer["first"]),
                limit["what"],
                limit["name"],
            )

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
            method, topic_path(name) + path, owner=str(name.base), query=query, body=body
        )


def _behind(frame: BlockFrame | MarkerFrame) -> Position:
    return (frame.last if isinstance(frame, BlockFrame) else frame.position).next


def _broken_off(frame: ErrorFrame) -> PipelineError | Broken:
    """The error of a stream's last frame. An expired token is worth another attempt, because it may be renewed by
    now.
    """
    if frame.status == EXPIRED:
        return Broken(frame.message)
    return failure(frame.status, frame.message, frame.details)


def _check_end(name: TopicName, frame: EndFrame, end: Position | None) -> None:
    if end is not None and frame.end < end:
        raise LogEnds(
            f"{name} ends at {shown(frame.end)}, before {shown(end)}: its tail was lost,"
            " or it is not written yet",
            frame.end,
        )


def _one(gatherer: Gatherer) -> Iterator[Chunk]:
    chunk = gatherer.chunk()
    if chunk is not None:
        yield chunk
