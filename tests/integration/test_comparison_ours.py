"""onewriter's half of docs/comparison.md: the faults of Pulsar that are shown there do not happen here.

``make compare-pulsar`` runs the same scenarios on both brokers, with more rounds.
"""

from __future__ import annotations

import pytest
from bench.compare.deposing import DEPOSING
from bench.compare.returning import RETURNING
from bench.compare.scenario import Scenario, play
from bench.compare.stage import Patience, Side
from bench.compare.waiting import FROZEN_HOLDER, WAITING

from onewriter_testing.processes import LocalBrokers

pytestmark = (
    pytest.mark.full
)  # test_access_modes.py, test_takeover.py and tests/scenarios play these stories here

ROUNDS = 3

PATIENT = Patience(*6 * (120.0,))
"""How long the scenarios wait here: what takes longer may be late only because the machine is busy."""


@pytest.mark.parametrize(
    "scenario", [*DEPOSING, *RETURNING, *WAITING], ids=lambda scenario: str(scenario.key)
)
def test_no_round_of_the_comparison_goes_wrong_here(
    attentive: LocalBrokers, scenario: Scenario
) -> None:
    side = Side("onewriter", attentive.address(), attentive.http_url, PATIENT)
    rounds = 1 if scenario is FROZEN_HOLDER else ROUNDS
    tally = play(scenario, side, rounds)
    assert tally.unfinished == []
    assert len(tally.found) == rounds
    for measure in scenario.measures:
        assert len(tally.values(measure.key)) == rounds, "not measured"
        if measure.is_fault:
            assert tally.total(measure.key) == 0, measure.says
