"""What a server may be used for, decided from facts alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, cast

import pytest

from onewriter_broker.log.store.redis import server_checks
from onewriter_broker.log.store.redis.connection import RedisConnection
from onewriter_broker.log.store.redis.primary import Endpoint
from onewriter_broker.log.store.redis.server_checks import (
    Declared,
    ServerFacts,
    gathered,
    judge,
)
from onewriter_core.api.topic import Durability
from onewriter_core.errors import ConfigurationError, Undecided
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
def test_settings_that_would_break_the_guarantee_are_refused(
    facts: dict[str, Any], words: str
) -> None:
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


HIDDEN = dataclasses.replace(
    GOOD, append_sync="", replicas_min_to_write=None, has_append_only_file=False, eviction_policy=""
)
"""A managed server that forbids CONFIG and has no append-only file."""


@pytest.mark.parametrize(
    ("durability", "replicas", "expected"),
    [
        (Durability.LOCAL, 0, {"None", "Local"}),
        (Durability.LOCAL, 2, {"None", "Local"}),
        (Durability.REPLICATED, 1, {"None", "Local", "Replicated"}),
        (Durability.NONE, 1, {"None"}),
    ],
)
def test_settings_that_a_managed_server_hides_may_be_declared(
    durability: Durability, replicas: int, expected: set[str]
) -> None:
    hidden = dataclasses.replace(HIDDEN, replicas=replicas)
    verdict = judge(hidden, Durability.NONE, declared=Declared(durability, noeviction=True))
    assert {each.value for each in verdict.promises} == expected
    assert verdict.refusals == ()
    assert "memory policy noeviction" in verdict.declared


def test_without_a_declaration_what_is_hidden_is_not_trusted() -> None:
    texts = "; ".join(judge(HIDDEN, Durability.LOCAL).refusals)
    assert "maxmemory-policy" in texts
    assert "at most durability None" in texts


def test_the_identity_is_never_declared() -> None:
    declared = Declared(Durability.LOCAL, noeviction=True)
    without = dataclasses.replace(HIDDEN, guard_replids=())
    (refusal,) = judge(without, Durability.LOCAL, declared=declared).refusals
    assert "master_replid" in refusal


def test_a_declaration_does_not_replace_what_the_server_shows() -> None:
    shown = dataclasses.replace(GOOD, append_sync="everysec", eviction_policy="allkeys-lru")
    verdict = judge(shown, Durability.NONE, declared=Declared(Durability.LOCAL, noeviction=True))
    assert Durability.LOCAL not in verdict.promises
    assert "noeviction" in verdict.refusals[0]
    assert len(verdict.warnings) == 2
    assert verdict.declared == ()


class ChangingServer:
    """Answers as a server whose identity changes after the first look at its replication."""

    def __init__(self) -> None:
        self._looks = 0

    async def submit(self, words: Sequence[Any], **_: Any) -> Any:
        if words == ["INFO", "replication"]:
            self._looks += 1
            replid = "a" * 40 if self._looks == 1 else "b" * 40
            return f"role:master\r\nmaster_replid:{replid}\r\n".encode()
        return b"" if words[0] == "INFO" else b"b" * 40


async def test_a_server_that_changes_its_identity_meanwhile_is_looked_at_again() -> None:
    """A primary that restarted does so when its first replica connects: no reason to refuse it."""
    connection = cast("RedisConnection", ChangingServer())
    with pytest.raises(Undecided, match="has just changed its identity"):
        await server_checks._read_facts(connection, Endpoint(host="store", port=6379))


def test_a_primary_that_a_failover_deposed_is_asked_again() -> None:
    """The map of the cluster named it, and its replica took over before it was asked."""
    deposed = dataclasses.replace(GOOD, is_primary=False)
    found = gathered(["a:1", "b:1", "c:1"], [GOOD, deposed, Undecided("c:1 is silent")])
    assert found.primaries == 3
    assert found.answered == {"a:1": GOOD}
    assert found.failures == {"b:1": "b:1 has become a replica", "c:1": "c:1 is silent"}


def test_an_error_that_asking_again_does_not_cure_is_raised() -> None:
    with pytest.raises(ConfigurationError, match="wrong password"):
        gathered(["a:1"], [ConfigurationError("wrong password")])
