"""The transition table: complete, and shown by ARCHITECTURE.md as it is."""

from __future__ import annotations

from typing import get_args

import pytest
from docs.generator import transition_table
from tests.topic_invariants import check, check_step

from onewriter_core.errors import ServerError
from onewriter_core.ids import Identity
from onewriter_core.topic.effects import Record, Reject
from onewriter_core.topic.events import (
    ClockTicked,
    DatasetChanged,
    Event,
    FenceRefused,
    FenceRequested,
    FenceStored,
    HandoverRequested,
    LedgerFull,
    LoadsChanged,
    PartitionsAdded,
    PolicyChanged,
    ProducerGone,
    ProducerRequested,
    Unloaded,
)
from onewriter_core.topic.machine import ROWS, TRANSITIONS, step
from onewriter_core.topic.model import (
    WHOLE,
    Absence,
    AccessMode,
    Closed,
    Draining,
    Ending,
    Fencing,
    FencingFormerDataset,
    ImpossibleStep,
    Outage,
    Partition,
    Phase,
    PromotionPolicy,
    Request,
    Reserved,
    Settled,
    Tenure,
    Topic,
    TransitionCause,
    Vacant,
    partitioned,
)

NOW = 5.0


def requested(name: str, mode: AccessMode, serve_seconds: float = 0.0) -> Event:
    identity = Identity(name)
    request = Request(name, name, name, mode, identity=identity, serve_seconds=serve_seconds)
    return ProducerRequested(request, NOW)


def after(topic: Topic, *events: Event) -> Topic:
    for event in events:
        topic, _ = step(topic, event)
        check(topic)
    return topic


FRESH = Topic(partitioned(0))
HELD = after(FRESH, requested("A", AccessMode.EXCLUSIVE, 2.0), FenceStored(1, 1, NOW))
FENCING = after(HELD, requested("B", AccessMode.EXCLUSIVE_WITH_FENCING))
TOPICS: dict[type[object], Topic] = {
    Settled: HELD,
    Fencing: FENCING,
    FencingFormerDataset: after(FENCING, DatasetChanged(grants_known=True, now=NOW)),
    Draining: after(FENCING, FenceStored(2, 2, NOW, assured_at=NOW)),
    Closed: after(HELD, Unloaded("it moves", NOW)),
}
EVENTS: dict[type[object], Event] = {
    type(event): event
    for event in (
        requested("C", AccessMode.WAIT_FOR_EXCLUSIVE),
        ProducerGone("A", TransitionCause.CLOSED, NOW),
        FenceStored(2, 9, NOW),
        FenceRefused(2, "the store is away", NOW),
        ClockTicked(NOW + 10),
        HandoverRequested("order", "", NOW),
        FenceRequested("order", None, NOW),
        LedgerFull(WHOLE, NOW),
        DatasetChanged(grants_known=False, now=NOW),
        PartitionsAdded((Partition(1),), NOW),
        PolicyChanged(PromotionPolicy.FIFO, NOW),
        LoadsChanged((("host", 1),), NOW),
        Unloaded("it moves", NOW),
    )
}


def test_the_table_has_a_function_for_each_phase_and_event() -> None:
    assert TRANSITIONS.keys() == {(p, e) for p in get_args(Phase) for e in get_args(Event)}
    assert len(ROWS) == len(get_args(Event)), "each event has one row"
    assert TOPICS.keys() == set(get_args(Phase))
    assert EVENTS.keys() == set(get_args(Event))


@pytest.mark.parametrize("event", EVENTS.values(), ids=lambda event: type(event).__name__)
@pytest.mark.parametrize("phase", TOPICS, ids=lambda phase: phase.__name__)
def test_a_step_executes_the_table_and_keeps_the_invariants(
    phase: type[object], event: Event
) -> None:
    topic = TOPICS[phase]
    assert type(topic.phase) is phase
    function = TRANSITIONS[phase, type(event)].__name__
    if function == "impossible":
        with pytest.raises(
            ImpossibleStep, match=f"{type(event).__name__}.* while {phase.__name__}"
        ):
            step(topic, event)
        return
    stepped, effects = step(topic, event)
    check(stepped)
    check_step(topic, event, stepped, effects)
    if function == "unchanged":
        assert (stepped, effects) == (topic, ())


def test_a_closed_topic_sends_producers_away() -> None:
    topic = TOPICS[Closed]
    stepped, effects = step(topic, requested("C", AccessMode.EXCLUSIVE))
    text = "the topic is moving"
    assert (stepped, effects) == (topic, (Reject("C", ServerError.SERVICE_NOT_READY, text),))


def test_a_grant_after_shared_producers_counts_from_the_last_one_that_left() -> None:
    shared = after(FRESH, requested("S", AccessMode.SHARED), FenceStored(1, 1, NOW))
    assert shared.partitions[0].absence is None
    left = after(shared, ProducerGone("S", TransitionCause.SILENT, NOW + 2, heard_at=NOW))
    assert left.partitions[0].absence == Absence(
        TransitionCause.SILENT, NOW + 2, Ending(NOW + 2, heard_at=NOW)
    )
    granting = after(left, requested("A", AccessMode.EXCLUSIVE))
    _, effects = step(granting, FenceStored(2, 2, NOW + 3))
    (record,) = [effect for effect in effects if isinstance(effect, Record)]
    assert (record.cause, record.leaderless_seconds) == (TransitionCause.SILENT, 1.0)
    assert record.outage == Outage(2.0, 1.0)


def test_a_reservation_that_ends_keeps_how_the_former_writer_left() -> None:
    absence = Absence(TransitionCause.MOVED, NOW - 1, Ending(NOW - 1))
    reserved = Reserved(Tenure(1, "A", Identity("A")), NOW + 3, absence)
    topic = Topic((Partition(WHOLE, epoch=1, ledger=1, is_open=True, ownership=reserved),))
    ended = after(topic, ClockTicked(NOW + 3))
    assert ended.partitions[0].ownership == Vacant(reserved.tenure, absence)
    lost = after(topic, DatasetChanged(grants_known=False, now=NOW))
    assert lost.partitions[0].ownership == Vacant(None, absence)


def test_the_documented_table_is_the_executed_one() -> None:
    page = transition_table.PAGE.read_text(encoding="utf-8")
    assert page == transition_table.with_table(page), "run make transition-table"


def test_a_page_without_markers_has_no_place_for_the_table() -> None:
    with pytest.raises(ValueError, match="no place for the table"):
        transition_table.with_table("# A page\n")
