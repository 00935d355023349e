"""State that the subscriptions of one topic share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from onewriter_broker.dispatch.api import Spawn
from onewriter_broker.dispatch.ledgers import LedgerGaps
from onewriter_broker.dispatch.limits import Limits
from onewriter_broker.dispatch.readers import ReadBudget, TailReader
from onewriter_broker.dispatch.rounds import DispatchRounds
from onewriter_broker.dispatch.saved_cursors import CursorSaver
from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_broker.quotas.book import QuotaBook


@dataclass(slots=True, eq=False)
class TopicContext:
    """The state of one log's subscriptions."""

    log: TopicLog
    limits: Limits
    budget: ReadBudget
    """Shared by all topics of a broker."""
    spawn: Spawn
    clock: Callable[[], float]
    """Monotonic seconds."""
    wall_clock_ms: Callable[[], int]
    """The time of day."""
    gaps: LedgerGaps
    tail: TailReader
    saver: CursorSaver
    rounds: DispatchRounds
    quotas: QuotaBook
    """Counts subscriptions, for all topics of a broker together."""

    @classmethod
    def of(
        cls,
        log: TopicLog,
        *,
        limits: Limits,
        budget: ReadBudget,
        spawn: Spawn,
        clock: Callable[[], float],
        wall_clock_ms: Callable[[], int],
        quotas: QuotaBook,
    ) -> TopicContext:
        """The context of one log, without learned gaps, saved cursors or deliveries."""
        return cls(
            log,
            limits,
            budget,
            spawn,
            clock,
            wall_clock_ms,
            gaps=LedgerGaps(limits.ledger_gaps_max),
            tail=TailReader(log, limits),
            saver=CursorSaver(log, spawn=spawn, limits=limits),
            rounds=DispatchRounds(spawn),
            quotas=quotas,
        )
