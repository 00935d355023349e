"""Reading a bucket's audit stream: the latest transitions of its topics, and the markers of trimmed ledgers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from onewriter_broker.log.store.api import LogStore
from onewriter_broker.log.store.audit_windows import AuditRecord, newest_records
from onewriter_broker.ticks import Ticks
from onewriter_broker.topic.history.transitions import (
    HISTORY_MAX,
    READY,
    UNANSWERED,
    Transition,
    forced,
    latest,
    parse_transition,
    with_times,
)
from onewriter_core.ids import TopicName
from onewriter_core.topic.model import Purpose

TAIL_RECORDS_MAX: Final = 2_048
"""The newest audit records of a bucket that are searched for transitions."""

RECORDS_PER_TICK: Final = 200
"""Records processed between two yields to the event loop: 1 ms to 2 ms."""

SHARED_SECONDS: Final = 5.0
"""How long a reading of a bucket's audit serves the loads of its topics."""

BUCKETS_MAX: Final = 256
"""Most readings in memory. The oldest one is dropped for a new one."""

_READ_MAX: Final = 4 * HISTORY_MAX
"""Transitions of a topic in memory while an audit is read. Above this number, the oldest are dropped."""

_FENCES: Final = frozenset(purpose.value for purpose in Purpose)


def marker_of(fields: Mapping[str, str]) -> dict[str, str]:
    """The fields of the marker that belongs to an audit record."""
    kind = fields["kind"]
    marker = {"cause": kind}
    if "producer" in fields:
        writer = {name: fields[name] for name in ("epoch", "producer", "subject") if name in fields}
        return marker | {"mode": "exclusive"} | writer
    return marker | {"mode": "none" if kind == Purpose.DEPOSE.value else "shared"}


async def audited_marker(
    store: LogStore, bucket: int, name: TopicName, ledger: int
) -> dict[str, str]:
    """The fields of the marker of one ledger, from the audit. Empty: the audit has no record, or no longer.

    Raises Undecided.
    """
    marker: dict[str, str] = {}

    async def has_marker(records: Sequence[AuditRecord]) -> bool:
        for _, fields in records:
            is_of = fields.get("topic") == str(name.base) and fields.get("ledger") == str(ledger)
            if is_of and fields.get("kind") in _FENCES:
                marker.update(marker_of(fields))
                return True
        return False

    await newest_records(store, bucket, has_marker)
    return marker


_Recorded = tuple[str, Transition]
"""A broker, and a transition that it recorded."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """The transitions in a bucket's audit by topic, oldest first, each with its broker."""

    at: float
    transitions: Mapping[str, Sequence[_Recorded]]


class AuditTail:
    """The latest transitions of topics, read from the audit streams. ``now`` is a monotonic clock in seconds."""

    def __init__(self, store: LogStore, now: Callable[[], float]) -> None:
        self._store = store
        self._now = now
        self._readings: dict[int, _Reading] = {}
        self._reading = asyncio.Lock()

    async def before(
        self, bucket: int, name: TopicName, incarnation: str, since_ms: int
    ) -> list[Transition]:
        """A topic's latest transitions, without those that this process wrote from ``since_ms`` on.

        Raises Undecided.
        """
        async with (
            self._reading
        ):  # one at a time, because it is not urgent and appends use the same store
            reading = self._readings.get(bucket)
            if reading is None or self._now() - reading.at > SHARED_SECONDS:
                reading = await self._read(bucket)
        transitions = reading.transitions.get(str(name), ())
        return latest(
            transition
            for broker, transition in transitions
            if broker != incarnation or transition.at_ms < since_ms
        )

    async def _read(self, bucket: int) -> _Reading:
        at = self._now()
        records = await self._newest(bucket)
        reading = _Reading(at, await _transitions_of(records))
        while len(self._readings) >= BUCKETS_MAX:
            del self._readings[next(iter(self._readings))]
        self._readings[bucket] = reading
        # A reading takes memory in proportion to the topics of the bucket, so it is dropped after its use.
        asyncio.get_running_loop().call_later(SHARED_SECONDS, self._forget, bucket, reading)
        return reading

    def _forget(self, bucket: int, reading: _Reading) -> None:
        if self._readings.get(bucket) is reading:
            del self._readings[bucket]

    async def _newest(self, bucket: int) -> list[Mapping[str, str]]:
        """The newest records of a bucket, oldest first."""
        found = await self._store.read_audit(bucket, count=TAIL_RECORDS_MAX, reverse=True)
        return [fields for _, fields in reversed(found)]


async def _transitions_of(
    records: Sequence[Mapping[str, str]],
) -> dict[str, list[_Recorded]]:
    by_topic: dict[str, list[_Recorded]] = {}
    ticks = Ticks(RECORDS_PER_TICK)
    for fields in records:
        await ticks.step()
        transitions = by_topic.setdefault(fields.get("topic", ""), [])
        if fields.get("kind") == READY:
            transitions[:] = [(broker, with_times(each, fields)) for broker, each in transitions]
            continue
        if fields.get("kind") == UNANSWERED and fields.get("epoch", "").isdecimal():
            epoch = int(fields["epoch"])
            transitions[:] = [(broker, forced(each, epoch)) for broker, each in transitions]
            continue
        found = parse_transition(fields)
        if found is not None:
            transitions.append((fields.get("broker", ""), found))
            if len(transitions) > _READ_MAX:
                _drop_oldest(transitions)
    return by_topic


def _drop_oldest(recorded: list[_Recorded]) -> None:
    kept = {id(each) for each in latest(each for _, each in recorded)}
    recorded[:] = [(broker, each) for broker, each in recorded if id(each) in kept]
