"""``onewriter sidecar``: run a sidecar, or call the one that runs on this machine."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
from pydantic import ValidationError

from onewriter._errors import Refused, ServerError, Unavailable
from onewriter.sidecar.settings import ENVIRONMENT_PREFIX, Endpoint, Settings
from onewriter_core.command import invalid_settings

Kind = TypeVar("Kind", bound=Endpoint)

CALL_SECONDS = 30.0
"""Time limit of one call to the running sidecar, including a release."""


@click.group("sidecar", invoke_without_command=True)
@click.option("--topic", help="The topic to lead; none: the sidecar only relays.")
@click.option(
    "--service-url",
    help="The brokers: pulsar://HOST:PORT,... or pulsar+ssl://...  [default: pulsar://127.0.0.1:6650]",
)
@click.option(
    "--identity", help="Name of this candidate, as published at a takeover. Default: the host name."
)
@click.option("--producer-name", help="Name of the producer. Default: the identity and a nonce.")
@click.option("--priority", type=int, help="Priority in the queue, higher first.")
@click.option(
    "--announce/--no-announce",
    default=None,
    help="Publish who leads at each takeover, also without resume info.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    help="File with the client's token (a JWT); read again at each use.",
)
@click.option(
    "--tls-ca-file",
    type=click.Path(path_type=Path),
    help="CA certificates for TLS; default: the system's.",
)
@click.option("--host", help="Loopback address of the API.  [default: 127.0.0.1]")
@click.option("--port", type=int, help="Port of the API; 0: none.  [default: 6680]")
@click.option("--socket", type=click.Path(path_type=Path), help="Unix socket of the API.")
@click.option(
    "--release-key-file",
    type=click.Path(path_type=Path),
    help="File for the key that a release over the port needs; the sidecar writes it at its start.",
)
@click.option(
    "--relay-port",
    type=int,
    help="Port on loopback where stock Pulsar clients reach the brokers; 0: none.  [default: 0]",
)
@click.option("--health-host", help="Address of --health-port.  [default: 0.0.0.0]")
@click.option(
    "--health-port",
    type=int,
    help="Separate port of probes and metrics; 0: only on the API.  [default: 0]",
)
@click.option(
    "--ready-when",
    type=click.Choice(["standing-by", "leading"]),
    help="When GET /readyz answers 200: in the queue or leading, or only while leading.  [default: standing-by]",
)
@click.option(
    "--publish-timeout-seconds",
    type=float,
    help="Timeout for the result of a message.  [default: 10]",
)
@click.option(
    "--stop-seconds", type=float, help="Time for releasing the topic at a stop.  [default: 10]"
)
@click.pass_context
def sidecar(context: click.Context, /, **options: Any) -> None:
    """Hold a topic for an application in any language, over HTTP on this machine.

    Every setting can also be set in the environment, as ONEWRITER_SIDECAR_TOPIC and so on;
    docs/sidecar.md lists them. On SIGTERM the sidecar releases the topic to the next waiter and ends.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if context.invoked_subcommand is not None:
        context.obj = _settings(
            Endpoint, {k: given[k] for k in Endpoint.model_fields.keys() & given.keys()}
        )
        return
    settings = _settings(Settings, given)
    # Imported here, because the other commands run in preStop hooks and have to start quickly.
    from onewriter.sidecar.app import run  # noqa: PLC0415
    from onewriter.sidecar.logs import configure_logging  # noqa: PLC0415

    configure_logging()
    try:
        asyncio.run(run(settings))
    except asyncio.CancelledError:
        raise Unavailable("stopped without releasing the topic") from None


@sidecar.command("release")
@click.option(
    "--rejoin/--stand-aside",
    default=False,
    help="Queue again at once, or stay out of the queue (default).",
)
@click.pass_obj
def release(endpoint: Endpoint, *, rejoin: bool) -> None:
    """Hand the topic over to the next waiter, for preStop hooks. Returns after the release.

    Without a unix socket it needs the release key: the same release_key_file as the sidecar.
    """
    query = f"rejoin={'true' if rejoin else 'false'}"
    standing = _call(endpoint, "POST", f"/release?{query}", _release_headers(endpoint))
    click.echo(f"released; {standing['phase']}")


@sidecar.command("status")
@click.pass_obj
def status(endpoint: Endpoint) -> None:
    """Show the answer of GET /leadership."""
    click.echo(json.dumps(_call(endpoint, "GET", "/leadership"), indent=2))


def _settings(kind: type[Kind], given: dict[str, Any]) -> Kind:
    try:
        return kind(**given)
    except ValidationError as error:
        raise invalid_settings(error, ENVIRONMENT_PREFIX) from error


class _Connection(http.client.HTTPConnection):
    """A connection to the sidecar's unix socket if there is one, else to its port."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint.host, endpoint.port or None, timeout=CALL_SECONDS)
        self._path = endpoint.socket

    def connect(self) -> None:
        if self._path is None:
            super().connect()
            return
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(CALL_SECONDS)
        self.sock.connect(str(self._path))


def _release_headers(endpoint: Endpoint) -> dict[str, str]:
    """The header with the release key, where one is needed. Raises Unavailable if it cannot be read."""
    path = endpoint.release_key_file
    if path is None or endpoint.socket is not None:
        return {}
    try:
        return {"Authorization": f"Bearer {path.read_text().strip()}"}
    except (OSError, UnicodeDecodeError) as error:
        raise Unavailable(f"cannot read the release key: {error}") from error


def _call(
    endpoint: Endpoint, method: str, path: str, headers: Mapping[str, str] | None = None
) -> dict[str, Any]:
    connection = _Connection(endpoint)
    try:
        connection.request(method, path, headers=dict(headers or {}))
        response = connection.getresponse()
        body: dict[str, Any] = json.loads(response.read())
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise Unavailable(f"no sidecar answers: {error}") from error
    finally:
        connection.close()
    if response.status >= 500:
        raise Unavailable(str(body.get("reason")))
    if response.status >= 400:
        raise Refused(ServerError.NOT_ALLOWED_ERROR, str(body.get("reason")))
    return body
