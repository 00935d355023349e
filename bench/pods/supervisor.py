"""The container's first process: one candidate per contest, started again whenever it ends.

So the container itself never ends, and the kubelet's back-off does not enter the figures.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

POLL_SECONDS = 0.05
"""How often it is looked whether a candidate has ended."""

LEAVE_SECONDS = 3.0
"""For candidates to leave by themselves when the pod is deleted."""


class Supervisor:
    """Candidates by contest; ``module`` is what they run, ``options`` their further arguments."""

    def __init__(self, module: str, contests: list[str], notes: Path, options: list[str]) -> None:
        self._module = module
        self._notes = notes
        self._options = options
        self._starts = dict.fromkeys(contests, 0)
        self._candidates: dict[str, subprocess.Popen[bytes]] = {}
        self._is_leaving = False

    def run(self) -> None:
        """Keep a candidate on each contest until asked to leave."""
        signal.signal(signal.SIGTERM, self._leave)
        while not self._is_leaving:
            for contest in self._starts:
                self._look_after(contest)
            time.sleep(POLL_SECONDS)
        deadline = time.monotonic() + LEAVE_SECONDS
        for candidate in self._candidates.values():
            candidate.terminate()  # one that was started while the signal came
            with contextlib.suppress(subprocess.TimeoutExpired):
                candidate.wait(max(0.0, deadline - time.monotonic()))
            candidate.kill()

    def _look_after(self, contest: str) -> None:
        former = self._candidates.get(contest)
        if self._is_leaving or (former is not None and former.poll() is None):
            return
        file = self._notes / contest / f"{socket.gethostname()}.{self._starts[contest]}"
        self._starts[contest] += 1
        words = [sys.executable, "-m", self._module, contest, "--notes", str(file), *self._options]
        self._candidates[contest] = subprocess.Popen(words, stdin=subprocess.DEVNULL)

    def _leave(self, number: int, frame: object) -> None:
        del number, frame
        self._is_leaving = True
        for candidate in self._candidates.values():
            candidate.terminate()


def main() -> None:
    """Run candidates; what is not known here is passed on to each of them."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("module", help="what a candidate runs")
    parser.add_argument("contests", help="what is competed for, comma-separated")
    parser.add_argument("--notes", type=Path, required=True, help="the directory of all notes")
    given, options = parser.parse_known_args()
    Supervisor(given.module, given.contests.split(","), given.notes, options).run()


if __name__ == "__main__":
    main()
