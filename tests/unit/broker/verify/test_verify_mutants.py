"""Mutants: a correct history, one corruption of the stored data, and the one predicate that it violates.

tests/unit/pipeline/audit/test_falsified_logs.py checks that ``onewriter verify`` and the pipeline's audit find each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, MutableMapping, MutableSequence
from dataclasses import dataclass, replace

from tests.contents import AuditRecord, Contents, stored_in
from tests.unit.broker.verify.histories import BUCKETS, TOPIC, a_long_history, entry

from onewriter_broker.log.store.api import Block, Marker, StoredBlock
from onewriter_broker.log.topic_log.log import payloads
from onewriter_broker.verify.reader import LogReport, verify
from onewriter_core.audit.findings import DEFAULT_LIMITS, PREDICATES, AuditLimits
from onewriter_core.ids import Position, TopicName, bucket_of
from onewriter_core.log_format.chain import CHAIN_START, chain
from onewriter_testing.fake_store.server import FakeServer
from onewriter_testing.fake_store.store import FakeLogStore

BUCKET = bucket_of(TOPIC, BUCKETS)


async def report_of(store: FakeLogStore, limits: AuditLimits = DEFAULT_LIMITS) -> LogReport:
    (report,) = await verify(store, [TOPIC], BUCKETS, lambda _log, _entries: None, limits)
    return report


@dataclass
class Stored:
    """The bytes that a mutant may change."""

    dataset: Contents

    @property
    def blocks(self) -> MutableSequence[StoredBlock]:
        return self.dataset.logs[TOPIC].blocks

    @property
    def state(self) -> MutableMapping[str, str]:
        return self.dataset.states[TOPIC]

    @property
    def audit(self) -> MutableSequence[AuditRecord]:
        return self.dataset.audits[BUCKET]

    def index(self, position: str) -> int:
        places = [str(block.position) for block in self.blocks]
        return places.index(position)

    def block(self, position: str) -> Block:
        block = self.blocks[self.index(position)]
        assert isinstance(block, Block)
        return block

    def marker(self, position: str) -> Marker:
        marker = self.blocks[self.index(position)]
        assert isinstance(marker, Marker)
        return marker

    def fence(self, ledger: int) -> MutableMapping[str, str]:
        """The audit record of a ledger's fence."""
        (found,) = [
            fields
            for _, fields in self.audit
            if fields.get("ledger") == str(ledger) and "previous" in fields
        ]
        return found

    def append(self, position: Position, *entries: bytes) -> None:
        """A further block behind the last one, chained as its writer would have."""
        before = self.blocks[-1]
        link = before.chain if isinstance(before, Block) else CHAIN_START
        self.blocks.append(_block(position, link, *entries))


def _block(position: Position, link: bytes, *entries: bytes) -> Block:
    lengths = [len(one) for one in entries]
    payload = b"".join(entries)
    return Block(position, lengths, payload, None, 0, chain(link, position, lengths, payload))


# -- the mutants --------------------------------------------------------------------------------


def an_acknowledged_tail_is_missing(stored: Stored) -> None:
    del stored.blocks[stored.index("7-2")]


def a_block_in_the_middle_is_missing(stored: Stored) -> None:
    del stored.blocks[stored.index("5-3")]


def more_is_gone_than_was_trimmed(stored: Stored) -> None:
    stored.state["trimmed"] = "5-1"
    del stored.blocks[: stored.index("5-3")]


def an_entry_is_stored_twice(stored: Stored) -> None:
    last = stored.blocks[-1]
    assert isinstance(last, Block)
    stored.append(Position(10, last.last.entry + 1), last.payload)


def a_shared_entry_is_stored_twice(stored: Stored) -> None:
    index = stored.index("9-4")
    before = stored.block("9-4")
    stored.blocks.insert(index + 1, _block(Position(9, 5), before.chain, entry("y", 0)))


def an_older_entry_follows_the_new_holders_first(stored: Stored) -> None:
    link = stored.block("6-4").chain
    late = _block(Position(6, 5), link, entry("alice", 9))
    stored.blocks.insert(stored.index("7-1") + 1, late)


def a_zombies_entry_follows_the_new_marker(stored: Stored) -> None:
    link = stored.block("6-4").chain
    late = _block(Position(6, 5), link, entry("alice", 9))
    stored.blocks.insert(stored.index("7-1"), late)


def a_markers_epoch_falls(stored: Stored) -> None:
    stored.blocks[stored.index("10-0")] = Marker(
        Position(10, 0), {**stored.marker("10-0").fields, "epoch": "4"}
    )


def a_grant_returns_a_lower_epoch(stored: Stored) -> None:
    stored.fence(10)["epoch"] = "6"


def an_epoch_is_granted_twice(stored: Stored) -> None:
    stored.fence(7)["epoch"] = "5"
    fields = dict(stored.marker("7-0").fields)
    del fields["epoch"]
    stored.blocks[stored.index("7-0")] = Marker(Position(7, 0), fields)


def an_epoch_changes_its_holder(stored: Stored) -> None:
    stored.blocks[stored.index("6-0")] = Marker(
        Position(6, 0),
        {**stored.marker("6-0").fields, "producer": "mallory", "subject": "account-mallory"},
    )
    del stored.blocks[stored.index("6-4")], stored.blocks[stored.index("6-1")]
    stored.fence(7)["previous"] = "{}"


def two_brokers_have_one_ledger(stored: Stored) -> None:
    stored.blocks[stored.index("10-0")] = Marker(
        Position(10, 0), {**stored.marker("10-0").fields, "owner": "broker-z"}
    )


def a_ledger_is_handed_out_twice(stored: Stored) -> None:
    other = {**stored.fence(10), "topic": str(TopicName.parse("another")), "broker": "broker-z"}
    stored.audit.append(("99-0", other))


def an_entry_is_by_somebody_else(stored: Stored) -> None:
    stored.append(Position(10, 6), entry("mallory", 3))


def a_resume_of_an_epoch_that_is_over(stored: Stored) -> None:
    (resume,) = [f for _, f in stored.audit if f["kind"] == "resume" and "previous" not in f]
    stored.audit.append(("99-0", {**resume, "ledger": "10"}))


def the_state_forgets_the_epoch(stored: Stored) -> None:
    stored.state["epoch"] = "7"


def the_state_forgets_the_ledger(stored: Stored) -> None:
    stored.state["ledger"] = "8"


def the_state_is_deleted(stored: Stored) -> None:
    stored.state.clear()


def a_fence_does_not_know_the_epoch(stored: Stored) -> None:
    stored.fence(10)["oldEpoch"] = "0"


def the_bucket_forgets_its_ledgers(stored: Stored) -> None:
    units = stored.dataset.units
    units[BUCKET] = replace(units[BUCKET], last_ledger=6)


def the_wrong_waiter_is_promoted(stored: Stored) -> None:
    fields = stored.fence(7)
    fields["nextWaiter"] = json.dumps({**json.loads(fields["nextWaiter"]), "priority": 6})


def a_marker_is_missing(stored: Stored) -> None:
    del stored.blocks[stored.index("7-0")]


def the_newest_marker_is_missing(stored: Stored) -> None:
    del stored.blocks[stored.index("10-0") :]


def the_log_is_emptied(stored: Stored) -> None:
    stored.blocks.clear()


def a_fence_is_not_audited(stored: Stored) -> None:
    stored.audit.remove(next(record for record in stored.audit if record[1] == stored.fence(9)))


def a_chunk_is_missing(stored: Stored) -> None:
    whole = stored.block("10-2")
    first, second, third = (entry("carol", 1, chunk=chunk) for chunk in range(3))
    assert whole.payload == first + second + third
    link = stored.block("10-1").chain
    del stored.blocks[stored.index("10-2") :]
    stored.blocks.append(_block(Position(10, 2), link, first, third))


def sequence_ids_fall(stored: Stored) -> None:
    stored.append(Position(10, 6), entry("carol", 3), entry("carol", 0), entry("carol", 4))


def a_value_is_changed(stored: Stored) -> None:
    block = stored.block("5-3")
    stored.blocks[stored.index("5-3")] = replace(block, payload=block.payload[:-1] + b"?")


def a_value_is_forged_with_its_hash(stored: Stored) -> None:
    block = stored.block("5-3")
    values = [bytes(payload) for payload in payloads(block)]
    forged = [values[0][:-1] + b"?", *values[1:]]
    link = stored.block("5-1").chain
    stored.blocks[stored.index("5-3")] = _block(block.position, link, *forged)


def _published(position: Position, link: bytes, *entries: bytes, version: int, ends: bool) -> Block:
    block = _block(position, link, *entries)
    return replace(block, publish=f"app/{version}", commits=ends)


def _publish(stored: Stored, version: int, *, ends: bool = True, producer: str = "app") -> None:
    """A publish of one block at the log's end, or the beginning of one."""
    last = stored.blocks[-1]
    assert isinstance(last, Block)
    position = Position(last.position.ledger, last.last.entry + 1)
    content = entry(producer, version, time_ms=position.entry)
    stored.blocks.append(_published(position, last.chain, content, version=version, ends=ends))


def a_fence_left_a_part_of_a_publish(stored: Stored) -> None:
    link = stored.block("6-4").chain
    part = _published(Position(6, 5), link, entry("app", 1), version=1, ends=False)
    stored.blocks.insert(stored.index("7-0"), part)


def others_write_behind_a_part_of_a_publish(stored: Stored) -> None:
    _publish(stored, 1, ends=False)
    _publish(stored, 2)
    stored.state["txn:app"] = "2"


def a_version_is_published_twice(stored: Stored) -> None:
    _publish(stored, 2)
    _publish(stored, 2)
    stored.state["txn:app"] = "2"


def the_state_forgot_a_version(stored: Stored) -> None:
    _publish(stored, 2)
    stored.state["txn:app"] = "1"


def a_publish_holds_what_somebody_else_wrote(stored: Stored) -> None:
    _publish(stored, 1, producer="carol")
    stored.state["txn:app"] = "1"


MUTANTS: list[tuple[Callable[[Stored], None], str]] = [
    (an_acknowledged_tail_is_missing, "S5"),
    (a_block_in_the_middle_is_missing, "S5"),
    (more_is_gone_than_was_trimmed, "S5"),
    (an_entry_is_stored_twice, "S6"),
    (a_shared_entry_is_stored_twice, "S6"),
    (an_older_entry_follows_the_new_holders_first, "S1"),
    (a_zombies_entry_follows_the_new_marker, "S4"),
    (a_markers_epoch_falls, "S1"),
    (a_grant_returns_a_lower_epoch, "S3"),
    (an_epoch_is_granted_twice, "S2"),
    (an_epoch_changes_its_holder, "S2"),
    (two_brokers_have_one_ledger, "S2"),
    (a_ledger_is_handed_out_twice, "S2"),
    (an_entry_is_by_somebody_else, "S2"),
    (a_resume_of_an_epoch_that_is_over, "S3"),
    (the_state_forgets_the_epoch, "S12"),
    (the_state_forgets_the_ledger, "S12"),
    (the_state_is_deleted, "S12"),
    (a_fence_does_not_know_the_epoch, "S12"),
    (the_bucket_forgets_its_ledgers, "S12"),
    (the_wrong_waiter_is_promoted, "S11"),
    (a_marker_is_missing, "S4"),
    (the_newest_marker_is_missing, "S4"),
    (the_log_is_emptied, "S4"),
    (a_fence_is_not_audited, "S4"),
    (a_chunk_is_missing, "S6"),
    (sequence_ids_fall, "S6"),
    (a_value_is_changed, "S7"),
    (a_value_is_forged_with_its_hash, "S7"),
    (a_fence_left_a_part_of_a_publish, "S15"),
    (others_write_behind_a_part_of_a_publish, "S15"),
    (a_version_is_published_twice, "S15"),
    (the_state_forgot_a_version, "S15"),
    (a_publish_holds_what_somebody_else_wrote, "S15"),
]


async def test_the_history_itself_holds() -> None:
    server = FakeServer()
    store = FakeLogStore(server.resolve, buckets=BUCKETS)
    await a_long_history(store)
    report = await report_of(store)
    assert report.findings.violations == []
    assert report.findings.notes == []
    assert (report.ledgers, report.entries, report.audit_records) == (6, 21, 6)
    assert (str(report.first), str(report.last)) == ("5-0", "10-5")


def test_every_predicate_has_a_mutant() -> None:
    assert {predicate for _, predicate in MUTANTS} == set(PREDICATES)


async def test_publishes_that_are_whole_hold() -> None:
    server = FakeServer()
    store = FakeLogStore(server.resolve, buckets=BUCKETS)
    await a_long_history(store)
    stored = Stored(stored_in(server.primary))
    for version in (1, 2, 7):
        _publish(stored, version)
    stored.state["txn:app"] = "7"
    report = await report_of(store)
    assert (report.findings.violations, report.findings.notes) == ([], [])


async def test_the_beginning_of_a_publish_at_the_logs_end_is_no_violation() -> None:
    server = FakeServer()
    store = FakeLogStore(server.resolve, buckets=BUCKETS)
    await a_long_history(store)
    _publish(Stored(stored_in(server.primary)), 1, ends=False)
    report = await report_of(store)
    assert report.findings.violations == []
    assert ["app/1 is not whole" in note for note in report.findings.notes] == [True]


async def test_versions_may_restart_after_an_administrator_reset_them() -> None:
    server = FakeServer()
    store = FakeLogStore(server.resolve, buckets=BUCKETS)
    history = await a_long_history(store)
    stored = Stored(stored_in(server.primary))
    _publish(stored, 7)
    _publish(stored, 1)
    stored.state["txn:app"] = "1"
    await history.audit(kind="forget", log=str(TOPIC), app="app", version="7")
    assert (await report_of(store)).findings.violations == []
