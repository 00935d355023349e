"""Topic statistics in the format of Pulsar's admin API, as far as the broker knows them.

Unknown fields are left out. Clients read an absent number as 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

from onewriter_broker.log.store.compacted import view_of
from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_broker.log.topic_log.termination import terminated_at
from onewriter_broker.topic.compaction.schedule import CompactionStatus
from onewriter_broker.topic.producers.producer import Producer
from onewriter_broker.topic.registry.loaded_topic import LoadedTopic
from onewriter_core.topic.model import AccessMode

MODE_NAMES: Final = {
    AccessMode.SHARED: "Shared",
    AccessMode.EXCLUSIVE: "Exclusive",
    AccessMode.WAIT_FOR_EXCLUSIVE: "WaitForExclusive",
    AccessMode.EXCLUSIVE_WITH_FENCING: "ExclusiveWithFencing",
}

PRODUCERS_SHOWN_MAX: Final = 1_000
"""Publishers listed for one topic; ``publishersOmitted`` counts the others."""

_SUMMED: Final = (
    "msgRateIn",
    "msgThroughputIn",
    "msgRateOut",
    "msgThroughputOut",
    "bytesInCounter",
    "msgInCounter",
    "bytesOutCounter",
    "msgOutCounter",
    "storageSize",
    "waitingPublishers",
)


def iso(milliseconds: int) -> str:
    """A wall-clock time as Pulsar writes it."""
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def producers_of(topic: LoadedTopic, partition: int) -> list[Producer]:
    """Connected producers of one log, waiting ones included."""
    return [p for p in topic.runner.producers.values() if p.request.partition == partition]


def consumers_of(topic: LoadedTopic, partition: int) -> int:
    """The number of connected consumers of one log."""
    subscriptions = topic.subscriptions[partition]
    found = (subscriptions.get(name) for name in subscriptions.names())
    return sum(len(subscription.consumers) for subscription in found if subscription is not None)


def topic_stats(topic: LoadedTopic, partition: int, now: float, owner: str) -> dict[str, object]:
    """The statistics of one log. Incoming rates are averages since the present ledger was opened."""
    topic_log = topic.runner.logs[partition]
    state = topic.runner.topic.partition(partition)
    producers = producers_of(topic, partition)
    granted = [producer for producer in producers if producer.is_granted]
    subscriptions = topic.subscriptions[partition].stats(now)
    seconds = max(now - topic_log.opened_at, 1.0)
    entries, size = topic_log.ledger_entries, topic_log.ledger_bytes
    return {
        "msgRateIn": entries / seconds,
        "msgThroughputIn": size / seconds,
        "msgRateOut": _sum(subscriptions, "msgRateOut"),
        "msgThroughputOut": _sum(subscriptions, "msgThroughputOut"),
        "bytesInCounter": topic_log.bytes_in,
        "msgInCounter": topic_log.messages_in,
        "bytesOutCounter": _sum(subscriptions, "bytesOutCounter"),
        "msgOutCounter": _sum(subscriptions, "msgOutCounter"),
        "averageMsgSize": size / entries if entries else 0.0,
        "storageSize": size,
        "publishers": [publisher(producer) for producer in granted[:PRODUCERS_SHOWN_MAX]],
        "publishersOmitted": max(0, len(granted) - PRODUCERS_SHOWN_MAX),
        "waitingPublishers": len(producers) - len(granted),
        "subscriptions": subscriptions,
        "replication": {},
        "deduplicationStatus": "Enabled" if topic.runner.deduplications.is_on else "Disabled",
        "topicEpoch": 0 if state is None else state.epoch,
        "ownerBroker": owner,
    }


def publisher(producer: Producer) -> dict[str, object]:
    """One active producer."""
    request = producer.request
    return {
        "accessMode": MODE_NAMES[request.mode],
        "producerId": producer.producer_id,
        "producerName": producer.name,
        "address": f"/{request.address}",
        "connectedSince": iso(producer.since_ms),
        "clientVersion": producer.channel.client_version,
        "supportsPartialProducer": False,
        "metadata": dict(producer.properties),
    }


def summed(parts: Iterable[dict[str, object]]) -> dict[str, object]:
    """The statistics of a partitioned topic: sums, and subscriptions by name."""
    total: dict[str, object] = dict.fromkeys(_SUMMED, 0)
    publishers: list[object] = []
    subscriptions: dict[str, dict[str, object]] = {}
    for part in parts:
        for name in _SUMMED:
            total[name] = _number(total[name]) + _number(part[name])
        shown = part["publishers"]
        if isinstance(shown, list):
            publishers += shown[: PRODUCERS_SHOWN_MAX - len(publishers)]
        found = part["subscriptions"]
        if isinstance(found, dict):
            for name, stats in found.items():
                _add(subscriptions.setdefault(name, {}), stats)
    return total | {"publishers": publishers, "subscriptions": subscriptions, "replication": {}}


def internal_stats(topic_log: TopicLog, now: float, wall_ms: int) -> dict[str, object]:
    """The present ledger of one log. Earlier ledgers are in the store; ``onewriter verify`` reads them."""
    opened_ms = wall_ms - int((now - topic_log.opened_at) * 1000)
    pending = sum(len(block.entries) for block in topic_log.undecided) + len(topic_log.waiting)
    committed = topic_log.committed
    return {
        "entriesAddedCounter": topic_log.entries_in,
        "numberOfEntries": topic_log.ledger_entries,
        "totalSize": topic_log.ledger_bytes,
        "currentLedgerEntries": topic_log.ledger_entries,
        "currentLedgerSize": topic_log.ledger_bytes,
        "lastLedgerCreatedTimestamp": iso(opened_ms),
        "pendingAddEntriesCount": pending,
        "lastConfirmedEntry": f"{committed.ledger}:{committed.entry}",
        "state": _ledger_state(topic_log),
        "ledgers": [
            {
                "ledgerId": topic_log.ledger,
                "entries": topic_log.ledger_entries,
                "size": topic_log.ledger_bytes,
                "offloaded": False,
                "underReplicated": False,
            }
        ],
        "cursors": {},
        "schemaLedgers": [],
    }


def compacted_ledger(topic_log: TopicLog) -> dict[str, object]:
    """The compacted view in a log's internal statistics, under the ledger that it reaches."""
    view = view_of(topic_log.state)
    ledger, entries, size = -1, -1, -1
    if view is not None:
        ledger, entries, size = view.horizon.ledger, view.entries, view.size
    return {
        "compactedLedger": {
            "ledgerId": ledger,
            "entries": entries,
            "size": size,
            "offloaded": False,
            "underReplicated": False,
        }
    }


def compaction_stats(status: CompactionStatus) -> dict[str, object]:
    """The compactions in a log's statistics, since this broker serves it."""
    return {
        "lastCompactionRemovedEventCount": status.removed,
        "lastCompactionSucceedTimestamp": status.succeeded_ms,
        "lastCompactionFailedTimestamp": status.failed_ms,
        "lastCompactionDurationTimeInMills": status.duration_ms,
    }


def _ledger_state(topic_log: TopicLog) -> str:
    if terminated_at(topic_log.state) is not None:
        return "Terminated"
    return "LedgerOpened" if topic_log.is_writable else "ClosedLedger"


def _sum(subscriptions: Mapping[str, Mapping[str, object]], name: str) -> float:
    return sum(_number(stats.get(name, 0)) for stats in subscriptions.values())


def _number(value: object) -> float:
    return value if isinstance(value, int | float) else 0


def _add(total: dict[str, object], part: Mapping[str, object]) -> None:
    """Add numbers and concatenate lists; of other values, keep the first one."""
    for name, value in part.items():
        known = total.get(name)
        if known is None or isinstance(value, bool):
            total[name] = value
        elif isinstance(known, int | float) and isinstance(value, int | float):
            total[name] = known + value
        elif isinstance(known, list) and isinstance(value, list):
            total[name] = [*known, *value]
