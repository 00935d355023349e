"""onewriter's half of docs/comparison.md: the faults of Pulsar that are shown there do not happen here.

``make compare-pulsar`` runs the same scenarios on both brokers, with more rounds.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from bench.compare import deposing, stage, waiting
from bench.compare.deposing import DEPOSING
from bench.compare.returning import RETURNING
from bench.compare.scenario import Scenario, play
from bench.compare.stage import Side
from bench.compare.waiting import FROZEN_HOLDER, WAITING
from tests.integration.conftest import ATTENTIVE
from tests.integration.forked_brokers import forked_brokers

from onewriter_broker.testing.processes import LocalBrokers

pytestmark = (
    pytest.mark.full
)  # test_access_modes.py, test_takeover.py and tests/scenarios play these stories here

ROUNDS = 3

SECONDS_MAX = 120.0

PATIENCE = (
    (deposing, "NOTIFIED_SECONDS"),
    (stage, "HTTP_TIMEOUT_SECONDS"),
    (stage, "RECEIPT_SECONDS"),
    (waiting, "PROMOTION_SECONDS"),
    (waiting, "UNLOAD_SECONDS"),
    (waiting, "GROUP_SECONDS"),
)
"""How long the scenarios wait for what has to come here: what does not may not be the machine's fault."""


@pytest.fixture(scope="module")
def attentive() -> Iterator[LocalBrokers]:
    """A broker that soon notices who is silent."""
    with forked_brokers(settings=ATTENTIVE) as brokers:
        yield brokers


@pytest.mark.parametrize(
    "scenario", [*DEPOSING, *RETURNING, *WAITING], ids=lambda scenario: str(scenario.key)
)
def test_no_round_of_the_comparison_goes_wrong_here(
    attentive: LocalBrokers, scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in PATIENCE:
        monkeypatch.setattr(module, name, SECONDS_MAX)
    side = Side("onewriter", attentive.address(), attentive.http_url)
    rounds = 1 if scenario is FROZEN_HOLDER else ROUNDS
    tally = play(scenario, side, rounds)
    assert tally.unfinished == []
    assert len(tally.found) == rounds
    for measure in scenario.measures:
        assert len(tally.values(measure.key)) == rounds, "not measured"
        if measure.is_fault:
            assert tally.total(measure.key) == 0, measure.says
