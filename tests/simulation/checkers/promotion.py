"""S11: whom the brokers promoted, by their audit."""

from __future__ import annotations

import json

from tests.simulation.history import History


def choice(history: History) -> list[str]:
    """S11: the promoted waiter is the first by priority, then by arrival, and no stale one."""
    problems: list[str] = []
    for record in history.audit:
        if record.get("kind") != "grant":
            continue
        if int(record["epoch"]) <= int(record["oldEpoch"]):
            problems.append(f"a grant that does not raise the epoch: {record}")
        was_promoted = record.get("mode") == "WAIT_FOR_EXCLUSIVE"
        if not was_promoted or "nextWaiter" not in record:
            continue
        loser = json.loads(record["nextWaiter"])
        winner_rank = (-int(record["priority"]), int(record["arrival"]))
        if winner_rank > (-int(loser["priority"]), int(loser["arrival"])):
            problems.append(f"promoted before its turn: {record}")
    return problems
