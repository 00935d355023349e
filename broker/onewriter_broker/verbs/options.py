"""The options of every verb that asks a broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

DEFAULT_URL: Final = "http://127.0.0.1:8080"

Command = TypeVar("Command", bound=Callable[..., Any])


def broker_options(command: Command) -> Command:
    """The options that every verb has which asks a broker."""
    for option in (
        click.option(
            "-o",
            "--output",
            type=click.Choice(["table", "json"]),
            default="table",
            show_default=True,
            help="For people, or for scripts.",
        ),
        click.option("--token", envvar="ONEWRITER_TOKEN", default="", help="Who you are (a JWT)."),
        click.option(
            "--http-url",
            envvar="ONEWRITER_HTTP_URL",
            default=DEFAULT_URL,
            show_default=True,
            help="Any broker's HTTP address.",
        ),
    ):
        command = option(command)
    return command
