"""Special endings of calls to a broker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onewriter_operator.brokers.client import BrokerClient, BrokerUnreachable, Credentials


@pytest.fixture
async def resolving(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set when a name is being resolved, which takes for ever."""
    began = asyncio.Event()

    async def never(*_: Any, **__: Any) -> Any:
        began.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", never)
    return began


async def test_a_session_that_is_closed_while_a_name_is_resolved_ends_no_task(
    resolving: asyncio.Event,
) -> None:
    client = BrokerClient("b", "http://broker.invalid:1", Credentials(None))
    await client.open()
    async with asyncio.TaskGroup() as tasks:
        call = tasks.create_task(refused(client))
        await resolving.wait()
        await client.close()
    assert "closed" in call.result()


async def refused(client: BrokerClient) -> str:
    with pytest.raises(BrokerUnreachable) as found:
        await client.revision()
    return str(found.value)


async def test_a_task_that_is_cancelled_is_cancelled(resolving: asyncio.Event) -> None:
    client = BrokerClient("b", "http://broker.invalid:1", Credentials(None))
    await client.open()
    async with asyncio.TaskGroup() as tasks:
        call = tasks.create_task(client.revision())
        await resolving.wait()
        call.cancel()
    assert call.cancelled()
    await client.close()
