"""``onewriter verify``: checks log and audit directly in the store.

It reads the store and does not ask a broker, so it works while none is running, and does not trust any
broker. It never writes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import click
from pydantic import ValidationError

from onewriter_broker.local.cluster import stored_cluster
from onewriter_broker.local.embedded import EmbeddedServer, EmbeddedSettings, EmbeddedStore
from onewriter_broker.log.store.redis.primary import is_cluster_url
from onewriter_broker.log.store.redis.store import RedisLogStore
from onewriter_broker.logs import configure_logging
from onewriter_broker.process import redis_settings
from onewriter_broker.settings import Settings
from onewriter_broker.store_option import without_password
from onewriter_broker.verify.reader import LogReport, all_logs, logs_of, verify
from onewriter_core.audit.findings import NOT_DETECTED, PREDICATES
from onewriter_core.command import EXIT_REFUSED, output_option
from onewriter_core.errors import ConfigurationError, Refused, ServerError, Undecided
from onewriter_core.ids import InvalidTopicName, TopicName

PROGRESS_SECONDS = 2.0
"""Interval between two progress lines."""


@click.command("verify")
@click.argument("topic", required=False)
@click.option("--all", "everything", is_flag=True, help="Check every log of the store.")
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Data directory of `onewriter up` whose store is checked; it need not be running.",
)
@click.option(
    "--redis-url",
    callback=without_password,
    help="Check this Redis or Valkey: redis://host:port or unix:///path.",
)
@click.option(
    "--buckets",
    type=int,
    help="Number of the store's buckets, if the brokers' setting is not the default.",
)
@output_option("table", "json")
@click.pass_context
def verify_command(
    context: click.Context,
    topic: str | None,
    everything: bool,
    data_dir: Path | None,
    redis_url: str | None,
    buckets: int | None,
    output: str,
) -> None:
    """Check the stored log and audit of TOPIC, or every log with --all.

    Exit code 0: all predicates hold that log and audit can prove. 1: a violation; the positions are
    listed. 2: wrong usage. 3: the store did not answer. (`onewriter-pipeline audit`
    reports a violation with 2.) What only a client's own history can prove (which
    messages were acknowledged, what was read) is not checked here: docs/invariants.md.
    """
    if everything == (topic is not None):
        raise click.UsageError("name a TOPIC, or use --all")
    configure_logging(level=logging.WARNING)
    name = None if topic is None else _topic_name(topic)
    settings = _settings(data_dir, redis_url, buckets)
    reports = asyncio.run(_verify(settings, name))
    click.echo(_as_json(reports) if output == "json" else _as_table(reports))
    if not all(report.findings.holds for report in reports):
        context.exit(EXIT_REFUSED)


def _topic_name(text: str) -> TopicName:
    try:
        return TopicName.parse(text)
    except InvalidTopicName as error:
        raise ConfigurationError(str(error)) from error


def _settings(data_dir: Path | None, redis_url: str | None, buckets: int | None) -> Settings:
    """The settings for the store: from the options, from the environment, or from a broker that used this
    directory.
    """
    given: dict[str, object] = {}
    if data_dir is not None:
        given["data_dir"] = data_dir
    if redis_url is not None:
        given["redis_url"] = redis_url
    if buckets is not None:
        given["buckets"] = buckets
    settings = Settings.read(**given)
    if settings.redis_url or settings.redis_sentinels:
        return settings
    found = sorted((settings.data_dir.absolute() / "run").glob("*.json"))
    if not found:
        raise ConfigurationError(
            f"no broker was ever started on {settings.data_dir.absolute()}: name its data directory"
            " with --data-dir, or the store with --redis-url"
        )
    try:
        ran_with = Settings.model_validate_json(found[0].read_text())
    except (OSError, ValidationError) as error:
        raise ConfigurationError(f"{found[0]} cannot be read: {error}") from error
    changes = {"data_dir": settings.data_dir.absolute()}
    return ran_with.model_copy(
        update=changes if buckets is None else {**changes, "buckets": buckets}
    )


@asynccontextmanager
async def _store(settings: Settings) -> AsyncIterator[RedisLogStore]:
    """The store. An embedded server that is not running is started for the time of the check."""
    store = RedisLogStore(redis_settings(settings))
    directory = settings.data_dir.absolute() / "valkey"
    server: EmbeddedStore | None = None
    try:
        try:
            await store.observe_shards()
        except Undecided:
            cluster = (
                stored_cluster(settings.data_dir) if is_cluster_url(settings.redis_url) else None
            )
            is_embedded = settings.redis_url.startswith("unix://") and directory.is_dir()
            if cluster is None and not is_embedded:
                raise
            click.echo("onewriter: the embedded server is not running; starting it", err=True)
            server = cluster or EmbeddedServer(EmbeddedSettings(directory))
            await server.start()
            await store.close()
            store = RedisLogStore(
                redis_settings(settings.model_copy(update={"redis_url": server.url}))
            )
        yield store
    finally:
        await store.close()
        if server is not None:
            await server.stop()


async def _verify(settings: Settings, name: TopicName | None) -> list[LogReport]:
    async with _store(settings) as store:
        if name is None:
            logs = await all_logs(store, settings.buckets)
        else:
            logs = await logs_of(store, name, settings.buckets)
            if not logs:
                raise Refused(ServerError.TOPIC_NOT_FOUND, f"the store has no log of {name}")
        return await verify(store, logs, settings.buckets, _Progress())


class _Progress:
    """Writes the progress of a long check to standard error."""

    def __init__(self) -> None:
        self._logged_at = time.monotonic()

    def __call__(self, log: str, entries: int) -> None:
        now = time.monotonic()
        if now - self._logged_at >= PROGRESS_SECONDS:
            self._logged_at = now
            click.echo(f"onewriter: {log}: {entries} entries checked", err=True)


def _as_json(reports: Sequence[LogReport]) -> str:
    return json.dumps(
        {
            "holds": all(report.findings.holds for report in reports),
            "checked": PREDICATES,
            "notDetected": NOT_DETECTED,
            "logs": [
                {
                    "log": report.log,
                    "holds": report.findings.holds,
                    "first": None if report.first is None else str(report.first),
                    "last": str(report.last),
                    "ledgers": report.ledgers,
                    "blocks": report.blocks,
                    "entries": report.entries,
                    "auditedFences": report.audit_records,
                    "violations": [
                        {
                            "predicate": violation.predicate,
                            "where": violation.where,
                            "sentence": violation.sentence,
                        }
                        for violation in report.findings.violations
                    ],
                    "furtherViolations": report.findings.further,
                    "notes": report.findings.notes,
                }
                for report in reports
            ],
        },
        indent=2,
    )


def _as_table(reports: Sequence[LogReport]) -> str:
    rows = [("LOG", "FIRST", "LAST", "LEDGERS", "ENTRIES", "FENCES AUDITED", "RESULT")]
    for report in reports:
        count = len(report.findings.violations) + report.findings.further
        rows.append(
            (
                report.log,
                "-" if report.first is None else str(report.first),
                str(report.last),
                str(report.ledgers),
                str(report.entries),
                str(report.audit_records),
                "holds" if count == 0 else f"{count} violated",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    for report in reports:
        lines += _details(report)
    predicates = ", ".join(PREDICATES)
    lines += ["", f"Checked: {predicates}, as far as log and audit show them."]
    lines.append(f"Not detected: {'; '.join(NOT_DETECTED)}.")
    return "\n".join(lines)


def _details(report: LogReport) -> list[str]:
    findings = report.findings
    if not findings.violations and not findings.notes:
        return []
    lines = ["", report.log]
    for violation in findings.violations:
        lines.append(f"  {violation.predicate}  {', '.join(violation.where)}: {violation.sentence}")
        lines.append(f"      violates: {PREDICATES[violation.predicate]}")
    if findings.further:
        lines.append(f"  and {findings.further} more")
    lines += [f"  note: {note}" for note in findings.notes]
    return lines
