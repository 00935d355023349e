"""Converts the blocks and markers of a log, in their stored order, to facts. Pure. It works on arrays, chunk by
chunk.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from onewriter_core.audit.blocks import BlockFact, BlockHead, BlockObserver
from onewriter_core.audit.facts import NamedPublisher, PublishRun, marker_of
from onewriter_core.audit.findings import Finding
from onewriter_core.ids import EARLIEST, Position
from onewriter_core.log_format.chain import chain_packed
from onewriter_core.publishers import publish_of
from onewriter_pipeline.audit import facts
from onewriter_pipeline.binaries import Bools, Signed
from onewriter_pipeline.brokers.frames import BlockFrame, Chunk, Gatherer, MarkerFrame
from onewriter_pipeline.decode.entries import Damage, Entries, Metadata, read_entries
from onewriter_pipeline.decode.words import words_of

ORDINALS: Final = 1 << 40
"""Ordinals per task; a task reads fewer blocks."""


def chained(previous: bytes, block: BlockFrame) -> bytes:
    """The hash of a block after a block with the hash ``previous`` (docs/log-format.md)."""
    lengths = block.lengths.astype("<u4").tobytes()
    return chain_packed(previous, block.first, lengths, bytes(block.payload))


def _are(data: bytes, starts: Signed, stops: Signed, text: bytes) -> Bools:
    """For each ``i``, whether ``data[starts[i] : stops[i]]`` equals a text."""
    found: Bools = stops - starts == len(text)
    characters = np.frombuffer(data, np.uint8)
    at = starts[found][:, None] + np.arange(len(text))
    found[found] = (characters[at] == np.frombuffer(text, np.uint8)).all(axis=1)
    return found


def head_of(block: BlockFrame) -> BlockHead:
    """A block without its entries."""
    return BlockHead(
        block.first, block.last, block.chain, block.publish, block.ends_publish, block.by
    )


@dataclass(frozen=True, slots=True)
class _Block:
    """What the observer keeps of a block until it reads the block's entries."""

    ordinal: int
    entries: int
    publish: str


class Observer:
    """Observes one log from a position on. Feed it in order, and take what is ``due`` after each call.

    ``exclusive``: for ledgers, whether they have a single holder; markers add to it. ``number``: the number of the
    task; ordinals rise with it. ``checksummed``: producers whose entries need checksums, because their sequence ids do not
    exclude duplicates.
    """

    def __init__(
        self,
        log: str,
        number: int,
        exclusive: Mapping[int, bool],
        checksummed: Collection[str] = frozenset(),
    ) -> None:
        self._log = log
        self._checksummed = checksummed
        self._ordinal = number * ORDINALS
        self._exclusive = dict(exclusive)
        self._gatherer = Gatherer(EARLIEST)
        self._blocks: list[_Block] = []
        self._rows: list[dict[str, Any]] = []
        self._heads = BlockObserver(log)

    # ------------------------------------------------------------ feeding

    def seed(self, block: BlockFrame) -> None:
        """The block before the first observed one; the hash chain continues from it."""
        self._heads.seed(head_of(block))

    def block(self, block: BlockFrame) -> Iterator[pa.RecordBatch]:
        """The next block."""
        self._ordinal += 1
        self._note(self._heads.block(head_of(block), partial(chained, block=block)))
        self._gatherer.add(block)
        self._blocks.append(_Block(self._ordinal, len(block.lengths), block.publish))
        if self._gatherer.is_due:
            yield from self.due()

    def marker(self, marker: MarkerFrame) -> None:
        """The next marker."""
        self._ordinal += 1
        self._note(self._heads.marker(marker.position))
        fact = marker_of(marker.position, marker.fields)
        self._exclusive[marker.ledger] = bool(fact.epoch and fact.producer)
        self._add(
            facts.MARKER,
            ledger=marker.ledger,
            first=0,
            last=0,
            epoch=fact.epoch,
            producer=fact.producer or None,
            subject=fact.subject,
            owner=fact.owner,
            time_ms=fact.time_ms,
        )

    def cut(self, first: Position) -> None:
        """Entries are missing: the log continues at ``first``."""
        self._ordinal += 1
        self._heads.cut()
        self._add(facts.CUT, ledger=first.ledger, first=first.entry, last=first.entry)

    def fault(self, predicate: str, sentence: str, *where: Position | str) -> None:
        """Add a violation at these positions."""
        place = ",".join(map(str, where))
        self._add(facts.FAULT, predicate=predicate, place=place, sentence=sentence)

    def due(self) -> Iterator[pa.RecordBatch]:
        """All facts since the last call."""
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

    def _note(self, found: Iterable[BlockFact]) -> None:
        for fact in found:
            match fact:
                case Finding():
                    self.fault(fact.predicate, fact.sentence, *fact.where)
                case PublishRun():
                    self._add(
                        facts.PUBLISH,
                        ledger=fact.first.ledger,
                        first=fact.first.entry,
                        producer=fact.app,
                        sequence=fact.version,
                        last_sequence=fact.last_version,
                    )
                case NamedPublisher():
                    self._add(
                        facts.PUBLISHER,
                        ledger=fact.position.ledger,
                        first=fact.position.entry,
                        uuid=fact.publish,
                        subject=fact.by,
                    )

    # ------------------------------------------------------------ many entries

    def _observe(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        blocks, self._blocks = self._blocks, []
        sizes = np.array([each.entries for each in blocks], np.int64)
        atomic = np.repeat(np.array([bool(each.publish) for each in blocks]), sizes)
        ordinals = np.repeat(np.array([each.ordinal for each in blocks], np.int64), sizes)
        self._runs(chunk, ordinals)
        data = chunk.padded()
        entries = read_entries(data, words_of(data), chunk.offsets, verify_checksums=False)
        readable = (entries.damage == Damage.NONE) | (entries.damage == Damage.ENCRYPTED)
        unread = np.flatnonzero(
            ~readable & ~atomic
        )  # entries of a publish are checked by _check_own
        if len(unread):
            self._add(facts.UNREAD, ordinal=int(ordinals[unread[0]]), entries=len(unread))
        if atomic.any():
            self._check_own(chunk, entries, data, readable)
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
        self._rows += [
            {"log": self._log, "ordinal": int(ordinals[index])} | row
            for index, row in writers.spreads(shared)
        ]
        shared = writers.of(self._checksummed, shared)
        if len(shared):
            yield facts.checksums_of(self._log, writers.checksums(shared, ordinals))

    def _check_own(self, chunk: Chunk, entries: Entries, data: bytes, readable: Bools) -> None:
        """Check that the entries of each atomic publish name its app and version."""
        metadata = entries.metadata
        sequence, (starts, stops) = (
            metadata.signed(Metadata.SEQUENCE_ID),
            metadata.slices(Metadata.PRODUCER_NAME),
        )
        for part in chunk.publishes:
            here = slice(part.start, part.stop)
            app, version = publish_of(part.name)
            own = readable[here] & (sequence[here] == version)
            own[own] = _are(data, starts[here][own], stops[here][own], app.encode())
            if not own.all():
                at = part.start + int(np.flatnonzero(~own)[0])
                text = f"an entry among those of publish {part.name} is not its own"
                self.fault("S15", text, Position(int(chunk.ledger[at]), int(chunk.entry[at])))

    def _runs(self, chunk: Chunk, ordinals: Signed) -> None:
        breaks = (np.diff(chunk.ledger) != 0) | (np.diff(chunk.entry) != 1)
        breaks |= np.diff(ordinals) > 1  # a marker is between them
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
                entries=stop - start + 1,
                messages=int(messages[number]),
                bytes=int(chunk.offsets[stop + 1] - chunk.offsets[start]),
            )


def _rises(sequence: Signed, part: Signed) -> Bools:
    """For each entry but the first, whether its number exceeds that of the previous one."""
    is_next_part = (sequence[1:] == sequence[:-1]) & (part[1:] > part[:-1])
    rises: Bools = (sequence[1:] > sequence[:-1]) | is_next_part
    return rises


class _Writers:
    """Some entries of a chunk, grouped by ledger and producer."""

    def __init__(self, chunk: Chunk, entries: Entries, data: bytes, which: Signed) -> None:
        metadata = entries.metadata
        self._chunk, self._data = chunk, data
        self._codes = np.full(len(chunk), -1, np.int64)
        self._codes[which], self._names = names_of(
            data, *metadata.slices(Metadata.PRODUCER_NAME), which
        )
        self._sequence = metadata.signed(Metadata.SEQUENCE_ID)
        self._published = metadata.signed(Metadata.PUBLISH_TIME)
        self._part = np.where(
            metadata.has(Metadata.CHUNK_ID), metadata.signed_32(Metadata.CHUNK_ID), 0
        )
        self._uuids = metadata.slices(Metadata.UUID)
        self._which = which

    def rows(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """The facts, each with the index of its first entry."""
        for own in self._by_writer(self._which):
            yield from self._writer(own)

    def spreads(self, shared: Signed) -> Iterator[tuple[int, dict[str, Any]]]:
        """The sequence ids of these entries, by producer, each with the index of its first entry."""
        for own in self._by_writer(shared):
            sequence, part = self._sequence[own], self._part[own]
            who = {
                "ledger": int(self._chunk.ledger[own[0]]),
                "producer": self._names[self._codes[own[0]]],
            }
            yield (
                int(own[0]),
                who
                | {
                    "kind": facts.SPREAD if _rises(sequence, part).all() else facts.UNORDERED,
                    "sequence": int(sequence.min()),
                    "last_sequence": int(sequence.max()),
                    "entries": len(own),
                },
            )

    def of(self, producers: Collection[str], which: Signed) -> Signed:
        """The entries by some producers."""
        codes = [code for code, name in enumerate(self._names) if name in producers]
        return which[np.isin(self._codes[which], np.array(codes, np.int64))]

    def _by_writer(self, which: Signed) -> Iterator[Signed]:
        """These entries by ledger and producer, each group in its stored order."""
        if not len(which):
            return
        ledger, codes = self._chunk.ledger, self._codes
        if len(self._names) > 1:
            which = which[np.lexsort((codes[which], ledger[which]))]
        breaks = (np.diff(ledger[which]) != 0) | (np.diff(codes[which]) != 0)
        starts = [0, *(np.flatnonzero(breaks) + 1).tolist()]
        for start, stop in zip(starts, [*starts[1:], len(which)], strict=True):
            yield which[start:stop]

    def _writer(self, own: Signed) -> Iterator[tuple[int, dict[str, Any]]]:
        first, last = int(own[0]), int(own[-1])
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
                "entries": len(own),
            },
        )
        falls, torn = self._wrong(own)
        for kind, found in ((facts.FALL, falls), (facts.TORN, torn)):
            if found.any():
                here = int(np.flatnonzero(found)[0]) + 1
                before, after = int(own[here - 1]), int(own[here])
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

    def _wrong(self, own: Signed) -> tuple[Bools, Bools]:
        """For each entry but the first: whether its number falls, and whether the previous chunk of its message is
        missing.
        """
        part = self._part[own]
        rises = _rises(self._sequence[own], part)
        falls: Bools = ~rises & (np.diff(self._published[own]) <= 0)
        torn: Bools = np.zeros(len(rises), np.bool_)
        for index in np.flatnonzero(rises & (part[1:] > 0)).tolist():
            before, after = self._numbers(int(own[index])), self._numbers(int(own[index + 1]))
            follows = after["uuid"] == before["uuid"] and after["chunk"] == before["chunk"] + 1
            torn[index] = not follows
        return falls, torn

    def checksums(self, which: Signed, ordinals: NDArray[np.int64]) -> dict[str, Any]:
        """The columns of the checksums of these entries."""
        offsets, data = self._chunk.offsets, self._data
        slices = map(slice, offsets[which].tolist(), offsets[which + 1].tolist())
        return {
            "ordinal": ordinals[which],
            "ledger": self._chunk.ledger[which],
            "first": self._chunk.entry[which],
            "producer": np.array(self._names, object)[self._codes[which]],
            "sequence": self._sequence[which],
            "checksum": np.fromiter(
                map(zlib.crc32, map(data.__getitem__, slices)), np.int64, len(which)
            ),
        }


def names_of(data: bytes, starts: Signed, stops: Signed, which: Signed) -> tuple[Signed, list[str]]:
    """A code for each of the texts ``data[starts[i] : stops[i]]`` of some ``i``, and the texts by code."""
    codes = np.zeros(len(which), np.int64)
    names: list[str] = []
    buffer = np.frombuffer(data, np.uint8)
    lengths = stops[which] - starts[which]
    for length in np.unique(lengths).tolist():
        of_length = np.flatnonzero(lengths == length)
        characters = buffer[starts[which[of_length]][:, None] + np.arange(length)]
        if not length or (characters == characters[0]).all():
            codes[of_length] = len(names)
            names.append(characters[0].tobytes().decode(errors="replace"))
            continue
        words = characters.view(f"V{length}").ravel()
        found, inverse = np.unique(words, return_inverse=True)
        codes[of_length] = len(names) + inverse
        names += [each.tobytes().decode(errors="replace") for each in found]
    return codes, names
