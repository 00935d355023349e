"""Trimming on request: an administrator names a position, and entries that must stay are kept.

``cut_of`` decides and is pure, with the limits that retention respects. ``trim`` performs the cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from onewriter_broker.dispatch.subscriptions import Subscriptions
from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_broker.log.topic_log.ranges import first_block
from onewriter_broker.topic.producers.deduplication import trim_limit
from onewriter_broker.topic.retention.retention import Measured, RetentionLimits, trim_to
from onewriter_core.errors import Unavailable
from onewriter_core.ids import Position

LEDGER: Final = "ledger"
SUBSCRIPTION: Final = "subscription"
DEDUPLICATION: Final = "deduplication"
COMPACTION: Final = "compaction"
WITNESS: Final = "witness"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Limit:
    """The log may be trimmed at most up to ``position``. ``by`` is the kind of the limit, ``name`` its subject."""

    position: Position
    by: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Cut:
    """The position of a cut. ``limited_by`` is the limit that reduced it. None: the whole request is allowed."""

    before: Position
    limited_by: Limit | None


@dataclass(frozen=True, slots=True)
class Trimmed:
    """The result of a trim: the cut, and the first block that is kept. The store may keep some more."""

    cut: Cut
    first: Position


def cut_of(requested: Position, limits: Sequence[Limit]) -> Cut:
    """The requested cut, reduced to the lowest limit."""
    lowest = min(limits, key=lambda limit: limit.position)
    if requested <= lowest.position:
        return Cut(requested, None)
    return Cut(lowest.position, lowest)


def limits_of(topic_log: TopicLog, subscriptions: Subscriptions) -> list[Limit]:
    """The limits of a log that is open here."""
    marker = Position(topic_log.ledger, 0)
    deduplicated = trim_limit(topic_log, marker)
    limits = [
        Limit(marker, LEDGER),
        Limit(deduplicated, DEDUPLICATION),
        Limit(topic_log.compacted_limit(deduplicated), COMPACTION),
    ]
    lowest = subscriptions.lowest_retained_position()
    if lowest is not None:
        limits.append(Limit(lowest.next, SUBSCRIPTION, _slowest(subscriptions, lowest)))
    return limits


def _slowest(subscriptions: Subscriptions, lowest: Position) -> str:
    """The name of a durable subscription at that position."""
    for name in subscriptions.names():
        subscription = subscriptions.get(name)
        if (
            subscription is not None
            and subscription.is_durable
            and subscription.cursor.mark_delete == lowest
        ):
            return name
    return ""


async def trim(
    topic_log: TopicLog,
    subscriptions: Subscriptions,
    requested: Position,
    limits: RetentionLimits = RetentionLimits(),
    witnessed: Limit | None = None,
) -> Trimmed:
    """Drop the entries before ``requested`` that may go. A large trim needs several calls.

    ``witnessed``: up to where witnesses say that the log was copied to a table; None: this does not limit the trim.

    The caller has checked the identity and the epoch of the request; after a transition no more is trimmed.
    Raises Unavailable, and Undecided if the store did not answer; some entries may then have been dropped.
    """
    binding, epoch = topic_log.binding, topic_log.state.get("epoch")
    if binding is None or topic_log.ledger == 0:
        raise Unavailable(f"{topic_log.name} is not open here")
    measured = Measured(topic_log, binding.generation, limits=limits)
    measured.add(await first_block(topic_log))
    began = measured.begins
    more = () if witnessed is None else (witnessed,)
    cut = cut_of(requested, [*limits_of(topic_log, subscriptions), *more])

    def cut_now() -> Position:
        nonlocal cut  # a subscription may have been added or set back since the last call
        if topic_log.state.get("epoch") != epoch:
            raise Unavailable(f"the holder of {topic_log.name} changed during the trim; retry")
        cut = cut_of(requested, [*limits_of(topic_log, subscriptions), *more])
        return cut.before

    done = await trim_to(measured, cut_now)
    if cut.limited_by is not None and cut.limited_by.by == COMPACTION:
        topic_log.compacted.is_waited_for = True
    if done.was_refused:
        what = "a part" if done.blocks else "nothing"
        raise Unavailable(
            f"this broker no longer serves {topic_log.name}: {what} was trimmed; retry"
        )
    if began < cut.before:
        log.info("log.trimmed_on_request", topic=str(topic_log.name), before=str(cut.before))
    return Trimmed(cut, measured.begins)
