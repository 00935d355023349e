"""``kubectl onewriter``: an executable that kubectl finds by its name.

Exit codes are those of the ``onewriter`` command: 0 done, 1 definitely not done, 2 wrong usage, 3
unknown (repeat the command).
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata as distribution
from pathlib import Path
from typing import Any, Final, NoReturn

import click

from onewriter_core import tables
from onewriter_core.broker_http import topic_path
from onewriter_core.command import DISTRIBUTION, output_option, run
from onewriter_core.errors import ConfigurationError, OnewriterError, Refused, ServerError
from onewriter_core.json_values import Json
from onewriter_core.kubernetes.objects import TopicObject
from onewriter_core.topic_view import parse_view
from onewriter_kubectl import lookups, orders, reasons, timeline, views
from onewriter_kubectl.installation import operator_problem
from onewriter_kubectl.kubectl import Missing
from onewriter_kubectl.options import (
    TABLE,
    WIDE,
    Caller,
    caller_options,
    everywhere_option,
    printed,
)
from onewriter_kubectl.report import Report

PROGRAM: Final = "kubectl onewriter"

ORDER_SECONDS: Final = 30.0
"""Time for the operator to execute an order."""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name=DISTRIBUTION, prog_name=PROGRAM)
def onewriter() -> None:
    """Show who writes a topic, why and since when, and change the writer.

    TOPIC is the name of an ExclusiveTopic. Exit codes: 0 done, 1 definitely not done,
    2 wrong usage, 3 unknown (repeat the command).
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one verb and exit."""
    run(onewriter, PROGRAM, arguments)


# ------------------------------------------------------------ asking


@onewriter.command("who")
@click.argument("topic", default="")
@everywhere_option
@output_option(TABLE, WIDE, "json", "yaml")
@caller_options
def who_command(topic: str, output: str, caller: Caller, *, everywhere: bool) -> None:
    """Show who writes TOPIC, in one line; without TOPIC a table of all topics."""
    if not topic:
        _list(caller, output, everywhere=everywhere)
        return
    _one_namespace(everywhere=everywhere)
    found = lookups.topic(caller.kubectl, _name(topic))
    if output in {TABLE, WIDE}:
        click.echo(views.who(found, _now()))
    else:
        status = found.status.document
        printed(
            {name: status.get(name) for name in ("topic", "epoch", "holder", "waiting")}, output
        )


@onewriter.command("status")
@click.argument("topic", default="")
@everywhere_option
@click.option(
    "--live", is_flag=True, help="Ask the broker that serves the topic, not the API server."
)
@output_option(TABLE, WIDE, "json", "yaml")
@caller_options
def status_command(
    topic: str, output: str, caller: Caller, *, everywhere: bool, live: bool
) -> None:
    """Show TOPIC: holder, queue, conditions, claims, history, Events; without TOPIC a table."""
    if not topic:
        if live:
            raise ConfigurationError("--live needs the name of one topic")
        _list(caller, output, everywhere=everywhere)
        return
    _one_namespace(everywhere=everywhere)
    found = lookups.topic(caller.kubectl, _name(topic))
    if live:
        answer = _live(caller, found)
        if output in {TABLE, WIDE}:
            tables.status(answer)
        else:
            printed(answer, output)
        return
    claims = lookups.claims(caller.kubectl, found)
    if output in {TABLE, WIDE}:
        tables.page(views.topic_page(found, claims, lookups.events(caller.kubectl, found), _now()))
    else:
        documents = [claim.document for claim in claims]
        printed({"topic": found.document, "claims": documents}, output)


@onewriter.command("installation")
@output_option(TABLE, "json", "yaml")
@caller_options
def installation_command(output: str, caller: Caller) -> None:
    """Show whether the installation is healthy: brokers, store, waiting buckets, certificates.

    Exits with 1 if it is not ready.
    """
    found = lookups.installation(caller.kubectl, caller.installation())
    if output == TABLE:
        events = lookups.events(caller.kubectl, found)
        tables.page(views.installation_page(found, events, _now()))
    else:
        printed(found.document, output)
    ready = found.status.condition("Ready")
    if ready.status != "True":
        message = ready.message or "no operator has reported yet"
        raise Refused(ServerError.SERVICE_NOT_READY, f"not ready: {message}")


@onewriter.command("timeline")
@click.argument("topic")
@output_option(TABLE, "json", "yaml")
@caller_options
def timeline_command(topic: str, output: str, caller: Caller) -> None:
    """Draw the last epochs of TOPIC over time, from its status."""
    found = timeline.spans(lookups.topic(caller.kubectl, _name(topic)).status, _now())
    if output == TABLE:
        width = shutil.get_terminal_size().columns
        click.echo("\n".join(timeline.lines(found, width)))
    else:
        printed({"epochs": timeline.documents(found)}, output)


@onewriter.command("history")
@click.argument("topic")
@click.option(
    "--limit",
    type=click.IntRange(1, 1_000),
    default=50,
    show_default=True,
    help="Number of records: the newest, or with --after the next ones.",
)
@click.option("--after", help="Continue after the record with this id.")
@output_option(TABLE, "json", "yaml")
@caller_options
def history_command(topic: str, limit: int, after: str | None, output: str, caller: Caller) -> None:
    """Show every transition of TOPIC that the brokers recorded, newest last."""
    found = lookups.topic(caller.kubectl, _name(topic))
    with caller.brokers() as brokers:
        path = f"{topic_path(_pulsar_name(found))}/history"
        answer = brokers.get(path, limit=limit, after=after)
    if output == TABLE:
        tables.history(answer)
    else:
        printed(answer, output)


@onewriter.command("why")
@click.argument("topic")
@click.option("--live", is_flag=True, help="Also ask the broker that serves the topic.")
@caller_options
def why_command(topic: str, caller: Caller, *, live: bool) -> None:
    """Explain who writes TOPIC and why, who lost it, who is next, and what needs attention."""
    kubectl = caller.kubectl
    found = lookups.topic(kubectl, _name(topic))
    now = _now()
    facts = reasons.Facts(
        topic=found,
        now=now,
        claims=lookups.claims(kubectl, found),
        budgets=lookups.budgets(kubectl, found),
        pods=lookups.fenced_pods(kubectl, found),
        live=parse_view(_live(caller, found)) if live else None,
        operator=_operator(caller, now),
    )
    for sentence in reasons.why(facts):
        click.echo(sentence)


def _operator(caller: Caller, now: float) -> str | None:
    """Why the operator does not lead; None if the caller cannot see that."""
    try:
        return operator_problem(caller.kubectl, caller.installation(), now)
    except OnewriterError:
        return None


def _list(caller: Caller, output: str, *, everywhere: bool) -> None:
    found = lookups.topics(caller.kubectl, everywhere=everywhere)
    if output in {TABLE, WIDE}:
        listed = views.topics(found, _now(), with_namespace=everywhere, is_wide=output == WIDE)
        if listed.rows:
            tables.table(listed.columns, listed.rows)
        else:
            click.echo("no topics")
    else:
        printed({"topics": [topic.document for topic in found]}, output)


def _live(caller: Caller, topic: TopicObject) -> Json:
    with caller.brokers() as brokers:
        return brokers.get(topic_path(_pulsar_name(topic)))


# ------------------------------------------------------------ changing


def _order_options(verb: Any) -> Any:
    for option in (
        click.option(
            "--timeout-seconds",
            type=click.FloatRange(min=1),
            default=ORDER_SECONDS,
            show_default=True,
            help="Time to wait for the operator.",
        ),
        click.option(
            "--direct",
            is_flag=True,
            help="Send the order to the broker, not to the operator; needs administrator rights "
            "there.",
        ),
        click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation."),
        click.option(
            "--if-epoch", type=click.IntRange(min=0), help="Only if the epoch is this number."
        ),
        click.argument("topic"),
    ):
        verb = option(verb)
    return verb


@onewriter.command("fence")
@_order_options
@caller_options
def fence_command(
    topic: str,
    if_epoch: int | None,
    timeout_seconds: float,
    caller: Caller,
    *,
    yes: bool,
    direct: bool,
) -> None:
    """Fence the writer of TOPIC. The first waiter becomes the holder; nothing of the old epoch is stored later.

    The command ends the present epoch, and no later one.
    """
    found = lookups.topic(caller.kubectl, _name(topic))
    order = orders.judged(orders.FENCING, found, if_epoch)
    _carry_out(caller, order, timeout_seconds, yes=yes, direct=direct)


@onewriter.command("handover")
@click.option(
    "--to", default="", help="A waiting producer or its claim; default: the first waiter."
)
@_order_options
@caller_options
def handover_command(
    topic: str,
    if_epoch: int | None,
    timeout_seconds: float,
    to: str,
    caller: Caller,
    *,
    yes: bool,
    direct: bool,
) -> None:
    """Hand TOPIC over to a waiter, without a gap between the two writers."""
    found = lookups.topic(caller.kubectl, _name(topic))
    order = orders.judged(orders.HANDING_OVER, found, if_epoch, to)
    _carry_out(caller, order, timeout_seconds, yes=yes, direct=direct)


@onewriter.command("reassign")
@click.option("--to", required=True, help="The Kubernetes namespace that gets the topic.")
@click.option("--reason", default="", help="The reason; written to the audit stream.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@caller_options
def reassign_command(topic: str, to: str, reason: str, caller: Caller, *, yes: bool) -> None:
    """Assign TOPIC to another namespace than the one that declared it first.

    TOPIC is an ExclusiveTopic, or the full name of a Pulsar topic (persistent://...). This needs
    the rights of an administrator of the brokers.
    """
    name = topic
    if "://" not in topic:
        name = _pulsar_name(lookups.topic(caller.kubectl, _name(topic)))
    if not yes:
        click.confirm(f"Give {name}, with its log, to namespace {to}?", abort=True, err=True)
    with caller.brokers() as brokers:
        answer = brokers.post(f"{topic_path(name)}/reassign", {"to": to, "reason": reason})
    former = answer.get("from") or "no namespace"
    click.echo(f"done: {answer['topic']} belonged to {former} and belongs to {answer['to']}")


def _carry_out(
    caller: Caller, order: orders.Order, timeout_seconds: float, *, yes: bool, direct: bool
) -> None:
    if not yes:
        click.confirm(orders.question(order), abort=True, err=True)
    if direct:
        with caller.brokers() as brokers:
            click.echo(orders.directly(brokers, order))
    else:
        click.echo(orders.by_annotation(caller.kubectl, order, timeout_seconds))


# ------------------------------------------------------------ for support


@onewriter.command("report")
@click.option(
    "-f",
    "--file",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File name of the archive; default: onewriter-report-TIME.tar.gz in this directory.",
)
@click.option(
    "--since", default="24h", show_default=True, help="Age of the oldest log lines: 30m, 24h."
)
@everywhere_option
@caller_options
def report_command(path: Path | None, since: str, caller: Caller, *, everywhere: bool) -> None:
    """Collect objects, events, metrics, logs and versions in an archive, without secrets.

    The report omits what the caller may not see, and lists it.
    """
    title = f"onewriter-report-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    path = path or Path(f"{title}.tar.gz")
    try:
        report = Report(path, title, lambda part: click.echo(f"without {part}", err=True))
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error}") from error
    try:
        report.versions(caller.kubectl, f"{DISTRIBUTION} {distribution.version(DISTRIBUTION)}")
        report.topics(caller.kubectl, everywhere=everywhere)
        try:
            installation = caller.installation()
        except OnewriterError as error:
            report.note_missing("installation", error)
        else:
            report.installation(caller.kubectl, installation, since)
    finally:
        missing = report.close()
    click.echo(f"{path}" + (f" ({missing} parts could not be had: errors.txt)" if missing else ""))


# ------------------------------------------------------------ inside


def _now() -> float:
    """Unix time."""
    return time.time_ns() / 1e9


def _name(topic: str) -> str:
    """The object's name; kubectl's KIND/NAME is understood too."""
    kind, _, name = topic.rpartition("/")
    if kind and kind.partition(".")[0] not in {"xt", "exclusivetopic", "exclusivetopics"}:
        raise ConfigurationError(f"{topic!r}: give the name of an ExclusiveTopic")
    return name


def _one_namespace(*, everywhere: bool) -> None:
    if everywhere:
        raise ConfigurationError("--all-namespaces cannot be combined with the name of a topic")


def _pulsar_name(topic: TopicObject) -> str:
    """The Pulsar topic of an object. Raises Missing if no operator has reconciled it yet."""
    if not topic.status.topic:
        raise Missing("no operator has looked at it yet: its status names no topic")
    return topic.status.topic
