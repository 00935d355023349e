"""S11: the audit shows that the brokers promoted the right waiters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.simulation.history import History


def choice(history: History) -> list[str]:
    """S11: the promoted waiter is the best by the topic's policy, and each grant raises the epoch."""
    problems: list[str] = []
    for record in history.audit:
        if record.get("kind") != "grant":
            continue
        if int(record["epoch"]) <= int(record["oldEpoch"]):
            problems.append(f"a grant did not raise the epoch: {record}")
        was_promoted = record.get("mode") == "WAIT_FOR_EXCLUSIVE"
        if not was_promoted or "nextWaiter" not in record:
            continue
        loser = json.loads(record["nextWaiter"])
        if _rank(record) > _rank(loser):
            problems.append(f"a better waiter was passed over: {record}")
    return problems


def was_spread(record: Mapping[str, Any]) -> bool:
    """Return whether a waiter was promoted before an earlier one, because its host led fewer topics."""
    if record.get("kind") != "grant" or "load" not in record or "nextWaiter" not in record:
        return False
    loser = json.loads(record["nextWaiter"])
    winner_load, winner_arrival = int(record["load"]), int(record["arrival"])
    return winner_load < int(loser["load"]) and winner_arrival > int(loser["arrival"])


def _rank(waiter: Mapping[str, Any]) -> tuple[int, int, int]:
    """By priority, then, if the policy is Balanced, by its host's number of topics, then by arrival."""
    return -int(waiter["priority"]), int(waiter.get("load", 0)), int(waiter["arrival"])
