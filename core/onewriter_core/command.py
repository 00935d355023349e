"""The ``onewriter`` command: it finds its verbs and runs them.

Each part of onewriter registers its verbs in the entry-point group ``onewriter.commands``, from name to
``module:click_command``. So no part imports another, and the module of a verb is imported only if the verb is used
or listed by the help. The verbs are defined elsewhere.

Exit codes, for every verb:

====  ==========================================================================================
0     done
1     a definite no: the request was rejected, or the check failed
2     settings, manifests or the command line are invalid
3     unknown: no broker was reachable, or the request may or may not have succeeded; retrying is safe
====  ==========================================================================================
"""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import click

from onewriter_core.errors import ConfigurationError, OnewriterError, Refused, install_command

if TYPE_CHECKING:
    from pydantic import ValidationError

ENTRY_POINT_GROUP: Final = "onewriter.commands"
DISTRIBUTION: Final = "onewriter"

EXIT_REFUSED: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNKNOWN: Final = 3

_VALUE_ERROR: Final = "Value error, "
"""pydantic writes this before the message of a validator."""

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

_EXTRAS: Final = {
    "onewriter": "client",
    "onewriter_broker": "broker",
    "onewriter_operator": "operator",
    "onewriter_pipeline": "spark",
}
"""From a package to the extra that installs its dependencies."""


class VerbUnavailable(click.ClickException):
    """The module of a verb cannot be imported in this installation."""

    exit_code = EXIT_USAGE

    def show(self, file: Any = None) -> None:
        del file  # always the error stream
        click.echo(f"onewriter: {self.message}", err=True)


class VerbGroup(click.Group):
    """A group whose commands are entry points, imported one by one when they are needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All installed verbs by name."""
        del ctx
        return sorted(_entry_points())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb of that name, None if there is none. Raises VerbUnavailable."""
        del ctx
        entry_point = _entry_points().get(cmd_name)
        return None if entry_point is None else _load(entry_point)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List each verb with its summary, or with the extra that it needs."""
        rows = [(name, self._short_help(ctx, name)) for name in self.list_commands(ctx)]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As in click, but an unknown verb gets suggestions."""
        name = args[0]
        if not name.startswith("-") and name not in self.list_commands(ctx):
            near = difflib.get_close_matches(name, self.list_commands(ctx), n=3)
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            ctx.fail(f"there is no command {name!r}.{hint}")
        return super().resolve_command(ctx, args)

    def _short_help(self, ctx: click.Context, name: str) -> str:
        try:
            verb = self.get_command(ctx, name)
        except VerbUnavailable as unavailable:
            return f"({unavailable.message})"
        return "" if verb is None else verb.get_short_help_str(limit=100)


def invalid_settings(error: ValidationError, prefix: str) -> ConfigurationError:
    """The error with a line for each invalid setting: its environment variable, which begins with ``prefix``, and what
    is wrong. It contains no value, because a value can be a password.
    """
    lines = []
    for each in error.errors(include_url=False, include_input=False):
        name = "_".join(str(part) for part in each["loc"])
        variable = f"{prefix}{name.upper()}: " if name else ""
        lines.append(f"{variable}{each['msg'].removeprefix(_VALUE_ERROR)}")
    return ConfigurationError("\n".join(lines))


def _entry_points() -> dict[str, metadata.EntryPoint]:
    return {point.name: point for point in metadata.entry_points(group=ENTRY_POINT_GROUP)}


def _load(entry_point: metadata.EntryPoint) -> click.Command:
    package = entry_point.module.partition(".")[0]
    try:
        module = importlib.import_module(entry_point.module)
    except ModuleNotFoundError as error:
        missing = error.name or "?"
        if package in _EXTRAS and missing.partition(".")[0] != package:
            raise VerbUnavailable(
                f"{entry_point.name} needs more than is installed (no module {missing}): run "
                f"{install_command(_EXTRAS[package])}"
            ) from error
        raise VerbUnavailable(
            f"{entry_point.name} cannot start: there is no module {missing}"
        ) from error
    except ImportError as error:
        raise VerbUnavailable(f"{entry_point.name} cannot start: {error}") from error
    verb = getattr(module, entry_point.attr, None)
    if not isinstance(verb, click.Command):
        raise VerbUnavailable(
            f"{entry_point.name} cannot start: {entry_point.value} is not a command"
        )
    return verb


def output_option(*formats: str) -> Callable[[Decorated], Decorated]:
    """The option ``--output`` with these formats. The first format is for people and the default."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(formats),
        default=formats[0],
        show_default=True,
        help="Output format: for people, or for scripts.",
    )


def _show_version(ctx: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if not is_asked or ctx.resilient_parsing:
        return
    try:
        version = metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        version = "(not installed: run from a source tree)"
    click.echo(f"onewriter {version}")
    ctx.exit()


@click.group(cls=VerbGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_show_version,
    help="Show the version and exit.",
)
def onewriter() -> None:
    """Topics that have one writer at a time, provably.

    `onewriter COMMAND --help` explains a command. Exit codes: 0 done, 1 a definite no,
    2 wrong settings or usage, 3 unknown (retry).
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one verb and exit. ``arguments`` None: those of the process."""
    run(onewriter, "onewriter", arguments)


def run(command: click.Command, name: str, arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command under its name and exit.

    An OnewriterError prints one line on the error stream (a ConfigurationError prints one per mistake) and sets
    the exit code. Any other exception is a defect and prints its traceback.
    """
    try:
        command.main(args=None if arguments is None else list(arguments), prog_name=name)
    except OnewriterError as error:
        for line in str(error).splitlines() or [type(error).__name__]:
            click.echo(f"{name}: {line}", err=True)
        sys.exit(_exit_code(error))


def _exit_code(error: OnewriterError) -> int:
    match error:
        case ConfigurationError():
            return EXIT_USAGE
        case Refused():
            return EXIT_REFUSED
        case _:
            return EXIT_UNKNOWN
