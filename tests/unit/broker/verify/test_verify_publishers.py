"""The publishers in blocks compared with the audit's records: corruptions, and histories without any."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import replace

from tests.contents import stored_in
from tests.unit.broker.verify.histories import (
    ALICE,
    BUCKETS,
    SPARK,
    TOPIC,
    TopicHistory,
    a_history_with_publishers,
    waiter,
)
from tests.unit.broker.verify.test_verify_mutants import Stored, report_of

from onewriter_broker.log.store.api import Block
from onewriter_broker.verify.reader import LogReport
from onewriter_core.audit.findings import AuditLimits
from onewriter_core.publishers import (
    CAPABILITY,
    EVERY_POD,
    HELD,
    PUBLISHER,
    Publisher,
    encode_publisher,
)
from onewriter_core.topic.model import Purpose
from onewriter_testing.fake_store.server import FakeServer
from onewriter_testing.fake_store.store import FakeLogStore

MALLORY = Publisher("mallory", "pod-9")


def record(
    stored: Stored, epoch: int, who: Publisher, app: str = "app"
) -> MutableMapping[str, str]:
    """The audit record of a publisher."""
    (found,) = [
        fields
        for _, fields in stored.audit
        if fields["kind"] == PUBLISHER
        and (fields["epoch"], fields["app"]) == (str(epoch), app)
        and (fields.get("subject", ""), fields.get("podUID", "")) == who
    ]
    return found


def removed(stored: Stored, fields: MutableMapping[str, str]) -> None:
    stored.audit.remove(next(each for each in stored.audit if each[1] == fields))


def name(stored: Stored, publish: str, who: Publisher | str) -> None:
    """Have the blocks of a publish name somebody."""
    by = who if isinstance(who, str) else encode_publisher(who)
    for index, block in enumerate(stored.blocks):
        if isinstance(block, Block) and block.publish == publish:
            stored.blocks[index] = replace(block, by=by)


# -- the mutants --------------------------------------------------------------------------------


def a_stranger_is_named(stored: Stored) -> None:
    name(stored, "app/2", MALLORY)


def one_block_names_a_stranger(stored: Stored) -> None:
    (index, *_) = [
        at
        for at, block in enumerate(stored.blocks)
        if isinstance(block, Block) and block.publish == "app/4" and block.commits
    ]
    block = stored.blocks[index]
    assert isinstance(block, Block)
    stored.blocks[index] = replace(block, by=encode_publisher(MALLORY))


def another_pod_is_named(stored: Stored) -> None:
    name(stored, "app/2", SPARK._replace(pod_uid="pod-2"))


def no_pod_is_named(stored: Stored) -> None:
    name(stored, "app/2", SPARK._replace(pod_uid=""))


def nobody_is_named(stored: Stored) -> None:
    name(stored, "app/5", "")


def an_earlier_holder_is_named(stored: Stored) -> None:
    name(stored, "app/4", ALICE)


def the_publisher_of_another_app_is_named(stored: Stored) -> None:
    name(stored, "other/1", SPARK)


def what_names_the_publisher_is_damaged(stored: Stored) -> None:
    name(stored, "app/2", '{"subject":["spark"]}')


def what_names_the_publisher_is_written_otherwise(stored: Stored) -> None:
    name(stored, "app/2", '{"podUID": "pod-1", "subject": "spark"}')


def a_record_is_removed(stored: Stored) -> None:
    removed(stored, record(stored, 5, ALICE))


def a_bearers_record_is_removed(stored: Stored) -> None:
    removed(stored, record(stored, 7, SPARK))


def all_records_are_removed(stored: Stored) -> None:
    stored.audit[:] = [each for each in stored.audit if each[1]["kind"] != PUBLISHER]


def a_record_is_of_another_epoch(stored: Stored) -> None:
    record(stored, 7, SPARK)["epoch"] = "5"


def a_record_is_of_an_epoch_that_was_not_granted(stored: Stored) -> None:
    record(stored, 7, SPARK)["epoch"] = "6"


def a_record_is_of_another_app(stored: Stored) -> None:
    record(stored, 5, ALICE, "other")["app"] = "another"


def a_record_is_of_another_log(stored: Stored) -> None:
    record(stored, 5, ALICE)["log"] = str(TOPIC.with_partition(1))


def a_record_names_a_stranger_as_the_holder(stored: Stored) -> None:
    """The block and its record agree, and the topic was never granted to whom they name."""
    found = record(stored, 5, ALICE, "other")
    found.update(subject=MALLORY.subject, podUID=MALLORY.pod_uid)
    name(stored, "other/1", MALLORY)


def a_record_passes_on_what_a_stranger_held(stored: Stored) -> None:
    found = record(stored, 5, ALICE, "other")
    found.update(subject=MALLORY.subject, podUID=MALLORY.pod_uid)
    found.update(right=CAPABILITY, holder=str(MALLORY))
    name(stored, "other/1", MALLORY)


def names_no_publisher(stored: Stored) -> None:
    """As release 0.1.0 wrote it, which is no corruption."""
    all_records_are_removed(stored)
    for publish in ("app/1", "app/2", "app/3", "other/1", "app/4", "app/5"):
        name(stored, publish, "")


MUTANTS: list[Callable[[Stored], None]] = [
    a_stranger_is_named,
    one_block_names_a_stranger,
    another_pod_is_named,
    no_pod_is_named,
    nobody_is_named,
    an_earlier_holder_is_named,
    the_publisher_of_another_app_is_named,
    what_names_the_publisher_is_damaged,
    what_names_the_publisher_is_written_otherwise,
    a_record_is_removed,
    a_bearers_record_is_removed,
    all_records_are_removed,
    a_record_is_of_another_epoch,
    a_record_is_of_an_epoch_that_was_not_granted,
    a_record_is_of_another_app,
    a_record_is_of_another_log,
    a_record_names_a_stranger_as_the_holder,
    a_record_passes_on_what_a_stranger_held,
]


async def begun() -> tuple[FakeLogStore, TopicHistory, Stored]:
    server = FakeServer()
    store = FakeLogStore(server.resolve, buckets=BUCKETS)
    history = await a_history_with_publishers(store)
    return store, history, Stored(stored_in(server.primary))


def sentences(report: LogReport) -> list[str]:
    return list(report.findings.notes)


async def test_the_history_itself_holds() -> None:
    store, _, _ = await begun()
    report = await report_of(store)
    assert (report.findings.violations, report.findings.notes) == ([], [])
    assert report.blocks == 3 + 2 * 6


async def test_a_grant_that_is_removed_with_its_records_hides_nothing() -> None:
    store, _, stored = await begun()
    removed(stored, record(stored, 7, SPARK))
    removed(stored, stored.fence(7))
    violations = (await report_of(store)).findings.violations
    assert {violation.predicate for violation in violations} == {"S4", "S15"}


async def test_a_publish_is_reported_once() -> None:
    store, _, stored = await begun()
    a_stranger_is_named(stored)
    (violation,) = (await report_of(store)).findings.violations
    assert (violation.log, violation.where) == (str(TOPIC), ("5-514",))
    assert violation.sentence == (
        "publish app/2 is by mallory (pod pod-9), but the audit has no record that it published"
        " app under epoch 5"
    )


async def test_logs_of_brokers_that_record_nothing_hold_as_before() -> None:
    """Release 0.1.0 names no publisher, neither in blocks nor in the audit."""
    store, _, stored = await begun()
    names_no_publisher(stored)
    report = await report_of(store)
    assert (report.findings.violations, report.findings.notes) == ([], [])


async def test_a_broker_of_the_release_before_may_take_part() -> None:
    """Its blocks name no publisher. They are in ledgers of their own, under an epoch that other producers led, too."""
    store, history, stored = await begun()
    history.binding = replace(history.binding, owner="broker-old", version=2)
    stored.dataset.units[history.binding.bucket] = replace(
        stored.dataset.units[history.binding.bucket], owner="broker-old", version=2
    )
    await history.fence(Purpose.REFENCE)
    await history.publish_as_whole(Publisher(), 6, is_recorded=False)
    report = await report_of(store)
    assert (report.findings.violations, report.findings.notes) == ([], [])


async def test_anonymous_publishers_are_recorded() -> None:
    store, history, stored = await begun()
    await history.publish_as_whole(Publisher(), 6)
    assert (await report_of(store)).findings.violations == []
    removed(stored, record(stored, 7, Publisher()))
    (violation,) = (await report_of(store)).findings.violations
    assert "app/6 is by anonymous" in violation.sentence


async def test_a_record_may_stand_for_all_pods_of_a_subject() -> None:
    store, history, stored = await begun()
    record(stored, 7, SPARK)["podUID"] = EVERY_POD
    for number, pod in enumerate(("pod-1", "pod-2")):
        await history.publish_as_whole(SPARK._replace(pod_uid=pod), 6 + number, is_recorded=False)
    assert (await report_of(store)).findings.violations == []
    name(stored, "app/6", MALLORY)
    (violation,) = (await report_of(store)).findings.violations
    assert "app/6 is by mallory" in violation.sentence


async def test_records_that_expired_are_no_violation() -> None:
    store, _, stored = await begun()
    del stored.audit[: [fields["kind"] for _, fields in stored.audit].index("roll")]
    report = await report_of(store)
    assert report.findings.violations == []
    reported = "who published under epoch 5 was not compared: the audit lacks its grant"
    assert reported in sentences(report)


async def test_records_beyond_the_examined_ones_are_not_violations() -> None:
    store, _, _ = await begun()
    report = await report_of(store, AuditLimits(audit_records_max=7))
    assert [each for each in report.findings.violations if each.predicate == "S15"] == []
    assert any("who published under epoch 7" in each for each in sentences(report))


async def test_an_incomplete_record_is_skipped_and_reported() -> None:
    store, _, stored = await begun()
    del record(stored, 5, ALICE)["right"]
    report = await report_of(store)
    assert {each.where for each in report.findings.violations} == {("5-1",), ("6-1",)}
    assert any("cannot be read" in each for each in sentences(report))


async def test_records_may_be_repeated() -> None:
    store, history, stored = await begun()
    await history.audit(**record(stored, 7, SPARK))
    assert (await report_of(store)).findings.violations == []
    assert record(stored, 5, ALICE)["right"] == HELD


async def test_a_topic_without_publishes_needs_none() -> None:
    server = FakeServer()
    store = FakeLogStore(server.resolve, buckets=BUCKETS)
    history = await TopicHistory.begin(store)
    await history.fence(Purpose.GRANT, waiter("alice", arrival=1))
    assert (await report_of(store)).findings.notes == []
