"""``onewriter operator``: one replica as a process."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import NoReturn

import click
import structlog
import uvloop
from pydantic import ValidationError

from onewriter_core.command import EXIT_USAGE, invalid_settings
from onewriter_core.errors import ConfigurationError
from onewriter_operator import configuration
from onewriter_operator.app import Operator, OperatorLimits
from onewriter_operator.logs import configure_logging
from onewriter_operator.settings import ENVIRONMENT_PREFIX, OperatorSettings

log = structlog.get_logger(__name__)


@click.command()
def operator() -> None:
    """Run the operator (settings: ONEWRITER_OPERATOR_* and the configuration file)."""
    serve()


def serve(limits: OperatorLimits = OperatorLimits()) -> NoReturn:
    """Run one replica with the settings of the environment, and end the process."""
    configure_logging()
    try:
        settings = _settings()
        wanted = configuration.read(settings.configuration)
    except ConfigurationError as error:
        click.echo(str(error), err=True)
        sys.exit(EXIT_USAGE)
    sys.exit(uvloop.run(run(Operator(settings, wanted, limits))))


def _settings() -> OperatorSettings:
    try:
        return OperatorSettings()
    except ValidationError as error:
        raise invalid_settings(error, ENVIRONMENT_PREFIX) from None


async def run(replica: Operator) -> int:
    """Run a replica until it receives a signal or must end; the exit code."""
    task = asyncio.current_task()
    loop = asyncio.get_running_loop()
    if task is not None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, task.cancel)
    try:
        await replica.run()
    except asyncio.CancelledError:
        return 0
    except ExceptionGroup as group:
        log.exception("operator.ends", reasons=_reasons(group))
    return 1


def _reasons(group: ExceptionGroup[Exception]) -> list[str]:
    """The error that ended the process."""
    found: list[str] = []
    for error in group.exceptions:
        found += (
            _reasons(error) if isinstance(error, ExceptionGroup) else [str(error) or repr(error)]
        )
    return found
