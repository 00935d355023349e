"""Parses the brokers' audit records into rows for SQL: one row for each log that a fence, a loss or a grant
affects.

The records come from ``Broker.audit`` or from the table ``audit``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from onewriter_core.ids import InvalidTopicName, Position, TopicName
from onewriter_core.publishers import CAPABILITY, PUBLISHER
from onewriter_core.topic.model import WHOLE, Purpose

FENCES: Final = frozenset(each.value for each in Purpose)
"""The kinds of records that a fence writes. They contain the ends of the previous ledgers (``previous``)."""

_HANDS: Final = frozenset({Purpose.GRANT.value, Purpose.DEPOSE.value})

_WAITER: Final = [("priority", pa.int64()), ("arrival", pa.int64()), ("load", pa.int64())]

RECORDS: Final = pa.schema(
    [
        ("bucket", pa.int64()),
        ("ordinal", pa.int64()),
        ("id", pa.string()),
        ("kind", pa.string()),
        ("log", pa.string()),
        ("topic", pa.string()),
        ("partitions", pa.int64()),
        ("is_first", pa.bool_()),
        ("changes_hands", pa.bool_()),
        ("ledger", pa.int64()),
        ("epoch", pa.int64()),
        ("old_epoch", pa.int64()),
        ("broker", pa.string()),
        ("time_ms", pa.int64()),
        ("cause", pa.string()),
        ("mode", pa.string()),
        ("producer", pa.string()),
        ("subject", pa.string()),
        ("fence_kind", pa.string()),
        ("incarnation", pa.string()),
        ("policy", pa.string()),
        ("host", pa.string()),
        ("leaderless_ms", pa.int64()),
        ("promoted", pa.struct(_WAITER)),
        ("waiting", pa.struct([*_WAITER, ("fits", pa.bool_())])),
        ("after_ledger", pa.int64()),
        ("after_entry", pa.int64()),
        ("last_ledger", pa.int64()),
        ("last_entry", pa.int64()),
        ("app", pa.string()),
        ("pod_uid", pa.string()),
        ("granted_to", pa.string()),
        ("is_passed_on", pa.bool_()),
    ]
)
"""``kind``: ``fenced`` for a fence (``fence_kind`` is its kind in FENCES), otherwise ``resumed``, ``loss``,
``forget``, ``publisher`` or ``ready``. ``after_*`` and ``last_*``: the last acknowledged position of a fence
(``last_*``), or the range of a loss.
"""


@dataclass(slots=True)
class Records:
    """The rows so far. ``unreadable``: the ids of records that lack a required field."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    count: int = 0

    def add(self, bucket: int, records: Iterable[Mapping[str, Any]]) -> None:
        """Add the next records of a bucket, oldest first."""
        for record in records:
            self.count += 1
            try:
                for row in _rows(record):
                    self.rows.append(row | {"bucket": bucket, "ordinal": self.count})
            except (KeyError, TypeError, AttributeError, ValueError, InvalidTopicName):
                self.unreadable.append(f"{record.get('id', '?')}")

    def table(self) -> pa.Table:
        """The rows as RECORDS."""
        return pa.Table.from_pylist(self.rows, RECORDS)


def _rows(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    kind = record.get("kind", "")
    common = {"id": str(record["id"]), "time_ms": _time(record)}
    if kind == "loss":
        after, last = Position.parse(record["after"]), Position.parse(record["last"])
        return [common | {"kind": "loss", "log": record["log"]} | _span(after, last)]
    if kind == "forget":
        return [common | {"kind": "forget", "log": record["log"], "app": record["app"]}]
    if kind == PUBLISHER:
        return [
            common
            | {"kind": kind, "log": record["log"], "app": record["app"]}
            | {"epoch": int(record["epoch"]), "broker": record["broker"]}
            | {"subject": record.get("subject", ""), "pod_uid": record.get("podUID", "")}
            | {"granted_to": record["holder"], "is_passed_on": record["right"] == CAPABILITY}
        ]
    if kind == "ready":
        return [
            common
            | {"kind": "ready", "topic": str(TopicName.parse(record["topic"]))}
            | {"ledger": int(record["ledger"])}
            | {"leaderless_ms": _number(record.get("leaderlessMs"))}
        ]
    if kind not in FENCES:
        return []
    topic = TopicName.parse(record["topic"])
    known = {
        "topic": str(topic),
        "ledger": int(record["ledger"]),
        "epoch": int(record["epoch"]),
        "producer": record.get("producer", ""),
    }
    if "previous" not in record:
        return [common | known | {"kind": "resumed", "log": str(topic)}]
    return _fence(record, topic, common | known)


def _fence(
    record: Mapping[str, Any], topic: TopicName, known: Mapping[str, Any]
) -> list[dict[str, Any]]:
    partitions = str(record["partitions"])
    numbers = [int(number) for number in partitions.split(",")] if partitions else [WHOLE]
    said = {
        "kind": "fenced",
        "partitions": len(numbers),
        "changes_hands": record["kind"] in _HANDS,
        "cause": record.get("cause", ""),
        "old_epoch": int(record["oldEpoch"]),
        "broker": record["broker"],
        "mode": record.get("mode", ""),
        "subject": record.get("subject", ""),
        "fence_kind": record["kind"],
        "incarnation": record.get("incarnation", ""),
        "policy": record.get("policy", ""),
        "host": record.get("host") or record.get("node") or _pod(record),
        "leaderless_ms": _number(record.get("leaderlessMs")),
        "promoted": None,
        "waiting": None,
    }
    if "arrival" in record:
        said["promoted"] = _waiter(record)
    if "nextWaiter" in record:
        waiter = record["nextWaiter"]
        said["waiting"] = _waiter(waiter) | {"fits": _fits(waiter.get("slots"), numbers)}
    rows = []
    for index, number in enumerate(numbers):
        log = str(topic if number == WHOLE else topic.with_partition(number))
        summary = record["previous"].get(str(number))
        ends = _span(None, Position.parse(summary[0]) if summary else None)
        rows.append({**known, **said, **ends, "log": log, "is_first": index == 0})
    return rows


def _waiter(said: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "priority": int(said.get("priority", 0)),
        "arrival": int(said["arrival"]),
        "load": _number(said.get("load")),
    }


def _fits(wanted: Sequence[int] | None, granted: Sequence[int]) -> bool:
    """Whether a waiter could have received the grant: a waiter for one partition may wait for another one."""
    if wanted is None:
        return granted[0] < 0
    return set(wanted) <= set(granted)


def _pod(record: Mapping[str, Any]) -> str:
    return str(record.get("pod") or record.get("address") or "").rsplit(":", 1)[0]


def _span(after: Position | None, last: Position | None) -> dict[str, Any]:
    return {
        "after_ledger": None if after is None else after.ledger,
        "after_entry": None if after is None else after.entry,
        "last_ledger": None if last is None else last.ledger,
        "last_entry": None if last is None else last.entry,
    }


def _number(value: Any) -> int | None:
    return None if value is None or value == "" else int(value)


def _time(record: Mapping[str, Any]) -> int | None:
    return _number(record.get("timeMs", record.get("t")))
