"""Pending entries of a log, their blocks, and the senders that receive the results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from onewriter_broker.log.store.api import Block, Guard
from onewriter_core.ids import Position
from onewriter_core.log_format.chain import CHAIN_START
from onewriter_core.wire.values import Send

if TYPE_CHECKING:
    from onewriter_broker.log.joint_append import JointAppend
    from onewriter_broker.log.topic_log.atomic_publish import Publish


class Sender(Protocol):
    """A sender of entries, which receives their results."""

    def stored(self, entries: Sequence[PendingEntry], first: Position, size: int) -> None:
        """Entries of this sender are in the log with the durability of the topic.

        They are consecutive from ``first`` on, and have ``size`` bytes together.
        """
        ...

    def unknown(self, size: int) -> None:
        """The result of these entries will never be known: the connection must be closed."""
        ...

    def refused(self, size: int) -> None:
        """An entry was dropped unsent, because a newer epoch is being granted."""
        ...


PendingEntry = tuple[Sender, Send, memoryview]
"""A pending entry: its sender, its command, its bytes.

A plain tuple: a named one takes nine times as long to make, for each message.
"""


@dataclass(slots=True, eq=False)
class PendingBlock:
    """A block that was sent to the store, with the entries that wait for it."""

    block: Block
    token: str
    entries: list[PendingEntry]
    was_sent: bool = False
    since: float = 0.0
    """The arrival time of its first entry, on the appender's clock."""
    guard: Guard | None = None
    """The guard of all its entries."""
    chain_before: bytes = CHAIN_START
    """The chain hash of the previous block in the ledger."""
    joint_append: JointAppend | None = None
    """It is stored only together with blocks of other logs. If it is not stored, it is not queued again."""
    publish: Publish | None = None
    """It belongs to an atomic publish, and is not queued again either."""
    opens: tuple[Position, ...] = ()
    """For the first block of that publish: the positions of all its blocks."""

    @property
    def owner(self) -> str:
        """The subject to which the app of that publish is bound; empty: none."""
        return "" if self.publish is None else self.publish.owner or ""

    @property
    def size(self) -> int:
        """The entries' bytes."""
        return len(self.block.payload)
