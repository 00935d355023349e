"""Witnesses in the state of a log: which dataset is read, and texts that no broker wrote."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.unit.broker.verify.histories import BUCKETS, TopicHistory, a_long_history

from onewriter_broker.log.store.api import Outcome
from onewriter_broker.topic.retention.witnesses import (
    UnreadableWitness,
    UnwitnessedTable,
    add_to_witness,
    remove_witness,
    witness_limit,
)
from onewriter_core.errors import Undecided
from onewriter_core.log_format.field_names import WITNESS_PREFIX
from onewriter_core.witnesses import Witness, WitnessPost, WitnessRecord
from onewriter_testing.fake_store.server import FakeServer
from onewriter_testing.fake_store.store import FakeLogStore

POST = WitnessPost(
    "t", 1, records=(WitnessRecord(5, 1, 3, 5, 2, 2, 2, 10, "0" * 16, "1" * 16, "2" * 32),)
)


async def test_witness_of_another_dataset_does_not_count(
    server: FakeServer, history: TopicHistory
) -> None:
    await add_to_witness(history.log, POST)
    limit = await witness_limit(history.log, "t")
    assert limit is not None
    server.renew_identity(server.primary)
    with pytest.raises(Undecided):
        await witness_limit(history.log, "t")
    with pytest.raises(Undecided):
        await add_to_witness(history.log, POST)
    with pytest.raises(Undecided):
        await remove_witness(history.log, "t")


@pytest.mark.parametrize("text", ["", "{}", "[" * 100_000, '{"table": "t"}'])
async def test_unreadable_witness_can_be_removed(history: TopicHistory, text: str) -> None:
    await history.log.save_state({WITNESS_PREFIX + "t": text})
    with pytest.raises(UnreadableWitness):
        await witness_limit(history.log, None)
    assert await remove_witness(history.log, "t") == text
    assert await witness_limit(history.log, None) is None
    with pytest.raises(UnwitnessedTable):
        await remove_witness(history.log, "t")


class LateStore(FakeLogStore):
    """A store whose next conditional write gets no answer if ``is_lost`` is set. ``late`` executes it later."""

    is_lost = False
    late: Callable[[], Awaitable[Outcome]]

    async def swap_state(self, *arguments: Any) -> Outcome:
        swap = functools.partial(super().swap_state, *arguments)
        if not self.is_lost:
            return await swap()
        self.is_lost, self.late = False, swap
        raise Undecided("the connection was lost")


def following(witness: Witness, end: int) -> WitnessPost:
    """A request that continues a witness up to this entry of its ledger."""
    record = WitnessRecord(5, witness.end.entry, end, 5, 1, 1, 1, 10, "0" * 16, "1" * 16, "2" * 32)
    return WitnessPost("t", 2, witness.chain, (record,))


async def test_write_that_is_executed_after_a_later_one_changes_no_witness(
    server: FakeServer,
) -> None:
    store = LateStore(server.resolve, buckets=BUCKETS)
    history = await a_long_history(store)
    first = await add_to_witness(history.log, POST)
    store.is_lost = True
    with pytest.raises(Undecided):
        await add_to_witness(history.log, following(first, 6))
    second = await add_to_witness(history.log, following(first, 7))
    assert await store.late() is Outcome.STALE
    limit = await witness_limit(history.log, "t")
    assert limit is not None
    assert limit.position == second.end


async def test_removal_that_is_executed_late_keeps_the_witness_that_followed(
    server: FakeServer,
) -> None:
    store = LateStore(server.resolve, buckets=BUCKETS)
    history = await a_long_history(store)
    first = await add_to_witness(history.log, POST)
    store.is_lost = True
    with pytest.raises(Undecided):
        await remove_witness(history.log, "t")
    await add_to_witness(history.log, following(first, 6))
    assert await store.late() is Outcome.STALE
    assert await witness_limit(history.log, "t") is not None


async def test_write_that_was_executed_without_an_answer_is_repeated(server: FakeServer) -> None:
    store = LateStore(server.resolve, buckets=BUCKETS)
    history = await a_long_history(store)
    store.is_lost = True
    with pytest.raises(Undecided):
        await add_to_witness(history.log, POST)
    assert await store.late() is Outcome.DONE
    witness = await add_to_witness(history.log, POST)
    assert witness.chain.count == 1
    assert await witness_limit(history.log, "t") is not None
