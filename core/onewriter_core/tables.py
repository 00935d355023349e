"""The pages and tables that commands print for people, also for the brokers' answers.

A page is a value: ``page`` prints it. The broker decides what is shown of its answers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

Json = dict[str, Any]

DEFAULT_PREFIX = "persistent://public/default/"
WIDTH_MIN = 110
"""The minimum width in columns, also on a narrower terminal."""

WIDTH_MAX = 10_000
"""The width in columns without a terminal: no line is wrapped."""


NAME_WIDTH_MIN = 14
"""The minimum width of the names on a page, in columns."""

_WHOLE = frozenset({"AT", "KIND", "CAUSE", "EPOCH", "STATE", "LEDGER"})
"""Columns that are never wrapped."""


@dataclass(frozen=True, slots=True)
class Section:
    """A table of a page. It is not printed without rows."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


@dataclass(frozen=True, slots=True)
class Page:
    """Names with their values, and the tables below them."""

    facts: Sequence[tuple[str, object]]
    sections: Sequence[Section]


def page(shown: Page) -> None:
    """Print a page: one line for each name and value, then each table with its title."""
    width = max(NAME_WIDTH_MIN, *(len(name) + 2 for name, _ in shown.facts))
    for name, value in shown.facts:
        click.echo(f"{name + ':':<{width}}{text(value)}")
    for section in shown.sections:
        if section.rows:
            click.echo(f"\n{section.title}:")
            table(section.columns, section.rows)


def as_json(answer: object) -> None:
    """Print JSON, for scripts."""
    click.echo(json.dumps(answer, indent=2))


def short(name: str) -> str:
    """The short name of a topic."""
    return name.removeprefix(DEFAULT_PREFIX).removeprefix("persistent://")


def topics(rows: Sequence[Json]) -> None:
    """One line per topic."""
    if not rows:
        click.echo("no topics")
        return
    table(
        ("TOPIC", "PARTITIONS", "EPOCH", "STATE", "HOLDER", "CLAIM", "WAITING", "BROKER"),
        (
            (
                short(row["name"]),
                row["partitions"] or "-",
                row.get("epoch"),
                row.get("state"),
                (row.get("holder") or {}).get("producerName"),
                (row.get("holder") or {}).get("claim"),
                row.get("waiting"),
                (row.get("owner") or {}).get("brokerUrl"),
            )
            for row in rows
        ),
    )


def status(answer: Json) -> None:
    """The whole status of one topic."""
    facts: list[tuple[str, object]] = [
        ("topic", answer["name"]),
        ("epoch", answer["epoch"]),
        ("state", answer["state"]),
    ]
    for holder in answer["holders"]:
        facts += _holder(holder)
    facts += [
        ("waiting", answer["waiting"]),
        ("durability", answer.get("durability")),
        ("promotion", answer.get("promotion")),
        ("declared", "yes" if answer["declared"] else "no"),
        ("partitions", answer["partitions"] or "-"),
        ("broker", (answer.get("owner") or {}).get("brokerUrl")),
        ("bucket", answer["bucket"]),
        ("store", _store(answer.get("store") or {})),
    ]
    if answer.get("shard"):
        facts.append(("shard", _shard(answer["shard"])))
    if answer.get("waitingReason"):
        facts.append(("not served", answer["waitingReason"]))
    if quota := answer.get("quotaExceeded"):
        what = (
            "producers are refused, and messages wait"
            if quota["holds"]
            else "producers are refused"
        )
        facts.append(("quota", f"{what} since {quota['since']}: {quota['reason']}"))
    partitions = answer["slots"]
    page(
        Page(
            facts,
            [
                _waiters(answer["waiters"]),
                _shared(answer.get("sharedProducers") or []),
                _partitions(partitions if len(partitions) > 1 else []),
                _transitions(answer["transitions"]),
                _losses(answer.get("losses") or []),
                _at_risk(answer.get("atRisk") or []),
                _refusals(answer.get("refusals") or []),
            ],
        )
    )


def _holder(holder: Json) -> list[tuple[str, object]]:
    who = f"{holder['producerName']} from {holder['address'] or '?'}"
    if holder["claim"]:
        who += f", claim {holder['claim']}"
    if holder["subject"]:
        who += f", subject {holder['subject']}"
    return [
        ("holder", who),
        ("mode", holder["mode"]),
        ("since", f"{holder['since']} (connected {holder['connectedSince']})"),
    ]


def _store(seen: Json) -> str:
    if "problem" in seen:
        return f"does not answer: {seen['problem']}"
    if not seen:
        return "-"
    return f"dataset {seen['dataset'][:12]}, {seen['replicas']} replicas"


def _shard(seen: Json) -> str:
    """The shard of a cluster that has the topic."""
    place = f"primary {seen['primary']}, {seen['buckets']} buckets, {seen['failovers']} failovers"
    if not seen["reachable"]:
        return f"{place}, does not answer: {seen['reason']}"
    lag = f"replicas {seen['replicationLagBytes']} bytes behind"
    return ", ".join([place, lag, *(f"fault: {fault}" for fault in seen["faults"])])


def _waiters(rows: Sequence[Json]) -> Section:
    return Section(
        "waiters",
        ("PLACE", "PRIORITY", "PRODUCER", "CLAIM", "ADDRESS", "WAITING S"),
        [
            (
                row["place"],
                row["priority"],
                row["producerName"],
                row["claim"],
                row["address"],
                None if row["waitingSeconds"] is None else f"{row['waitingSeconds']:.1f}",
            )
            for row in rows
        ],
    )


def _shared(rows: Sequence[Json]) -> Section:
    return Section(
        "shared producers",
        ("PRODUCER", "SUBJECT", "PARTITION"),
        [(row["producerName"], row["subject"], row["partition"]) for row in rows],
    )


def _partitions(rows: Sequence[Json]) -> Section:
    return Section(
        "partitions",
        ("PARTITION", "EPOCH", "LEDGER", "STATE", "HOLDER"),
        [
            (row["partition"], row["epoch"], row["ledger"], row["state"], row["holder"])
            for row in rows
        ],
    )


TIMES: Final = ("OUTAGE MS", "DETECTION", "HANDOVER", "FIRST MESSAGE")
"""Column titles of the times of a transition, all in milliseconds."""


def times(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """The columns of TIMES. Brokers of an earlier release do not report them."""
    names = ("outageMs", "detectionMs", "handoverMs", "firstMessageMs")
    return tuple(row.get(name) for name in names)


def _transitions(rows: Sequence[Json]) -> Section:
    return Section(
        "transitions",
        ("AT", "KIND", "CAUSE", "EPOCH", "OLD HOLDER", "HOLDER", *TIMES),
        [
            (
                row["at"],
                row["kind"],
                row["cause"],
                f"{row['oldEpoch']} > {row['epoch']}",
                (row["previous"] or {}).get("producerName"),
                (row["holder"] or {}).get("producerName"),
                *times(row),
            )
            for row in rows
        ],
    )


def _losses(rows: Sequence[Json]) -> Section:
    return Section(
        "lost entries",
        ("LOG", "ENTRIES", "BEHIND", "UP TO"),
        [(short(row["topic"]), row["entries"], row["after"], row["last"]) for row in rows],
    )


def _at_risk(rows: Sequence[Json]) -> Section:
    return Section(
        "entries at risk",
        ("LOG", "AFTER", "UP TO LEDGER", "DURABILITY"),
        [(short(row["topic"]), row["after"], row["ledger"], row["durability"]) for row in rows],
    )


def _refusals(rows: Sequence[Json]) -> Section:
    return Section(
        "refused",
        ("SUBJECT", "RIGHT", "TIMES", "LAST"),
        [(row["subject"] or "anonymous", row["right"], row["count"], row["last"]) for row in rows],
    )


def history(answer: Json) -> None:
    """A topic's audit records, oldest first."""
    if answer["earlierOmitted"]:
        click.echo("(earlier records are left out: --limit)")
    if not answer["records"]:
        click.echo("nothing was recorded yet")
        return
    table(
        (
            "AT",
            "KIND",
            "CAUSE",
            "EPOCH",
            "LEDGER",
            "PRODUCER",
            "SUBJECT",
            "ADDRESS",
            *TIMES,
        ),
        (
            (
                row.get("at"),
                row.get("kind"),
                row.get("cause", row.get("reason", row.get("right"))),
                row.get("epoch"),
                row.get("ledger"),
                row.get("producer", row.get("app")),
                row.get("subject"),
                row.get("address"),
                *times(row),
            )
            for row in answer["records"]
        ),
    )


def ownerships(rows: Sequence[Json]) -> None:
    """One line per resource that has or had an owner."""
    if not rows:
        click.echo("no ownerships")
        return
    table(
        ("RESOURCE", "GROUP", "GENERATION", "OWNER", "STATE", "BUCKET"),
        (
            (
                short(row["resource"]),
                row["group"],
                row["generation"],
                (row["owner"] or {}).get("identity"),
                _owned(row),
                row["bucket"],
            )
            for row in rows
        ),
    )


def _owned(row: Json) -> str:
    if not row["owned"]:
        return "vacant"
    return "owned" if row["connected"] else "its owner is away"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Rows under the names of their columns, with a dash for each missing value."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        shown.add_column(column, overflow="fold", no_wrap=column in _WHOLE)
    for row in rows:
        # Names come from clients: their markup is printed as text.
        shown.add_row(*(escape(text(value)) for value in row))
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH_MAX)
    elif console.width < WIDTH_MIN:
        console = Console(width=WIDTH_MIN)
    console.print(shown)


def text(value: object) -> str:
    """A value as printable text, with a dash for a missing one."""
    if value is None or value == "":
        return "-"
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(value))
