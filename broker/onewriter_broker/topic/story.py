"""A topic's story: its transitions, in memory, in the logs and in the audit stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

import structlog

from onewriter_broker.log.api import Outcome
from onewriter_broker.topic.fencing import Shell
from onewriter_broker.topic.tenures import contender_fields
from onewriter_core.errors import Undecided
from onewriter_core.ids import TopicName
from onewriter_core.topic.effects import Record
from onewriter_core.topic.model import WHOLE, Purpose

HISTORY_MAX = 32
"""Transitions kept in memory for ``status``; the audit stream has them all."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Transition:
    """One line of a topic's story, as ``status`` shows it."""

    record: Record
    at_ms: int


class Story:
    """Tells what happened to one topic. ``history`` has the latest transitions, oldest first."""

    def __init__(
        self,
        name: TopicName,
        bucket: int,
        shell: Shell,
        spawn: Callable[[Coroutine[object, object, None]], asyncio.Task[None]],
    ) -> None:
        self.history: list[Transition] = []
        self._name = name
        self._bucket = bucket
        self._shell = shell
        self._spawn = spawn

    def record(self, record: Record) -> None:
        """A transition: remember it, log it, audit it where no fence did."""
        self.history.append(Transition(record, self._shell.wall_ms()))
        del self.history[:-HISTORY_MAX]
        self._shell.moved(self._name, record)
        holder, former = record.holder, record.former
        log.info(
            "topic.transition",
            topic=str(self._name),
            partitions=[slot for slot in record.slots if slot != WHOLE],
            kind=record.purpose.value,
            cause=record.departure.value,
            old_epoch=record.old_epoch,
            epoch=record.epoch,
            ledger=record.ledger,
            old_holder=None if former is None else former.producer_name,
            old_identity=None if former is None else str(former.identity),
            holder=None if holder is None else holder.producer_name,
            identity=None if holder is None else str(holder.identity),
            address=None if holder is None else holder.address,
            leaderless_ms=milliseconds(record.leaderless_seconds),
        )
        if record.purpose is Purpose.RESUME and holder is not None:
            self.audit(
                {
                    "kind": record.purpose.value,
                    "epoch": str(record.epoch),
                    "ledger": str(record.ledger),
                    "cause": record.departure.value,
                }
                | contender_fields(holder)
            )

    def audit(self, fields: dict[str, str]) -> None:
        """Write an audit record that belongs to no fence; the fence's own are written with it."""
        record = {
            "topic": str(self._name),
            "broker": self._shell.incarnation,
            "t": str(self._shell.wall_ms()),
        } | fields

        async def write() -> None:
            holding = self._shell.ownership.holding(self._bucket)
            if holding is None:
                return
            try:
                outcome = await self._shell.store.write_audit(holding.binding, record)
            except Undecided as undecided:
                log.warning("audit.undecided", record=record, reason=str(undecided))
            else:
                if outcome is not Outcome.DONE:
                    log.warning("audit.refused", record=record, outcome=outcome.value)

        self._spawn(write())


def milliseconds(seconds: float | None) -> int | None:
    """Whole milliseconds, rounded; None stays None."""
    return None if seconds is None else round(seconds * 1000)
