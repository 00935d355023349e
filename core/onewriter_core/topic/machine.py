"""The topic machine decides who may write a topic: ``step(topic, event) -> (topic, effects)``.

Rules
-----
* ``step`` is pure. The event carries the time, the request carries names and priorities. The effects say what
  to do next, in order. Broker, simulation and model checker run the same code.
* The epoch gate comes first. A producer with an older epoch is refused before any other producer is touched,
  queued, probed or deposed (the stale fencer of docs/comparison.md).
* A removal names the producer. A producer that leaves frees what it holds, never what its successor holds.
* Ownership changes only after the store confirmed it: ``Fence`` is an effect, ``FenceStored`` its result. At
  most one fence is pending.
* A peer always gets an answer. Only a bug in the shell raises ``ImpossibleStep``.

Theory of operation
-------------------
Each partition has its own *ownership*: Vacant, Reserved, Shared or Held. A topic without partitions has a single
one, with the number WHOLE.

====================  ===========================  ==========================================
from                  to                           by
====================  ===========================  ==========================================
Vacant                Held                         a fence stored for a group
Vacant                Shared                       a Shared producer (after a fence, unless open)
Vacant with tenure    Held, same epoch             the tenure's holder comes back
Reserved              Held, same epoch             the tenure's holder comes back in time
Reserved              Vacant                       the window passes, or a fence is stored
Shared                Vacant                       the last producer leaves
Held                  Held, new epoch              takeover, handover: one fence, no gap
Held                  Vacant with tenure           its producer leaves or is found dead
Held                  Vacant                       an administrator fences
====================  ===========================  ==========================================

The topic as a whole has a *phase*, which says whether a fence is pending:

* ``Settled``: none is. Requests are decided at once, and free partitions go to the first waiters.
* ``Fencing``: the store has been asked. The ledger that the fence opens *is* the new topic epoch, so epochs
  rise strictly and may jump. New requests wait (``deferred``), join the queue or are refused.
* ``FencingFormerDataset``: the store failed over meanwhile. The result opens no partition for appends.
* ``Draining``: the fence is stored, so the store rejects the former holder's writes. That holder asked to serve
  (to answer reads, to act) until some time after its last assurance; the new writer gets its grant then. A
  holder that closes its producer is not waited for.
* ``Closed``: this broker no longer serves the topic.

``TRANSITIONS`` maps each phase and each kind of event to a function (transitions.py, fences.py). ``step``
executes it. After each event ``settle`` starts what had to wait: fences for a new dataset, deferred requests, and
the promotion of the next waiter. If a waiter disappears while its fence is pending, its partition becomes vacant
again and the next waiter is promoted.

A *producer group* competes: a single producer, or a partitioned producer with all its partitions. Partition 0's
request makes the group. Earlier requests are held back, later ones join the group or are refused with it. One
fence grants a group all its partitions.

Not here: publishing (it compares the ledger and appends) and pings. The table of docs/concepts.md (access mode
against ownership) is access_modes.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar, cast

from onewriter_core.topic.effects import Step
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
from onewriter_core.topic.fences import fence_refused, fence_stored
from onewriter_core.topic.model import (
    Closed,
    Draining,
    Fencing,
    FencingFormerDataset,
    Reserved,
    Settled,
    Topic,
)
from onewriter_core.topic.transitions import (
    dataset_changed,
    dataset_changed_while_fencing,
    deposed,
    gone,
    gone_while_fencing,
    handed_over,
    impossible,
    loads_changed,
    order_refused,
    partitions_added,
    policy_changed,
    refused_when_closed,
    requested,
    rolled,
    settle,
    ticked,
    ticked_while_draining,
    unchanged,
    unloaded,
)

E = TypeVar("E", bound=Event)

Transition = Callable[[Topic, Event], Step]

Key = tuple[type[object], type[object]]
"""A phase and a kind of event."""


@dataclass(frozen=True, slots=True)
class Row(Generic[E]):
    """What one kind of event does in each phase."""

    event: type[E]
    settled: Callable[[Topic, E], Step]
    fencing: Callable[[Topic, E], Step]
    fencing_former_dataset: Callable[[Topic, E], Step]
    draining: Callable[[Topic, E], Step]
    closed: Callable[[Topic, E], Step]

    def cells(self) -> Iterator[tuple[Key, Transition]]:
        for phase, function in (
            (Settled, self.settled),
            (Fencing, self.fencing),
            (FencingFormerDataset, self.fencing_former_dataset),
            (Draining, self.draining),
            (Closed, self.closed),
        ):
            # The key guarantees that the function gets its own kind of event.
            yield (phase, self.event), cast("Transition", function)


# fmt: off
ROWS: Final = (
    #   event              Settled           Fencing                        FencingFormerDataset  Draining               Closed
    Row(ProducerRequested, requested,        requested,                     requested,            requested,             refused_when_closed),
    Row(ProducerGone,      gone,             gone_while_fencing,            gone_while_fencing,   gone_while_fencing,    unchanged),
    Row(FenceStored,       impossible,       fence_stored,                  fence_stored,         impossible,            unchanged),
    Row(FenceRefused,      impossible,       fence_refused,                 fence_refused,        impossible,            unchanged),
    Row(ClockTicked,       ticked,           ticked,                        ticked,               ticked_while_draining, unchanged),
    Row(HandoverRequested, handed_over,      order_refused,                 order_refused,        order_refused,         order_refused),
    Row(FenceRequested,    deposed,          order_refused,                 order_refused,        order_refused,         order_refused),
    Row(LedgerFull,        rolled,           unchanged,                     unchanged,            unchanged,             unchanged),
    Row(DatasetChanged,    dataset_changed,  dataset_changed_while_fencing, dataset_changed,      dataset_changed,       unchanged),
    Row(PartitionsAdded,   partitions_added, partitions_added,              partitions_added,     partitions_added,      unchanged),
    Row(PolicyChanged,     policy_changed,   policy_changed,                policy_changed,       policy_changed,        unchanged),
    Row(LoadsChanged,      loads_changed,    loads_changed,                 loads_changed,        loads_changed,         unchanged),
    Row(Unloaded,          unloaded,         unloaded,                      unloaded,             unloaded,              unchanged),
)
# fmt: on

TRANSITIONS: Final[dict[Key, Transition]] = {
    key: function for row in ROWS for key, function in row.cells()
}
"""The transition table: a function for each phase and each kind of event."""


def step(topic: Topic, event: Event) -> Step:
    """Apply one event: return the topic afterwards and the effects to perform, in order."""
    topic, effects = TRANSITIONS[type(topic.phase), type(event)](topic, event)
    return settle(topic, effects, event.now)


def next_deadline(topic: Topic) -> float | None:
    """When the machine needs a ``ClockTicked``; None: not at all."""
    deadlines = [held.until for held in topic.held_back]
    deadlines += [group.until for group in topic.refused_groups]
    deadlines += [
        partition.ownership.until
        for partition in topic.partitions
        if isinstance(partition.ownership, Reserved)
    ]
    if isinstance(topic.phase, Draining):
        deadlines.append(topic.phase.until)
    return min(deadlines, default=None)
