"""``onewriter-pipeline report``: the history of holders as a page with pictures, from logs or tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

from onewriter_core.ids import TopicName
from onewriter_pipeline.audit.audit import BOTH, LIVE, TABLE, Audit, AuditReport
from onewriter_pipeline.audit.combined import combined, with_ends
from onewriter_pipeline.brokers.broker import Broker
from onewriter_pipeline.engine import running
from onewriter_pipeline.errors import Invalid
from onewriter_pipeline.jobs.options import (
    access_of,
    access_options,
    optional_table_options,
    output_option,
    print_report,
    progress,
    selection_of,
    spark_options,
    tables_of,
    topic_options,
)

PAGE: Final = "report.html"

_CAPTIONS: Final = {
    "timeline": "Who led each topic when",
    "leaderless": "How long topics were without a writer, by cause",
    "load": "What each holder wrote",
    "balance": "How many topics each host led",
}


_HELD: Final = frozenset({"Held", "Shared", "Reserved", "ChangingHands"})
"""States of a topic with a writer."""

_SOURCES: Final = {LIVE: "live logs", TABLE: "tables", BOTH: "tables and live logs"}

_COUNTED: Final = {
    LIVE: "Counts what the logs still have; --from both adds what was offloaded and trimmed.",
    TABLE: "Counts what was offloaded.",
    BOTH: "",
}


def vacated(job: Audit, report: AuditReport) -> dict[str, int | None]:
    """The topics without a writer now, each with the time of its last message, in milliseconds since 1970.

    From tables alone it is unknown who still holds a topic: a tenure then ends with its last message.
    """
    if report.tier == TABLE:
        rows = job.tables.segments(None) if job.tables is not None else []
        newest: dict[str, int | None] = {}
        for row in rows:
            newest[row.topic] = max(newest.get(row.topic) or 0, row.newest_ms or 0) or None
        return newest
    found: dict[str, int | None] = {}
    with Broker(job.access) as broker:
        for log in {row["topic"] for row in report.timeline}:
            if _state_of(broker.topic(log), log) not in _HELD:
                segments = broker.segments(log).segments
                times = [each.newest_ms for each in segments if each.newest_ms is not None]
                found[log] = max(times, default=None)
    return found


def _state_of(topic: Mapping[str, Any], log: str) -> str:
    """The state of a log according to the status of its topic."""
    partition = TopicName.parse(log).partition or 0
    partitions = topic.get("slots") or []
    found = partitions[partition] if partition < len(partitions) else {}
    return str(found.get("state") or topic.get("state"))


def write(report: AuditReport, folder: Path, now: datetime) -> list[Path]:
    """Write the page and its pictures to a folder, and return their paths. Raises Invalid."""
    from onewriter_pipeline.report.balance import balance_of  # noqa: PLC0415 - importing matplotlib is slow
    from onewriter_pipeline.report.pictures import pictures  # noqa: PLC0415

    now_ms = int(now.timestamp() * 1000)
    drawn = dict(pictures(report.timeline, report.holders, balance_of(report.timeline), now_ms))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for name, png in drawn.items():
            paths.append(folder / f"{name}.png")
            paths[-1].write_bytes(png)
        paths.insert(0, folder / PAGE)
        paths[0].write_text(_page(report, drawn, now), encoding="utf-8")
    except OSError as error:
        raise Invalid(f"the report cannot be written to {folder}: {error}") from error
    return paths


def _page(report: AuditReport, drawn: dict[str, bytes], now: datetime) -> str:
    from onewriter_pipeline.report import page  # noqa: PLC0415 - as above

    lead = (
        f"From {_SOURCES[report.tier]}, {now.strftime('%Y-%m-%d %H:%M:%S')} UTC: {len(report.topics):,} topics,"
        f" {len(report.timeline):,} transitions, {report.records:,} audit records"
    )
    return page.page("Who wrote, and when", lead, len(report.findings), _sections(report, drawn))


def _sections(report: AuditReport, drawn: dict[str, bytes]) -> Iterator[str]:
    from onewriter_pipeline.report.page import (  # noqa: PLC0415 - as above
        listed,
        paragraph,
        picture,
        section,
        table,
    )

    findings = [
        {
            "predicate": each.predicate,
            "log": each.log,
            "where": ", ".join(each.where),
            "sentence": each.sentence,
        }
        for each in report.findings
    ]
    columns = [
        ("predicate", "Predicate"),
        ("log", "Topic"),
        ("where", "Where"),
        ("sentence", "What"),
    ]
    yield section("Violations", table(columns, findings) if findings else "")
    yield section("Lost, as brokers reported", _losses(report))
    yield section("Notes", listed(report.notes))
    yield section("Not detected", listed(report.not_detected))
    yield section("Timeline", picture(drawn["timeline"], _CAPTIONS["timeline"]))
    windows = [
        ("cause", "Why the one before ended"),
        ("windows", "Windows"),
        ("p50_ms", "p50, ms"),
        ("p99_ms", "p99, ms"),
        ("max_ms", "Longest, ms"),
    ]
    yield section(
        "Without a writer",
        picture(drawn["leaderless"], _CAPTIONS["leaderless"]),
        table(windows, report.leaderless) if report.leaderless else "",
    )
    counted = _COUNTED[report.tier]
    yield section("Load", paragraph(counted), picture(drawn["load"], _CAPTIONS["load"]))
    yield section("Balance", picture(drawn["balance"], _CAPTIONS["balance"]))
    extents = [
        ("topic", "Topic"),
        ("first", "From"),
        ("last", "To"),
        ("ledgers", "Ledgers"),
        ("entries", "Entries"),
        ("messages", "Messages"),
    ]
    yield section("Topics", table(extents, report.topics))
    tenures = [
        ("topic", "Topic"),
        ("epoch", "Epoch"),
        ("producer", "Holder"),
        ("host", "Where"),
        ("since", "Since (UTC)"),
        ("seconds", "Seconds"),
        ("cause", "After"),
        ("ended_by", "Ended by"),
        ("leaderless_ms", "No producer before, ms"),
    ]
    yield section("Tenures", table(tenures, map(_tenure, report.timeline)))


def _losses(report: AuditReport) -> str:
    from onewriter_pipeline.report.page import table  # noqa: PLC0415

    columns = [("log", "Topic"), ("after", "After"), ("last", "Up to")]
    return table(columns, report.losses) if report.losses else ""


def _tenure(row: dict[str, Any]) -> dict[str, Any]:
    since = datetime.fromtimestamp(row["since_ms"] / 1000, UTC)
    left_ms = row.get("left_ms")
    until_ms = row["until_ms"] if left_ms is None else left_ms
    seconds = None if until_ms is None else (until_ms - row["since_ms"]) / 1000
    shown = since.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")
    return row | {"since": shown, "seconds": seconds, "producer": row["producer"] or "no producer"}


@click.command("report")
@access_options
@optional_table_options
@topic_options
@click.option(
    "--from",
    "tier",
    type=click.Choice([LIVE, TABLE, BOTH]),
    default=LIVE,
    show_default=True,
    help="The logs in the brokers, the tables, or both as one.",
)
@click.option(
    "--to",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("onewriter-report"),
    show_default=True,
    help="The folder for the page and its pictures.",
)
@output_option
@spark_options
def command(**options: Any) -> None:
    """Show who wrote when: one HTML page, and its pictures as PNG files.

    The page lists violations; only the verb audit exits with 2 for them.
    """
    tables = tables_of(options) if options["table"] else None
    job = Audit(access_of(options), selection_of(options), tables)
    job.check(options["tier"])
    with running("onewriter report", options["master"], options["conf"]) as spark:
        progress(f"reading ({options['tier']})")
        report = combined(job.run(spark, options["tier"]))
    report.timeline = with_ends(report.timeline, vacated(job, report))
    paths = write(report, options["folder"], datetime.now(UTC))
    print_report(
        options["output"],
        {"holds": not report.findings, "files": [str(path) for path in paths]},
        [
            f"{len(report.findings)} violations" if report.findings else "everything holds",
            *map(str, paths),
        ],
    )
