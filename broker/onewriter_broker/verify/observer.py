"""Converts the blocks and markers of a log, in their stored order, to the facts that the audit checks."""

from __future__ import annotations

from collections.abc import Iterator

from onewriter_broker.log.store.api import Block, Marker, StoredBlock
from onewriter_broker.log.topic_log.log import payloads
from onewriter_core.audit.blocks import BlockHead, BlockObserver
from onewriter_core.audit.facts import (
    EntryRun,
    Fact,
    Fingerprint,
    Numbers,
    Unreadable,
    WriterRun,
    marker_of,
)
from onewriter_core.audit.findings import Finding
from onewriter_core.errors import ProtocolError
from onewriter_core.ids import Position
from onewriter_core.log_format.chain import chain
from onewriter_core.publishers import publish_of
from onewriter_core.wire.messages import EntrySummary, entry_checksum, summarize


class LogObserver:
    """Observes one log."""

    def __init__(self, log: str) -> None:
        self._log = log
        self._blocks = BlockObserver(log)

    @property
    def open_publish(self) -> str:
        """The publish whose last block has not come yet; empty: none."""
        return self._blocks.open

    def cut(self) -> None:
        """Note that the log was trimmed past what was observed."""
        self._blocks.cut()

    def facts(self, block: StoredBlock) -> Iterator[Fact]:
        """The facts of the next block or marker."""
        if isinstance(block, Marker):
            yield from self._blocks.marker(block.position)
            yield marker_of(block.position, block.fields)
            return
        first, last = block.position, block.last
        head = BlockHead(first, last, block.chain, block.publish, block.commits, block.by)
        yield EntryRun(first, last.entry)
        yield from self._blocks.block(
            head, lambda previous: chain(previous, first, block.lengths, block.payload)
        )
        yield from self._of_publish(block) if block.publish else self._entries(block)

    def _entries(self, block: Block) -> Iterator[Fact]:
        ledger, number = block.position
        for payload in payloads(block):
            summary = _summary(payload)
            if summary is None:
                yield Unreadable(1)
            else:
                numbers = Numbers(
                    number,
                    summary.sequence_id,
                    summary.chunk_id or 0,
                    summary.publish_time_ms,
                    summary.uuid,
                )
                yield WriterRun(ledger, summary.producer_name, numbers, numbers)
                yield Fingerprint(
                    Position(ledger, number),
                    summary.producer_name,
                    summary.sequence_id,
                    entry_checksum(payload),
                )
            number += 1

    def _of_publish(self, block: Block) -> Iterator[Finding]:
        """The entries of a publish name its app and version."""
        ledger, number = block.position
        for payload in payloads(block):
            summary = _summary(payload)
            if summary is None or (summary.producer_name, summary.sequence_id) != publish_of(
                block.publish
            ):
                yield Finding(
                    self._log,
                    "S15",
                    (str(Position(ledger, number)),),
                    f"an entry among those of publish {block.publish} is not its own",
                )
                return
            number += 1


def _summary(payload: memoryview) -> EntrySummary | None:
    try:
        return summarize(payload)
    except ProtocolError:
        return None
