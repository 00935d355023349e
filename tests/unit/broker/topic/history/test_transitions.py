"""A topic's transitions as its status shows them, and as another broker reads them from the audit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import pytest

from onewriter_broker.log.store.api import LogStore
from onewriter_broker.topic.history import audit as audit_module
from onewriter_broker.topic.history.audit import AuditTail
from onewriter_broker.topic.history.tenures import audit_fields, group_fields
from onewriter_broker.topic.history.transitions import HISTORY_MAX, parse_transition, transition_of
from onewriter_core.errors import Undecided
from onewriter_core.ids import Identity, TopicName
from onewriter_core.topic.effects import NEW_EPOCH, Fence, Record
from onewriter_core.topic.model import (
    WHOLE,
    AccessMode,
    Held,
    Member,
    Outage,
    Partition,
    ProducerGroup,
    Purpose,
    Tenure,
    TransitionCause,
)

TOPIC = TopicName.parse("persistent://public/default/t")
OLD = Identity("system:serviceaccount:shop:writer", "u1", "pod-1", "node-1")
NEW = Identity("system:serviceaccount:shop:writer", "u2", "pod-2", "node-2")


def group(identity: Identity = NEW, name: str = "winner") -> ProducerGroup:
    return ProducerGroup(
        group_id="g",
        partitions=(WHOLE,),
        members=(Member(WHOLE, "r"),),
        is_partitioned=False,
        producer_name=name,
        name_given=True,
        identity=identity,
        mode=AccessMode.WAIT_FOR_EXCLUSIVE,
        connection="c",
        priority=0,
        arrival=1,
        admitted_by="writers",
        address="10.0.0.2:1",
    )


FORMER = Tenure(5, "loser", OLD, "losers")


def record(
    cause: TransitionCause = TransitionCause.SILENT, purpose: Purpose = Purpose.GRANT
) -> Record:
    return Record((WHOLE,), purpose, 5, 9, 9, group(), cause, 0.25, FORMER)


def audited(cause: TransitionCause = TransitionCause.SILENT) -> dict[str, str]:
    """The audit record of the same fence."""
    fence = Fence(
        1,
        Purpose.GRANT,
        (WHOLE,),
        group(),
        cause,
        (),
        ((WHOLE, Tenure(NEW_EPOCH, "winner", NEW, "writers")),),
        ((WHOLE, ()),),
        None,
    )
    partition = Partition(WHOLE, epoch=5, ownership=Held(FORMER, "h"))
    return audit_fields(fence, str(TOPIC), 9, partition, "broker-0~1", {}, 1234)


def test_a_transition_is_read_back_as_it_was_recorded() -> None:
    transition = transition_of(record(), 1234)
    assert transition.leaderless_ms == 250
    # When the fence is written, the gap without a writer is unknown. Another record reports it.
    assert parse_transition(audited()) == replace(transition, leaderless_ms=None)
    found = parse_transition(audited())
    assert found is not None
    assert found.holder is not None
    assert found.previous is not None
    assert (found.holder.identity.pod, found.holder.identity.node) == ("pod-2", "node-2")
    assert (found.previous.identity.pod_uid, found.previous.identity.pod) == ("u1", "pod-1")
    assert (found.previous.claim, found.previous.epoch) == ("losers", 5)


def test_anonymous_holders_are_read_back_as_such() -> None:
    fields = audited() | group_fields(group(Identity()))
    fields.pop("podUID"), fields.pop("pod"), fields.pop("node")
    found = parse_transition(fields)
    assert found is not None
    assert found.holder is not None
    assert found.holder.identity.is_anonymous


def test_a_resume_that_is_read_back_has_its_outage() -> None:
    resumed = replace(record(purpose=Purpose.RESUME), outage=Outage(2.5, 0.04))
    written = transition_of(resumed, 1)
    fields = {"kind": "resume", "cause": written.cause, "epoch": "9", "ledger": "9", "t": "1"}
    found = parse_transition(fields | written.times() | group_fields(group()))
    assert found is not None
    assert (found.detection_ms, found.handover_ms, found.outage_ms) == (2_500, 40, 2_540)
    assert found.leaderless_ms == written.leaderless_ms


def test_a_resume_ends_nobodys_tenure() -> None:
    assert transition_of(record(purpose=Purpose.RESUME), 1).previous is None


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"kind": "roll", "epoch": "1", "ledger": "1", "t": "1"},
        {"kind": "grant"},
        {"kind": "grant", "epoch": "x", "ledger": "1", "t": "1"},
        {"kind": "grant", "epoch": "1", "ledger": "1", "t": "1", "former": "{"},
        {"kind": "grant", "epoch": "1", "ledger": "1", "t": "1", "former": "[]"},
        {"kind": "resume", "epoch": "1", "ledger": "1", "t": "1", "previous": "{}"},
    ],
)
def test_records_without_a_transition_are_skipped(fields: dict[str, str]) -> None:
    assert parse_transition(fields) is None


class Audit:
    """A bucket's audit stream that counts its reads."""

    def __init__(self, *records: Mapping[str, str]) -> None:
        self.records = list(records)
        self.reads: list[int] = []
        self.is_away = False

    async def read_audit(
        self, bucket: int, *, after: str = "", count: int = 0, reverse: bool = False
    ) -> list[tuple[str, Mapping[str, str]]]:
        assert reverse
        self.reads.append(count)
        if self.is_away:
            raise Undecided("away")
        newest = self.records[::-1][:count]
        return [(f"{number}-0", fields) for number, fields in enumerate(newest)]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def grant(epoch: int, topic: str = str(TOPIC), **more: str) -> dict[str, str]:
    return {
        "kind": "grant",
        "topic": topic,
        "epoch": str(epoch),
        "ledger": str(epoch),
        "t": str(epoch),
        "producer": f"p{epoch}",
        "cause": "TakenOver",
        "broker": "broker-0~1",
    } | more


def audit_tail(audit: Audit, clock: Clock | None = None) -> AuditTail:
    return AuditTail(cast("LogStore", audit), clock or Clock())


async def before(tail: AuditTail, since_ms: int = 10**9, me: str = "me~1") -> list[Any]:
    return await tail.before(3, TOPIC, me, since_ms)


async def test_the_newest_are_kept_and_other_topics_left_out() -> None:
    other = grant(7, "persistent://public/default/other")
    audit = Audit(*(grant(n) for n in range(1, 20)), other)
    found = await before(audit_tail(audit))
    assert [each.epoch for each in found] == list(range(20 - HISTORY_MAX, 20))


async def test_resumes_do_not_displace_changes_of_the_holder() -> None:
    resumes = [grant(99) | {"kind": "resume", "t": str(at)} for at in range(100, 100 + 60)]
    fences = [grant(200) | {"kind": "refence", "t": str(at)} for at in range(200, 230)]
    audit = Audit(*(grant(n) for n in range(1, 20)), *resumes, *fences)
    found = await before(audit_tail(audit))
    changes = [each.epoch for each in found if each.is_change_of_holder]
    assert changes == list(range(20 - HISTORY_MAX, 20))
    resumed = [each.at_ms for each in found if not each.is_change_of_holder]
    assert resumed == list(range(160 - HISTORY_MAX, 160))


async def test_a_takeover_without_an_answer_counts_as_forced_for_later_clients() -> None:
    audit = Audit(grant(1), grant(2), grant(3, cause="Silent"))
    for epoch in ("2", "3", "x"):
        audit.records.append({"kind": "unanswered", "topic": str(TOPIC), "epoch": epoch})
    found = await before(audit_tail(audit))
    assert [each.cause for each in found] == ["TakenOver", "Forced", "Silent"]


async def test_transitions_written_by_this_process_are_not_listed_twice() -> None:
    audit = Audit(grant(1), grant(2, broker="me~1"), grant(3, broker="me~1"))
    found = await before(audit_tail(audit), since_ms=3)
    assert [each.epoch for each in found] == [1, 2]


async def test_one_reading_serves_the_topics_of_a_bucket_for_a_while() -> None:
    audit, clock = Audit(grant(1)), Clock()
    tail = audit_tail(audit, clock)
    for _ in range(100):
        await before(tail)
    assert len(audit.reads) == 1
    clock.now += audit_module.SHARED_SECONDS + 0.1
    audit.records.append(grant(2))
    assert [each.epoch for each in await before(tail)] == [1, 2]
    assert len(audit.reads) == 2


async def test_a_long_audit_is_read_up_to_a_bound() -> None:
    audit = Audit(grant(1), *(grant(2, "persistent://public/default/other") for _ in range(5000)))
    assert await before(audit_tail(audit)) == []
    assert audit.reads[-1] == audit_module.TAIL_RECORDS_MAX


async def test_an_unreadable_audit_is_requested_again() -> None:
    audit = Audit(grant(1))
    tail = audit_tail(audit)
    audit.is_away = True
    with pytest.raises(Undecided):
        await before(tail)
    audit.is_away = False
    assert len(await before(tail)) == 1
