"""Blocks and markers of a log, in their stored order, into facts. Pure; by arrays, chunk by chunk."""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import google_crc32c
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from onewriter_core.ids import EARLIEST, Position
from onewriter_pipeline.auditing import facts
from onewriter_pipeline.auditing.names import names_of
from onewriter_pipeline.decode.entries import Damage, Entries, Metadata, read_entries
from onewriter_pipeline.decode.words import PADDING, Flags, Positions, words_of
from onewriter_pipeline.frames import BlockFrame, Chunk, Gatherer, MarkerFrame

ORDINALS: Final = 1 << 40
"""Ordinals of one task: more than it can read blocks."""

_CHAIN_START: Final = bytes(16)
_CHAIN_HEAD: Final = struct.Struct("<QQ")
_NUMBER: Final = struct.Struct("<I")
_EXCLUSIVE: Final = "exclusive"


def chained(previous: bytes, block: BlockFrame) -> bytes:
    """The hash of a block that follows on the one hashed as ``previous`` (docs/log-format.md)."""
    digest = hashlib.blake2b(previous, digest_size=len(_CHAIN_START))
    digest.update(_CHAIN_HEAD.pack(*block.first))
    digest.update(block.lengths.astype("<u4").tobytes())
    digest.update(_NUMBER.pack(google_crc32c.value(bytes(block.payload))))
    return digest.digest()


def shown(ledger: int, entry: int) -> str:
    """A position, as findings write it."""
    return f"{ledger}-{entry}"


@dataclass(frozen=True, slots=True)
class _Open:
    """An atomic publish whose last block is still to come."""

    app: str
    version: int
    since: Position


class Observer:
    """Observes one log from one position on. Feed it in order; take what is ``due`` after each.

    ``exclusive``: which ledgers are known to have one holder; those of markers are added to it.
    ``number`` is that of the task: ordinals rise with it.
    """

    def __init__(self, log: str, number: int, exclusive: Mapping[int, bool]) -> None:
        self._log = log
        self._ordinal = number * ORDINALS
        self._exclusive = dict(exclusive)
        self._gatherer = Gatherer(EARLIEST)
        self._blocks: list[tuple[int, int, bool]] = []
        self._rows: list[dict[str, Any]] = []
        self._ledger = 0
        self._next = 0
        self._chain: bytes | None = None
        self._open: _Open | None = None
        self.unreadable = 0

    # ------------------------------------------------------------ feeding

    def seed(self, block: BlockFrame) -> None:
        """The block in front of the first one that is observed: what that one follows on."""
        self._follow(block)
        if block.is_atomic and not block.ends_publish:
            self._open = _Open(*self._publish_of(block), block.first)

    def block(self, block: BlockFrame) -> Iterator[pa.RecordBatch]:
        """The next block."""
        self._ordinal += 1
        self._check_chain(block)
        self._check_publish(block)
        self._gatherer.add(block)
        self._blocks.append((self._ordinal, len(block.lengths), block.is_atomic))
        if self._gatherer.is_due:
            yield from self.due()

    def marker(self, marker: MarkerFrame) -> None:
        """The next marker."""
        self._ordinal += 1
        self._torn(marker.position)
        fields = marker.fields
        epoch = fields.get("epoch", "")
        holder = fields.get("producer", "")
        self._exclusive[marker.ledger] = bool(epoch.isdecimal() and holder)
        self._ledger, self._next, self._chain = marker.ledger, 1, _CHAIN_START
        time = fields.get("t", "")
        self._add(
            facts.MARKER,
            ledger=marker.ledger,
            first=0,
            last=0,
            epoch=int(epoch) if epoch.isdecimal() else None,
            mode=fields.get("mode"),
            cause=fields.get("cause"),
            producer=holder or None,
            subject=fields.get("subject") or "",
            owner=fields.get("owner"),
            time_ms=int(time) if time.isdecimal() else None,
        )

    def cut(self, first: Position) -> None:
        """What was to come is gone: the log goes on at ``first``."""
        self._ordinal += 1
        self._chain, self._open, self._next = None, None, 0
        self._add(facts.CUT, ledger=first.ledger, first=first.entry, last=first.entry)

    def fault(self, predicate: str, where: str, sentence: str) -> None:
        """Something is wrong; ``where`` names positions, with commas between."""
        self._add(facts.FAULT, predicate=predicate, uuid=where, sentence=sentence)

    def due(self) -> Iterator[pa.RecordBatch]:
        """All facts that were not taken yet."""
        chunk = self._gatherer.chunk()
        if chunk is not None:
            yield from self._observe(chunk)
        if self._rows:
            yield facts.facts_of(self._rows)
            self._rows = []

    # ------------------------------------------------------------ one block

    def _add(self, kind: str, **columns: Any) -> None:
        columns.setdefault("ordinal", self._ordinal)
        self._rows.append({"log": self._log, "kind": kind} | columns)

    def _follow(self, block: BlockFrame) -> None:
        self._ledger = block.first.ledger
        self._next, self._chain = block.last.entry + 1, block.chain

    def _check_chain(self, block: BlockFrame) -> None:
        ledger, entry = block.first
        if ledger != self._ledger and self._ledger:
            self._chain = None
        follows = self._chain is not None and entry == self._next
        if follows and chained(self._chain or _CHAIN_START, block) != block.chain:
            first, last = shown(*block.first), shown(*block.last)
            self.fault(
                "S7",
                f"{first},{last}",
                f"the entries {first} to {last} are not those that were written: their hash does"
                " not follow on the one before",
            )
        if ledger >= self._ledger:
            self._follow(block)

    def _publish_of(self, block: BlockFrame) -> tuple[str, int]:
        """App and version: who wrote its first entry, under which number."""
        data = bytes(block.payload[: int(block.lengths[0])]) + PADDING
        offsets = np.array([0, int(block.lengths[0])])
        opened = read_entries(data, words_of(data), offsets, verify_checksums=False)
        start, stop = (int(each[0]) for each in opened.metadata.slices(Metadata.PRODUCER_NAME))
        app = data[start:stop].decode(errors="replace")
        return app, int(opened.metadata.signed(Metadata.SEQUENCE_ID)[0])

    def _check_publish(self, block: BlockFrame) -> None:
        if not block.is_atomic:
            self._torn(block.first)
            return
        app, version = self._publish_of(block)
        if self._open is not None and (app, version) != (self._open.app, self._open.version):
            self._torn(block.first)
        since = block.first if self._open is None else self._open.since
        self._open = _Open(app, version, since)
        if block.ends_publish:
            self._open = None
            self._add(
                facts.PUBLISH,
                ledger=since.ledger,
                first=since.entry,
                producer=app,
                sequence=version,
            )

    def _torn(self, position: Position) -> None:
        if self._open is not None:
            first, here = shown(*self._open.since), shown(*position)
            self.fault(
                "S15",
                f"{first},{here}",
                f"only a part of publish {self._open.app}/{self._open.version} stands in front of"
                f" {here}",
            )
            self._open = None

    # ------------------------------------------------------------ many entries

    def _observe(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        blocks = np.array([each[:2] for each in self._blocks], np.int64)
        atomic = np.repeat(np.array([each[2] for each in self._blocks]), blocks[:, 1])
        ordinals = np.repeat(blocks[:, 0], blocks[:, 1])
        self._blocks = []
        self._runs(chunk, ordinals)
        data = chunk.payload + PADDING
        entries = read_entries(data, words_of(data), chunk.offsets, verify_checksums=False)
        readable = (entries.damage == Damage.NONE) | (entries.damage == Damage.ENCRYPTED)
        self.unreadable += int((~readable).sum())
        which = np.flatnonzero(readable & ~atomic)
        if not len(which):
            return
        writers = _Writers(chunk, entries, data, which)
        self._rows += [
            {"log": self._log, "ordinal": int(ordinals[index])} | row
            for index, row in writers.rows()
        ]
        known = {ledger: flag for ledger, flag in self._exclusive.items() if flag}
        shared = which[~np.isin(chunk.ledger[which], np.fromiter(known, np.int64, len(known)))]
        if len(shared):
            yield facts.prints_of(self._log, writers.prints(shared, ordinals))

    def _runs(self, chunk: Chunk, ordinals: Positions) -> None:
        breaks = (np.diff(chunk.ledger) != 0) | (np.diff(chunk.entry) != 1)
        breaks |= np.diff(ordinals) > 1  # a marker stands between them
        starts = np.concatenate([[0], np.flatnonzero(breaks) + 1])
        stops = [*(starts[1:] - 1).tolist(), len(chunk) - 1]
        messages = np.add.reduceat(chunk.messages.astype(np.int64), starts)
        for number, (start, stop) in enumerate(zip(starts.tolist(), stops, strict=True)):
            self._add(
                facts.RUN,
                ordinal=int(ordinals[start]),
                ledger=int(chunk.ledger[start]),
                first=int(chunk.entry[start]),
                last=int(chunk.entry[stop]),
                time_ms=int(chunk.time_ms[start]),
                newest_ms=int(chunk.time_ms[stop]),
                entries=stop - start + 1,
                messages=int(messages[number]),
                bytes=int(chunk.offsets[stop + 1] - chunk.offsets[start]),
            )


class _Writers:
    """Some entries of a chunk, told apart by ledger and producer."""

    def __init__(self, chunk: Chunk, entries: Entries, data: bytes, which: Positions) -> None:
        said = entries.metadata
        self._chunk, self._data = chunk, data
        self._codes = np.full(len(chunk), -1, np.int64)
        self._codes[which], self._names = names_of(
            data, *said.slices(Metadata.PRODUCER_NAME), which
        )
        self._sequence = said.signed(Metadata.SEQUENCE_ID)
        self._published = said.signed(Metadata.PUBLISH_TIME)
        self._part = np.where(said.has(Metadata.CHUNK_ID), said.signed_32(Metadata.CHUNK_ID), 0)
        self._uuids = said.slices(Metadata.UUID)
        self._which = which

    def rows(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Facts, each with the index of the entry that it begins with."""
        ledger, codes = self._chunk.ledger, self._codes
        order = self._which
        if len(self._names) > 1:
            order = order[np.lexsort((codes[order], ledger[order]))]
        breaks = (np.diff(ledger[order]) != 0) | (np.diff(codes[order]) != 0)
        starts = [0, *(np.flatnonzero(breaks) + 1).tolist()]
        for start, stop in zip(starts, [*starts[1:], len(order)], strict=True):
            yield from self._writer(order[start:stop])

    def _writer(self, mine: Positions) -> Iterator[tuple[int, dict[str, Any]]]:
        first, last = int(mine[0]), int(mine[-1])
        who = {
            "ledger": int(self._chunk.ledger[first]),
            "producer": self._names[self._codes[first]],
        }
        yield (
            first,
            who
            | self._numbers(first)
            | {f"last_{name}": value for name, value in self._numbers(last).items()}
            | {
                "kind": facts.WRITER,
                "first": int(self._chunk.entry[first]),
                "last": int(self._chunk.entry[last]),
                "entries": len(mine),
            },
        )
        falls, torn = self._wrong(mine)
        for kind, found in ((facts.FALL, falls), (facts.TORN, torn)):
            if found.any():
                here = int(np.flatnonzero(found)[0]) + 1
                before, after = int(mine[here - 1]), int(mine[here])
                entry = self._chunk.entry
                places = {"first": int(entry[before]), "last": int(entry[after])}
                numbers = {f"last_{n}": v for n, v in self._numbers(before).items()}
                count = {"entries": int(found.sum()), "kind": kind}
                yield after, who | self._numbers(after) | numbers | places | count

    def _numbers(self, index: int) -> dict[str, Any]:
        start, stop = (int(each[index]) for each in self._uuids)
        return {
            "sequence": int(self._sequence[index]),
            "chunk": int(self._part[index]),
            "published_ms": int(self._published[index]),
            "uuid": self._data[start:stop].decode(errors="replace"),
        }

    def _wrong(self, mine: Positions) -> tuple[Flags, Flags]:
        """For each entry but the first: whether its number falls; whether a chunk lacks in front of it."""
        sequence, part = self._sequence[mine], self._part[mine]
        rises = (sequence[1:] > sequence[:-1]) | (
            (sequence[1:] == sequence[:-1]) & (part[1:] > part[:-1])
        )
        falls: Flags = ~rises & (np.diff(self._published[mine]) <= 0)
        torn: Flags = np.zeros(len(rises), np.bool_)
        for index in np.flatnonzero(rises & (part[1:] > 0)).tolist():
            before, after = self._numbers(int(mine[index])), self._numbers(int(mine[index + 1]))
            follows = after["uuid"] == before["uuid"] and after["chunk"] == before["chunk"] + 1
            torn[index] = not follows
        return falls, torn

    def prints(self, which: Positions, ordinals: NDArray[np.int64]) -> dict[str, Any]:
        """Columns of what tells these entries apart."""
        offsets, data = self._chunk.offsets, self._data
        slices = map(slice, offsets[which].tolist(), offsets[which + 1].tolist())
        return {
            "ordinal": ordinals[which],
            "ledger": self._chunk.ledger[which],
            "first": self._chunk.entry[which],
            "producer": np.array(self._names, object)[self._codes[which]],
            "sequence": self._sequence[which],
            "print": np.fromiter(
                map(zlib.crc32, map(data.__getitem__, slices)), np.int64, len(which)
            ),
        }
