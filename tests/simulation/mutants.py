"""Mutants of histories: each corrupts a correct history in one way that exactly one predicate must find.

They test the predicates. The numbers are those of the list of mutants that belongs to the predicates: M1 drops an
acknowledged entry, and so on. Every function takes a history without violations and changes it in place. It raises
NothingToCorrupt if the history has nothing that it can corrupt.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace

from tests.simulation.checkers.guards import newer_grants
from tests.simulation.history import (
    NEVER,
    History,
    Kind,
    LogEntry,
    Operation,
    Outcome,
    Span,
)

from onewriter_core.ids import Position


class NothingToCorrupt(Exception):
    """The history does not contain what the mutant corrupts."""


Mutant = Callable[[History], None]


def _clean_topic(history: History) -> str:
    """Return a topic from which no fault of the store destroyed anything."""
    for topic in history.topics:
        if not history.destroyed.get(topic) and len(history.logs[topic].entries) > 20:
            return topic
    raise NothingToCorrupt


def _append_of(history: History, topic: str, value: str) -> Operation:
    return next(o for o in history.of(Kind.APPEND, topic) if o.value == value)


def _unread(history: History, topic: str) -> None:
    """Remove all reads of the topic, because they would also show a corruption of its log."""
    history.operations = [
        o
        for o in history.operations
        if o.topic != topic or o.kind not in {Kind.READ, Kind.DELIVER, Kind.ACK, Kind.REDELIVER}
    ]
    history.logs[topic].cursors.clear()


def _exclusive_pair(entries: list[LogEntry]) -> int:
    """Return the index of the last exclusive entry of an epoch that another exclusive epoch follows."""
    for index in range(len(entries) - 1):
        one, other = entries[index], entries[index + 1]
        if one.is_exclusive and other.is_exclusive and one.epoch < other.epoch:
            return index
    raise NothingToCorrupt


def m1_acknowledged_entry_dropped(history: History) -> None:
    """Drop the last entry of its holder, which leaves no hole."""
    topic = _clean_topic(history)
    _unread(history, topic)
    entries = history.logs[topic].entries
    for index in range(len(entries) - 1, -1, -1):
        entry = entries[index]
        is_last = all(other.holder != entry.holder for other in entries[index + 1 :])
        if is_last and _append_of(history, topic, entry.value).outcome is Outcome.OK:
            del entries[index]
            return
    raise NothingToCorrupt


def m2_acknowledged_value_stored_twice(history: History) -> None:
    """Store the last value again at the end of its ledger, under a number that was never sent."""
    topic = _clean_topic(history)
    _unread(history, topic)
    entries = history.logs[topic].entries
    entry = entries[-1]
    there = Position(entry.position.ledger, entry.position.entry + 1)
    entries.append(replace(entry, position=there, number=entry.number + 1))


def m3_entries_swapped_across_an_epoch(history: History) -> None:
    topic = _clean_topic(history)
    _unread(history, topic)
    entries = history.logs[topic].entries
    index = _exclusive_pair(entries)
    entries[index], entries[index + 1] = entries[index + 1], entries[index]


def m4_later_grant_with_lower_epoch(history: History) -> None:
    """Add a grant of a holder that never wrote, after all others."""
    topic = _clean_topic(history)
    at = history.ended_at
    history.operations.append(
        Operation(
            Kind.GRANT,
            "mutant",
            topic,
            NEVER - 2,
            at,
            holder="mutant.1",
            mode="Exclusive",
            epoch=1,
            completed=NEVER - 1,
            completed_at=at,
            outcome=Outcome.OK,
        )
    )


def m5_two_holders_in_one_epoch(history: History) -> None:
    """Assign the last entry of an exclusive epoch to another holder, which never got an answer."""
    topic = _clean_topic(history)
    _unread(history, topic)
    entries = history.logs[topic].entries
    for index in range(len(entries) - 1):
        one, other = entries[index], entries[index + 1]
        if one.is_exclusive and other.is_exclusive and one.epoch == other.epoch:
            there = Position(other.position.ledger, other.position.entry)
            if index + 2 == len(entries) or entries[index + 2].epoch != one.epoch:
                append = _append_of(history, topic, other.value)
                if append.outcome is Outcome.OK:
                    append.outcome = Outcome.INFO
                entries[index + 1] = replace(
                    other, position=there, holder="mutant.1", number=0, value="mutant.1/0"
                )
                return
    raise NothingToCorrupt


def m6_guarded_write_accepted_late(history: History) -> None:
    """Move the last guarded write of a producer to the end of the run, when a newer epoch was granted."""
    for append in reversed(list(history.of(Kind.APPEND))):
        if not append.guard or append.outcome is not Outcome.OK:
            continue
        later = [o for o in history.of(Kind.APPEND) if o.holder == append.holder]
        begun = append.invoked, append.invoked_at
        append.invoked, append.invoked_at = NEVER - 2, history.ended_at
        if later[-1] is append and newer_grants(history, append):
            append.completed, append.completed_at = NEVER - 1, history.ended_at
            _unread(history, append.topic)
            return
        append.invoked, append.invoked_at = begun
    raise NothingToCorrupt


def m7_fence_forgotten_by_compaction(history: History) -> None:
    topic = _clean_topic(history)
    history.logs[topic].epoch = 0
    history.logs[topic].ledger = 0


def m8_stale_waiter_promoted(history: History) -> None:
    """Promote a waiter that is worse than the best waiter that was passed over."""
    for record in history.audit:
        if record.get("mode") == "WAIT_FOR_EXCLUSIVE" and "nextWaiter" in record:
            record["priority"] = "-1000"
            return
    raise NothingToCorrupt


def m8b_busier_host_promoted(history: History) -> None:
    """Promote, among waiters of equal priority, one whose host leads more topics."""
    for record in history.audit:
        if record.get("policy") == "Balanced" and "nextWaiter" in record:
            passed_over = json.loads(record["nextWaiter"])
            if record["priority"] == str(passed_over["priority"]):
                record["load"] = "1000"
                return
    raise NothingToCorrupt


def m9_old_epoch_delivered_after_redeliver(history: History) -> None:
    for operation in history.of(Kind.REDELIVER):
        assert operation.epoch is not None
        for delivery in history.of(Kind.DELIVER, operation.topic):
            same = (delivery.process, delivery.name) == (operation.process, operation.name)
            if same and delivery.invoked > operation.completed:
                delivery.epoch = operation.epoch - 1
                return
    raise NothingToCorrupt


def m9b_cursor_past_what_nobody_acknowledged(history: History) -> None:
    topic = _clean_topic(history)
    log = history.logs[topic]
    if not log.cursors:
        raise NothingToCorrupt
    name = next(iter(log.cursors))
    history.operations = [o for o in history.operations if o.kind not in {Kind.ACK, Kind.REDELIVER}]
    for other in history.topics:
        history.logs[other].cursors.clear()
    log.cursors[name] = log.entries[0].position


def m12_fenced_but_appended(history: History) -> None:
    """Record a send that is in the log as refused."""
    topic = _clean_topic(history)
    entry = history.logs[topic].entries[-1]
    append = _append_of(history, topic, entry.value)
    append.outcome, append.error = Outcome.FAIL, "PRODUCER_FENCED"


def m13_zombie_written_after_the_grant(history: History) -> None:
    """Invoke the last entry of an old epoch only after the next epoch was granted."""
    topic = _clean_topic(history)
    entries = history.logs[topic].entries
    index = _exclusive_pair(entries)
    append = _append_of(history, topic, entries[index].value)
    newer = next(
        (
            grant
            for grant in history.of(Kind.GRANT, topic)
            if grant.outcome is Outcome.OK and grant.epoch == entries[index + 1].epoch
        ),
        None,
    )
    if newer is None or append.outcome is not Outcome.OK:
        raise NothingToCorrupt
    append.invoked = newer.completed + 1
    append.outcome = Outcome.INFO


def m14_hole_in_a_pipelined_stream(history: History) -> None:
    """Remove an entry without a receipt, while a later entry of its holder remains."""
    topic = _clean_topic(history)
    _unread(history, topic)
    entries = history.logs[topic].entries
    for index in range(1, len(entries) - 1):
        before, entry, after = entries[index - 1 : index + 2]
        if before.holder == entry.holder == after.holder:
            _append_of(history, topic, entry.value).outcome = Outcome.INFO
            del entries[index]
            return
    raise NothingToCorrupt


def m15_value_changed_by_offload(history: History) -> None:
    for read in history.of(Kind.READ):
        if read.outcome is Outcome.OK and read.values:
            position, _ = read.values[0]
            read.values[0] = (position, "another value/0")
            return
    raise NothingToCorrupt


def m16_failed_promotion_dropped(history: History) -> None:
    """Let a client wait for a topic that no producer holds any more."""
    topic = history.topics[0]
    end = history.ended_at + 60.0
    history.operations.append(
        Operation(
            Kind.GRANT,
            "mutant",
            topic,
            NEVER - 2,
            history.ended_at,
            holder="mutant.1",
            mode="WaitForExclusive",
            is_waiting=True,
        )
    )
    history.ended_at = end


def m17_handover_without_end(history: History) -> None:
    topic = history.topics[0]
    history.operations.append(
        Operation(Kind.HANDOVER, "mutant", topic, NEVER - 2, history.ended_at)
    )
    history.tenures.append((topic, Span("mutant.1", history.ended_at, history.ended_at + 60.0)))
    history.ended_at += 60.0


def _owned_twice(history: History) -> tuple[Operation, Operation]:
    """Return two successive grants of one topic's ownership to different owners."""
    for topic in history.topics:
        owns = [o for o in history.of(Kind.OWN, topic) if o.outcome is Outcome.OK]
        for one in owns:
            for other in owns:
                if one.holder != other.holder and one.completed < other.invoked:
                    return one, other
    raise NothingToCorrupt


def m9c_deposed_owner_acknowledges(history: History) -> None:
    """Let the broker accept an acknowledgement that was sent after the successor's grant."""
    one, other = _owned_twice(history)
    for ack in history.of(Kind.ACK, one.topic):
        if ack.holder and ack.invoked > other.completed and ack.outcome is Outcome.OK:
            ack.epoch = one.epoch
            return
    raise NothingToCorrupt


def m9d_generation_given_twice(history: History) -> None:
    """Grant the ownership to another owner under the same generation."""
    one, other = _owned_twice(history)
    other.epoch = one.epoch


def m19_granted_while_another_serves(history: History) -> None:
    """Let a holder serve while its successor leads, as if its clock ran slower."""
    for serve in history.of(Kind.SERVE):
        for grant in history.of(Kind.GRANT, serve.topic):
            if (
                serve.outcome is grant.outcome is Outcome.OK
                and grant.holder != serve.holder
                and (grant.epoch or 0) > (serve.epoch or 0)
            ):
                serve.until = grant.completed_at + 1.0
                return
    raise NothingToCorrupt


MUTANTS: Mapping[Mutant, frozenset[str]] = {
    m1_acknowledged_entry_dropped: frozenset({"S5"}),
    m2_acknowledged_value_stored_twice: frozenset({"S5"}),
    m3_entries_swapped_across_an_epoch: frozenset({"S1"}),
    m4_later_grant_with_lower_epoch: frozenset({"S3"}),
    m5_two_holders_in_one_epoch: frozenset({"S2"}),
    m6_guarded_write_accepted_late: frozenset({"S8"}),
    m7_fence_forgotten_by_compaction: frozenset({"S12"}),
    m8_stale_waiter_promoted: frozenset({"S11"}),
    m8b_busier_host_promoted: frozenset({"S11"}),
    m9_old_epoch_delivered_after_redeliver: frozenset({"S9"}),
    m9b_cursor_past_what_nobody_acknowledged: frozenset({"S9"}),
    m9c_deposed_owner_acknowledges: frozenset({"S9"}),
    m9d_generation_given_twice: frozenset({"S9"}),
    m12_fenced_but_appended: frozenset({"S5"}),
    m13_zombie_written_after_the_grant: frozenset({"S4"}),
    m14_hole_in_a_pipelined_stream: frozenset({"S6"}),
    m15_value_changed_by_offload: frozenset({"S7"}),
    m19_granted_while_another_serves: frozenset({"S14"}),
    m16_failed_promotion_dropped: frozenset({"L1", "L2"}),
    m17_handover_without_end: frozenset({"L3"}),
}
