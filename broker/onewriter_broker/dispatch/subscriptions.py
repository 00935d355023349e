"""All subscriptions of one topic: restoring, finding, creating and deleting them, and their turns.

The door to this package: the session subscribes here, retention asks here how far everybody is,
the admin API lists and moves subscriptions here. Delayed delivery is not here: messages with a
delivery time are delivered at once.

Whoever has something to deliver gets a turn of bounded size: the first at once, within the
callback that made it possible, further ones in a task that goes round all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import structlog

from onewriter_broker.dispatch.api import (
    Channel,
    SeekTarget,
    SeekToId,
    SeekToTime,
    Spawn,
    SubscribeOptions,
    TaskHandle,
)
from onewriter_broker.dispatch.consumer import Consumer
from onewriter_broker.dispatch.cursor import Cursor, CursorFormatError, mask_of
from onewriter_broker.dispatch.finding import (
    last_message_id,
    learn_ledger_ends,
    position_before,
    position_before_time,
)
from onewriter_broker.dispatch.ledgers import LedgerGaps
from onewriter_broker.dispatch.limits import Limits
from onewriter_broker.dispatch.reading import ReadBudget, TailReader
from onewriter_broker.dispatch.saving import STATE_PREFIX, CursorSaver, read_cursor
from onewriter_broker.dispatch.stats import subscription_stats
from onewriter_broker.dispatch.subscription import Subscription
from onewriter_broker.log.topic_log import TopicLog
from onewriter_core.errors import Refused, ServerError, Unavailable
from onewriter_core.ids import EARLIEST, Position
from onewriter_core.wire.hot import EARLIEST_ID, LATEST_ID, MessageId

_log = structlog.get_logger(__name__)

_DEFAULT_LIMITS = Limits()
"""One for all topics."""


class Subscriptions:
    """See the module. Construct it once the log's state is loaded and its watermark is set.

    ``spawn`` starts tasks in the caller's TaskGroup, ``clock`` gives monotonic seconds,
    ``wall_clock_ms`` the time of day. ``budget`` is shared by all topics of a broker.
    """

    def __init__(
        self,
        log: TopicLog,
        *,
        spawn: Spawn,
        clock: Callable[[], float],
        wall_clock_ms: Callable[[], int],
        limits: Limits | None = None,
        budget: ReadBudget | None = None,
    ) -> None:
        self.log = log
        self.spawn = spawn
        self.clock = clock
        self.wall_clock_ms = wall_clock_ms
        self.limits = limits or _DEFAULT_LIMITS
        self.gaps = LedgerGaps(self.limits.ledger_gaps_max)
        self.budget = ReadBudget() if budget is None else budget  # an empty one is false
        self.tail = TailReader(log, self.limits)
        self.saver = CursorSaver(log, spawn=spawn, limits=self.limits)
        self._by_name: dict[str, Subscription] = {}
        self._ready: dict[Subscription, None] = {}
        self._pump_task: TaskHandle | None = None
        self._is_closed = False
        self._last: tuple[Position, MessageId, Position] | None = None
        self._restore()
        log.watchers.append(self._advanced)

    def _restore(self) -> None:
        """Durable subscriptions as they were saved, within what the log still has."""
        for field, text in self.log.state.items():
            if not field.startswith(STATE_PREFIX):
                continue
            name = field.removeprefix(STATE_PREFIX)
            try:
                cursor, properties = read_cursor(text, self.gaps, self.limits)
            except CursorFormatError as error:
                # Nothing may be lost: what it has had comes again.
                _log.warning(
                    "cursor.unreadable", topic=str(self.log.name), subscription=name, why=str(error)
                )
                cursor, properties = self._new_cursor(EARLIEST), {}
            if cursor.clamp(self.log.committed):
                _log.warning(
                    "cursor.behind_end",
                    topic=str(self.log.name),
                    subscription=name,
                    end=str(self.log.committed),
                )
            self._by_name[name] = Subscription(
                self, name, cursor, is_durable=True, properties=properties
            )

    def _new_cursor(self, mark_delete: Position) -> Cursor:
        return Cursor(
            mark_delete,
            self.gaps,
            ranges_max=self.limits.ranges_max,
            partial_bytes_max=self.limits.partial_bytes_max,
        )

    # ------------------------------------------------------------ asking

    def names(self) -> list[str]:
        """All subscriptions, those of readers too."""
        self._sweep()
        return sorted(self._by_name)

    def get(self, name: str) -> Subscription | None:
        """The subscription of that name."""
        return self._by_name.get(name)

    @property
    def has_consumers(self) -> bool:
        """Whether anybody is connected."""
        return any(subscription.consumers for subscription in self._by_name.values())

    def lowest_retained_position(self) -> Position | None:
        """How far the slowest durable subscription is: everything up to there may be trimmed.

        None: there is no durable subscription.
        """
        return min(
            (
                subscription.cursor.mark_delete
                for subscription in self._by_name.values()
                if subscription.is_durable
            ),
            default=None,
        )

    async def last_message_id(self) -> MessageId:
        """The topic's last message; EARLIEST_ID when it has none. Raises Undecided."""
        return (await self.find_last())[0]

    async def find_last(self) -> tuple[MessageId, Position]:
        """The last message and the position of its entry; EARLIEST when there is none."""
        committed = self.log.committed
        if self._last is None or self._last[0] != committed:
            self._last = (committed, *await last_message_id(self.log))
        return self._last[1], self._last[2]

    def stats(self, now: float) -> dict[str, dict[str, object]]:
        """Each subscription in the shape of Pulsar's admin API; rates are per second.

        ``msgBacklog`` counts entries, as Pulsar's does; it leaves out entries of ledgers that
        nobody has read to the end since the topic was loaded, unless ``measure_backlogs`` ran.
        """
        self._sweep()
        return {
            name: subscription_stats(subscription, now)
            for name, subscription in sorted(self._by_name.items())
        }

    async def measure_backlogs(self) -> None:
        """Make all backlogs exact, with one small read per ledger not known. Raises Undecided."""
        if self._by_name:
            lowest = min(found.cursor.mark_delete for found in self._by_name.values())
            await learn_ledger_ends(self.log, self.gaps, lowest)
            self.learned()

    # ------------------------------------------------------------ consumers

    async def subscribe(self, options: SubscribeOptions, channel: Channel) -> Consumer:
        """Connect a consumer, creating the subscription where there is none.

        A durable one is saved before this returns. The caller then answers the client and calls
        ``Consumer.start``. Raises Refused; Unavailable when the topic closes; Undecided when a
        new cursor could not be saved in time (the subscription may exist all the same).
        """
        self._check_open()
        self._sweep()
        _check_text("subscription name", options.subscription, self.limits.name_bytes_max)
        _check_text("consumer name", options.consumer_name, self.limits.name_bytes_max)
        check_properties(options.metadata, self.limits.properties_bytes_max)
        subscription = self._by_name.get(options.subscription)
        if subscription is None:
            mark_delete = await self._start_of(options)
            self._check_open()
            # Somebody else may have created it while the start was looked for.
            subscription = self._by_name.get(options.subscription) or self._add(
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
        if subscription.is_durable and STATE_PREFIX + subscription.name not in self.log.state:
            try:
                await self.saver.saved(subscription)
            except BaseException:
                consumer.close()
                raise
            if consumer.is_closed:
                raise Unavailable("the consumer was closed while it subscribed")
        return consumer

    async def _start_of(self, options: SubscribeOptions) -> Position:
        """Where a new subscription begins."""
        if not options.durable and options.start is not None:
            start = position_before(options.start, self.log.committed)
        elif options.from_earliest:
            start = EARLIEST
        else:
            start = self.log.committed
        if options.rollback_seconds > 0:
            time_ms = self.wall_clock_ms() - options.rollback_seconds * 1000
            start = await position_before_time(self.log, max(time_ms, 0), self.limits)
        return start

    def _add(
        self,
        name: str,
        mark_delete: Position,
        *,
        is_durable: bool,
        properties: Mapping[str, str],
    ) -> Subscription:
        if len(self._by_name) >= self.limits.subscriptions_max:
            raise Refused(
                ServerError.NOT_ALLOWED_ERROR,
                f"the topic has {self.limits.subscriptions_max} subscriptions already",
            )
        check_properties(properties, self.limits.properties_bytes_max)
        subscription = Subscription(
            self,
            name,
            self._new_cursor(mark_delete),
            is_durable=is_durable,
            properties=properties,
        )
        self._by_name[name] = subscription
        if is_durable:
            self.saver.changed(subscription)
        return subscription

    # ------------------------------------------------------------ administration

    async def create(
        self, name: str, *, at: MessageId = LATEST_ID, properties: Mapping[str, str] | None = None
    ) -> None:
        """Create a durable subscription that begins with a message.

        Raises Refused when there is one of that name, Undecided and Unavailable.
        """
        self._check_open()
        _check_text("subscription name", name, self.limits.name_bytes_max)
        if name in self._by_name:
            raise Refused(ServerError.NOT_ALLOWED_ERROR, "Subscription already exists for topic")
        mark_delete = position_before(at, self.log.committed)
        subscription = self._add(name, mark_delete, is_durable=True, properties=properties or {})
        await self.saver.saved(subscription)

    async def ensure(self, name: str) -> None:
        """Create a durable subscription from the beginning on, where there is none.

        Raises Refused, Undecided and Unavailable.
        """
        if name not in self._by_name:
            await self.create(name, at=EARLIEST_ID)

    async def delete(self, name: str, *, force: bool = False) -> None:
        """Delete a subscription; raises Refused while consumers are connected, unless forced."""
        subscription = self._find(name)
        if subscription.consumers and not force:
            raise Refused(ServerError.CONSUMER_BUSY, "Subscription has active connected consumers")
        await self.remove(subscription)

    async def delete_all(self) -> None:
        """Delete every subscription with its consumers, because the topic is being deleted.

        Raises Undecided and Unavailable.
        """
        self._check_open()
        durable = [name for name, found in self._by_name.items() if found.is_durable]
        for subscription in list(self._by_name.values()):
            self._disconnect(subscription)
        for name in durable:
            await self.saver.removal_saved(name)

    async def skip_all(self, name: str) -> None:
        """Acknowledge everything there is. Consumers stay connected."""
        subscription = self._find(name)
        subscription.move(self.log.committed)
        await self._saved(subscription)

    async def skip(self, name: str, entries: int) -> None:
        """Acknowledge the next so many unacknowledged entries. Consumers stay connected."""
        subscription = self._find(name)
        cursor, after = subscription.cursor, subscription.cursor.mark_delete
        while entries > 0:
            found = await self.log.read(after, self.limits.read_entries, self.limits.read_bytes)
            if not found:
                break
            for entry in found:
                if entries > 0 and not cursor.is_acknowledged(entry.position):
                    entries -= 1
                    after = entry.position
                elif entries > 0:
                    after = entry.position
        if self._by_name.get(name) is not subscription:
            raise Refused(ServerError.SUBSCRIPTION_NOT_FOUND, f"{name} was deleted meanwhile")
        if after > cursor.mark_delete:
            cursor.acknowledge_until(after)
        if subscription.is_durable:
            self.saver.changed(subscription)
        subscription.wake()
        await self._saved(subscription)

    async def reset(self, name: str, target: SeekTarget) -> None:
        """Move a subscription, forwards or back; its consumers have to subscribe again."""
        await self._find(name).seek(target)

    async def save(self) -> None:
        """Save all cursors that changed, now. Raises Undecided and Unavailable."""
        await self.saver.flush()

    def trimmed(self, before: Position) -> None:
        """The log's entries below ``before`` are gone: forget what was known about them."""
        self.gaps.forget_before(before)

    async def close(self, reason: str, *, save: bool = True) -> None:
        """Close all consumers and stop; ``save``: while this broker still owns the log."""
        if self._is_closed:
            return
        self._is_closed = True
        self.log.watchers.remove(self._advanced)
        if self._pump_task is not None:
            self._pump_task.cancel()
        closed = 0
        for subscription in list(self._by_name.values()):
            for consumer in subscription.detach_all():
                consumer.channel.consumer_closed(consumer.id)
                closed += 1
            subscription.close()
        await self.saver.close(save=save)
        if closed:
            _log.info("consumers.closed", topic=str(self.log.name), reason=reason, consumers=closed)

    # ------------------------------------------------------------ for subscriptions

    async def resolve(self, target: SeekTarget) -> tuple[Position, int | None]:
        """Where a seek goes: a mark-delete position, and what a batch behind it has left."""
        match target:
            case SeekToTime(publish_time_ms):
                found = await position_before_time(self.log, publish_time_ms, self.limits)
                self._check_open()
                return found, None
            case SeekToId(message_id):
                self._check_open()
                mark_delete = position_before(message_id, self.log.committed)
                is_entry = mark_delete == (message_id.ledger, message_id.entry - 1)
                mask = mask_of(message_id.ack_set) if is_entry else None
                return mark_delete, mask

    async def remove(self, subscription: Subscription, *, spare: Consumer | None = None) -> None:
        """Delete a subscription and disconnect its consumers; ``spare`` is not told.

        Returns when the deletion is saved; raises Undecided and Unavailable.
        """
        self._disconnect(subscription, spare=spare)
        if subscription.is_durable:
            await self.saver.removal_saved(subscription.name)

    def _disconnect(self, subscription: Subscription, *, spare: Consumer | None = None) -> None:
        """Delete it in memory; what is saved of it follows."""
        if self._by_name.get(subscription.name) is not subscription:
            return  # gone already, and the name may be somebody else's by now
        leaving = subscription.detach_all()
        self.discard(subscription)
        if subscription.is_durable:
            self.saver.removed(subscription.name)
        for consumer in leaving:
            if consumer is not spare:
                consumer.channel.consumer_closed(consumer.id)

    def discard(self, subscription: Subscription) -> None:
        """Forget a subscription that nobody needs any more."""
        if self._by_name.get(subscription.name) is subscription:
            del self._by_name[subscription.name]
        self._ready.pop(subscription, None)
        subscription.close()

    def learned(self) -> None:
        """The borders of ledgers are better known: cursors may move over them."""
        for subscription in self._by_name.values():
            before = subscription.cursor.mark_delete
            subscription.cursor.settle()
            if subscription.is_durable and subscription.cursor.mark_delete != before:
                self.saver.changed(subscription)

    def wake(self, subscription: Subscription) -> None:
        """A subscription may have something to deliver: its first turn is now."""
        if self._is_closed or subscription in self._ready:
            return
        if subscription.deliver_some():
            self._ready[subscription] = None
            if self._pump_task is None:
                self._pump_task = self.spawn(self._pump())

    # ------------------------------------------------------------ turns

    def _advanced(self) -> None:
        """The watermark moved."""
        with self.tail.sharing():
            for subscription in list(self._by_name.values()):
                if subscription.consumers:
                    self.wake(subscription)

    async def _pump(self) -> None:
        """Go round those that have more than one turn's worth, until none has."""
        while self._ready:
            await asyncio.sleep(0)
            for subscription in list(self._ready):
                if subscription in self._ready and not subscription.deliver_some():
                    del self._ready[subscription]
        self._pump_task = None

    def _find(self, name: str) -> Subscription:
        self._check_open()
        subscription = self._by_name.get(name)
        if subscription is None:
            raise Refused(ServerError.SUBSCRIPTION_NOT_FOUND, f"there is no subscription {name}")
        return subscription

    async def _saved(self, subscription: Subscription) -> None:
        if subscription.is_durable:
            await self.saver.saved(subscription)

    def _check_open(self) -> None:
        if self._is_closed:
            raise Unavailable(f"{self.log.name} is closing here")

    def _sweep(self) -> None:
        """Drop readers' subscriptions whose clients did not come back after a seek."""
        now = self.clock()
        for subscription in list(self._by_name.values()):
            if (
                subscription.expires_at is not None
                and now >= subscription.expires_at
                and not subscription.consumers
            ):
                self.discard(subscription)


def _check_text(what: str, text: str, bytes_max: int) -> None:
    if not text:
        raise Refused(ServerError.NOT_ALLOWED_ERROR, f"the {what} is empty")
    if len(text.encode()) > bytes_max:
        raise Refused(ServerError.NOT_ALLOWED_ERROR, f"the {what} is longer than {bytes_max} bytes")


def check_properties(properties: Mapping[str, str], bytes_max: int) -> None:
    """Raise Refused when the properties of a client's object take more than so many bytes."""
    size = sum(len(key.encode()) + len(value.encode()) for key, value in properties.items())
    if size > bytes_max:
        raise Refused(ServerError.NOT_ALLOWED_ERROR, f"properties take more than {bytes_max} bytes")
