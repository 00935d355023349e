"""Records in a log's state whether the topic's holder is connected, for the next broker.

If the field ``present`` is set, the next broker keeps a resume window. It derives from the time of the last
change how long the topic had no writer. Changes are recorded by the wall clock, as best effort. A killed broker
records nothing, and the next broker then uses its last heartbeat (membership.py). A grant needs no record, because
its fence writes these fields. A missing record of a departure only causes an unneeded resume window. If the record of
a return is missing, the holder gets no window.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_broker.ownership.acquisition import Holding
from onewriter_broker.ownership.member_observer import CLOCK_MS_MAX
from onewriter_broker.topic.dependencies import TopicDependencies
from onewriter_broker.topic.history.background import Guarded, save_presence
from onewriter_broker.topic.history.tenures import (
    ABSENT_CAUSE,
    ABSENT_SINCE,
    HEARD_AT,
    PRESENT,
    PRESENT_SINCE,
)
from onewriter_core.topic.model import Absence, Ending, Partition, Shared, Topic

UNSEEN_MS_MAX = 1_000
"""Brokers send two heartbeats per second. A record this much later than the last heartbeat is from another broker."""

RECENT_BLOCK_SECONDS = 3.0
"""A holder whose last block is at most this much older than its broker's last heartbeat may have been silent since
that block. A holder whose last block is older was idle, or the broker would have found it silent."""


def note(
    topic: Topic,
    logs: Mapping[int, TopicLog],
    dependencies: TopicDependencies,
    guarded: Guarded,
    bucket: int,
) -> None:
    """Record changes since the last record. ``logs`` has a log for every partition."""
    for partition in topic.partitions:
        topic_log = logs[partition.number]
        is_present = _is_held(topic, partition)
        present = "1" if is_present else "0"
        # A holder that resumed after a move is recorded as present, with the time when the former broker gave it away.
        is_recorded = topic_log.state.get(PRESENT, "0") == present
        is_outdated = is_present and topic_log.state.get(ABSENT_SINCE, "") != ""
        if topic_log.is_writable and (not is_recorded or is_outdated):
            absence = partition.absence or Absence()
            heard_at = None if absence.ending is None else absence.ending.heard_at
            since = "" if is_present else _wall_ms(absence.since, dependencies)
            fields = {
                PRESENT: present,
                PRESENT_SINCE: str(dependencies.wall_ms()) if is_present else "",
                ABSENT_SINCE: since,
                ABSENT_CAUSE: f"{since} {absence.cause.value}" if since else "",
                HEARD_AT: "" if is_present else _wall_ms(heard_at, dependencies),
            }
            topic_log.note_state(fields)
            dependencies.presence.save(bucket, topic_log, fields, guarded)


async def note_leaving(
    topic: Topic, logs: Mapping[int, TopicLog], dependencies: TopicDependencies, bucket: int
) -> None:
    """Record that the holders cannot write any more, because the topic moves to another broker."""
    for partition in topic.partitions:
        topic_log = logs[partition.number]
        fields = dependencies.presence.take(bucket, topic_log)
        if topic_log.is_writable and _is_held(topic, partition):
            fields |= {ABSENT_SINCE: str(dependencies.wall_ms())}
        if fields:
            await save_presence(topic_log, fields)


def _wall_ms(moment: float | None, dependencies: TopicDependencies) -> str:
    """A moment of this broker's clock as milliseconds of the wall clock. Empty: unknown."""
    if moment is None:
        return ""
    elapsed_seconds = dependencies.now() - moment
    return str(dependencies.wall_ms() - round(elapsed_seconds * 1000))


@dataclass(frozen=True, slots=True)
class FormerClock:
    """The wall clock of the bucket's former owner, as this broker knows it.

    ``wall_ms``: the present time on this broker's wall clock. ``ahead_ms``: by how much the former owner's clock was ahead at
    its last heartbeat. ``last_seen_ms``: the time of that heartbeat on that clock; None if unknown.
    """

    wall_ms: int
    ahead_ms: int = 0
    last_seen_ms: int | None = None

    @classmethod
    def of(cls, holding: Holding | None, wall_ms: int) -> FormerClock:
        """What is known by the acquisition of the bucket. None: the bucket was lost meanwhile."""
        if holding is None:
            return cls(wall_ms)
        return cls(wall_ms, holding.clock_ahead_ms, holding.last_seen_ms)

    def own_ms(self, time_ms: int) -> int:
        """A time that the former owner recorded, on this broker's clock.

        The former owner may have recorded it while its clock was right, or while it was wrong. So the recorded time and the
        corrected one are both possible. The result is the later of those that are not in the future.
        """
        candidates = (time_ms, time_ms - self.ahead_ms)
        past = [each for each in candidates if each <= self.wall_ms + CLOCK_MS_MAX]
        return max(past, default=time_ms)


def absent_since(state: Mapping[str, str], now: float, clock: FormerClock) -> float | None:
    """Since when a log has had no writer, on the clock of ``now``. None: unknown.

    A holder that was present at the last record is taken as present until the former owner's last heartbeat.
    """
    absent_since, present_since = state.get(ABSENT_SINCE, ""), state.get(PRESENT_SINCE, "")
    if absent_since:
        since_ms = clock.own_ms(int(absent_since))
    elif present_since and clock.last_seen_ms is not None:
        seen_ms, present_ms = clock.last_seen_ms - clock.ahead_ms, clock.own_ms(int(present_since))
        if seen_ms + UNSEEN_MS_MAX < present_ms:
            return None
        since_ms = max(seen_ms, present_ms)
    else:
        return None
    return now - max(0, clock.wall_ms - since_ms) / 1000


def ending_of(
    state: Mapping[str, str],
    vacant_since: float | None,
    last_block_ms: int | None,
    now: float,
    clock: FormerClock,
) -> Ending | None:
    """The end of the right of the last writer of a log that another broker served, on the clock of ``now``.

    None: there was no writer, or it is unknown. ``now`` is when this broker fenced the log. ``vacant_since`` is from
    ``absent_since``. A time in the future counts as now.
    """

    def moment(time_ms: int) -> float:
        return now - max(0, clock.wall_ms - clock.own_ms(time_ms)) / 1000

    if state.get(PRESENT) != "1":  # it had left, and the former broker recorded when
        heard = state.get(HEARD_AT, "")
        found = moment(int(heard)) if heard else None
        return None if vacant_since is None else Ending(vacant_since, found)
    if state.get(ABSENT_SINCE):  # it was alive when the former broker gave the topic away
        return Ending(now, vacant_since)
    heard_at, present_since = vacant_since, state.get(PRESENT_SINCE, "")
    if (
        last_block_ms is not None
        and present_since
        and clock.own_ms(last_block_ms) >= clock.own_ms(int(present_since))
    ):
        wrote_at = moment(last_block_ms)
        if heard_at is None or wrote_at >= heard_at - RECENT_BLOCK_SECONDS:
            heard_at = wrote_at
    return Ending(now, heard_at)


def _is_held(topic: Topic, partition: Partition) -> bool:
    return any(
        partition.number in holder.partitions for holder in topic.holders
    ) and not isinstance(partition.ownership, Shared)
