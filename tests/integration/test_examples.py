"""``make examples`` in CI: each example checks its own claims, and runs here as for a user."""

from __future__ import annotations

import pytest
from examples.run import EXAMPLES, FOLDER, run

from onewriter_testing.processes import LocalBrokers

WITH_THEIR_OWN_BROKERS = {"uptime_checkers/demo"}  # test_example_uptime_checkers.py
ENDLESS = {"leader_election", "sidecar/leader", "uptime_checkers/checker"}
"""They run until they are stopped; other tests do that."""


@pytest.mark.parametrize("name", sorted(EXAMPLES.keys() - WITH_THEIR_OWN_BROKERS))
def test_an_example_succeeds(broker: LocalBrokers, name: str) -> None:
    assert run(name, broker.service_url, broker.http_url) == 0


OTHERWISE_RUN = {"run", "pipeline_demo"}
"""What runs them, and the pipeline's tour, which needs Spark: tests/spark runs it."""


def test_no_example_is_left_out() -> None:
    found = {str(path.relative_to(FOLDER).with_suffix("")) for path in FOLDER.rglob("*.py")}
    assert found == EXAMPLES.keys() | ENDLESS | OTHERWISE_RUN


@pytest.mark.full  # waits 30 s for a broker that is not there; each example checks its own claim
def test_a_failing_example_is_reported() -> None:
    """Without a broker none holds."""
    assert run("single_reader", "pulsar://127.0.0.1:1", "") != 0
