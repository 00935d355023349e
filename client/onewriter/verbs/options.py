"""The common options of the SDK's verbs: brokers, credentials, output format."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import click

from onewriter._client import Client
from onewriter._config import Tls

SERVICE_URL = "pulsar://127.0.0.1:6650"
SERVICE_URL_VARIABLE = "ONEWRITER_SERVICE_URL"

VERSION = "onewriter-command"
"""The client name in the handshake with brokers."""

NOTICE_SECONDS = 1.0
"""Interval at which a command compares whether a broker is reachable."""

Result = TypeVar("Result")


class CommandClient(Client):
    """A client that says on standard error that it reaches no broker, because it waits without a word otherwise."""

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self.spawn(self._report_unreachable())
        return self

    async def _report_unreachable(self) -> None:
        """Print the reason once for each time in which no broker is reachable."""
        is_reported = False
        while True:
            await asyncio.sleep(NOTICE_SECONDS)
            reason = self._directory.unreachable
            if reason and not is_reported:
                click.echo(
                    f"onewriter: {reason}; retrying (--service-url names the brokers)", err=True
                )
            is_reported = bool(reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Connect:
    """The connection options of the command line."""

    service_url: str
    token_file: Path | None
    tls: Tls

    def client(self) -> Client:
        """Return a client. Raises ConfigurationError for an invalid URL."""
        return CommandClient(self.service_url, token=self.token_file, tls=self.tls, version=VERSION)


def connecting(command: Callable[..., Result]) -> Callable[..., Result]:
    """Add the options of a verb that connects to brokers. The verb receives them as ``connect``."""

    @click.option(
        "--service-url",
        default=SERVICE_URL,
        show_default=True,
        envvar=SERVICE_URL_VARIABLE,
        show_envvar=True,
        help="The brokers: pulsar://HOST:PORT,... or pulsar+ssl://...",
    )
    @click.option(
        "--token-file",
        type=click.Path(path_type=Path),
        help="File with the client's token (a JWT); read again at each use.",
    )
    @click.option(
        "--ca-file",
        type=click.Path(path_type=Path),
        help="CA certificates for TLS; default: the system's.",
    )
    @click.option(
        "--certificate-file", type=click.Path(path_type=Path), help="Client certificate for TLS."
    )
    @click.option(
        "--key-file", type=click.Path(path_type=Path), help="Private key of the client certificate."
    )
    @functools.wraps(command)
    def with_connect(
        *,
        service_url: str,
        token_file: Path | None,
        ca_file: Path | None,
        certificate_file: Path | None,
        key_file: Path | None,
        **given: Any,
    ) -> Result:
        tls = Tls(ca_file=ca_file, certificate_file=certificate_file, key_file=key_file)
        connect = Connect(service_url=service_url, token_file=token_file, tls=tls)
        return command(connect=connect, **given)

    return with_connect


output = click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Output format; json: one object per line.",
)


def pairs(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> Any:
    """Convert a repeated option NAME=VALUE to a dict; an option's callback."""
    found = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{each!r} is not NAME=VALUE")
        found[name] = value
    return found


def line(content: dict[str, Any], *, to_errors: bool = False) -> None:
    """Print one JSON object on a line."""
    click.echo(json.dumps(content), err=to_errors)
