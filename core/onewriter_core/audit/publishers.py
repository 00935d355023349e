"""Compares the publishers in blocks with those in the audit.

A broker writes the audit record before it appends a block that names the publisher. So if a block has no such
record, the block or its record was changed. Brokers of release 0.1.0 write neither: a ledger's owner that
wrote no such record at all counts as one of these.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from onewriter_core.audit.facts import NamedPublisher
from onewriter_core.audit.findings import Finding
from onewriter_core.audit.grants import BucketAudit, LogAudit
from onewriter_core.publishers import EVERY_POD, Publisher, decode_publisher, publish_of

TEXT_SHOWN_MAX = 200
"""Characters of a damaged field ``by`` that a sentence quotes."""


@dataclass(slots=True)
class PublisherChecker:
    """Compares the publishers that the blocks of a log name with its audit records.

    ``notes`` say what could not be compared.
    """

    log: str
    audit: BucketAudit
    notes: list[str] = field(default_factory=list)

    def named(self, named: NamedPublisher, epoch: int | None, owner: str) -> Iterator[Finding]:
        """Check a publisher in a ledger of this epoch (None: no epoch) that ``owner`` wrote."""
        sentence = self._wrong(named, epoch, owner)
        if sentence:
            yield Finding(self.log, "S15", (str(named.position),), sentence)

    def _wrong(self, block: NamedPublisher, epoch: int | None, owner: str) -> str:
        """What is wrong with the publisher that a block names; empty if nothing is."""
        if not block.by and owner not in self.audit.recorders:
            return ""  # a broker of an earlier release
        publisher = decode_publisher(block.by)
        ledger = block.position.ledger
        if not owner:
            self._note(
                f"whose ledger {ledger} is is not known: who published there was not compared"
            )
            return ""
        if publisher is None:
            return (
                f"publish {block.publish} names a publisher that cannot be read:"
                f" {block.by[:TEXT_SHOWN_MAX]!r}"
            )
        if epoch is None:
            return f"publish {block.publish} by {publisher} is in ledger {ledger}, which no producer held"
        app, _ = publish_of(block.publish)
        log = self.audit.logs.get(self.log, LogAudit())
        known = log.publishers.get((epoch, app), ())
        every_pod = Publisher(publisher.subject, EVERY_POD)
        if publisher in known or (publisher.subject and every_pod in known):
            return ""
        if not log.reaches_back_to(epoch) or self.audit.is_cut:
            self._note(
                f"who published under epoch {epoch} was not compared: the audit lacks its grant"
            )
            return ""
        return (
            f"publish {block.publish} is by {publisher}, but the audit has no record that it"
            f" published {app} under epoch {epoch}"
        )

    def _note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)
