"""A campaign on a real Valkey Cluster with two brokers: every role fails in every step, and nothing is violated.

``ONEWRITER_ROUNDS`` rounds are played, from round ``ONEWRITER_FIRST_ROUND`` on. The number of a round determines its
role, step, fault and times (cluster_plans.py). After all combinations they begin again with other times. A failure
names its round and the command that repeats it. test_cluster_checker.py shows in ``make test`` what the checker finds.
"""

from __future__ import annotations

import os
import traceback
from collections import Counter, deque
from pathlib import Path

import pytest
from tests.integration.cluster_checker import SILENT, violations
from tests.integration.cluster_plans import Plan, combinations, plan
from tests.integration.cluster_rounds import Round, manifests_of
from tests.integration.linked_cluster import KEYS, World, running_world
from tests.violation import Violation

from onewriter_core.ids import TopicName
from onewriter_core.log_format.field_names import PAYLOAD

ROUNDS = int(os.environ.get("ONEWRITER_ROUNDS", "3"))
FIRST = int(os.environ.get("ONEWRITER_FIRST_ROUND", "0"))

SETTINGS = {"redis_replicas": 1, "store_timeout_seconds": 2.0, "resume_window_seconds": 60.0}

FAILURES_MAX = 3
"""The campaign ends after this number of failed rounds. Each one is followed by a new cluster."""

BLOCKS_READ = 100
"""Blocks among which the newest one with messages is; the others are markers."""

FILE = "tests/integration/test_cluster_campaign.py"

pytestmark = [
    pytest.mark.campaign,
    pytest.mark.full,
    pytest.mark.timeout(1200 + 120 * ROUNDS),
]


def played(
    world: World, chosen: Plan, folder: Path, seen: Counter[str], *, is_last: bool
) -> list[str]:
    """Play a round; return its violations. After the last one, a planted violation must be found."""
    current = Round(world, chosen, folder)
    try:
        outcomes = current.play()
    except Exception:  # noqa: BLE001 - a round that could not be repaired has failed, and others follow
        return [traceback.format_exc(), f"the brokers' log ends with:\n{world.brokers.log_end()}"]
    seen["promotion"] += current.has_promoted
    seen["adopted by force"] += current.was_adopted_by_force
    seen["acknowledged"] += sum(len(outcome.records.acked) for outcome in outcomes)
    seen["lost and reported"] += sum(len(outcome.missing) for outcome in outcomes)
    seen["range at risk"] += sum(len(outcome.reports.at_risk) for outcome in outcomes)
    found = [text for outcome in outcomes for text in violations(outcome)]
    found = found or (undetected(world, current) if is_last else [])
    seen["violations"] += len(found)
    return found


def undetected(world: World, done: Round) -> list[str]:
    """Delete the newest block of a topic in the store. Return an error if the checker does not find it."""
    topic = done.topics.replicated
    log = KEYS.log(TopicName.parse(topic))
    server = world.cluster.primary_of(topic)
    blocks = server.command("XREVRANGE", log, "+", "-", "COUNT", BLOCKS_READ)
    block = next(name for name, fields in blocks if PAYLOAD in fields)
    assert server.command("XDEL", log, block) == 1
    found = violations(done.observed(topic))
    return [] if any(SILENT in text for text in found) else [f"deleted but not missed: {block!r}"]


def test_every_role_fails_in_every_step_and_nothing_is_violated(tmp_path: Path) -> None:
    """Messages of a replicated topic survive, other losses are reported, and no append of a deposed writer is stored."""
    numbers = range(FIRST, FIRST + ROUNDS)
    left = deque(numbers)
    seen: Counter[str] = Counter()
    failures: list[str] = []
    while left and len(failures) < FAILURES_MAX:
        with running_world(manifests_of(left), SETTINGS) as world:
            while left:
                chosen = plan(left.popleft())
                found = played(world, chosen, tmp_path / str(chosen.number), seen, is_last=not left)
                print(f"{chosen}; so far {dict(seen)}", flush=True)  # noqa: T201 - a campaign takes an hour
                if found:
                    repeat = (
                        f"ONEWRITER_ROUNDS=1 ONEWRITER_FIRST_ROUND={chosen.number} pytest {FILE}"
                    )
                    failures.append("\n".join([f"{chosen}; to repeat: {repeat}", *found]))
                    print(failures[-1], flush=True)  # noqa: T201
                    break
    if seen["violations"]:
        raise Violation("\n\n".join(failures))
    if failures:
        pytest.fail("\n\n".join(failures), pytrace=False)
    if len(numbers) >= len(combinations()):
        never = [what for what in ("lost and reported", "range at risk") if not seen[what]]
        assert not never, f"these never occurred: {never}"
