"""Checks whether the acknowledged entries of lost buckets are in the dataset that replaced theirs.

A broker can lose a bucket together with its dataset: because the store was emptied, or because the bucket was
taken by, or given to, a broker that follows another primary. The entries that this process acknowledged there
may then be lost. The process remembers them until the bucket is registered again, and then looks for them.
fencing.py reports losses while the broker keeps a bucket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog

from onewriter_broker.anchor.api import Anchor
from onewriter_broker.log.store.api import Binding, LogStore
from onewriter_broker.log.topic_log.log import last_position
from onewriter_broker.log.topic_log.losses import Loss, losses
from onewriter_core.errors import OnewriterError, Undecided
from onewriter_core.ids import EARLIEST, Position, TopicName
from onewriter_core.log_format.field_names import TRIMMED

POLL_SECONDS = 1.0
"""Time between two checks of lost buckets without a result."""

LOGS_MAX = 100_000
"""Logs that are remembered. The loss of a further log would be reported with its last positions in the log."""

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Left:
    """A lost bucket, and the last acknowledged entries of each ledger of its logs."""

    binding: Binding
    logs: dict[TopicName, list[Position]] = field(default_factory=dict)


class Accounting:
    """The acknowledged entries of lost buckets. The caller runs ``run`` as a task.

    ``lost`` is called once for each loss.
    """

    def __init__(self, anchor: Anchor, store: LogStore, lost: Callable[[Loss], None]) -> None:
        self._anchor = anchor
        self._store = store
        self._lost = lost
        self._left: dict[int, _Left] = {}

    def left(self, topic: TopicName, binding: Binding, ends: Sequence[Position]) -> None:
        """Remember a log of a lost bucket: the last acknowledged entry of each of its ledgers."""
        left = self._left.get(binding.bucket)
        if left is None or left.binding != binding:
            left = self._left[binding.bucket] = _Left(binding)
        if sum(len(known.logs) for known in self._left.values()) < LOGS_MAX:
            left.logs[topic] = list(ends)

    async def run(self) -> None:
        """Check the lost buckets until cancelled."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            for bucket in list(self._left):
                try:
                    await self.check(bucket)
                except OnewriterError as error:
                    _log.debug("entries.still_in_doubt", bucket=bucket, reason=str(error))

    async def check(self, bucket: int) -> None:
        """Check one bucket, if its new dataset is known by now. Raises Undecided, Unavailable."""
        left = self._left.get(bucket)
        if left is None:
            return
        record = (await self._anchor.read(bucket)).record
        if record.generation == left.binding.generation:
            if record.owner not in {"", left.binding.owner}:
                del self._left[bucket]  # the bucket is served with the dataset that was written to
            return
        node = await self._store.observe([bucket])
        if node.replid != record.replid:
            raise Undecided(f"the store shows dataset {node.replid}, not {record.replid}")
        for topic, ends in list(left.logs.items()):
            for loss in await self._missing(topic, ends, record.replid):
                self._lost(loss)
            del left.logs[topic]
        del self._left[bucket]

    async def _missing(self, topic: TopicName, ends: list[Position], replid: str) -> list[Loss]:
        newest = await self._store.read_blocks(
            topic, EARLIEST, ends[-1], count=1, reverse=True, replid=replid
        )
        survived = min(last_position(newest[0]), ends[-1]) if newest else EARLIEST
        state = await self._store.read_state(topic, replid=replid)
        trimmed = Position.parse(state[TRIMMED]) if TRIMMED in state else EARLIEST
        return losses(topic, [end for end in ends if end >= trimmed], survived)
