"""The options, progress, results and exit codes that all verbs of ``onewriter-pipeline`` share.

A verb is a module of ``jobs`` with a click command named ``command``; ``cli.VERBS`` lists the verbs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import click

from onewriter_pipeline.brokers.connection import PATIENCE_SECONDS, Access
from onewriter_pipeline.errors import Invalid
from onewriter_pipeline.read.selection import Selection
from onewriter_pipeline.schema import FORMATS
from onewriter_pipeline.tables.tables import Tables

EXIT_OK: Final = 0
EXIT_ERROR: Final = 1
EXIT_VIOLATION: Final = 2
"""The exit code of a violation, such as two writers at once, or a table that differs from the log."""

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class Violation(Exception):
    """A violation was found; the result that was printed before describes it. Exit code 2."""


def _together(*options: Callable[[Any], Any]) -> Callable[[Decorated], Decorated]:
    def decorate(function: Decorated) -> Decorated:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


access_options = _together(
    click.option(
        "--admin-url",
        "--http-url",
        "url",
        envvar="ONEWRITER_HTTP_URL",
        show_envvar=True,
        default="http://localhost:8080",
        show_default=True,
        help="The brokers' HTTP addresses, separated by commas.",
    ),
    click.option(
        "--token",
        envvar="ONEWRITER_TOKEN",
        show_envvar=True,
        default="",
        help="The client's token (a JWT). Other users can see it in the list of processes: use "
        "--token-file instead.",
    ),
    click.option(
        "--token-file",
        envvar="ONEWRITER_TOKEN_FILE",
        show_envvar=True,
        default="",
        help="The file that holds the token; read for each request.",
    ),
    click.option("--ca-file", default="", help="CA certificates for HTTPS; default: the system's."),
    click.option(
        "--patience",
        default=PATIENCE_SECONDS,
        show_default=True,
        help="Seconds after which brokers count as unavailable.",
    ),
)
"""How to reach the brokers; see ``access_of``."""


def _table_options(*, is_required: bool) -> Callable[[Decorated], Decorated]:
    return _together(
        click.option(
            "--table",
            required=is_required,
            envvar="ONEWRITER_TABLE",
            show_envvar=True,
            help="Folder or URL (s3://...) of the tables.",
        ),
        click.option(
            "--storage-option",
            "storage_options",
            multiple=True,
            metavar="NAME=VALUE",
            help="An option of the object store, with the name that delta-rs uses; may be "
            "repeated. Environment variables apply too.",
        ),
        click.option(
            "--table-format",
            type=click.Choice(FORMATS),
            default=FORMATS[0],
            show_default=True,
            help="parquet: without a Delta log, on local disks only.",
        ),
    )


table_options = _table_options(is_required=True)
optional_table_options = _table_options(is_required=False)
"""The place of the tables; see ``tables_of``."""

topic_options = _together(
    click.option("--topic", "topics", multiple=True, help="A topic; may be repeated."),
    click.option(
        "--topics-pattern",
        "pattern",
        default="",
        help="All topics whose full name matches this regular expression.",
    ),
)
"""The topics; see ``selection_of``."""

spark_options = _together(
    click.option(
        "--master",
        default="",
        help="Spark's master; default: local[*], or the one of spark-submit.",
    ),
    click.option(
        "--conf", multiple=True, metavar="NAME=VALUE", help="A Spark setting; may be repeated."
    ),
)

output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Output format: for people, or one JSON document for scripts.",
)


def access_of(options: Mapping[str, Any]) -> Access:
    """How to reach the brokers, from the options above. Raises Invalid."""
    token, token_file = options["token"], options["token_file"]
    if token and token_file:
        raise Invalid("--token and --token-file: give one of them")
    access = Access(
        options["url"],
        token,
        token_file,
        options["ca_file"],
        patience_seconds=options["patience"],
    )
    access.addresses()
    return access


def tables_of(options: Mapping[str, Any]) -> Tables:
    """The place of the tables. Raises Invalid."""
    return Tables(options["table"], storage_of(options), options["table_format"])


def storage_of(options: Mapping[str, Any]) -> dict[str, str]:
    """The options of an object store. Raises Invalid."""
    given = {}
    for each in options["storage_options"]:
        name, equals, value = each.partition("=")
        if not equals:
            raise Invalid("--storage-option: write NAME=VALUE")
        given[name] = value
    return given


def selection_of(options: Mapping[str, Any]) -> Selection:
    """The topics. Raises Invalid if none are given, or both a list and a pattern."""
    topics: Sequence[str] = options["topics"]
    pattern: str = options["pattern"]
    if bool(topics) == bool(pattern):
        raise Invalid("give topics with --topic, or --topics-pattern")
    return Selection(topics=tuple(topics), pattern=pattern)


def progress(line: str) -> None:
    """Print progress to stderr. Programs read stdout."""
    click.echo(line, err=True)


def print_report(output: str, document: Mapping[str, Any], lines: Sequence[str]) -> None:
    """Print the result, as a JSON document or as lines of text."""
    if output == "json":
        click.echo(json.dumps(document, indent=2, sort_keys=False))
        return
    for line in lines:
        click.echo(line)
