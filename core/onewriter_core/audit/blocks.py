"""Observes the blocks of a log: their hashes, and which atomic publishes they belong to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from onewriter_core.audit.facts import NamedPublisher, PublishRun
from onewriter_core.audit.findings import Finding
from onewriter_core.ids import Position
from onewriter_core.log_format.chain import CHAIN_START
from onewriter_core.publishers import publish_of


class BlockHead(NamedTuple):
    """A block without its entries. ``by``: the publisher that it names; None: the source does not have it."""

    first: Position
    last: Position
    chain: bytes
    publish: str
    ends_publish: bool
    by: str | None


BlockFact = Finding | PublishRun | NamedPublisher


class BlockObserver:
    """The blocks and markers of one log, or of a part of it, in their stored order."""

    def __init__(self, log: str) -> None:
        self._log = log
        self._ledger = 0
        self._next = 0
        self._chain: bytes | None = None
        self._since: Position | None = None
        self._named: tuple[int, str, str] | None = None
        self.open = ""
        """The publish whose last block was not observed yet; empty if there is none."""

    def seed(self, head: BlockHead) -> None:
        """Set the block before the first one: hashes and publishes continue from it."""
        self._follow(head)
        if head.publish and not head.ends_publish:
            self.open, self._since = head.publish, head.first

    def cut(self) -> None:
        """Record that entries are missing: the next block has no known predecessor."""
        self._chain, self._next = None, 0
        self.open, self._since = "", None

    def marker(self, position: Position) -> Iterator[Finding]:
        """Check the next marker. No publish may be open before it."""
        yield from self._left_open(position)
        self._ledger, self._next, self._chain = position.ledger, 1, CHAIN_START

    def block(self, head: BlockHead, chained: Callable[[bytes], bytes]) -> Iterator[BlockFact]:
        """Check the next block. ``chained`` computes its hash from the hash of the block before."""
        if self.open and head.publish != self.open:
            yield from self._left_open(head.first)
        yield from self._hash(head, chained)
        if head.publish:
            yield from self._publish(head)

    def _hash(self, head: BlockHead, chained: Callable[[bytes], bytes]) -> Iterator[Finding]:
        ledger, entry = head.first
        follows = ledger == self._ledger and entry == self._next
        if follows and self._chain is not None and chained(self._chain) != head.chain:
            yield Finding(
                self._log,
                "S7",
                (str(head.first), str(head.last)),
                f"the entries {head.first} to {head.last} are not those that were written: their"
                " hash does not continue the hash of the block before",
            )
        if ledger >= self._ledger:
            self._follow(head)

    def _follow(self, head: BlockHead) -> None:
        self._ledger = head.first.ledger
        self._next, self._chain = head.last.entry + 1, head.chain

    def _left_open(self, position: Position) -> Iterator[Finding]:
        if self.open:
            yield Finding(
                self._log,
                "S15",
                (str(self._since), str(position)),
                f"only a part of publish {self.open} is before {position}",
            )
            self.open = ""

    def _publish(self, head: BlockHead) -> Iterator[BlockFact]:
        app, version = publish_of(head.publish)
        named = None if head.by is None else (head.first.ledger, app, head.by)
        if head.by is not None and named != self._named:
            yield NamedPublisher(head.first, head.publish, head.by)
        self._named = named
        if not self.open:
            self.open, self._since = head.publish, head.first
        if head.ends_publish:
            self.open = ""
            yield PublishRun(self._since or head.first, app, version, version)
