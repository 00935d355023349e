"""Checks S15 in a log: atomic publishes are complete, and each version of an app is stored once, in order.

A publish without its last block may be at the very end of a log: it is being written, or the next fence will
drop it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from onewriter_broker.log.store.api import Block, Marker
from onewriter_broker.log.store.blocks import publish_of
from onewriter_broker.log.topic_log.log import payloads
from onewriter_broker.verify.findings import Violation
from onewriter_core.errors import ProtocolError
from onewriter_core.ids import Position
from onewriter_core.log_format.field_names import VERSION_PREFIX
from onewriter_core.wire.messages import summarize

APPS_REMEMBERED_MAX = 10_000
"""Apps of one log whose last version is remembered. The broker allows fewer at a time."""


@dataclass(slots=True)
class PublishChecker:
    """The blocks of one log in order. ``log`` is its name; ``forgotten``: apps that the log was ordered to
    forget, whose versions may begin again.
    """

    log: str
    forgotten: frozenset[str] = frozenset()
    open: str = ""
    """The publish whose last block has not come yet."""
    _since: Position | None = None
    _versions: dict[str, tuple[int, Position]] = field(default_factory=dict)

    def cut(self) -> None:
        """Note that everything before was trimmed."""
        self.open, self._since = "", None

    def marker(self, marker: Marker) -> Iterator[Violation]:
        """Check a fence: no publish may be open before it."""
        yield from self._left_open(marker.position)

    def block(self, block: Block) -> Iterator[Violation]:
        """Check the next block."""
        if self.open and block.publish != self.open:
            yield from self._left_open(block.position)
        if not block.publish:
            return
        yield from self._written_by_it(block)
        if not self.open:
            self.open, self._since = block.publish, block.position
        if block.commits:
            self.open = ""
            yield from self._rises(block)

    def finish(self, state: Mapping[str, str]) -> Iterator[Violation]:
        """Compare with the state, which is written atomically with the log."""
        for app, (version, position) in self._versions.items():
            held = state.get(f"{VERSION_PREFIX}{app}", "")
            if state and app not in self.forgotten and (not held or int(held) < version):
                yield self._violation(
                    (str(position), "state"),
                    f"version {version} of {app} is published, but the state knows {held or 'none'}",
                )

    def _left_open(self, position: Position) -> Iterator[Violation]:
        if self.open:
            yield self._violation(
                (str(self._since), str(position)),
                f"only a part of publish {self.open} is before {position}",
            )
            self.open = ""

    def _written_by_it(self, block: Block) -> Iterator[Violation]:
        app, version = publish_of(block.publish)
        ledger, number = block.position
        for payload in payloads(block):
            try:
                summary = summarize(payload)
            except ProtocolError:
                summary = None
            if summary is None or (summary.producer_name, summary.sequence_id) != (app, version):
                yield self._violation(
                    (f"{ledger}-{number}",),
                    f"an entry among those of publish {block.publish} is not its own",
                )
                return
            number += 1

    def _rises(self, block: Block) -> Iterator[Violation]:
        app, version = publish_of(block.publish)
        before = self._versions.get(app)
        if before is not None and version <= before[0] and app not in self.forgotten:
            yield self._violation(
                (str(before[1]), str(block.position)),
                f"version {version} of {app} follows on its version {before[0]}",
            )
        elif before is not None or len(self._versions) < APPS_REMEMBERED_MAX:
            self._versions[app] = (version, block.position)

    def _violation(self, where: tuple[str, ...], sentence: str) -> Violation:
        return Violation("S15", self.log, where, sentence)
