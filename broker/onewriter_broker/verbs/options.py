"""The options of every verb that asks a broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from onewriter_core.command import output_option

DEFAULT_URL: Final = "http://127.0.0.1:8080"

Command = TypeVar("Command", bound=Callable[..., Any])


def broker_options(command: Command) -> Command:
    """The options that every verb has which asks a broker."""
    for option in (
        output_option("table", "json"),
        click.option(
            "--token",
            envvar="ONEWRITER_TOKEN",
            show_envvar=True,
            default="",
            help="Our token (a JWT). Others see it in the list of processes: better by the variable.",
        ),
        click.option(
            "--http-url",
            envvar="ONEWRITER_HTTP_URL",
            show_envvar=True,
            default=DEFAULT_URL,
            show_default=True,
            help="Any broker's HTTP address.",
        ),
    ):
        command = option(command)
    return command
