"""Witnesses grow, and nothing that was added to one can be changed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from onewriter_core.ids import EARLIEST, NUMBER_MAX, Position
from onewriter_core.witnesses import (
    RECENT_MAX,
    RECORDS_PER_POST_MAX,
    AuditChain,
    ContradictsWitness,
    CopiedRecord,
    InvalidWitness,
    RecordChain,
    Witness,
    WitnessPost,
    WitnessRecord,
    extended,
)

TABLE = "67b74a54-b133-4811-9fc9-04a148bac02c"


def record(ledger: int, first: int = 1, end: int = 11) -> WitnessRecord:
    numbers = (ledger, first, end, ledger, end - first, end - first, end - first, 100)
    return WitnessRecord(*numbers, "0" * 16, "1" * 16, f"{ledger:032x}")


def post(*records: WitnessRecord, after: Witness | None = None, version: int = 3) -> WitnessPost:
    chain = RecordChain() if after is None else after.chain
    return WitnessPost(TABLE, version, chain, records)


def test_witness_grows_with_each_request() -> None:
    first = extended(None, post(record(2), record(3)))
    assert (first.end, first.rows, first.chain.count) == (Position(3, 11), 20, 2)
    second = extended(first, post(record(3, 11, 15), after=first, version=4))
    assert (second.end, second.rows, second.version) == (Position(3, 15), 24, 4)
    assert second.chain == RecordChain().extended([record(2), record(3), record(3, 11, 15)])
    assert second.adopted == EARLIEST


def test_repeated_request_changes_nothing() -> None:
    first = extended(None, post(record(2)))
    request = post(record(3), after=first, version=4)
    second = extended(first, request)
    assert extended(second, request) == second
    assert extended(second, post(after=second, version=4)) == second


def test_request_that_rewrites_a_record_is_refused() -> None:
    known = extended(None, post(record(2), record(3)))
    changed = replace(record(3), rows=9)
    for request in (
        post(record(2), changed),
        post(changed, after=extended(None, post(record(2)))),
        post(changed, after=known, version=4),
        post(record(4), after=known, version=2),
    ):
        with pytest.raises(ContradictsWitness):
            extended(known, request)


def test_sum_of_rows_stays_a_number_that_is_read_again() -> None:
    most = extended(None, post(replace(record(2), rows=NUMBER_MAX)))
    assert Witness.of(most.document()) == most
    with pytest.raises(InvalidWitness, match="rows"):
        extended(most, post(record(3), after=most))


def test_old_records_are_only_in_the_chain() -> None:
    known = None
    for ledger in range(1, 3 * RECENT_MAX):
        known = extended(known, post(record(ledger), after=known))
    assert known is not None
    assert len(known.recent) == RECENT_MAX
    assert known.chain.count == 3 * RECENT_MAX - 1
    assert len(json.dumps(known.document())) < 4_000


def test_adopted_records_are_marked_up_to_their_end() -> None:
    request = replace(post(record(2), record(3)), is_adopted=True)
    known = extended(None, request)
    assert known.adopted == Position(3, 11)
    assert extended(known, post(record(4), after=known)).adopted == Position(3, 11)


def copied(*numbers: int) -> tuple[CopiedRecord, ...]:
    return tuple((f"{number}-0", f"{number:032x}") for number in numbers)


def audit_post(known: Witness, *records: CopiedRecord, after: AuditChain) -> WitnessPost:
    return WitnessPost(TABLE, known.version, known.chain, audit_after=after, audit=records)


def test_audit_records_are_added_beside_the_copies() -> None:
    known = extended(None, post(record(2)))
    request = audit_post(known, *copied(1, 2), after=AuditChain())
    first = extended(known, request)
    assert (first.audit.count, first.audit.last) == (2, "2-0")
    assert extended(first, request) == first
    second = extended(first, post(record(3), after=first, version=4))
    third = extended(second, audit_post(second, *copied(9, 10), after=first.audit))
    assert third.audit == AuditChain().extended(copied(1, 2, 9, 10))
    assert (third.chain, third.recent) == (second.chain, second.recent)
    assert Witness.of(json.loads(json.dumps(third.document()))) == third


def test_audit_records_that_were_witnessed_cannot_be_replaced() -> None:
    empty = extended(None, post(record(2)))
    known = extended(empty, audit_post(empty, *copied(1, 2), after=AuditChain()))
    for request in (
        audit_post(known, *copied(1, 3), after=AuditChain()),
        audit_post(known, *copied(1, 2, 3), after=AuditChain()),
        audit_post(known, *copied(2), after=known.audit),
        audit_post(known, *copied(5, 4), after=known.audit),
    ):
        with pytest.raises(ContradictsWitness):
            extended(known, request)


def test_witness_of_a_broker_that_knows_no_audit_records_is_read() -> None:
    document = extended(None, post(record(2))).document()
    del document["audit"]
    assert Witness.of(document).audit == AuditChain()


def test_json_is_read_as_it_was_written() -> None:
    shared = replace(record(3), epoch=None)
    request = replace(post(record(2), shared), is_adopted=True)
    assert WitnessPost.of(json.loads(json.dumps(request.document()))) == request
    known = extended(None, request)
    assert Witness.of(json.loads(json.dumps(known.document()))) == known
    request = audit_post(known, *copied(1, 2), after=known.audit)
    assert WitnessPost.of(json.loads(json.dumps(request.document()))) == request


@pytest.mark.parametrize(
    "wrong",
    [
        {"table": "../x"},
        {"table": ""},
        {"version": -1},
        {"version": True},
        {"count": 2**63},
        {"chain": "0" * 31},
        {"adopted": 1},
        {"records": [[1, 2]]},
        {"records": [[*range(8), "0" * 16, "0" * 16, 7]]},
        {"records": [[1, 1, None, 1, 1, 1, 1, 1, "0" * 16, "0" * 16, "0" * 32]]},
        {"records": [[]] * (RECORDS_PER_POST_MAX + 1)},
        {"audit": 1},
        {"audit": {"count": 0, "last": "x", "hash": "0" * 32, "records": []}},
        {"audit": {"count": 0, "last": "", "hash": "0", "records": []}},
        {"audit": {"count": 0, "last": "", "hash": "0" * 32}},
        {"audit": {"count": 0, "last": "", "hash": "0" * 32, "records": [["1-0"]]}},
        {"audit": {"count": 0, "last": "", "hash": "0" * 32, "records": [["1", "0" * 32]]}},
        {
            "audit": {
                "count": 0,
                "last": "",
                "hash": "0" * 32,
                "records": [["1-0", "0" * 32]] * (RECORDS_PER_POST_MAX + 1),
            }
        },
    ],
)
def test_invalid_requests_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidWitness):
        WitnessPost.of(post(record(2)).document() | wrong)


@pytest.mark.parametrize("document", [None, [], "x", {"table": TABLE}])
def test_other_json_is_no_witness(document: object) -> None:
    with pytest.raises(InvalidWitness):
        Witness.of(document)
