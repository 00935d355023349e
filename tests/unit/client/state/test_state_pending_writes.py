"""Pending writes of shared state, without I/O."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.client.state.test_state_fold import RULES

from onewriter.state.envelope import Stamp
from onewriter.state.fold import Taken, Verdict
from onewriter.state.pending_writes import PendingWrite, WriteOutbox
from onewriter_core.ids import Position

ENTRY_BYTES_MAX = 1_000_000
WRITER = b"w"


def sent(outbox: WriteOutbox[int, int]) -> PendingWrite[int, int]:
    """One write that adds 1, sent as the first entry of a grant."""
    outbox.begin(WRITER, 0, 0)
    write = PendingWrite[int, int](lambda _state: [1], asyncio.get_running_loop().create_future())
    outbox.queue.append(write)
    outbox.seal(outbox.gather())
    assert write.is_sent
    return write


@pytest.mark.parametrize("verdict", [Verdict.VOID, Verdict.KNOWN])
async def test_a_write_whose_entry_was_not_applied_is_not_answered_but_generated_again(
    verdict: Verdict,
) -> None:
    outbox = WriteOutbox(RULES, ENTRY_BYTES_MAX)
    write = sent(outbox)
    ((writer, sequence),) = outbox.sent
    outbox.taken(Taken(verdict, Position(1, 1), Stamp(writer, sequence, 0)))
    assert outbox.is_spoiled
    assert not write.outcome.done()
    outbox.begin(b"next", 0, 0)
    assert list(outbox.queue) == [write]
    assert not write.is_sent
