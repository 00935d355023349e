"""``make mutants``: plant every mutant, one at a time, and see whether the tests catch it.

    python -m tests.mutants.campaign [--list] [--fresh] [--only WORD] [--jobs N] [--tree PATH] [--tests newcomer|full]

Each mutant is planted into a copy of the tree, never into the tree itself. First its likely tests run, the cheapest
first, until one fails. A mutant that survives them gets the tiers of ``make test``. Results are kept in ``.mutants/`` by
the contents of the sources, so that an interrupted run goes on where it stopped. The exit code is 0 if every mutant was
caught, 1 if one survived, and 2 if one lost its target or its tests do not run.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from tests.mutants import of_broker, of_client, of_machine, of_operator, of_pipeline, of_scripts
from tests.mutants.mutant import Mutant
from tests.mutants.planting import ROOTS, LostTarget, file_of, planted

ROOT = Path(__file__).resolve().parents[2]

MUTANTS: tuple[Mutant, ...] = (
    *of_scripts.MUTANTS,
    *of_machine.MUTANTS,
    *of_broker.MUTANTS,
    *of_client.MUTANTS,
    *of_operator.MUTANTS,
    *of_pipeline.MUTANTS,
)

LIKELY_SECONDS_MAX = 600.0
"""A likely test that takes longer hangs: that counts as caught."""

TIER_SECONDS_MAX = 1_800.0

SURVIVOR_TIERS: tuple[tuple[str, ...], ...] = (
    ("tests/scenarios", "tests/property", "tests/unit"),
    ("tests/model",),
    ("tests/simulation",),
    ("tests/conformance",),
    ("tests/attacks", "tests/compatibility"),
    ("tests/integration",),
    ("tests/spark",),
)
"""What a survivor of its likely tests meets, the cheapest first."""

CAUGHT, SURVIVED, LOST, BROKEN = "caught", "SURVIVED", "LOST TARGET", "BROKEN"

PYTEST_FAILED = 1
PYTEST_COLLECTED_NOTHING = 5


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a mutant. ``by`` is the test that failed; of a lost or broken one, the reason."""

    name: str
    outcome: str
    by: str
    seconds: float


class Copy:
    """A copy of the tree in which one mutant at a time is planted."""

    def __init__(self, tree: Path, folder: Path) -> None:
        self.folder = folder
        self._clock_seconds = time.time_ns() // 10**9  # of the files' own times only
        listed = subprocess.run(
            ("git", "ls-files", "--cached", "--others", "--exclude-standard"),
            cwd=tree,
            check=True,
            capture_output=True,
            text=True,
        )
        for name in listed.stdout.splitlines():
            source = tree / name
            if source.is_file():
                target = folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
        # Some tests ask git which files there are.
        subprocess.run(("git", "init", "-q"), cwd=folder, check=True)

    @contextmanager
    def with_bug(self, mutant: Mutant) -> Iterator[None]:
        path = file_of(mutant, self.folder)
        before = path.read_text()
        self._write(path, planted(mutant, before))
        try:
            yield
        finally:
            self._write(path, before)

    def _write(self, path: Path, text: str) -> None:
        """Every version gets a time of its own: Python recognizes compiled files by the second."""
        path.write_text(text)
        self._clock_seconds += 1
        os.utime(path, (self._clock_seconds, self._clock_seconds))

    def test(self, paths: Sequence[str], seconds_max: float, *options: str) -> tuple[int, str]:
        """Run tests; pytest's exit code, and the first test that failed. A hang counts as a failure."""
        paths_first = os.pathsep.join(str(self.folder / root) for root in ROOTS)
        environment = {**os.environ, "PYTHONPATH": paths_first, "ONEWRITER_ROUNDS": "2"}
        command = (sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--tb=no")
        try:
            done = subprocess.run(
                (*command, *options, *paths),
                cwd=self.folder,
                env=environment,
                check=False,
                capture_output=True,
                text=True,
                timeout=seconds_max,
            )
        except subprocess.TimeoutExpired:
            return PYTEST_FAILED, f"hangs: {' '.join(paths)}"
        failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        first = failed[0].split(" ", 1)[1].split(" - ")[0] if failed else done.stdout[-300:].strip()
        return done.returncode, first


def judge(mutant: Mutant, copy: Copy, selection: Sequence[str], *, is_quick: bool) -> Result:
    """Plant a mutant and run tests until one fails. ``is_quick``: only those that are likely to."""
    started = time.monotonic()

    def result(outcome: str, by: str) -> Result:
        return Result(mutant.name, outcome, by, round(time.monotonic() - started, 1))

    try:
        with copy.with_bug(mutant):
            for path in mutant.caught_by:
                code, first = copy.test((path,), LIKELY_SECONDS_MAX, *selection)
                if code == PYTEST_FAILED:
                    return result(CAUGHT, first)
                if code not in {0, PYTEST_COLLECTED_NOTHING}:
                    return result(BROKEN, f"pytest {path} ended with exit code {code}: {first}")
            for paths in () if is_quick else SURVIVOR_TIERS:
                options = (*selection, "-n2", "--timeout", "600")
                code, first = copy.test(paths, TIER_SECONDS_MAX, *options)
                if code == PYTEST_FAILED:
                    return result(CAUGHT, f"{first} (not one of its likely tests)")
    except LostTarget as lost:
        return result(LOST, str(lost))
    return result(SURVIVED, "")


# ------------------------------------------------------------------ kept results


def key_of(mutant: Mutant, tree: Path, selection: Sequence[str]) -> str:
    """Changes with the mutant, with its target's file, and with the files of its likely tests."""
    digest = hashlib.sha256(repr((mutant, tuple(selection))).encode())
    try:
        paths = [file_of(mutant, tree)]
    except LostTarget:
        paths = []
    for named in mutant.caught_by:
        path = tree / named.partition("::")[0]
        paths += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    for path in paths:
        digest.update(path.read_bytes() if path.exists() else b"")
    return digest.hexdigest()[:16]


def kept_results(path: Path) -> dict[str, Result]:
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {line.pop("key"): Result(**line) for line in lines}


def keep(path: Path, key: str, result: Result) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps({"key": key, **asdict(result)}) + "\n")


# ------------------------------------------------------------------ the command


def chosen(words: Sequence[str]) -> list[Mutant]:
    """The mutants whose name, promise or component is one of the words; all without a word."""
    return [
        mutant
        for mutant in MUTANTS
        if not words
        or any(
            word in mutant.name or word in mutant.promises or word == mutant.component
            for word in words
        )
    ]


def unmutated_failure(copy: Copy, mutants: Iterable[Mutant], selection: Sequence[str]) -> str:
    """The likely test that fails without any bug; empty if all pass.

    Each folder of tests gets a process of its own, as in the tiers: some configure the log of their whole process.
    """
    paths = sorted({path for mutant in mutants for path in mutant.caught_by})
    for _, group in itertools.groupby(paths, lambda path: Path(path).parts[:2]):
        code, first = copy.test(
            list(group), TIER_SECONDS_MAX, *selection, "-n2", "--timeout", "600"
        )
        if code not in {0, PYTEST_COLLECTED_NOTHING}:
            return first
    return ""


def run(mutants: Sequence[Mutant], options: argparse.Namespace) -> list[Result]:
    selection = () if options.tests == "full" else ("-m", "not full and not nodes")
    tree = Path(options.tree).resolve()
    store = ROOT / ".mutants" / "results.jsonl"
    kept = {} if options.fresh else kept_results(store)
    copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="onewriter-mutants-") as folder:
        for number in range(options.jobs):
            copies.put(Copy(tree, Path(folder) / str(number)))
        waiting = [mutant for mutant in mutants if key_of(mutant, tree, selection) not in kept]
        if waiting and not options.skip_check:
            copy = copies.get()
            print("checking that the likely tests pass without a bug", flush=True)
            if failure := unmutated_failure(copy, waiting, selection):
                sys.exit(f"a likely test fails without any bug: {failure}")
            copies.put(copy)

        def one(mutant: Mutant) -> Result:
            key = key_of(mutant, tree, selection)
            if key in kept:
                return kept[key]
            copy = copies.get()
            try:
                result = judge(mutant, copy, selection, is_quick=options.quick)
            finally:
                copies.put(copy)
            if result.outcome == CAUGHT or (result.outcome == SURVIVED and not options.quick):
                keep(store, key, result)
            return result

        with ThreadPoolExecutor(options.jobs) as pool:
            for number, result in enumerate(pool.map(one, mutants), 1):
                results.append(result)
                print(
                    f"{number:3}/{len(mutants)} {result.outcome:9} {result.seconds:6.1f} s "
                    f"{result.name}: {result.by}",
                    flush=True,
                )
    return results


def summary(mutants: Sequence[Mutant], results: Sequence[Result]) -> Table:
    """Caught of planted, by promise and by component."""
    table = Table("promise or component", "caught", "planted")
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for mutant, result in zip(mutants, results, strict=True):
        for name in (*mutant.promises, mutant.component):
            counts[name][0] += result.outcome == CAUGHT
            counts[name][1] += 1
    for name in sorted(counts, key=lambda name: (name[1:].isdigit(), name[0], len(name), name)):
        table.add_row(name, *map(str, counts[name]))
    return table


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="show the mutants and plant none")
    parser.add_argument("--fresh", action="store_true", help="ignore kept results")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        help="a name, a promise (S4) or a component (scripts)",
    )
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time (2)")
    parser.add_argument(
        "--tree", default=str(ROOT), help="the checkout to plant them into (this one)"
    )
    parser.add_argument(
        "--tests",
        choices=("newcomer", "full"),
        default="newcomer",
        help="the tests of make test, or also those that only make test-all runs",
    )
    parser.add_argument(
        "--quick", action="store_true", help="run only the likely tests of each mutant"
    )
    parser.add_argument(
        "--skip-check", action="store_true", help="do not run the tests without a bug first"
    )
    options = parser.parse_args(arguments)
    mutants = chosen(options.only)
    if options.list:
        for mutant in mutants:
            print(f"{mutant.name} ({', '.join(mutant.promises)}; {mutant.target}): {mutant.bug}")
        return 0
    results = run(mutants, options)
    Console().print(summary(mutants, results))
    outcomes = [result.outcome for result in results]
    print(f"{outcomes.count(CAUGHT)} of {len(results)} mutants were caught")
    if LOST in outcomes or BROKEN in outcomes:
        return 2
    return 1 if SURVIVED in outcomes else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
