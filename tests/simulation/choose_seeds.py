"""Choose few seeds whose runs cover all of ``SOMETIMES``: ``python -m tests.simulation.choose_seeds 100``.

A change of the simulation or of the broker changes the run of a seed. ``test_simulation.py`` then still passes,
because it tries further seeds, but takes longer. Choose its seeds again in that case.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from tests.simulation.scenario import simulate
from tests.simulation.test_simulation import SOMETIMES


def covering(seen: Mapping[int, frozenset[str]]) -> list[int]:
    """Return seeds that together saw all that any of them saw, the one that adds most first."""
    missing = frozenset().union(*seen.values())
    chosen: list[int] = []
    while missing:
        best = max(seen, key=lambda seed: len(missing & seen[seed]))
        chosen.append(best)
        missing -= seen[best]
    return chosen


def main(runs: int) -> None:
    wanted = SOMETIMES.keys()
    seen = {
        seed: frozenset(what for what, count in simulate(seed).seen.items() if count) & wanted
        for seed in range(runs)
    }
    sys.stdout.write(f"seeds {covering(seen)}\n")
    for what in sorted(wanted - frozenset().union(*seen.values())):
        sys.stdout.write(f"never happened: {what}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
