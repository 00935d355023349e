"""Tables for people: the parts of a topic's status that only some answers have."""

from __future__ import annotations

from typing import Any

import pytest

from onewriter_core import tables

STATUS: dict[str, Any] = {
    "name": "persistent://public/default/orders",
    "epoch": 4,
    "state": "Held",
    "holders": [],
    "waiting": 0,
    "declared": True,
    "partitions": 0,
    "bucket": 9,
    "store": {"dataset": "0" * 40, "replicas": 1},
    "slots": [],
    "waiters": [],
    "transitions": [],
}
"""A status of a broker without a cluster, or of an earlier release."""

SHARD = {
    "primary": "10.0.0.7:6379",
    "buckets": 22,
    "reachable": True,
    "reason": "",
    "replicas": 1,
    "replicationLagBytes": 512,
    "memoryBytesUsed": 1024,
    "memoryBytesMax": None,
    "failovers": 2,
    "faults": [],
}


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        (
            {},
            "primary 10.0.0.7:6379, 22 buckets, 2 failovers, replicas 512 bytes behind",
        ),
        (
            {"faults": ["the append-only file could not be rewritten"]},
            "replicas 512 bytes behind, fault: the append-only file could not be rewritten",
        ),
        (
            {"reachable": False, "reason": "no connection", "replicationLagBytes": None},
            "primary 10.0.0.7:6379, 22 buckets, 2 failovers, does not answer: no connection",
        ),
    ],
)
def test_status_shows_the_shard_of_the_topic(
    changed: dict[str, Any], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tables.status(STATUS | {"shard": SHARD | changed})
    assert line in capsys.readouterr().out


@pytest.mark.parametrize("answer", [STATUS, STATUS | {"shard": None}])
def test_status_without_a_cluster_has_no_shard(
    answer: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    tables.status(answer)
    assert "shard" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("holds", "words"),
    [
        (False, "producers are refused since"),
        (True, "producers are refused, and messages wait since"),
    ],
)
def test_status_shows_the_quota_that_is_used_up(
    holds: bool, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    quota = {"reason": "100 producers", "since": "2026-01-01T00:00:00.000Z", "holds": holds}
    tables.status(STATUS | {"quotaExceeded": quota})
    shown = " ".join(capsys.readouterr().out.split())
    assert f"{words} 2026-01-01T00:00:00.000Z: 100 producers" in shown
