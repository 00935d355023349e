"""Entries on their way into a log, the blocks made of them, and the senders that get their results."""

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
    """The sender of entries, which gets their results."""

    def stored(self, entries: Sequence[PendingEntry], first: Position, size: int) -> None:
        """These entries of its own are in the log, as durable as the topic promises.

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
"""An entry that waits for its block: who sent it, with which command, its bytes.

A plain tuple: a named one takes nine times as long to make, for each message.
"""


@dataclass(slots=True, eq=False)
class PendingBlock:
    """A block handed to the store, with those who wait for it."""

    block: Block
    token: str
    entries: list[PendingEntry]
    was_sent: bool = False
    since: float = 0.0
    """When its first entry began to wait, by the appender's clock."""
    guard: Guard | None = None
    """What all its entries depend on."""
    chain_before: bytes = CHAIN_START
    """The chain hash of the previous block in the ledger."""
    joint_append: JointAppend | None = None
    """It is stored only together with blocks of other logs. If it is not stored, it does not wait again."""
    publish: Publish | None = None
    """It counts only with the other blocks of an atomic publish, and does not wait again either."""
    opens: tuple[Position, ...] = ()
    """Of that publish's first block: where all its blocks are to stand."""

    @property
    def owner(self) -> str:
        """The subject to which the app of that publish is bound; empty: none."""
        return "" if self.publish is None else self.publish.owner or ""

    @property
    def size(self) -> int:
        """The entries' bytes."""
        return len(self.block.payload)
