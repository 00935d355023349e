"""``onewriter-pipeline report``: the history of holders as a page with pictures, from logs or tables."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

from onewriter_pipeline.audit.audit import LIVE, TABLE, Audit, AuditReport
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

_SEEN: Final = {
    "timeline": "Who led each topic when",
    "leaderless": "How long topics were without a writer, by cause",
    "load": "What each holder wrote",
    "balance": "How many topics each host led",
}


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

    source = "live logs" if report.tier == LIVE else "tables"
    lead = (
        f"From {source}, {now.strftime('%Y-%m-%d %H:%M:%S')} UTC: {len(report.topics):,} topics,"
        f" {len(report.timeline):,} transitions, {report.records:,} audit records"
    )
    return page.page("Who wrote, and when", lead, len(report.findings), _sections(report, drawn))


def _sections(report: AuditReport, drawn: dict[str, bytes]) -> Iterator[str]:
    from onewriter_pipeline.report.page import listed, picture, section, table  # noqa: PLC0415

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
    yield section("Timeline", picture(drawn["timeline"], _SEEN["timeline"]))
    windows = [
        ("cause", "Why the one before ended"),
        ("windows", "Windows"),
        ("p50_ms", "p50, ms"),
        ("p99_ms", "p99, ms"),
        ("max_ms", "Longest, ms"),
    ]
    yield section(
        "Without a writer",
        picture(drawn["leaderless"], _SEEN["leaderless"]),
        table(windows, report.leaderless) if report.leaderless else "",
    )
    yield section("Load", picture(drawn["load"], _SEEN["load"]))
    yield section("Balance", picture(drawn["balance"], _SEEN["balance"]))
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

    columns = [("log", "Topic"), ("after", "Behind"), ("last", "Up to")]
    return table(columns, report.losses) if report.losses else ""


def _tenure(row: dict[str, Any]) -> dict[str, Any]:
    since = datetime.fromtimestamp(row["since_ms"] / 1000, UTC)
    seconds = None if row["until_ms"] is None else (row["until_ms"] - row["since_ms"]) / 1000
    shown = since.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")
    return row | {"since": shown, "seconds": seconds, "producer": row["producer"] or "nobody"}


@click.command("report")
@access_options
@optional_table_options
@topic_options
@click.option(
    "--from",
    "tier",
    type=click.Choice([LIVE, TABLE]),
    default=LIVE,
    show_default=True,
    help="The logs in the brokers, or the tables.",
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
        (report,) = job.run(spark, options["tier"])
    paths = write(report, options["folder"], datetime.now(UTC))
    print_report(
        options["output"],
        {"holds": not report.findings, "files": [str(path) for path in paths]},
        [
            f"{len(report.findings)} violations" if report.findings else "everything holds",
            *map(str, paths),
        ],
    )
