"""What a server may be used for, decided from facts alone."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from onewriter_broker.log.store.api import Durability
from onewriter_broker.log.store.redis.server_checks import ServerFacts, judge
from onewriter_core.store_rights import broker_acl_rules

REPLID = "a" * 40
GOOD = ServerFacts(
    product="valkey",
    version=(9, 1, 2),
    is_primary=True,
    replid=REPLID,
    eviction_policy="noeviction",
    has_append_only_file=True,
    append_sync="always",
    replicas_min_to_write=0,
    guard_replids=(REPLID, REPLID),
)


def test_the_embedded_default_promises_local() -> None:
    verdict = judge(GOOD, Durability.LOCAL)
    assert verdict.refusals == ()
    assert verdict.warnings == ()
    assert verdict.strongest is Durability.LOCAL


@pytest.mark.parametrize(
    ("facts", "replicas", "expected"),
    [
        ({}, 0, {"Local"}),
        ({"append_sync": "everysec"}, 0, set()),
        ({"append_sync": ""}, 0, set()),
        ({"has_append_only_file": False}, 0, set()),
        ({"replicas": 1}, 0, {"Local", "Replicated"}),
        ({"replicas": 1}, 2, {"Local", "Replicated"}),
        ({"replicas": 2}, 2, {"Local", "Replicated", "AllReplicas"}),
        ({"replicas": 2, "append_sync": "no"}, 0, {"Replicated"}),
        ({"replicas": 2, "has_append_only_file": False}, 2, set()),
    ],
)
def test_promises_follow_from_file_and_replicas(
    facts: dict[str, Any], replicas: int, expected: Any
) -> None:
    verdict = judge(dataclasses.replace(GOOD, **facts), Durability.NONE, replicas=replicas)
    assert {promise.value for promise in verdict.promises} == {"None", *expected}


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"version": (7, 2, 4)}, "valkey 7.2.4 is too old"),
        ({"product": "redis", "version": (6, 2, 14)}, "redis 6.2.14 is too old"),
        ({"version": ()}, "too old"),
        ({"is_primary": False}, "is a replica"),
        ({"guard_replids": ()}, "master_replid"),
        ({"guard_replids": (REPLID, "b" * 40)}, "master_replid"),
        ({"replid": "b" * 40}, "master_replid"),
        ({"eviction_policy": "allkeys-lru"}, "noeviction"),
        ({"user": "broker", "allowed": ("DEL",)}, "may run DEL"),
    ],
)
def test_what_would_break_the_guarantee_is_refused(facts: dict[str, Any], words: str) -> None:
    verdict = judge(dataclasses.replace(GOOD, **facts), Durability.LOCAL)
    assert len(verdict.refusals) == 1
    assert words in verdict.refusals[0]


def test_a_server_without_a_file_serves_only_who_asks_for_nothing() -> None:
    without = dataclasses.replace(GOOD, has_append_only_file=False)
    assert judge(without, Durability.NONE).refusals == ()
    reasons = judge(without, Durability.LOCAL).refusals
    assert len(reasons) == 2
    assert "appendonly" in reasons[0]
    assert "at most durability None" in reasons[1]


def test_the_minimum_must_be_promised() -> None:
    (reason,) = judge(GOOD, Durability.REPLICATED).refusals
    assert "at most durability Local" in reason
    assert "asks for Replicated" in reason


def test_replicas_without_a_least_number_are_worth_a_warning() -> None:
    verdict = judge(dataclasses.replace(GOOD, replicas=1), Durability.REPLICATED)
    assert "min-replicas-to-write" in verdict.warnings[0]


def test_the_broker_user_may_undo_nothing() -> None:
    words = broker_acl_rules().split()
    assert "~ow:*" in words
    assert "-@all" in words
    forbidden = {
        "del",
        "unlink",
        "set",
        "xsetid",
        "rename",
        "expire",
        "flushall",
        "config",
        "client",
    }
    assert not forbidden & {word.removeprefix("+") for word in words}
