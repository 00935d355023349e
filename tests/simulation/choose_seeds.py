"""Choose a few seeds in whose runs all events of ``SOMETIMES`` occur: ``python -m tests.simulation.choose_seeds 100``.

A change of the brokers or of the simulation also changes the runs of a seed. Then ``test_simulation.py`` still passes,
because it tries further seeds, but it takes longer. Choose its seeds again in that case.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from tests.simulation.scenario import simulate
from tests.simulation.test_simulation import SEEDS_DEFAULT, SOMETIMES


def covering(seen: Mapping[int, frozenset[str]]) -> list[int]:
    """Return seeds in whose runs all events occur that occur in any run, the seed that adds most first.

    Other tests run the default seeds anyway. So another seed is chosen only for events that occur in no default run.
    """
    missing = frozenset().union(*seen.values())
    defaults = frozenset().union(*(seen[seed] for seed in seen if seed < SEEDS_DEFAULT))
    chosen: list[int] = []
    for needed in (missing - defaults, missing):
        missing = needed.difference(*(seen[seed] for seed in chosen))
        while missing:
            best = max(seen, key=lambda seed: (len(missing & seen[seed]), seed < SEEDS_DEFAULT))
            chosen.append(best)
            missing -= seen[best]
    return sorted(chosen, key=lambda seed: -len(seen[seed]))


def main(runs: int) -> None:
    wanted = SOMETIMES.keys()
    seen = {
        seed: frozenset(what for what, count in simulate(seed).seen.items() if count) & wanted
        for seed in range(runs)
    }
    sys.stdout.write(f"seeds {covering(seen)}\n")
    for what in sorted(wanted - frozenset().union(*seen.values())):
        sys.stdout.write(f"never occurred: {what}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
