"""``onewriter-pipeline audit``: proves from stored data that each topic had one writer at a time.

It checks those predicates of docs/invariants.md that logs, tables and the brokers' audit can show, and exits with 2
if one is violated. Each task converts its part of a log to a few facts, which SQL combines; see ``audit``.
"""

from __future__ import annotations

from typing import Any

import click

from onewriter_pipeline.audit.audit import BOTH, LIVE, TABLE, Audit
from onewriter_pipeline.engine import running
from onewriter_pipeline.jobs.options import (
    Violation,
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


@click.command("audit")
@access_options
@optional_table_options
@topic_options
@click.option(
    "--from",
    "tier",
    type=click.Choice([LIVE, TABLE, BOTH]),
    default=LIVE,
    show_default=True,
    help="The logs in the brokers, the tables, or both.",
)
@click.option(
    "--witnesses/--no-witnesses",
    default=True,
    show_default=True,
    help="Compare tables with what the brokers witnessed of their copies, if a broker answers.",
)
@output_option
@spark_options
def command(**options: Any) -> None:
    """Check with the stored data that every topic had one writer at a time.

    Exit codes: 0 all predicates hold; 1 an error; 2 a violation: each finding says which.
    """
    tables = tables_of(options) if options["table"] else None
    job = Audit(
        access_of(options), selection_of(options), tables, asks_brokers=options["witnesses"]
    )
    job.check(options["tier"])
    with running("onewriter audit", options["master"], options["conf"]) as spark:
        progress(f"reading ({options['tier']})")
        reports = job.run(spark, options["tier"])
    documents = [report.document() for report in reports]
    print_report(
        options["output"],
        {"holds": all(each["holds"] for each in documents), "audits": documents},
        [line for report in reports for line in report.lines()],
    )
    if any(report.findings for report in reports):
        raise Violation
