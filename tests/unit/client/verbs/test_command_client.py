"""The client of the commands: it says that it reaches no broker while it waits for one."""

from __future__ import annotations

import asyncio

import pytest

from onewriter._config import Tls
from onewriter.verbs.options import Connect
from onewriter_testing.ports import free_ports

WAIT_SECONDS_MAX = 120.0
"""Time limit on a busy machine. Alone the tests take a second."""


async def test_an_unreachable_broker_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    url = f"pulsar://127.0.0.1:{free_ports(1)}"
    written = ""
    async with Connect(service_url=url, token_file=None, tls=Tls()).client() as client:
        client.start_producer("orders")
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while not written:
                await asyncio.sleep(0.05)
                written = capsys.readouterr().err
        await asyncio.sleep(2.5)  # two more comparisons
    assert written.startswith(f"onewriter: {url} cannot be reached: ")
    assert written.endswith("; retrying (--service-url names the brokers)\n")
    assert capsys.readouterr().err == ""
