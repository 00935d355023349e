"""Shared subscriptions: entries are distributed over the consumers; what one consumer does not acknowledge,
another one gets.

The broker remembers which consumer holds what (a consumer that holds too much gets no more) and how often an
entry was redelivered. The order is not preserved.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from onewriter_broker.dispatch.api import Spawn, SubscriptionType, TaskHandle
from onewriter_broker.dispatch.consumer import Consumer
from onewriter_broker.dispatch.cursor import Cursor, ack_set_of, before
from onewriter_broker.dispatch.delays import Delays, may_be_delayed
from onewriter_broker.dispatch.limits import Limits
from onewriter_broker.dispatch.readers import ReadAhead, read_at_last
from onewriter_broker.log.topic_log.entries import Entry, entries_of
from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_core.ids import Position
from onewriter_core.wire.values import MessageId


class SharedDispatcher:
    """Distributes entries, a few messages at a time, over consumers that have permits.

    A lower ``priority_level`` is served first while a consumer of that level accepts entries.
    """

    kind = SubscriptionType.SHARED
    active: Consumer | None = None

    def __init__(
        self,
        log: TopicLog,
        cursor: Cursor,
        reader: ReadAhead,
        *,
        spawn: Spawn,
        limits: Limits,
        wake: Callable[[], None],
        wall_clock_ms: Callable[[], int],
    ) -> None:
        self.consumers: list[Consumer] = []
        self.unacknowledged = 0
        """Messages that all consumers together hold."""
        self._log = log
        self._cursor = cursor
        self._reader = reader
        self._spawn = spawn
        self._limits = limits
        self._wake = wake
        self._turn = 0
        self._counts: dict[Position, int] = {}
        self._waiting: list[Position] = []  # a heap
        self._queued: set[Position] = set()  # delayed, waiting, being fetched, or fetched
        self._delays = Delays(wall_clock_ms, wake)
        self._fetched: deque[Entry] = deque()
        self._task: TaskHandle | None = None
        reader.read_compacted(is_on=False)  # as in Pulsar: not for Shared subscriptions
        reader.rewind(cursor.mark_delete)

    @property
    def delayed(self) -> int:
        """Entries that wait for their time of delivery."""
        return len(self._delays)

    @property
    def is_blocked(self) -> bool:
        """Whether nothing is delivered until a consumer acknowledges."""
        return self.unacknowledged >= self._limits.subscription_unacknowledged_max

    def add(self, consumer: Consumer) -> None:
        """Add a consumer."""
        self.consumers.append(consumer)

    def remove(self, consumer: Consumer) -> None:
        """Remove a consumer; the others get what it held."""
        self.consumers.remove(consumer)
        self._take_back(consumer, list(consumer.pending))
        if not self.consumers:
            self._reader.release()

    def listens(self, consumer: Consumer) -> None:
        """Nothing is announced to Shared consumers."""

    def close(self) -> None:
        """Stop permanently."""
        self._delays.close()
        if self._task is not None:
            self._task.cancel()

    def redeliver(self, consumer: Consumer, message_ids: Sequence[MessageId]) -> None:
        """Redeliver these entries, or all that the consumer holds. Entries that it does not hold are ignored."""
        if message_ids:
            self._take_back(consumer, [message_id.position for message_id in message_ids])
        else:
            self._take_back(consumer, list(consumer.pending))

    def acknowledged(self, consumer: Consumer, position: Position, remaining: int) -> None:
        """Record that an entry has only ``remaining`` unacknowledged messages, whichever consumer holds it."""
        holder = consumer
        if position not in consumer.pending:
            for other in self.consumers:
                if position in other.pending:
                    holder = other
                    break
        held = holder.pending.get(position)
        if remaining == 0:
            self._counts.pop(position, None)
        if held is None:
            return
        if remaining == 0:
            del holder.pending[position]
        else:
            holder.pending[position] = min(held, remaining)
        self._released(holder, held - min(held, remaining))
        consumer.counters.acknowledged.total += held - min(held, remaining)

    def deliver_some(self) -> bool:
        """Deliver the amount of one round; True if more could follow at once."""
        for position in self._delays.take_due():
            heapq.heappush(self._waiting, position)
        budget = self._limits.delivery_bytes
        while budget > 0:
            if self.is_blocked:
                return False
            consumer, turn = self._next_consumer()
            if consumer is None:
                return False
            size = self._give_again(consumer) or self._give_new(consumer)
            if size == 0:
                return False
            self._turn = turn
            budget -= size
        return True

    # ------------------------------------------------------------ who is next

    def _next_consumer(self) -> tuple[Consumer | None, int]:
        """The next consumer, and where the rotation continues if it accepts something."""
        consumers, count = self.consumers, len(self.consumers)
        best: Consumer | None = None
        turn = self._turn
        for offset in range(count):
            index = (self._turn + offset) % count
            consumer = consumers[index]
            if consumer.can_receive and (
                best is None or consumer.priority_level < best.priority_level
            ):
                best, turn = consumer, index + 1
        return best, turn

    def _hold(self, consumer: Consumer, position: Position, messages: int) -> None:
        consumer.pending[position] = messages
        consumer.unacknowledged += messages
        self.unacknowledged += messages
        if consumer.unacknowledged >= self._limits.consumer_unacknowledged_max:
            consumer.is_blocked = True

    def _released(self, consumer: Consumer, messages: int) -> None:
        was_blocked = self.is_blocked
        consumer.unacknowledged -= messages
        self.unacknowledged -= messages
        if consumer.is_blocked and (
            consumer.unacknowledged <= self._limits.consumer_unacknowledged_max // 2
        ):
            consumer.is_blocked = False
            self._wake()
        elif was_blocked and not self.is_blocked:
            self._wake()

    # ------------------------------------------------------------ new entries

    def _give_new(self, consumer: Consumer) -> int:
        """Give one consumer new entries; returns the bytes (at least 1), or 0."""
        reader, limits = self._reader, self._limits
        while len(self._delays) < limits.delayed_max and reader.fill():
            runs, messages, size = reader.take(
                min(consumer.permits, limits.turn_messages), limits.delivery_bytes
            )
            is_plain = not any(map(may_be_delayed, runs))
            if is_plain and runs[0].position > self._cursor.reach:
                for run in runs:
                    for position, cost in run.costs():
                        self._hold(consumer, position, cost)
                consumer.send_many(runs, messages, size)
                return max(size, 1)
            given = sum(
                self._give_one(consumer, entry)
                for entry in entries_of(runs)
                if is_plain or not self._postpone(entry)
            )
            until = self._cursor.acknowledged_until(runs[-1].last)
            if until is not None:
                reader.skip_to(until)
            if given:
                return given
        return 0

    def _postpone(self, entry: Entry) -> bool:
        """Whether a new entry has to wait for its time."""
        position = entry.position
        if position in self._queued or self._cursor.is_acknowledged(position):
            return False
        if not self._delays.postpone(entry):
            return False
        self._queued.add(position)
        return True

    def _give_one(self, consumer: Consumer, entry: Entry) -> int:
        """Deliver the unacknowledged part of an entry; returns the bytes (at least 1), or 0."""
        position = entry.position
        if position in self._queued:
            return 0
        if self._cursor.is_acknowledged(position):
            self._counts.pop(position, None)
            return 0
        mask = self._cursor.remaining(position)
        messages = entry.messages if mask is None else min(mask.bit_count(), entry.messages)
        self._hold(consumer, position, messages)
        consumer.send(
            entry,
            messages,
            self._counts.get(position, 0),
            () if mask is None else ack_set_of(mask),
        )
        return max(len(entry.payload), 1)

    # ------------------------------------------------------------ again

    def _take_back(self, consumer: Consumer, positions: Iterable[Position]) -> None:
        for position in positions:
            messages = consumer.pending.pop(position, None)
            if messages is None:
                continue
            self._released(consumer, messages)
            self._counts[position] = self._counts.get(position, 0) + 1
            self._queue(position)

    def _queue(self, position: Position) -> None:
        if position not in self._queued:
            self._queued.add(position)
            heapq.heappush(self._waiting, position)

    def _give_again(self, consumer: Consumer) -> int:
        """Redeliver entries to one consumer; returns the bytes, or 0."""
        given = messages = 0
        while messages < self._limits.turn_messages and consumer.can_receive:
            if not self._fetched and not self._fetch():
                break
            entry = self._fetched.popleft()
            self._queued.discard(entry.position)
            size = self._give_one(consumer, entry)
            if size:
                given += size
                messages += entry.messages
        return given

    def _fetch(self) -> bool:
        """Read entries of the next run of positions; False if there are none, or not yet."""
        while self._waiting and self._task is None:
            run = self._next_run()
            if not run:
                return False
            after, bytes_max = before(run[0]), self._limits.read_bytes
            found = self._log.read_tail(after, len(run), bytes_max)
            if found is None:
                self._task = self._spawn(self._read(run))
                return False
            self._take_run(run, entries_of(found))
            if self._fetched:
                return True
        return False

    def _next_run(self) -> list[Position]:
        """The lowest adjacent positions that are to be redelivered."""
        run: list[Position] = []
        while self._waiting and len(run) < self._limits.replay_entries:
            position = self._waiting[0]
            if run and position != (run[-1].ledger, run[-1].entry + 1):
                break
            heapq.heappop(self._waiting)
            if self._cursor.is_acknowledged(position):
                self._queued.discard(position)
                self._counts.pop(position, None)
            else:
                run.append(position)
        return run

    async def _read(self, run: list[Position]) -> None:
        found = await read_at_last(self._log, before(run[0]), len(run), self._limits)
        self._task = None
        self._take_run(run, entries_of(found))
        self._wake()

    def _take_run(self, run: list[Position], entries: list[Entry]) -> None:
        """Handle the result of a read of this run."""
        missing = set(run)
        for entry in entries:
            if entry.position in missing:
                missing.discard(entry.position)
                self._fetched.append(entry)
        end = entries[-1].position if entries else run[-1]
        for position in missing:
            self._queued.discard(position)
            if position > end:
                self._queue(position)
            else:
                # It was trimmed meanwhile: there is nothing left to acknowledge.
                self._counts.pop(position, None)
                self._cursor.acknowledge(position)
