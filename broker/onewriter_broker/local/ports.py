"""The ports on which the brokers of ``onewriter up`` will listen: whether another program uses one of them.

A broker reports a port in use only after it has reached its store. Until then, the program that has the port could be
mistaken for this broker.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Iterator, Sequence
from typing import Final

from onewriter_broker.settings import Settings
from onewriter_core.errors import ConfigurationError

PATIENCE_SECONDS: Final = 3.0
"""How long a port may be in use: brokers whose supervisor was killed need some time to end."""

POLL_SECONDS: Final = 0.1


class PortInUseError(ConfigurationError):
    """Another program listens on a port."""


async def await_free_ports(
    brokers: Sequence[Settings], patience_seconds: float = PATIENCE_SECONDS
) -> None:
    """Return as soon as all brokers can listen on their ports.

    Raises ConfigurationError if that is impossible, or if another program still uses a port after
    ``patience_seconds``. The error names the option to change.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_seconds
    while True:
        try:
            refuse_ports_in_use(brokers)
        except PortInUseError:
            if loop.time() >= deadline:
                raise
            await asyncio.sleep(POLL_SECONDS)
        else:
            return


def refuse_ports_in_use(brokers: Sequence[Settings]) -> None:
    """Raise ConfigurationError if a broker cannot listen on one of its ports now."""
    for broker in brokers:
        for host, port, option in _ports(broker):
            _refuse_port_in_use(host, port, option)


def _ports(broker: Settings) -> Iterator[tuple[str, int, str]]:
    """Address and port of each listener, and the option or variable that sets the port."""
    yield broker.plain_host, broker.port, "--port"
    yield broker.plain_host, broker.http_port, "--http-port"
    if broker.probe_port:
        yield broker.host, broker.probe_port, "--probe-port"
    if broker.tls_cert_file is not None:
        yield broker.host, broker.tls_port, "ONEWRITER_TLS_PORT"
        yield broker.host, broker.https_port, "ONEWRITER_HTTPS_PORT"


def _refuse_port_in_use(host: str, port: int, option: str) -> None:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on {host!r}: {error.strerror}; set --host"
        ) from error
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if (
                family == socket.AF_INET6
            ):  # as asyncio does: an IPv6 socket does not take the IPv4 port
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                listener.bind(address)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    what = f"port {port} of {host} is in use by another program"
                    raise PortInUseError(
                        f"{what}: stop it, or set another port ({option})"
                    ) from error
                what = f"cannot listen on {host}:{port}: {error.strerror}"
                raise ConfigurationError(f"{what} ({option})") from error
