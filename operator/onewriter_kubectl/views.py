"""The output of ``who``, ``status`` and ``installation``: lines, tables and pages. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onewriter_core import tables
from onewriter_core.kubernetes.objects import (
    ClaimObject,
    Conditions,
    OneWriterObject,
    TopicObject,
)
from onewriter_core.tables import Page, Section
from onewriter_core.topic_view import TransitionView
from onewriter_kubectl.objects import Event
from onewriter_kubectl.texts import age, producer_text

MEBIBYTE = 2**20


def who(topic: TopicObject, now: float) -> str:
    """One line: who writes, since when, under which epoch, and how many wait. ``now``: Unix time."""
    status, active = topic.status, topic.status.condition("WriterActive")
    parts = [_writer(topic, now), f"epoch {tables.text(status.epoch)}"]
    parts += [f"{status.waiting} waiting"] if status.waiting else []
    line = f"{topic.key}: {', '.join(parts)}"
    if active.status in {"", "Unknown"}:
        why = active.message or "no operator has looked at it yet"
        return f"{line} (as known last; not known just now: {tables.text(why)})"
    return line


def _writer(topic: TopicObject, now: float) -> str:
    reason, holder = topic.status.condition("WriterActive").reason, topic.status.holder
    if reason == "Shared":
        return "shared producers write"
    if holder is None:
        return "between two writers" if reason == "TakingOver" else "no producer writes"
    since = age(holder.since, now)
    claim = f", claim {tables.text(holder.claim)}" if holder.claim else ""
    return f"{producer_text(holder)}{claim} writes" + (f" since {since}" if since else "")


def topics(
    found: Sequence[TopicObject], now: float, *, with_namespace: bool, is_wide: bool
) -> Section:
    """One line per topic."""
    columns = ["TOPIC", "EPOCH", "HOLDER", "POD", "SINCE", "WAITING", "STATE", "READY"]
    columns = ["NAMESPACE"] * with_namespace + columns
    columns += ["NODE", "DURABILITY", "MESSAGE"] if is_wide else []
    rows = [
        [each.key.namespace] * with_namespace + _row(each, now) + (_more(each) if is_wide else [])
        for each in found
    ]
    return Section("topics", columns, rows)


def _row(topic: TopicObject, now: float) -> list[object]:
    status, holder = topic.status, topic.status.holder
    return [
        topic.key.name,
        status.epoch,
        *((holder.producer_name, holder.pod, age(holder.since, now)) if holder else ("", "", "")),
        status.waiting,
        status.condition("WriterActive").reason,
        status.condition("Ready").status,
    ]


def _more(topic: TopicObject) -> list[object]:
    status = topic.status
    node = status.holder.node if status.holder else ""
    return [node, status.durability, status.condition("Ready").message]


def topic_page(
    topic: TopicObject, claims: Sequence[ClaimObject], events: Sequence[Event], now: float
) -> Page:
    """Everything that Kubernetes shows of one topic."""
    status, holder = topic.status, topic.status.holder
    return Page(
        [
            ("object", topic.key),
            ("topic", status.topic or topic.spec.topic),
            ("epoch", status.epoch),
            ("holder", producer_text(holder)),
            ("claim", holder and holder.claim),
            ("node", holder and holder.node),
            ("address", holder and holder.address),
            ("since", holder and holder.since),
            ("waiting", status.waiting),
            ("durability", status.durability),
        ],
        [
            _conditions(status.conditions, now),
            Section(
                "claims",
                ("CLAIM", "STATE", "EPOCH", "PRODUCER", "POD", "PLACE", "PRIORITY"),
                [row for claim in claims for row in _claim_rows(claim)],
            ),
            Section(
                "partitions",
                ("PARTITION", "EPOCH", "HOLDER"),
                [(each.partition, each.epoch, each.holder) for each in status.partitions],
            ),
            _transitions(status.transitions),
            Section(
                "fenced pods",
                ("POD", "EPOCH", "CAUSE", "FENCED AT", "OUTCOME", "MESSAGE"),
                [
                    (
                        each.pod or each.pod_uid,
                        each.epoch,
                        each.cause,
                        each.at,
                        each.outcome,
                        each.message,
                    )
                    for each in status.fenced_pods
                ],
            ),
            _events(events, now),
        ],
    )


def _claim_rows(claim: ClaimObject) -> Iterable[Sequence[object]]:
    name, status = claim.key.name, claim.status
    if not status.producers:
        yield (name, status.condition("Granted").reason, "", "", "", "", "")
    for each in status.producers:
        yield (
            name,
            each.state,
            each.epoch,
            each.producer_name,
            each.pod,
            each.queue_position,
            each.priority or "",
        )


def _transitions(found: Sequence[TransitionView]) -> Section:
    rows = []
    for each in found:
        holder = (each.holder.producer_name, each.holder.pod) if each.holder else ("", "")
        times = (each.outage_ms, each.detection_ms, each.handover_ms, each.first_message_ms)
        rows.append((each.at, each.cause, each.epoch, *holder, *times))
    columns = ("AT", "CAUSE", "EPOCH", "HOLDER", "POD", *tables.TIMES)
    return Section("transitions", columns, rows)


def installation_page(found: OneWriterObject, events: Sequence[Event], now: float) -> Page:
    """The state of an installation."""
    status, store, memory = found.status, found.status.store, found.status.store.memory
    ready = status.condition("Ready")
    return Page(
        [
            ("installation", found.key),
            ("ready", f"{tables.text(ready.status)}: {tables.text(ready.message)}"),
            ("brokers", status.brokers),
            ("buckets waiting", status.buckets_waiting),
            ("store", store.state),
            ("address", store.url),
            ("topology", store.topology),
            ("durability", store.durability),
            ("memory", memory.summary),
            ("memory used", _mebibytes(memory.used_bytes)),
            ("memory limit", _mebibytes(memory.limit_bytes)),
            ("growth per hour", _mebibytes(memory.growth_bytes_per_hour)),
            ("operator", status.operator_version),
            ("broker version", status.broker_versions),
        ],
        [
            _conditions(status.conditions, now),
            Section(
                "waiting buckets",
                ("BUCKETS", "REASON"),
                [(buckets, reason) for reason, buckets in status.waiting_reasons],
            ),
            Section(
                "certificates",
                ("CERTIFICATE", "REPORTED BY", "EXPIRES"),
                [(each.name, each.reported_by, each.not_after) for each in status.certificates],
            ),
            _events(events, now),
        ],
    )


def _mebibytes(amount: int | None) -> str | None:
    return None if amount is None else f"{amount / MEBIBYTE:.0f} MiB"


def _conditions(found: Conditions, now: float) -> Section:
    return Section(
        "conditions",
        ("CONDITION", "STATUS", "REASON", "SINCE", "MESSAGE"),
        [
            (kind, each.status, each.reason, age(each.since, now), each.message)
            for kind, each in found.items()
        ],
    )


def _events(found: Sequence[Event], now: float) -> Section:
    return Section(
        "events",
        ("LAST SEEN", "TYPE", "REASON", "MESSAGE"),
        [(age(each.last_seen, now), each.type, each.reason, each.message) for each in found],
    )
