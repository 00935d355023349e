"""Correct histories that look wrong, and the notes of a check about what it left out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.contents import stored_in
from tests.unit.broker.verify.histories import (
    BUCKETS,
    TOPIC,
    TopicHistory,
    a_long_history,
    entry,
    waiter,
)

from onewriter_broker.log.store.api import Marker, Outcome, StoredBlock
from onewriter_broker.verify.observer import LogObserver
from onewriter_broker.verify.reader import LogReport, all_logs, logs_of, stored_state, verify
from onewriter_core.audit.findings import DEFAULT_LIMITS, AuditLimits, Finding
from onewriter_core.audit.grants import BucketAudit, check_audit
from onewriter_core.audit.logs import LogChecker
from onewriter_core.errors import Undecided
from onewriter_core.ids import EARLIEST, Position, TopicName, bucket_of
from onewriter_core.log_format.field_names import TRIMMED
from onewriter_core.topic.model import PromotionPolicy, Purpose, TransitionCause
from onewriter_testing.fake_store.server import FakeServer
from onewriter_testing.fake_store.store import FakeLogStore

BUCKET = bucket_of(TOPIC, BUCKETS)


@pytest.fixture
def store(server: FakeServer) -> FakeLogStore:
    return FakeLogStore(server.resolve, buckets=BUCKETS)


async def reports_of(
    store: FakeLogStore, name: TopicName = TOPIC, limits: AuditLimits = DEFAULT_LIMITS
) -> list[LogReport]:
    logs = await logs_of(store, name, BUCKETS)
    return await verify(store, logs, BUCKETS, lambda _log, _entries: None, limits)


async def report_of(store: FakeLogStore, limits: AuditLimits = DEFAULT_LIMITS) -> LogReport:
    (report,) = await reports_of(store, limits=limits)
    return report


async def holds_without_notes(store: FakeLogStore) -> bool:
    report = await report_of(store)
    assert report.findings.violations == []
    return not report.findings.notes


def notes(report: LogReport) -> list[str]:
    return list(report.findings.notes)


async def test_a_group_of_partitions_is_fenced_together_and_rolled_alone(
    store: FakeLogStore,
) -> None:
    history = await TopicHistory.begin(store, partitions=3)
    await history.fence(Purpose.GRANT, waiter("alice"))
    await history.publish(entry("alice", 0), partition=2)
    await history.fence(Purpose.ROLL, partitions=[2])
    await history.publish(entry("alice", 1), partition=2)
    await history.fence(Purpose.GRANT, waiter("bob"), partitions=[1])
    await history.fence(Purpose.REFENCE)  # each partition keeps its own epoch
    await history.publish(entry("alice", 0), partition=0)
    await history.publish(entry("bob", 0), partition=1)
    reports = await reports_of(store)
    assert [report.log[-1] for report in reports] == ["0", "1", "2"]
    assert [report.findings.violations for report in reports] == [[], [], []]
    assert [report.ledgers for report in reports] == [2, 3, 3]
    assert [str(log) for log in await all_logs(store, BUCKETS)] == [r.log for r in reports]
    (one,) = await reports_of(store, TOPIC.with_partition(1))
    assert one.entries == 1


async def test_an_unknown_topic_has_no_log(store: FakeLogStore) -> None:
    assert await logs_of(store, TopicName.parse("nothing"), BUCKETS) == []


async def test_a_reported_loss_is_a_note_and_an_unreported_one_a_violation(
    server: FakeServer, store: FakeLogStore
) -> None:
    history = await TopicHistory.begin(store)
    alice = waiter("alice")
    await history.fence(Purpose.GRANT, alice)
    await history.publish(entry("alice", 0))
    await history.publish(entry("alice", 1))
    del (
        stored_in(server.primary).logs[TOPIC].blocks[-1]
    )  # what a failover to a lagging replica does
    await history.fence(Purpose.REFENCE)
    assert [v.predicate for v in (await report_of(store)).findings.violations] == ["S5"]
    await history.audit(kind="loss", log=str(TOPIC), after="5-1", last="5-2", entries="1")
    report = await report_of(store)
    assert report.findings.holds
    assert notes(report) == ["entries behind 5-1 up to 5-2 were reported lost"]


async def test_a_range_at_risk_is_a_note_and_covers_a_loss(
    server: FakeServer, store: FakeLogStore
) -> None:
    history = await TopicHistory.begin(store)
    await history.fence(Purpose.GRANT, waiter("alice"))
    await history.publish(entry("alice", 0))
    await history.publish(entry("alice", 1))
    del stored_in(server.primary).logs[TOPIC].blocks[-1]
    await history.fence(Purpose.REFENCE)
    await history.audit(
        kind="risk", log=str(TOPIC), after="5-1", ledger="64", generation="2", durability="Local"
    )
    report = await report_of(store)
    assert report.findings.holds
    assert (
        "a failover of the store may have lost acknowledged entries after 5-1, in ledgers up to 64"
        " (durability Local)"
    ) in notes(report)


async def test_a_fence_repeated_after_a_failover_forgot_nothing(store: FakeLogStore) -> None:
    history = await TopicHistory.begin(store)
    await history.fence(Purpose.GRANT, waiter("alice"))
    before, bob = history.partitions.copy(), waiter("bob", arrival=1)
    await history.fence(Purpose.GRANT, bob)
    history.partitions = before  # the answer was lost: the broker asks again, knowing what it knew
    await history.fence(Purpose.GRANT, bob)
    assert await holds_without_notes(store)


async def test_the_same_grant_by_another_fence_shows_a_loss(store: FakeLogStore) -> None:
    history = await TopicHistory.begin(store)
    await history.fence(Purpose.GRANT, waiter("alice"))
    before = history.partitions.copy()
    await history.fence(Purpose.GRANT, waiter("bob", arrival=1))
    history.partitions = before
    await history.fence(Purpose.GRANT, waiter("carol", arrival=2))
    violations = (await report_of(store)).findings.violations
    assert [violation.predicate for violation in violations] == ["S12"]
    assert "epoch 6 had been granted, but this fence knew only 5" in violations[0].sentence


@pytest.mark.parametrize(
    ("policy", "cause", "holds"),
    [
        (PromotionPolicy.PRIORITY, TransitionCause.NONE, False),
        (PromotionPolicy.FIFO, TransitionCause.NONE, True),
        (PromotionPolicy.PRIORITY, TransitionCause.HANDED_OVER, True),
    ],
)
async def test_the_promoted_waiter_depends_on_policy_and_handover(
    store: FakeLogStore, policy: PromotionPolicy, cause: TransitionCause, holds: bool
) -> None:
    history = await TopicHistory.begin(store)
    history.policy = policy
    await history.fence(Purpose.GRANT, waiter("alice"))
    early, urgent = waiter("bob", arrival=1), waiter("carol", arrival=2, priority=9)
    await history.fence(Purpose.GRANT, early, left=urgent, cause=cause)
    assert (await report_of(store)).findings.holds is holds


@pytest.mark.parametrize(("loads", "holds"), [((1, 2), True), ((2, 2), False), ((3, 2), False)])
async def test_balanced_promotes_the_host_that_leads_fewer_topics(
    store: FakeLogStore, loads: tuple[int, int], holds: bool
) -> None:
    history = await TopicHistory.begin(store)
    history.policy = PromotionPolicy.BALANCED
    await history.fence(Purpose.GRANT, waiter("alice"))
    early, late = waiter("bob", arrival=1), waiter("carol", arrival=2)
    await history.fence(Purpose.GRANT, late, left=early, loads=loads)
    findings = (await report_of(store)).findings
    assert findings.holds is holds
    assert [each.predicate for each in findings.violations] == ([] if holds else ["S11"])


async def test_no_load_makes_up_for_a_lower_priority(store: FakeLogStore) -> None:
    history = await TopicHistory.begin(store)
    history.policy = PromotionPolicy.BALANCED
    await history.fence(Purpose.GRANT, waiter("alice"))
    busy = waiter("bob", arrival=1, priority=1)
    await history.fence(Purpose.GRANT, waiter("standby", arrival=2), left=busy, loads=(0, 9))
    violations = (await report_of(store)).findings.violations
    assert [each.predicate for each in violations] == ["S11"]
    assert "priority 1, load 9" in violations[0].sentence


async def test_a_waiter_for_another_partition_is_no_better_choice(store: FakeLogStore) -> None:
    history = await TopicHistory.begin(store, partitions=2)
    await history.fence(Purpose.GRANT, waiter("alice"))
    blocked = waiter("carol", arrival=2, priority=9)  # waits for the whole topic
    await history.fence(Purpose.GRANT, waiter("bob", arrival=3), left=blocked, partitions=[0])
    assert all(report.findings.holds for report in await reports_of(store))


async def test_markers_from_before_the_audit_begins_are_not_compared(
    server: FakeServer, store: FakeLogStore
) -> None:
    await a_long_history(store)
    records = stored_in(server.primary).audits[BUCKET]
    del records[:3]  # as the stream's own bound does
    report = await report_of(store)
    assert report.findings.holds
    assert report.audit_records == 4
    assert [note.split(" were")[0] for note in notes(report)] == [
        f"markers before audit {records[0][0]}"
    ]
    records.clear()
    assert notes(await report_of(store)) == [
        "the bucket's audit holds no fences: markers were not compared with it"
    ]


async def test_trims_are_recorded_and_further_missing_entries_are_detected(
    store: FakeLogStore, server: FakeServer
) -> None:
    history = await a_long_history(store)
    token = history.binding.token(history.ledger)
    cut = Position(7, 2)
    fields = {TRIMMED: str(cut)}
    outcome = await store.trim(history.binding, TOPIC, token, cut, fields)
    assert outcome is Outcome.DONE
    report = await report_of(store)
    assert report.findings.holds
    assert str(report.first) == "7-2"
    assert notes(report) == ["what was trimmed, up to 7-2, was not checked"]
    blocks = stored_in(server.primary).logs[TOPIC].blocks
    del blocks[:2]  # somebody's own XTRIM
    assert str(blocks[0].position) == "9-0"
    assert [v.predicate for v in (await report_of(store)).findings.violations] == ["S5"]
    del stored_in(server.primary).states[TOPIC][TRIMMED]
    report = await report_of(store)
    assert report.findings.holds
    assert notes(report) == ["the log begins at 9-0: nothing before it was checked"]


async def test_a_trim_that_overtakes_the_reader_is_no_hole(
    server: FakeServer, store: FakeLogStore
) -> None:
    history = await a_long_history(store)
    other = FakeLogStore(server.resolve, buckets=BUCKETS)
    reads = 0

    async def trim_behind_the_first_block(call: str, moment: str) -> None:
        nonlocal reads
        reads += call == "read_blocks" and moment == "after"
        if reads == 2 and call == "read_blocks" and moment == "after":
            token = history.binding.token(history.ledger)
            cut = Position(6, 2)
            await other.trim(history.binding, TOPIC, token, cut, {TRIMMED: str(cut)})

    store.faults.hook = trim_behind_the_first_block
    (report,) = await verify(store, [TOPIC], BUCKETS, lambda _log, _entries: None)
    assert report.findings.violations == []
    assert "trimmed during the check: checked again from 6-1" in notes(report)


async def test_concurrent_fences_and_appends_are_not_violations(
    server: FakeServer, store: FakeLogStore
) -> None:
    history = await a_long_history(FakeLogStore(server.resolve, buckets=BUCKETS))
    names = iter("abcdefghijklmnopqrstuvwxyz")

    async def somebody_takes_over(call: str, moment: str) -> None:
        if moment == "before":
            name = next(names)
            await history.fence(Purpose.GRANT, waiter(name, arrival=history.ledger))
            await history.publish(entry(name, 0))

    store.faults.hook = somebody_takes_over
    (report,) = await verify(store, [TOPIC], BUCKETS, lambda _log, _entries: None)
    assert report.findings.violations == []
    assert report.ledgers > 6


@pytest.mark.looptime
async def test_a_store_that_does_not_answer_is_asked_again_and_then_left(
    store: FakeLogStore,
) -> None:
    await a_long_history(store)
    store.faults.fail_before = 3
    assert (await report_of(store)).findings.holds
    store.faults.is_cut_off = True
    with pytest.raises(Undecided):
        await report_of(store)


async def test_an_unreadable_record_and_an_unreadable_entry_are_reported(
    server: FakeServer, store: FakeLogStore
) -> None:
    history = await a_long_history(store)
    await history.publish(b"this is no entry of any client")
    stored_in(server.primary).audits[BUCKET].append(("98-0", {"kind": "grant", "topic": "orders"}))
    report = await report_of(store)
    assert report.findings.holds
    assert [note.split(" ")[0:3] for note in notes(report)] == [
        ["audit", "record", "98-0"],
        ["1", "entries", "have"],
    ]


async def test_bounds_are_named_when_they_are_reached(
    server: FakeServer, store: FakeLogStore
) -> None:
    limits = AuditLimits(violations_max=1, audit_records_max=7, remembered_entries_max=2)
    history = await a_long_history(store)
    await history.fence(Purpose.ROLL)
    blocks = stored_in(server.primary).logs[TOPIC].blocks
    for index, block in enumerate(blocks):
        if isinstance(block, Marker) and block.position.ledger in {6, 7}:
            blocks[index] = Marker(block.position, {**block.fields, "owner": "broker-z"})
    report = await report_of(store, limits)
    assert len(report.findings.violations) == 1
    assert report.findings.further >= 1
    assert "the audit was looked at up to its 7th record only" in notes(report)
    assert any("Shared producer was silent for such a long time" in note for note in notes(report))


async def test_a_program_without_a_store_checks_a_stream_of_its_own(
    store: FakeLogStore,
) -> None:
    await a_long_history(store)
    audit = BucketAudit()
    assert list(check_audit(await store.read_audit(BUCKET, count=100), audit)) == []
    blocks = await store.read_blocks(TOPIC, EARLIEST, count=100)
    unit = (await store.observe([BUCKET])).units[BUCKET]
    state = stored_state(await store.read_state(TOPIC), unit)

    def findings(blocks: Sequence[StoredBlock]) -> list[Finding]:
        observer, checker = LogObserver(str(TOPIC)), LogChecker(str(TOPIC), audit)
        facts = (fact for block in blocks for fact in observer.facts(block))
        found = [each for fact in facts for each in checker.feed(fact)]
        return found + list(checker.finish(state))

    assert findings(blocks) == []
    without_one = [block for block in blocks if block.position != Position(5, 3)]
    (violation,) = findings(without_one)
    assert (violation.predicate, violation.where) == ("S5", ("5-3", "5-5"))
