"""The options of the verbs that ask a broker."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from onewriter_core.broker_http import Broker
from onewriter_core.command import output_option

DEFAULT_URL: Final = "http://127.0.0.1:8080"

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Reach:
    """How to reach brokers: the URL of any broker, the caller's token, the authorities for HTTPS."""

    http_url: str
    token: str
    ca_file: Path | None

    def broker(self, url: str = "") -> Broker:
        """The broker at this URL, or at the URL of the options."""
        return Broker(url or self.http_url, self.token, ca_file=self.ca_file)


def broker_options(command: Command) -> Command:
    """Add the options of a verb that asks a broker: its arguments ``reach`` and ``output``."""

    @functools.wraps(command)
    def with_reach(
        *arguments: Any, http_url: str, token: str, ca_file: Path | None, **others: Any
    ) -> Any:
        return command(*arguments, reach=Reach(http_url, token, ca_file), **others)

    wrapped: Any = with_reach
    for option in (
        output_option("table", "json"),
        click.option(
            "--token",
            envvar="ONEWRITER_TOKEN",
            show_envvar=True,
            default="",
            help="The client's token (a JWT). Other users can see it in the list of processes: "
            "use the environment variable instead.",
        ),
        click.option(
            "--http-url",
            envvar="ONEWRITER_HTTP_URL",
            show_envvar=True,
            default=DEFAULT_URL,
            show_default=True,
            help="HTTP address of any broker.",
        ),
        click.option(
            "--ca-file",
            envvar="ONEWRITER_TLS_CA_FILE",
            show_envvar=True,
            type=click.Path(path_type=Path),
            help="CA certificates for HTTPS; default: the system's.",
        ),
    ):
        wrapped = option(wrapped)
    found: Command = wrapped
    return found
