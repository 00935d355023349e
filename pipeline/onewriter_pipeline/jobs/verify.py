"""``onewriter-pipeline verify``: compares tables with the logs, and with what the brokers witnessed of the copies.

It needs no Spark: one process reads the files, and the blocks that the store has. ``audit --from both`` makes the same
comparisons with many.
"""

from __future__ import annotations

from typing import Any

import click

from onewriter_pipeline.audit.audit import BOTH, Audit, AuditReport
from onewriter_pipeline.brokers.broker import Broker
from onewriter_pipeline.errors import Invalid
from onewriter_pipeline.jobs.options import (
    Violation,
    access_of,
    access_options,
    output_option,
    print_report,
    progress,
    selection_of,
    table_options,
    tables_of,
    topic_options,
)


def verified(job: Audit) -> list[AuditReport]:
    """Compare. Unlike an audit, it fails if no broker can be asked. Raises PipelineError."""
    with Broker(job.access) as broker:
        broker.buckets()
    reports = job.run(None, BOTH)
    if not all(report.is_witnessed for report in reports if report.tier != "live"):
        raise Invalid("; ".join(note for report in reports for note in report.notes))
    return reports


@click.command("verify")
@access_options
@table_options
@topic_options
@click.option(
    "--keep-days",
    type=click.IntRange(0),
    help="Messages of earlier days can be gone from the tables, as `table --keep-days` drops them. "
    "Default: all messages must be there.",
)
@output_option
def command(**options: Any) -> None:
    """Compare the tables with the logs, and with what brokers know of their copies.

    Reads all columns of all rows, and all blocks that the store has. The result says what cannot be
    detected. Exit codes: 0 everything agrees, 1 an error, 2 a violation: each finding says which.
    """
    job = Audit(
        access_of(options),
        selection_of(options),
        tables_of(options),
        asks_brokers=True,
        keeps_rows=True,
        keep_days=options["keep_days"],
    )
    progress("reading the logs and the tables")
    reports = verified(job)
    documents = [report.document() for report in reports]
    print_report(
        options["output"],
        {"holds": all(each["holds"] for each in documents), "audits": documents},
        [line for report in reports for line in report.lines(tenures_max=0)],
    )
    if any(report.findings for report in reports):
        raise Violation
