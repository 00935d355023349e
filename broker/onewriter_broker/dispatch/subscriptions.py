"""All subscriptions of one topic, for the rest of the broker.

This is the entry of the package: sessions subscribe here, retention asks for the positions of subscriptions,
and the admin API lists and moves them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import structlog

from onewriter_broker.dispatch.api import (
    Channel,
    SeekTarget,
    Spawn,
    SubscribeOptions,
    check_printable,
    check_properties,
)
from onewriter_broker.dispatch.context import TopicContext
from onewriter_broker.dispatch.cursor import before
from onewriter_broker.dispatch.handle import ConsumerHandle
from onewriter_broker.dispatch.limits import Limits
from onewriter_broker.dispatch.positions import (
    learn_ledger_ends,
    position_before,
    position_before_time,
)
from onewriter_broker.dispatch.readers import ReadBudget
from onewriter_broker.dispatch.registry import Registry
from onewriter_broker.dispatch.saved_cursors import STATE_PREFIX
from onewriter_broker.dispatch.stats import subscription_stats
from onewriter_broker.dispatch.subscription import Subscription
from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_broker.quotas.book import QuotaBook
from onewriter_core.errors import Refused, ServerError, Unavailable
from onewriter_core.ids import EARLIEST, Position
from onewriter_core.wire.values import EARLIEST_ID, LATEST_ID, MessageId

_log = structlog.get_logger(__name__)

_DEFAULT_LIMITS = Limits()
"""Shared by all topics."""


class Subscriptions:
    """The subscriptions of one topic. Construct it once the log's state is loaded and its watermark is set.

    ``spawn`` starts tasks in the caller's TaskGroup, ``clock`` gives monotonic seconds, ``wall_clock_ms`` the
    time of day. ``budget`` is shared by all topics of a broker.

    It uses little memory until a client subscribes: most topics of a broker are idle, and many have no
    reader.
    """

    __slots__ = (
        "_budget",
        "_clock",
        "_is_closed",
        "_limits",
        "_log",
        "_made",
        "_quotas",
        "_spawn",
        "_wall_clock_ms",
    )

    def __init__(
        self,
        log: TopicLog,
        *,
        spawn: Spawn,
        clock: Callable[[], float],
        wall_clock_ms: Callable[[], int],
        limits: Limits | None = None,
        budget: ReadBudget | None = None,
        quotas: QuotaBook | None = None,
    ) -> None:
        self._log = log
        self._limits = limits or _DEFAULT_LIMITS
        self._budget = ReadBudget() if budget is None else budget  # an empty budget is false
        self._quotas = quotas or QuotaBook()
        self._spawn = spawn
        self._clock = clock
        self._wall_clock_ms = wall_clock_ms
        self._made: tuple[TopicContext, Registry] | None = None
        self._is_closed = False
        if any(field.startswith(STATE_PREFIX) for field in log.state):
            self._make()

    def _make(self) -> tuple[TopicContext, Registry]:
        if self._made is None:
            if self._is_closed:
                raise Unavailable(f"{self._log.name} is closing here")
            context = TopicContext.of(
                self._log,
                limits=self._limits,
                budget=self._budget,
                spawn=self._spawn,
                clock=self._clock,
                wall_clock_ms=self._wall_clock_ms,
                quotas=self._quotas,
            )
            self._made = (context, Registry(context))
        return self._made

    @property
    def _context(self) -> TopicContext:
        return self._make()[0]

    @property
    def _registry(self) -> Registry:
        return self._make()[1]

    def _all(self) -> list[Subscription]:
        """The existing subscriptions; this creates nothing."""
        if self._made is None:
            return []
        registry = self._made[1]
        registry.sweep()
        return list(registry)

    # ------------------------------------------------------------ asking

    @property
    def is_empty(self) -> bool:
        """Whether there is no subscription, not even that of a reader, and all deletions are saved."""
        if self._made is None:
            return True
        return not self._all() and self._made[0].saver.is_saved

    def names(self) -> list[str]:
        """The names of all subscriptions, including those of readers."""
        return sorted(subscription.name for subscription in self._all())

    def get(self, name: str) -> Subscription | None:
        """The subscription of that name."""
        return None if self._made is None else self._made[1].get(name)

    def lowest_retained_position(self) -> Position | None:
        """The position of the slowest durable subscription: everything up to there may be trimmed.

        None if there is no durable subscription.
        """
        return min(
            (
                subscription.cursor.mark_delete
                for subscription in self._all()
                if subscription.is_durable
            ),
            default=None,
        )

    async def last_message_id(self) -> MessageId:
        """The topic's last message; EARLIEST_ID if it has none. Raises Undecided."""
        return (await self._registry.find_last())[0]

    def stats(self, now: float) -> dict[str, dict[str, object]]:
        """Each subscription in the format of Pulsar's admin API; rates are per second.

        ``msgBacklog`` counts entries, as Pulsar's does. It leaves out entries of ledgers that have not been
        read to their end since the topic was loaded, unless ``measure_backlogs`` ran.
        """
        return {
            subscription.name: subscription_stats(subscription, now)
            for subscription in sorted(self._all(), key=lambda found: found.name)
        }

    async def measure_backlogs(self) -> None:
        """Make all backlogs exact, with one small read per unknown ledger. Raises Undecided."""
        marks = [subscription.cursor.mark_delete for subscription in self._all()]
        if marks:
            await learn_ledger_ends(self._context.log, self._context.gaps, min(marks))
            self._registry.learned()

    # ------------------------------------------------------------ consumers

    async def subscribe(self, options: SubscribeOptions, channel: Channel) -> ConsumerHandle:
        """Connect a consumer, and create the subscription if there is none.

        A durable one is saved before this returns. The caller then answers the client and calls
        ``ConsumerHandle.start``. Raises Refused; Unavailable if the topic closes; Undecided if a new cursor
        could not be saved in time (the subscription may exist all the same).
        """
        registry, limits = self._registry, self._context.limits
        registry.check_open()
        registry.sweep()
        _check_text("subscription name", options.subscription, limits.name_bytes_max)
        _check_text("consumer name", options.consumer_name, limits.name_bytes_max)
        check_printable("consumer name", options.consumer_name)
        check_properties(options.metadata, limits.properties_bytes_max)
        subscription = registry.get(options.subscription)
        if subscription is None:
            mark_delete = await self._start_of(options)
            registry.check_open()
            # Another request may have created it while the start was looked up.
            subscription = registry.get(options.subscription) or registry.add(
                options.subscription,
                mark_delete,
                is_durable=options.durable,
                properties=options.properties,
            )
        if subscription.is_durable != options.durable:
            other = "Durable" if subscription.is_durable else "Non-durable"
            raise Refused(
                ServerError.NOT_ALLOWED_ERROR,
                f"{other} subscription with the same name already exists",
            )
        consumer = subscription.add_consumer(options, channel)
        handle = ConsumerHandle(registry, subscription, consumer)
        if (
            subscription.is_durable
            and STATE_PREFIX + subscription.name not in self._context.log.state
        ):
            try:
                await subscription.saved()
            except BaseException:
                handle.close()
                raise
            if handle.is_closed:
                raise Unavailable("the consumer was closed while it subscribed")
        return handle

    async def _start_of(self, options: SubscribeOptions) -> Position:
        """The position at which a new subscription begins."""
        context = self._context
        if not options.durable and options.start is not None:
            start = position_before(options.start, context.log.committed)
        elif options.from_earliest:
            start = EARLIEST
        else:
            start = context.log.committed
        if options.rollback_seconds > 0:
            time_ms = context.wall_clock_ms() - options.rollback_seconds * 1000
            start = await position_before_time(context.log, max(time_ms, 0), context.limits)
        return start

    def disconnect(self, name: str) -> int:
        """Close all consumers of a subscription, which stays; returns their number."""
        subscription = self.get(name)
        return 0 if subscription is None else self._registry.disconnect(subscription)

    # ------------------------------------------------------------ administration

    async def create(
        self, name: str, *, at: MessageId = LATEST_ID, properties: Mapping[str, str] | None = None
    ) -> None:
        """Create a durable subscription that begins with a message.

        Raises Refused if the name is in use, Undecided and Unavailable.
        """
        registry, context = self._registry, self._context
        registry.check_open()
        _check_text("subscription name", name, context.limits.name_bytes_max)
        if registry.get(name) is not None:
            raise Refused(ServerError.NOT_ALLOWED_ERROR, "Subscription already exists for topic")
        mark_delete = position_before(at, context.log.committed)
        subscription = registry.add(name, mark_delete, is_durable=True, properties=properties or {})
        await subscription.saved()

    async def ensure(self, name: str) -> None:
        """Create a durable subscription that begins with the first message, if it does not exist.

        Raises Refused, Undecided and Unavailable.
        """
        if self.get(name) is None:
            await self.create(name, at=EARLIEST_ID)

    async def advance(self, name: str, until: Position) -> Position:
        """Acknowledge everything before a position, as far as it is committed; never moves back.

        Creates a durable subscription if there is none. Returns the position before which everything is
        acknowledged then. Raises Refused while consumers are connected, Undecided and Unavailable.
        """
        self._registry.check_open()
        wanted = min(before(until), self._context.log.committed)
        subscription = self.get(name)
        if subscription is None:
            _check_text("subscription name", name, self._context.limits.name_bytes_max)
            subscription = self._registry.add(name, wanted, is_durable=True, properties={})
        elif subscription.consumers or not subscription.is_durable:
            raise Refused(ServerError.CONSUMER_BUSY, f"consumers read with the subscription {name}")
        elif wanted > subscription.cursor.mark_delete:
            subscription.cursor.acknowledge_until(wanted)
            subscription.changed()
            subscription.wake()
        await subscription.saved()
        mark_delete = subscription.cursor.mark_delete
        return Position(mark_delete.ledger, mark_delete.entry + 1)

    async def delete(self, name: str, *, force: bool = False) -> None:
        """Delete a subscription; raises Refused while consumers are connected, unless forced."""
        subscription = self._find(name)
        if subscription.consumers and not force:
            raise Refused(ServerError.CONSUMER_BUSY, "Subscription has active connected consumers")
        await self._registry.remove(subscription)

    async def skip_all(self, name: str) -> None:
        """Acknowledge everything. Consumers stay connected."""
        subscription = self._find(name)
        subscription.move(self._context.log.committed)
        await subscription.saved()

    async def skip(self, name: str, entries: int) -> None:
        """Acknowledge this number of unacknowledged entries. Consumers stay connected."""
        subscription = self._find(name)
        log, limits = self._context.log, self._context.limits
        cursor, after = subscription.cursor, subscription.cursor.mark_delete
        while entries > 0:
            found = await log.read(after, limits.read_entries, limits.read_bytes)
            if not found:
                break
            for position, _ in (cost for run in found for cost in run.costs()):
                if entries == 0:
                    break
                entries -= not cursor.is_acknowledged(position)
                after = position
        if self._registry.get(name) is not subscription:
            raise Refused(
                ServerError.SUBSCRIPTION_NOT_FOUND,
                f"subscription {name} was deleted during the request",
            )
        if after > cursor.mark_delete:
            cursor.acknowledge_until(after)
        subscription.changed()
        subscription.wake()
        await subscription.saved()

    async def reset(self, name: str, target: SeekTarget) -> None:
        """Move a subscription forward or back; its consumers have to subscribe again."""
        await self._registry.seek(self._find(name), target)

    async def save(self) -> None:
        """Save all changed cursors now. Raises Undecided and Unavailable."""
        if self._made is not None:
            await self._made[0].saver.flush()

    async def close(self, reason: str, *, save: bool = True) -> None:
        """Close all consumers and stop; ``save``: whether this broker still owns the log."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._made is None:
            return
        context, registry = self._made
        closed = registry.close()
        await context.saver.close(save=save)
        if closed:
            topic = str(context.log.name)
            _log.info("consumers.closed", topic=topic, reason=reason, consumers=closed)

    def _find(self, name: str) -> Subscription:
        self._registry.check_open()
        subscription = self._registry.get(name)
        if subscription is None:
            raise Refused(ServerError.SUBSCRIPTION_NOT_FOUND, f"there is no subscription {name}")
        return subscription


def _check_text(what: str, text: str, bytes_max: int) -> None:
    if not text:
        raise Refused(ServerError.NOT_ALLOWED_ERROR, f"the {what} is empty")
    if len(text.encode()) > bytes_max:
        raise Refused(ServerError.NOT_ALLOWED_ERROR, f"the {what} is longer than {bytes_max} bytes")
