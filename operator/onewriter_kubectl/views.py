"""The output of ``who`` and ``status``: lines and tables from the objects' status."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import click

from onewriter_core import tables
from onewriter_kubectl.objects import (
    Document,
    age,
    condition,
    epoch,
    metadata,
    name,
    person,
    spec,
    status,
)

Json = dict[str, Any]

NO_PRODUCER: Final = "no producer"


def who(topic: Document, now: float) -> str:
    """One line: who writes, since when, under which epoch, and how many wait. ``now``: Unix time."""
    found, active = status(topic), condition(topic, "WriterActive")
    writer = _writer(topic, now)
    waiting = int(found.get("waiting") or 0)
    parts = [f"{writer}, epoch {tables.text(epoch(topic))}"]
    parts += [f"{waiting} waiting"] if waiting else []
    line = f"{name(topic)}: {', '.join(parts)}"
    if active.get("status") == "Unknown" or not active:
        why = active.get("message") or "no operator has looked at it yet"
        return f"{line} (as known last; not known just now: {tables.text(why)})"
    return line


def _writer(topic: Document, now: float) -> str:
    found = status(topic)
    active = condition(topic, "WriterActive")
    holder = found.get("holder")
    if active.get("reason") == "Shared":
        return "shared producers write"
    if not holder:
        return (
            "between two writers" if active.get("reason") == "TakingOver" else "no producer writes"
        )
    since = age(holder.get("since"), now)
    claim = f", claim {tables.text(holder['claim'])}" if holder.get("claim") else ""
    return f"{person(holder)}{claim} writes" + (f" since {since}" if since else "")


def topics(found: Sequence[Document], now: float, *, with_namespace: bool, is_wide: bool) -> None:
    """One line per topic."""
    if not found:
        click.echo("no topics")
        return
    columns = ["TOPIC", "EPOCH", "HOLDER", "POD", "SINCE", "WAITING", "STATE", "READY"]
    columns = ["NAMESPACE"] * with_namespace + columns
    columns += ["NODE", "DURABILITY", "MESSAGE"] if is_wide else []
    tables.table(
        columns,
        (
            [metadata(each).get("namespace")] * with_namespace
            + _row(each, now)
            + (_more(each) if is_wide else [])
            for each in found
        ),
    )


def _row(topic: Document, now: float) -> list[object]:
    found = status(topic)
    holder = found.get("holder") or {}
    return [
        metadata(topic).get("name"),
        found.get("epoch"),
        holder.get("producerName"),
        holder.get("pod"),
        age(holder.get("since"), now),
        found.get("waiting"),
        condition(topic, "WriterActive").get("reason"),
        condition(topic, "Ready").get("status"),
    ]


def _more(topic: Document) -> list[object]:
    found = status(topic)
    return [
        (found.get("holder") or {}).get("node"),
        found.get("durability"),
        condition(topic, "Ready").get("message"),
    ]


def topic_status(
    topic: Document, claims: Sequence[Document], events: Sequence[Document], now: float
) -> None:
    """Everything that Kubernetes shows of one topic."""
    found = status(topic)
    holder = found.get("holder") or {}
    tables.properties(
        [
            ("object", name(topic)),
            ("topic", found.get("topic") or spec(topic).get("topic")),
            ("epoch", found.get("epoch")),
            ("holder", person(holder) if holder else NO_PRODUCER),
            ("claim", holder.get("claim")),
            ("node", holder.get("node")),
            ("address", holder.get("address")),
            ("since", holder.get("since")),
            ("waiting", found.get("waiting")),
            ("durability", found.get("durability")),
        ]
    )
    tables.section("conditions", found.get("conditions") or (), lambda rows: _conditions(rows, now))
    tables.section("claims", claims, _claims)
    tables.section("partitions", found.get("partitions") or (), _partitions)
    tables.section("transitions", found.get("transitions") or (), _transitions)
    tables.section("fenced pods", found.get("fencedPods") or (), _fenced)
    tables.section("events", events, lambda rows: _events(rows, now))


def installation(found: Document, events: Sequence[Document], now: float) -> None:
    """The state of an installation."""
    shown = status(found)
    parts = {part: shown.get(part) or {} for part in ("brokers", "store", "buckets", "versions")}
    brokers, store, buckets, versions = parts.values()
    memory, ready = store.get("memory") or {}, condition(found, "Ready")
    tables.properties(
        [
            ("installation", name(found)),
            ("ready", f"{tables.text(ready.get('status'))}: {tables.text(ready.get('message'))}"),
            ("brokers", brokers.get("summary")),
            ("buckets waiting", buckets.get("waiting")),
            ("store", store.get("state")),
            ("address", store.get("url")),
            ("topology", store.get("topology")),
            ("durability", store.get("durability")),
            ("memory", memory.get("summary")),
            ("memory used", _mebibytes(memory.get("usedBytes"))),
            ("memory limit", _mebibytes(memory.get("limitBytes"))),
            ("growth per hour", _mebibytes(memory.get("growthBytesPerHour"))),
            ("operator", versions.get("operator")),
            ("broker version", versions.get("brokers")),
        ]
    )
    tables.section("conditions", shown.get("conditions") or (), lambda rows: _conditions(rows, now))
    tables.section("waiting buckets", buckets.get("reasons") or (), _reasons)
    tables.section("certificates", shown.get("certificates") or (), _certificates)
    tables.section("events", events, lambda rows: _events(rows, now))


def _mebibytes(amount: object) -> str | None:
    return f"{amount / 2**20:.0f} MiB" if isinstance(amount, int) else None


def _reasons(rows: Sequence[Document]) -> None:
    tables.table(("BUCKETS", "REASON"), ((row.get("buckets"), row.get("reason")) for row in rows))


def _certificates(rows: Sequence[Document]) -> None:
    tables.table(
        ("CERTIFICATE", "REPORTED BY", "EXPIRES"),
        ((row.get("name"), row.get("reportedBy"), row.get("notAfter")) for row in rows),
    )


def _conditions(rows: Sequence[Document], now: float) -> None:
    tables.table(
        ("CONDITION", "STATUS", "REASON", "SINCE", "MESSAGE"),
        (
            (
                row.get("type"),
                row.get("status"),
                row.get("reason"),
                age(row.get("lastTransitionTime"), now),
                row.get("message"),
            )
            for row in rows
        ),
    )


def _claims(rows: Sequence[Document]) -> None:
    tables.table(
        ("CLAIM", "STATE", "EPOCH", "PRODUCER", "POD", "PLACE", "PRIORITY"), _claim_rows(rows)
    )


def _claim_rows(rows: Sequence[Document]) -> list[Sequence[object]]:
    found: list[Sequence[object]] = []
    for row in rows:
        title = metadata(row).get("name")
        producers = status(row).get("producers") or ()
        if not producers:
            found.append((title, condition(row, "Granted").get("reason"), "", "", "", "", ""))
        found += [
            (
                title,
                each.get("state"),
                each.get("epoch"),
                each.get("producerName"),
                each.get("pod"),
                each.get("queuePosition"),
                each.get("priority"),
            )
            for each in producers
        ]
    return found


def _partitions(rows: Sequence[Document]) -> None:
    tables.table(
        ("PARTITION", "EPOCH", "HOLDER"),
        ((row.get("partition"), row.get("epoch"), row.get("producerName")) for row in rows),
    )


def _transitions(rows: Sequence[Document]) -> None:
    tables.table(
        ("AT", "CAUSE", "EPOCH", "HOLDER", "POD", *tables.TIMES),
        (
            (
                row.get("at"),
                row.get("cause"),
                row.get("epoch"),
                row.get("producerName"),
                row.get("pod"),
                *tables.times(row),
            )
            for row in rows
        ),
    )


def _fenced(rows: Sequence[Document]) -> None:
    tables.table(
        ("POD", "EPOCH", "CAUSE", "FENCED AT", "OUTCOME", "MESSAGE"),
        (
            (
                row.get("pod") or row.get("podUID"),
                row.get("epoch"),
                row.get("cause"),
                row.get("at"),
                row.get("outcome"),
                row.get("message"),
            )
            for row in rows
        ),
    )


def _events(rows: Sequence[Document], now: float) -> None:
    tables.table(
        ("LAST SEEN", "TYPE", "REASON", "MESSAGE"),
        (
            (age(event_time(row), now), row.get("type"), row.get("reason"), row.get("message"))
            for row in rows
        ),
    )


def event_time(event: Document) -> object:
    """When an Event last occurred."""
    series = event.get("series") or {}
    return (
        series.get("lastObservedTime")
        or event.get("lastTimestamp")
        or event.get("eventTime")
        or metadata(event).get("creationTimestamp")
    )
