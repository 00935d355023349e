"""``onewriter-pipeline table``: shows the tables, joins small files, drops old days, and removes unused files."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click

from onewriter_pipeline.errors import Invalid
from onewriter_pipeline.jobs.options import (
    output_option,
    print_report,
    progress,
    table_options,
    tables_of,
)
from onewriter_pipeline.tables.layout import LAYOUTS, MESSAGES
from onewriter_pipeline.tables.tables import FOREIGN_SHOWN, Tables

TARGET_MB: Final = 256
VACUUM_HOURS_MIN: Final = 24
"""Lower bound of --vacuum-hours. Files of a running offload, and files that a reader still uses, are younger."""


@click.command("table")
@table_options
@click.option("--optimize", is_flag=True, help="Join small files to larger ones.")
@click.option(
    "--target-mb",
    default=TARGET_MB,
    show_default=True,
    type=click.IntRange(1),
    help="Target size of files, in MiB.",
)
@click.option(
    "--keep-days",
    type=click.IntRange(1),
    help="Drop messages that were stored before the last N days.",
)
@click.option(
    "--vacuum-hours",
    type=click.IntRange(VACUUM_HOURS_MIN),
    help="Delete files that no commit of the last N hours needs (usually 168).",
)
@click.option("--dry-run", is_flag=True, help="List the files that --vacuum-hours would delete.")
@output_option
def command(**options: Any) -> None:
    """Show and maintain the tables. You can kill the command at any time and run it again.

    The command lists foreign files, and does not touch them. Exit codes: 0 done, 1 an error.
    """
    if options["dry_run"] and not options["vacuum_hours"]:
        raise Invalid("--dry-run needs --vacuum-hours")
    tables = tables_of(options)
    done = _done(tables, options)
    document = {**_shown(tables), **done, "foreign": tables.foreign()}
    lines = [
        f"{name}: {each['files']} files, {each['rows']:,} rows, {each['bytes']:,} bytes, {each['commits']}"
        " commits"
        for name, each in document["tables"].items()
    ]
    lines += [f"{log} up to {position}" for log, position in document["offsets"].items()]
    lines += [f"{name}: {value}" for name, value in done.items()]
    foreign = document["foreign"]
    lines += [f"foreign file, not touched: {path}" for path in foreign[:FOREIGN_SHOWN]]
    if len(foreign) > FOREIGN_SHOWN:
        lines.append(f"and {len(foreign) - FOREIGN_SHOWN} more")
    print_report(options["output"], document, lines)


def _done(tables: Tables, options: dict[str, Any]) -> dict[str, Any]:
    done: dict[str, Any] = {}
    if options["keep_days"]:
        before = datetime.now(UTC).date() - timedelta(days=options["keep_days"])
        done["expiredFiles"] = tables.existing(MESSAGES).expire(before)
    if options["optimize"]:
        done["joined"] = {}
        for layout in LAYOUTS:
            table = tables.opened(layout)
            if table is not None:
                added, removed = table.optimize(options["target_mb"] * 1024**2)
                done["joined"][layout.name] = {"files": removed, "into": added}
                progress(f"{layout.name}: {removed} files joined into {added}")
    if options["vacuum_hours"]:
        paths = tables.orphans(options["vacuum_hours"])
        if not options["dry_run"]:
            tables.delete(paths)
        done["wouldDelete" if options["dry_run"] else "deleted"] = paths
    return done


def _shown(tables: Tables) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for layout in LAYOUTS:
        table = tables.opened(layout)
        if table is None:
            continue
        files = table.files()
        found[layout.name] = {
            "files": len(files),
            "rows": sum(file.rows for file in files),
            "bytes": sum(file.size for file in files),
            "commits": table.state().next_batch,
        }
    offsets = dict(tables.existing(MESSAGES).state().offsets)
    return {"tables": found, "offsets": offsets}
