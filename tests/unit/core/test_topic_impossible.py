"""What cannot happen raises and says what it was; nothing of it can come from a peer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from onewriter_core.ids import Identity
from onewriter_core.topic.access_modes import contend
from onewriter_core.topic.events import FenceRefused, FenceStored, ProducerGone, ProducerRequested
from onewriter_core.topic.fences import resume, start_fence
from onewriter_core.topic.lookups import new_group, with_ending
from onewriter_core.topic.machine import step
from onewriter_core.topic.model import (
    WHOLE,
    AccessMode,
    Fencing,
    ImpossibleStep,
    PendingFence,
    Purpose,
    Request,
    Topic,
    TransitionCause,
    partitioned,
)

FRESH = Topic(partitioned(0))
REQUEST = Request("A", "A", "A", AccessMode.EXCLUSIVE, identity=Identity("A"))
FENCING, _ = step(FRESH, ProducerRequested(REQUEST, 0.0))


def test_the_result_of_a_fence_that_is_not_pending_raises() -> None:
    with pytest.raises(ImpossibleStep, match=r"FenceStored\(number=1, .* while Settled"):
        step(FRESH, FenceStored(1, 1, 0.0))
    with pytest.raises(ImpossibleStep, match="fence 2 refused while Fencing"):
        step(FENCING, FenceRefused(2, "", 0.0))


def test_a_ledger_that_is_not_newer_raises() -> None:
    held, _ = step(FENCING, FenceStored(1, 5, 0.0))
    fencing = replace(REQUEST, registration="B", mode=AccessMode.EXCLUSIVE_WITH_FENCING)
    taken, _ = step(held, ProducerRequested(fencing, 0.0))
    with pytest.raises(ImpossibleStep, match="ledger 5 fenced after 5"):
        step(taken, FenceStored(2, 5, 0.0))


def test_a_second_fence_raises_while_one_is_pending() -> None:
    with pytest.raises(ImpossibleStep, match=r"while Purpose\.GRANT is in progress"):
        start_fence(FENCING, Purpose.ROLL, (WHOLE,))


def test_a_grant_without_a_group_raises() -> None:
    with pytest.raises(ImpossibleStep, match="needs a producer group"):
        start_fence(FRESH, Purpose.GRANT, (WHOLE,))


@pytest.mark.parametrize("purpose", [Purpose.DEPOSE, Purpose.SHARE])
def test_a_fence_of_a_missing_partition_raises(purpose: Purpose) -> None:
    fencing = replace(FRESH, fences_started=1, phase=Fencing(PendingFence(1, purpose, (7,))))
    with pytest.raises(ImpossibleStep, match="partition 7 was fenced, and there is none"):
        step(fencing, FenceStored(1, 1, 0.0))


def test_a_partition_held_by_an_unknown_group_raises() -> None:
    held, _ = step(FENCING, FenceStored(1, 1, 0.0))
    with pytest.raises(ImpossibleStep, match="held by A, which is unknown"):
        step(replace(held, holders=()), ProducerGone("A", TransitionCause.CLOSED, 0.0))


def test_a_partition_with_a_writer_is_not_resumed_and_has_no_ending() -> None:
    held, _ = step(FENCING, FenceStored(1, 1, 0.0))
    group = new_group(held, REQUEST, (WHOLE,), is_partitioned=False)
    with pytest.raises(ImpossibleStep, match="partition -1 has a writer and is resumed"):
        resume(held, held.partitions[0], group, 0.0)
    with pytest.raises(ImpossibleStep, match="partition -1 has a writer"):
        with_ending(held.partitions[0], None)


def test_a_shared_producer_that_competes_raises() -> None:
    shared = replace(REQUEST, mode=AccessMode.SHARED)
    group = new_group(FRESH, shared, (WHOLE,), is_partitioned=False)
    with pytest.raises(ImpossibleStep, match="never competes"):
        contend(FRESH, group, shared, 0.0)
