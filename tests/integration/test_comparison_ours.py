"""Our half of docs/comparison.md: nothing that goes wrong with Pulsar there goes wrong here.

``make compare-pulsar`` plays the same scenarios on both brokers, with more rounds.
"""

from __future__ import annotations

import pytest
from bench.compare.deposing import DEPOSING
from bench.compare.returning import RETURNING
from bench.compare.scenario import Scenario, play
from bench.compare.stage import Side
from bench.compare.waiting import FROZEN_HOLDER, WAITING

from onewriter_broker.testing import LocalBrokers

ROUNDS = 3


@pytest.mark.parametrize(
    "scenario", [*DEPOSING, *RETURNING, *WAITING], ids=lambda scenario: str(scenario.key)
)
def test_no_round_of_the_comparison_goes_wrong_here(
    broker: LocalBrokers, scenario: Scenario
) -> None:
    side = Side("onewriter", broker.address(), broker.http_url)
    rounds = 1 if scenario is FROZEN_HOLDER else ROUNDS
    tally = play(scenario, side, rounds)
    assert tally.unfinished == []
    assert len(tally.found) == rounds
    for measure in scenario.measures:
        assert len(tally.values(measure.key)) == rounds, "not measured"
        if measure.is_fault:
            assert tally.total(measure.key) == 0, measure.says
