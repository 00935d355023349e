"""Witnesses of offloaded ledgers cannot be rewritten, and a pipeline trims only what is witnessed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.attacks.guarded import ADMINISTRATOR, GuardedBrokers, http_as, wire_as
from tests.integration.conftest import RawClients
from tests.integration.raw import FENCING

from onewriter_core.ids import NUMBER_MAX
from onewriter_core.witnesses import (
    TABLES_MAX,
    RecordChain,
    Witness,
    WitnessPost,
    WitnessRecord,
)
from onewriter_testing.in_process import InProcessBroker

TOPIC = "persistent://public/default/orders"
PATH = "/onewriter/v1/topics/public/default/orders"
OFFLOAD = "offload"
READER = "reader"
WRITER = "writer"
TABLE = "67b74a54-b133-4811-9fc9-04a148bac02c"
SENT = 5


@pytest.fixture
def broker(guarded: GuardedBrokers, raw: RawClients) -> InProcessBroker:
    """A broker whose topic has three ledgers; the last one is current."""
    found = guarded(pipeline_subjects=OFFLOAD)
    for _ in range(3):
        producer = wire_as(found, raw, WRITER).producer(TOPIC, FENCING)
        for number in range(SENT):
            producer.publish(b"%d" % number)
    return found


def ledgers(broker: InProcessBroker) -> list[dict[str, Any]]:
    status, page = http_as(broker, OFFLOAD)("GET", f"{PATH}/segments?witnesses=true")
    assert status == 200
    return [each for each in page["segments"] if each["entries"]]


def witnesses(broker: InProcessBroker) -> list[Witness]:
    status, page = http_as(broker, READER)("GET", f"{PATH}/segments?witnesses=true")
    assert status == 200
    return list(map(Witness.of, page["witnesses"]))


def record_of(segment: dict[str, Any]) -> WitnessRecord:
    ledger, entries = segment["ledger"], segment["entries"]
    counts = (entries, entries, entries, segment["bytes"])
    hashes = ("0" * 16, "1" * 16, "2" * 32)
    return WitnessRecord(ledger, 1, 1 + entries, segment["epoch"], *counts, *hashes)


def copied(broker: InProcessBroker, count: int) -> WitnessPost:
    """The request of an offload of the first ledgers."""
    records = tuple(map(record_of, ledgers(broker)[:count]))
    return WitnessPost(TABLE, 0, RecordChain(), records)


def add(broker: InProcessBroker, post: WitnessPost, subject: str = OFFLOAD) -> int:
    status, _ = http_as(broker, subject)("POST", f"{PATH}/witnesses", post.document())
    return status


def trim(broker: InProcessBroker, subject: str = OFFLOAD, **more: object) -> tuple[int, Any]:
    last = ledgers(broker)[-1]
    body = {"before": f"{last['ledger']}:1", "epoch": last["epoch"]} | more
    return http_as(broker, subject)("POST", f"{PATH}/trim", body)


def test_witness_is_stored_and_shown(broker: InProcessBroker) -> None:
    assert witnesses(broker) == []
    post = copied(broker, 2)
    assert add(broker, post) == 200
    (known,) = witnesses(broker)
    assert (known.table, known.rows, known.recent) == (TABLE, 2 * SENT, post.records)
    assert add(broker, post) == 200  # repeated after a lost answer
    assert witnesses(broker) == [known]


def test_witness_needs_the_right_to_trim(broker: InProcessBroker) -> None:
    post = copied(broker, 2)
    for subject in (READER, WRITER):
        assert add(broker, post, subject) == 403
    assert http_as(broker)("POST", f"{PATH}/witnesses", post.document())[0] == 401
    assert witnesses(broker) == []


def test_witness_is_not_rewritten(broker: InProcessBroker) -> None:
    post = copied(broker, 2)
    assert add(broker, post) == 200
    known = witnesses(broker)
    forged = replace(post.records[1], digest="f" * 16)
    for wrong in (
        replace(post, records=(post.records[0], forged)),
        replace(post, records=()),
        replace(post, after=RecordChain().extended(post.records[:1]), records=(forged,)),
        replace(post, after=known[0].chain, records=(post.records[1],)),
    ):
        for subject in (OFFLOAD, ADMINISTRATOR):
            assert add(broker, wrong, subject) == 409
    assert witnesses(broker) == known


def test_witnessed_audit_records_are_not_rewritten(broker: InProcessBroker) -> None:
    assert add(broker, copied(broker, 2)) == 200
    (known,) = witnesses(broker)
    records = (("1-0", "0" * 32), ("2-0", "1" * 32))
    post = WitnessPost(TABLE, 0, known.chain, audit_after=known.audit, audit=records)
    assert add(broker, post) == 200
    (known,) = witnesses(broker)
    assert (known.audit.count, known.audit.last) == (2, "2-0")
    forged = ("2-0", "f" * 32)
    for wrong in (
        replace(post, audit=(records[0], forged)),
        replace(post, audit=(records[0],)),
        replace(post, audit_after=known.audit, audit=(forged,)),
    ):
        for subject in (OFFLOAD, ADMINISTRATOR):
            assert add(broker, wrong, subject) == 409
    assert witnesses(broker) == [known]


def test_only_an_administrator_removes_a_witness(broker: InProcessBroker) -> None:
    assert add(broker, copied(broker, 2)) == 200
    path = f"{PATH}/witnesses/{TABLE}"
    assert http_as(broker, OFFLOAD)("DELETE", path)[0] == 403
    assert len(witnesses(broker)) == 1
    assert http_as(broker, ADMINISTRATOR)("DELETE", path)[0] == 200
    assert witnesses(broker) == []
    assert http_as(broker, ADMINISTRATOR)("DELETE", path)[0] == 409


def test_pipeline_trims_what_is_witnessed_and_no_more(broker: InProcessBroker) -> None:
    first, second, _ = ledgers(broker)
    assert add(broker, copied(broker, 1)) == 200
    for more in ({}, {"table": TABLE}):
        status, answer = trim(broker, **more)
        assert (status, answer["limitedBy"]) == (200, {"what": "witness", "name": TABLE})
        assert answer["trimmedBefore"] == f"{first['ledger']}:{1 + SENT}"
    assert [each["ledger"] for each in ledgers(broker)][-2] == second["ledger"]
    rest = WitnessPost(TABLE, 1, witnesses(broker)[0].chain, (record_of(second),))
    assert add(broker, rest) == 200
    end = f"{second['ledger']}:{1 + SENT}"
    status, answer = trim(broker, table=TABLE, before=end)
    assert (status, answer["trimmedBefore"], answer["limitedBy"]) == (200, end, None)


def test_trim_for_a_table_without_witness_is_refused(broker: InProcessBroker) -> None:
    status, answer = trim(broker, table=TABLE)
    assert (status, "has no witness of table" in answer["reason"]) == (409, True)
    assert trim(broker, table=7)[0] == 400
    assert len(ledgers(broker)) == 3


def test_requests_of_earlier_pipelines_are_served(broker: InProcessBroker) -> None:
    """They name no table. A log without witnesses is trimmed as before."""
    status, answer = trim(broker)
    assert (status, answer["limitedBy"]["what"]) == (200, "ledger")


def test_administrator_trims_without_a_witness(broker: InProcessBroker) -> None:
    assert add(broker, copied(broker, 1)) == 200
    status, answer = trim(broker, ADMINISTRATOR)
    assert (status, answer["limitedBy"]["what"]) == (200, "ledger")


def test_number_of_tables_of_a_log_is_bounded(broker: InProcessBroker) -> None:
    post = copied(broker, 1)
    for number in range(TABLES_MAX):
        assert add(broker, replace(post, table=f"table-{number}")) == 200
    status, answer = http_as(broker, OFFLOAD)("POST", f"{PATH}/witnesses", post.document())
    assert (status, "an administrator has to remove one" in answer["reason"]) == (409, True)
    assert len(witnesses(broker)) == TABLES_MAX


@pytest.mark.parametrize("body", [[], {"table": "../x"}, {"records": [[]] * 9}, None])
def test_invalid_witness_is_refused(broker: InProcessBroker, body: object) -> None:
    status, answer = http_as(broker, OFFLOAD)("POST", f"{PATH}/witnesses", body)
    assert (status, "reason" in answer) == (400, True)


@pytest.mark.parametrize(
    "wrong",
    [
        {"version": 2**53},
        {"version": 1e300},
        {"count": True},
        {"count": "0"},
        {"table": "x" * 65},
        {"table": "t\u0000"},
        {"table": "\u0661"},
        {"table": "67b74a54\n"},
        {"chain": "\uff10" * 32},
        {"records": {"0": []}},
        {"records": [{"ledger": 1}]},
        {"records": [[[[[[[]]]]]]]},
        {"audit": []},
        {"audit": {"count": 0, "last": "", "hash": "0" * 32}},
        {"audit": {"count": 0, "last": "9" * 400, "hash": "0" * 32, "records": []}},
        {
            "audit": {
                "count": 0,
                "last": "",
                "hash": "0" * 32,
                "records": [["1-" + "9" * 400, "0" * 32]],
            }
        },
    ],
    ids=str,
)
def test_values_that_no_pipeline_sends_are_refused(
    broker: InProcessBroker, wrong: dict[str, object]
) -> None:
    document = copied(broker, 1).document() | wrong
    assert http_as(broker, OFFLOAD)("POST", f"{PATH}/witnesses", document)[0] == 400
    assert witnesses(broker) == []


def test_sum_of_rows_that_no_witness_can_have_is_refused(broker: InProcessBroker) -> None:
    """A broker cannot read a larger number again, so no request would be served any more, nor a removal."""
    post = copied(broker, 2)
    large = replace(post, records=tuple(replace(each, rows=NUMBER_MAX) for each in post.records))
    assert add(broker, large) == 400
    assert witnesses(broker) == []
    assert add(broker, post) == 200
    assert trim(broker, table=TABLE)[0] == 200


@pytest.mark.parametrize("table", ["", "x" * 100_000, "\u0000", "\U0001f600", 1.5, True, [], {}])
def test_trim_for_something_that_is_no_table_is_refused(
    broker: InProcessBroker, table: object
) -> None:
    assert add(broker, copied(broker, 1)) == 200
    status, answer = trim(broker, table=table)
    assert status in {400, 409}
    assert len(answer["reason"]) < 500
    assert len(ledgers(broker)) == 3
