"""One report from two tiers, and the ends of tenures whose holder left."""

from __future__ import annotations

from typing import Any

from onewriter_pipeline.audit.audit import BOTH, LIVE, TABLE, AuditReport
from onewriter_pipeline.audit.combined import combined, with_ends

LOG = "persistent://public/default/orders"


def tenure(epoch: int, since: int, until: int | None = None, **more: Any) -> dict[str, Any]:
    return {
        "topic": LOG,
        "epoch": epoch,
        "producer": f"w{epoch}",
        "subject": "s",
        "host": "h",
        "cause": "Requested",
        "since_ms": since,
        "until_ms": until,
        "ended_by": None if until is None else "Requested",
        "leaderless_ms": None,
        "broker": "b",
        **more,
    }


def written(ledger: int, messages: int) -> dict[str, Any]:
    counts = dict.fromkeys(("entries", "messages", "bytes"), messages)
    return {"topic": LOG, "producer": f"w{ledger}", "epoch": ledger, "ledger": ledger, **counts}


def extent(first: str | None, last: str | None) -> dict[str, Any]:
    return {"topic": LOG, "first": first, "last": last, "ledgers": 1, "entries": 1, "messages": 1}


def test_each_tenure_and_ledger_of_two_tiers_counts_once() -> None:
    live = AuditReport(
        LIVE,
        topics=[extent("5-1", "9-3")],
        timeline=[tenure(5, 50, 90), tenure(9, 90)],
        written=[written(5, 20), written(9, 3)],
        notes=["a note"],
    )
    table = AuditReport(
        TABLE,
        topics=[extent("1-1", "5-10")],
        timeline=[tenure(1, 10, 50), tenure(5, 50)],
        written=[written(1, 100), written(5, 10)],
        notes=["a note", "another"],
    )
    report = combined([live, table])
    assert report.tier == BOTH
    assert [(row["epoch"], row["until_ms"]) for row in report.timeline] == [
        (1, 50),
        (5, 90),
        (9, None),
    ]
    assert {row["producer"]: row["messages"] for row in report.holders} == {
        "w1": 100,
        "w5": 20,
        "w9": 3,
    }
    (topic,) = report.topics
    assert (topic["first"], topic["last"], topic["ledgers"]) == ("1-1", "9-3", 3)
    assert topic["messages"] == 123
    assert report.notes == ["a note", "another"]
    assert combined([live]) is live


def test_a_tenure_ends_when_its_topic_has_no_writer_any_more() -> None:
    rows = [
        tenure(1, 10, 50),
        tenure(2, 50, 90, leaderless_ms=15),
        tenure(3, 90),
    ]
    held = with_ends(rows, {})
    assert [row["left_ms"] for row in held] == [35, None, None]
    left = with_ends(rows, {LOG: 95})
    assert [row["left_ms"] for row in left] == [35, None, 95]
    silent = with_ends(rows, {LOG: None})  # it never wrote
    assert silent[-1]["left_ms"] == 90
    fenced = with_ends([tenure(1, 10, 50), tenure(2, 50, producer=None)], {LOG: 20})
    assert [row["left_ms"] for row in fenced] == [None, None]
