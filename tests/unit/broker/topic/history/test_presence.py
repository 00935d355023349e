"""Records of a holder's presence while the topic's holder changes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.broker.topic.fence_path_world import ORDERS, serving

from onewriter_broker.topic.history.tenures import PRESENT, tenure_of
from onewriter_core.topic.model import WHOLE, AccessMode, TransitionCause


async def test_a_record_that_is_being_sent_does_not_overwrite_that_of_a_later_grant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving() as world:
        runner = await world.load()
        first, _ = await world.granted(runner, AccessMode.EXCLUSIVE, "first")
        sent, allowed, set_state = asyncio.Event(), asyncio.Event(), world.store.set_state

        async def delayed(*arguments: Any) -> Any:
            sent.set()
            await allowed.wait()
            return await set_state(*arguments)

        monkeypatch.setattr(world.store, "set_state", delayed)
        runner.gone(first, TransitionCause.CLOSED)
        await sent.wait()  # the record that ``first`` has left, under the token of its ledger
        await world.granted(runner, AccessMode.EXCLUSIVE, "second")
        (saving,) = (task for task in asyncio.all_tasks() if "PresenceSaves" in repr(task))
        allowed.set()
        await saving
        state = await world.store.read_state(ORDERS)
        tenure = tenure_of(state)
        assert tenure is not None
        assert (tenure.producer_name, state[PRESENT]) == ("second", "1")
        assert not world.dependencies.presence.is_waiting(runner.bucket, runner.logs[WHOLE])
