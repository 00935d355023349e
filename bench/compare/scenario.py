"""What a scenario is, and how its rounds are counted. Not here: any scenario, any broker."""

from __future__ import annotations

import enum
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from bench.compare.stage import Side, Stage
from tests.integration.raw import RefusedByBroker

UNFINISHED = (OSError, RefusedByBroker, RuntimeError, AssertionError)
"""A round that the broker did not play along with: no answer in time (TimeoutError, an OSError), a
refusal or an answer that the story does not provide for."""

Findings = Mapping[str, float]
"""What one round found, by the key of its measure. True counts as 1."""


class Kind(enum.Enum):
    """How the findings of all rounds become one cell."""

    ROUNDS = "rounds"
    """In how many rounds it was so."""
    TOTAL = "total"
    """The sum over all rounds."""
    MEDIAN = "median"
    """The middle one and the extremes."""
    SECONDS = "seconds"
    """The same, of times."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One line of a scenario's table."""

    key: str
    says: str
    kind: Kind = Kind.ROUNDS
    is_fault: bool = True
    """Whether anything but zero is wrong. The others say under what conditions a round was played."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A story that both brokers are told, round after round, each on a topic of its own."""

    key: str
    title: str
    description: str
    measures: tuple[Measure, ...]
    play: Callable[[Stage], Findings]
    rounds_max: int = 1000
    """Of a scenario whose rounds last long: no more than so many."""

    @property
    def faults(self) -> tuple[Measure, ...]:
        return tuple(measure for measure in self.measures if measure.is_fault)


@dataclass(slots=True)
class Tally:
    """One scenario on one broker: what its rounds found, and why some were not finished."""

    scenario: Scenario
    found: list[Findings] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)

    def values(self, key: str) -> list[float]:
        """Of the rounds that found it: a measure may be beside the point in some."""
        return [findings[key] for findings in self.found if key in findings]

    def total(self, key: str) -> float:
        return sum(self.values(key))

    def cell(self, measure: Measure) -> str:
        """What stands in the table: only what was measured, with the number of rounds."""
        values = self.values(measure.key)
        if not values:
            return "not measured"
        match measure.kind:
            case Kind.ROUNDS:
                return f"{sum(values):.0f} of {len(values)}"
            case Kind.TOTAL:
                return f"{sum(values):.0f} in {len(values)} rounds"
            case Kind.MEDIAN:
                middle = statistics.median(values)
                spread = f"{min(values):.0f} to {max(values):.0f}"
                return f"{middle:.0f} ({spread}; {len(values)} rounds)"
            case Kind.SECONDS:
                middle = statistics.median(values)
                spread = f"{min(values):.2f} to {max(values):.2f}"
                return f"{middle:.2f} s ({spread}; {len(values)} rounds)"


def play(scenario: Scenario, side: Side, rounds: int) -> Tally:
    """Play that many rounds, or fewer where they last long; an unfinished one is kept as such."""
    tally = Tally(scenario)
    for number in range(min(rounds, scenario.rounds_max)):
        try:
            with Stage(side, f"compare-{scenario.key}-{number}", number) as stage:
                tally.found.append(scenario.play(stage))
        except UNFINISHED as error:
            tally.unfinished.append(f"round {number}: {type(error).__name__}: {error}")
    return tally
