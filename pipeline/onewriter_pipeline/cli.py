"""The ``onewriter-pipeline`` command: one verb per job.

Exit codes: 0 done; 1 error (no half-done work remains, so the command can be repeated); 2 a violation was found.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

import click

from onewriter_core.errors import OnewriterError, install_command
from onewriter_pipeline.errors import Contradicted
from onewriter_pipeline.jobs.options import EXIT_ERROR, EXIT_OK, EXIT_VIOLATION, Violation

NAME: Final = "onewriter-pipeline"

VERBS: Final = {
    "audit": "Check that every topic had one writer at a time.",
    "offload": "Copy what topics hold to tables; run it again for what came since.",
    "replay": "Publish messages of a topic, or of its table, to a topic, once.",
    "report": "Show who wrote when: a page, and pictures.",
    "snapshot": "Keep the newest message of each key.",
    "table": "Show, compact and clean the tables.",
    "trim": "Drop from topics what the tables hold, once that is verified.",
    "verify": "Compare the tables with the logs, and with what brokers know of their copies.",
}
"""Each verb is the ``command`` of the module in ``jobs`` with the same name."""


class Verbs(click.Group):
    """The verbs. Each module is imported when its verb is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all verbs."""
        del ctx
        return sorted(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb with a name; None: unknown."""
        del ctx
        if cmd_name not in VERBS:
            return None
        try:
            command = importlib.import_module(f"onewriter_pipeline.jobs.{cmd_name}").command
        except ModuleNotFoundError as error:
            raise click.ClickException(
                f"{cmd_name} needs more than is installed (no module {error.name}): "
                f"run {install_command('spark')}"
            ) from error
        return command if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs without importing their modules."""
        del ctx
        with formatter.section("Verbs"):
            formatter.write_dl(sorted(VERBS.items()))


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="onewriter", prog_name=NAME)
def pipeline() -> None:
    """Keep the history of topics in tables.

    Exit codes: 0 done, 1 an error or wrong usage (no half-done work remains: run it again), 2 a violation
    was found. (`onewriter verify` reports a violation with 1.)
    """


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a verb and return the exit code. Raises only what is a defect."""
    try:
        pipeline.main(
            args=None if arguments is None else list(arguments),
            prog_name=NAME,
            standalone_mode=False,
        )
    except Violation:
        return EXIT_VIOLATION
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.Abort:
        click.echo(f"{NAME}: interrupted; run it again", err=True)
        return EXIT_ERROR
    except click.ClickException as error:
        error.show()
        return EXIT_ERROR
    except Contradicted as error:
        click.echo(f"{NAME}: {error}", err=True)
        return EXIT_VIOLATION
    except OnewriterError as error:
        click.echo(f"{NAME}: {error}", err=True)
        return EXIT_ERROR
    return EXIT_OK


def main() -> NoReturn:
    """Run the command."""
    logging.basicConfig(format=f"{NAME}: %(message)s", level=logging.WARNING)
    sys.exit(run())
