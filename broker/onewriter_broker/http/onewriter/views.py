"""A topic in the format of onewriter's own API: the writer, the queue, the transitions.

Pure translation to JSON of what the broker knows or, for a topic that is not loaded, of the log's state in
the store. Every list is bounded, and the number of omitted items is part of the response.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, assert_never

from onewriter_broker.auth.refusals import RefusedRight
from onewriter_broker.http.pulsar.stats import MODE_NAMES, iso
from onewriter_broker.log.store.api import Observation, ShardState
from onewriter_broker.log.topic_log.losses import Loss, RangeAtRisk
from onewriter_broker.quotas.problems import QuotaProblem
from onewriter_broker.topic.history.tenures import tenure_of
from onewriter_broker.topic.history.transitions import Transition, Writer
from onewriter_broker.topic.registry.catalog import CatalogEntry
from onewriter_broker.topic.registry.loaded_topic import LoadedTopic
from onewriter_broker.topic.runner import TopicRunner
from onewriter_core.ids import Identity
from onewriter_core.topic.lookups import exclusive_owner
from onewriter_core.topic.model import (
    WHOLE,
    Held,
    Partition,
    ProducerGroup,
    Reserved,
    Shared,
    Tenure,
    Topic,
    Vacant,
)
from onewriter_core.topic.waiters import in_order

Json = dict[str, Any]

PARTITIONS_SHOWN_MAX: Final = 64
WAITERS_SHOWN_MAX: Final = 100
HOLDERS_SHOWN_MAX: Final = 64
SHARED_SHOWN_MAX: Final = 100


def summary(name: str, entry: CatalogEntry, *, is_declared: bool, owner: Json | None) -> Json:
    """The part of a topic that every list shows."""
    return {
        "name": name,
        "partitions": entry.partitions,
        "undivided": entry.is_undivided,
        "declared": is_declared,
        "declaredBy": entry.declared_by or None,
        "owner": owner,
    }


def loaded_summary(topic: LoadedTopic) -> Json:
    """The part of a list that is only known for topics that this broker serves."""
    state = topic.runner.topic
    return {
        "loaded": True,
        "epoch": state.epoch,
        "state": state_of(state),
        "holder": _first_holder(topic.runner),
        "waiting": len(state.queue),
    }


def stored_summary(states: Sequence[Mapping[str, str]]) -> Json:
    """The same for a topic that is not loaded, from its logs' states."""
    return {
        "loaded": False,
        "epoch": max((_epoch(state) for state in states), default=0),
        "state": "Idle",
        "holder": None,
        "waiting": 0,
    }


def refusal(found: RefusedRight) -> Json:
    """An identity that lacks a right to a topic."""
    return {
        "subject": found.subject or None,
        "podUID": found.pod_uid or None,
        "right": found.right.value,
        "count": found.count,
        "last": iso(found.last_ms),
    }


def quota_problem(found: QuotaProblem) -> Json:
    """A quota that is used up. ``holds``: messages of writers wait, too."""
    return {"reason": found.reason, "since": iso(found.since_ms), "holds": found.holds}


def state_of(topic: Topic) -> str:
    """The state of the topic in one word; for a partitioned topic, that of its first partition."""
    if topic.pending_fence is not None and topic.pending_fence.group is not None:
        return "ChangingHands"
    return _state_word(topic.partitions[0]) if topic.partitions else "Idle"


def _state_word(partition: Partition) -> str:
    match partition.ownership:
        case Held():
            return "Held"
        case Shared():
            return "Shared"
        case Reserved():
            return "Reserved"
        case Vacant():
            return "Vacant"
        case _:
            assert_never(partition.ownership)


def loaded_status(topic: LoadedTopic, now: float, wall_ms: int) -> Json:
    """The status of a topic that this broker serves."""
    runner = topic.runner
    state = runner.topic
    waiters = in_order(state.queue, state)
    partitions = state.partitions
    return loaded_summary(topic) | {
        "holders": [holder(runner, each) for each in state.holders[:HOLDERS_SHOWN_MAX]],
        "holdersOmitted": max(0, len(state.holders) - HOLDERS_SHOWN_MAX),
        "sharedProducers": _shared(runner),
        "waiters": [
            waiter(runner, each, place, wall_ms)
            for place, each in enumerate(waiters[:WAITERS_SHOWN_MAX], start=1)
        ],
        "waitersOmitted": max(0, len(waiters) - WAITERS_SHOWN_MAX),
        "promotion": state.policy.value,
        "claimInProgress": _claim(state),
        "slots": [
            _partition(runner, partition, now) for partition in partitions[:PARTITIONS_SHOWN_MAX]
        ],
        "slotsOmitted": max(0, len(partitions) - PARTITIONS_SHOWN_MAX),
        "durability": runner.logs[partitions[0].number].durability.value if partitions else None,
        "transitions": [transition(each) for each in runner.history.transitions],
    }


def stored_status(states: Mapping[int, Mapping[str, str]]) -> Json:
    """The status of a topic that is not loaded, from the store."""
    shown = list(states.items())[:PARTITIONS_SHOWN_MAX]
    return stored_summary(list(states.values())) | {
        "holders": [],
        "waiters": [],
        "slots": [
            {
                "partition": None if number == WHOLE else number,
                "epoch": _epoch(state),
                "ledger": int(state.get("ledger", "0")),
                "state": "Idle",
                "open": False,
                "holder": None,
                "tenure": _tenure(tenure_of(state)),
            }
            for number, state in shown
        ],
        "slotsOmitted": len(states) - len(shown),
        "transitions": [],
    }


def _epoch(state: Mapping[str, str]) -> int:
    return int(state.get("epoch", "0"))


def holder(runner: TopicRunner, group: ProducerGroup) -> Json:
    """An exclusive writer."""
    first = group.partitions[0] if group.partitions else WHOLE
    partition = runner.topic.partition(first)
    granted = runner.logs[first].state.get("since") if first in runner.logs else None
    connected = [
        runner.producers[member.registration].since_ms
        for member in group.members
        if member.registration in runner.producers
    ]
    return _group(group) | {
        "epoch": None if partition is None else partition.epoch,
        "since": iso(int(granted)) if granted else None,
        "connectedSince": iso(min(connected)) if connected else None,
        "partitions": [number for number in group.partitions[:PARTITIONS_SHOWN_MAX] if number >= 0],
    }


def waiter(runner: TopicRunner, group: ProducerGroup, place: int, wall_ms: int) -> Json:
    """A waiter in the queue; ``place`` 1 is the first."""
    times = [
        runner.producers[member.registration].since_ms
        for member in group.members
        if member.registration in runner.producers
    ]
    since = min(times) if times else None
    return _group(group) | {
        "place": place,
        "waitingSince": None if since is None else iso(since),
        "waitingSeconds": None if since is None else max(0.0, (wall_ms - since) / 1000),
    }


def _group(group: ProducerGroup) -> Json:
    return _identified(group.identity) | {
        "producerName": group.producer_name,
        "claim": group.admitted_by or None,
        "address": group.address,
        "host": group.host or None,
        "mode": MODE_NAMES[group.mode],
        "priority": group.priority,
        "arrival": group.arrival,
    }


def _first_holder(runner: TopicRunner) -> Json | None:
    holders = runner.topic.holders
    return holder(runner, holders[0]) if holders else None


def _shared(runner: TopicRunner) -> list[Json]:
    found: list[Json] = []
    for partition in runner.topic.partitions:
        if isinstance(partition.ownership, Shared):
            found += [
                _identified(each.identity)
                | {
                    "producerName": each.producer_name,
                    "partition": None if partition.number == WHOLE else partition.number,
                }
                for each in partition.ownership.producers[: SHARED_SHOWN_MAX - len(found)]
            ]
    return found


def _claim(topic: Topic) -> Json | None:
    pending = topic.pending_fence
    if pending is None:
        return None
    return {
        "purpose": pending.purpose.value,
        "cause": pending.cause.value,
        "producerName": exclusive_owner(topic, pending.partitions) if pending.group else None,
    }


def _partition(runner: TopicRunner, partition: Partition, now: float) -> Json:
    tenure: Tenure | None = None
    holder_name: str | None = None
    reserved: float | None = None
    match partition.ownership:
        case Held(kept, _):
            holder_name = kept.producer_name
        case Reserved(kept, until):
            tenure, reserved = kept, max(0.0, until - now)
        case Vacant(maybe):
            tenure = maybe
        case Shared():
            pass
        case _:
            assert_never(partition.ownership)
    topic_log, absence = runner.logs[partition.number], partition.absence
    return {
        "partition": None if partition.number == WHOLE else partition.number,
        "epoch": partition.epoch,
        "ledger": partition.ledger,
        "state": _state_word(partition),
        "open": partition.is_open and topic_log.is_writable,
        "holder": holder_name,
        "tenure": _tenure(tenure),
        "reservedSeconds": reserved,
        "leaderlessSeconds": None if absence is None else absence.seconds(now),
        "lastPosition": str(topic_log.committed),
        "entries": topic_log.ledger_entries,
        "bytes": topic_log.ledger_bytes,
    }


def _tenure(tenure: Tenure | None) -> Json | None:
    """A grant that its holder could still resume."""
    if tenure is None:
        return None
    return _identified(tenure.identity) | {
        "epoch": tenure.epoch,
        "producerName": tenure.producer_name,
        "claim": tenure.admitted_by or None,
    }


def transition(found: Transition) -> Json:
    """One transition, as the broker remembers it."""
    return {
        "at": iso(found.at_ms),
        "kind": found.kind,
        "cause": found.cause,
        "oldEpoch": found.old_epoch,
        "epoch": found.epoch,
        "ledger": found.ledger,
        "holder": _person(found.holder),
        "previous": _person(found.previous),
        "leaderlessMs": found.leaderless_ms,
        "detectionMs": found.detection_ms,
        "handoverMs": found.handover_ms,
        "outageMs": found.outage_ms,
        "firstMessageMs": found.first_message_ms,
        "partitions": list(found.partitions[:PARTITIONS_SHOWN_MAX]),
    }


def _person(person: Writer | None) -> Json | None:
    if person is None:
        return None
    return _identified(person.identity) | {
        "producerName": person.producer_name,
        "claim": person.claim or None,
        "address": person.address or None,
        "epoch": person.epoch,
    }


def _identified(identity: Identity) -> Json:
    """An identity, and its pod."""
    return {
        "identity": str(identity),
        "subject": identity.subject or None,
        "podUID": identity.pod_uid or None,
        "pod": identity.pod or None,
        "node": identity.node or None,
    }


def loss(found: Loss) -> Json:
    """Acknowledged entries that the store no longer has."""
    return {
        "topic": str(found.topic),
        "after": str(found.after),
        "last": str(found.last),
        "entries": found.entries,
    }


def at_risk(found: RangeAtRisk) -> Json:
    """Positions whose entries were perhaps acknowledged and lost."""
    return {
        "topic": str(found.topic),
        "after": str(found.after),
        "ledger": found.ledger,
        "generation": found.generation,
        "durability": found.durability.value,
    }


def shard(state: ShardState, failovers: int, *, step_bytes: int) -> Json:
    """One primary of a cluster; sizes are rounded to ``step_bytes``, so that a report seldom changes."""
    seen = state.seen

    def rounded(size: int) -> int:
        return round(size / step_bytes) * step_bytes

    return {
        "primary": state.address,
        "buckets": len(state.buckets or ()),
        "reachable": seen is not None,
        "reason": state.problem,
        "replicas": None if seen is None else seen.replicas,
        "replicationLagBytes": None if seen is None else rounded(seen.replication_lag_bytes),
        "memoryBytesUsed": None if seen is None else rounded(seen.memory_bytes_used),
        "memoryBytesMax": None if seen is None else seen.memory_bytes_max or None,
        "failovers": failovers,
        "faults": [] if seen is None else list(seen.faults),
    }


def store(seen: Observation) -> Json:
    """What the store is and holds."""
    return {
        "dataset": seen.replid,
        "primary": seen.is_primary,
        "replicas": seen.replicas,
        "memoryBytesUsed": seen.memory_bytes_used,
        "memoryBytesMax": seen.memory_bytes_max or None,
    }
