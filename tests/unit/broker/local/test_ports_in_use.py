"""``onewriter up`` refuses to start brokers on ports that another program uses."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from onewriter_broker.local.ports import PortInUseError, await_free_ports, refuse_ports_in_use
from onewriter_broker.settings import Settings
from onewriter_core.errors import ConfigurationError
from onewriter_testing.ports import free_ports


@pytest.fixture
def used_port() -> Iterator[int]:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


def broker(**settings: object) -> Settings:
    port = free_ports(5)
    free = dict(
        zip(("port", "http_port", "tls_port", "https_port"), range(port, port + 4), strict=True)
    )
    return Settings(**{**free, **settings})  # type: ignore[arg-type]  # pydantic judges


def test_free_ports_are_accepted() -> None:
    refuse_ports_in_use([broker(), broker(probe_port=free_ports(1))])


@pytest.mark.parametrize(
    ("setting", "option"),
    [
        ("port", "--port"),
        ("http_port", "--http-port"),
        ("probe_port", "--probe-port"),
        ("tls_port", "ONEWRITER_TLS_PORT"),
        ("https_port", "ONEWRITER_HTTPS_PORT"),
    ],
)
def test_a_port_in_use_is_refused_with_its_option(
    used_port: int, setting: str, option: str, tmp_path: Path
) -> None:
    for name in ("broker.crt", "broker.key"):
        (tmp_path / name).touch()
    tls = {"tls_cert_file": tmp_path / "broker.crt", "tls_key_file": tmp_path / "broker.key"}
    other = broker(**tls, **{setting: used_port})
    with pytest.raises(ConfigurationError, match=rf"port {used_port} of .* in use.*\({option}\)"):
        refuse_ports_in_use([broker(), other])


def test_ports_of_tls_are_ignored_without_a_certificate(used_port: int) -> None:
    refuse_ports_in_use([broker(tls_port=used_port, https_port=used_port)])


def test_a_foreign_address_and_an_unknown_host_are_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"cannot listen on 192\.0\.2\.1:\d+: Cannot assign"
    ):
        refuse_ports_in_use([broker(host="192.0.2.1")])
    with pytest.raises(ConfigurationError, match=r"cannot listen on 'not a host': .*--host"):
        refuse_ports_in_use([broker(host="not a host")])


async def test_a_port_that_becomes_free_is_waited_for() -> None:
    """As after a restart: a broker of the killed supervisor has not ended yet."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        brokers = [broker(port=other.getsockname()[1])]
        with pytest.raises(PortInUseError):
            await await_free_ports(brokers, patience_seconds=0.0)
        asyncio.get_running_loop().call_later(0.05, other.close)
        await await_free_ports(brokers, patience_seconds=60.0)


async def test_an_address_that_no_patience_makes_free_is_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match="Cannot assign"):
        await await_free_ports([broker(host="192.0.2.1")], patience_seconds=3600.0)
