"""The table of tiers: budgets, one tier for each test file, and the page that describes them."""

from __future__ import annotations

import itertools
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from tests import run, tiers
from tests.progress import FAILURES_MAX, Counts, counts_of
from tests.tiers import NEWCOMER, REST, TIERS, Tier

ROOT = Path(__file__).resolve().parent.parent


def paths_of(tier: Tier) -> list[str]:
    """The files and folders that a tier hands to pytest."""
    words = [word for command in tier.commands if "pytest" in command for word in command]
    return [word for word in words if word.startswith("tests/") or word == "e2e"]


def test_budgets_of_make_test_fit_into_its_twelve_minutes() -> None:
    assert tiers.overspent_seconds() <= 0


def test_budgets_of_make_test_rest_fit_into_what_ci_has_left() -> None:
    assert tiers.overspent_of_rest_seconds() <= 0
    on_lab = Tier("more", "nothing", (), budget_seconds=tiers.REST_SECONDS, cores=1, on_lab=True)
    assert tiers.overspent_of_rest_seconds([*REST, on_lab]) > 0


def test_a_tier_beyond_the_budget_is_noticed() -> None:
    too_much = Tier("more", "nothing", (), budget_seconds=tiers.RUN_SECONDS)
    assert tiers.overspent_seconds([*NEWCOMER, too_much]) > 0


def test_a_tier_on_one_core_takes_half_its_budget_from_the_run() -> None:
    assert Tier("one", "", (), budget_seconds=100, cores=1).share_seconds == 50
    assert Tier("both", "", (), budget_seconds=100, cores=2).share_seconds == 100


@pytest.mark.parametrize("tier", TIERS, ids=lambda tier: tier.name)
def test_a_tier_runs_paths_that_exist(tier: Tier) -> None:
    missing = [path for path in paths_of(tier) if not (ROOT / path).exists()]
    assert missing == []


def test_every_test_file_belongs_to_one_tier_of_make_test_or_to_the_rest() -> None:
    newcomer = [path for tier in NEWCOMER for path in paths_of(tier)]
    rest = [path for tier in REST for path in paths_of(tier)]
    files = [*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("e2e/test_*.py")]
    assert files
    for file in files:
        name = file.relative_to(ROOT)
        in_newcomer = [path for path in newcomer if name.is_relative_to(path)]
        in_rest = [path for path in rest if name.is_relative_to(path)]
        assert len(in_newcomer) <= 1, f"{name} is in several tiers: {in_newcomer}"
        assert in_newcomer or in_rest, f"{name} is in no tier: add its folder to tests/tiers.py"


def test_tests_that_make_test_leaves_out_are_run_by_make_test_all() -> None:
    for tier in NEWCOMER:
        for path in paths_of(tier):
            assert any(
                path in paths_of(other) and tiers.FULL[1] in word_after(other, "-m")
                for other in REST
            ) or not marked_full(path), f"no tier runs what {path} marks as full"


def marked_full(path: str) -> bool:
    files = [ROOT / path] if path.endswith(".py") else (ROOT / path).rglob("test_*.py")
    return any(
        "pytest.mark.full" in file.read_text() for file in files if file.name != "test_tiers.py"
    )


def word_after(tier: Tier, option: str) -> list[str]:
    return [
        following
        for command in tier.commands
        for word, following in itertools.pairwise(command)
        if word == option
    ]


def test_an_unknown_tier_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown tier nonsense; the tiers are check, "):
        tiers.named(["core", "nonsense"])
    assert [tier.name for tier in tiers.named(["model", "core"])] == ["core", "model"]


def test_commands_that_are_named_as_not_run_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for command in tiers.CAMPAIGNS:
        target = command.removeprefix("make ")
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), command


def test_the_page_describes_every_tier_and_its_budget() -> None:
    page = (ROOT / "docs" / "testing.md").read_text()
    for tier in TIERS:
        assert f"| `{tier.name}` | {tier.proves} | {run.minutes(tier.budget_seconds)} |" in page


def report(**counts: Any) -> str:
    return json.dumps(counts) + "\n"


def test_counts_are_read_up_to_the_last_complete_line() -> None:
    first = report(total=9, done=3, failed=1, deselected=2, skipped={"why": 1})
    text = f'{first}{{"total": 9, "do'
    assert counts_of(text) == Counts(9, 3, 1, 2, {"why": 1})
    assert counts_of(text).passed == 1
    assert counts_of("") == Counts()


def test_counts_of_the_processes_that_wrote_to_one_file_are_added() -> None:
    text = (
        report(process=1, total=3, done=2, running=["a"])
        + report(process=1, total=3, done=3, failed=1, failures={"a": "why"}, skipped={"x": 1})
        + report(process=2, total=2, done=1, skipped={"x": 2}, running=["b"])
    )
    assert counts_of(text) == Counts(5, 4, 1, 0, {"x": 3}, {"a": "why"}, ["b"])


def run_of(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    tests: str,
    *options: str,
    is_repeatable: bool = False,
) -> run.Run:
    """Run these tests as a tier of their own."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # which saves most of a start
    (folder / "test_some.py").write_text(tests)
    command = (sys.executable, "-m", "pytest", "-q", "-p", "pytest_timeout", *options)
    tier = Tier("some", "", (command,), budget_seconds=1, is_repeatable=is_repeatable)
    started = run.Run(tier, root=folder, logs=folder)
    run.run_tier(started)
    return started


def test_the_summary_names_each_failed_test_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "test_import.py").write_text("raise ImportError('no such package')")
    some = run_of(
        tmp_path,
        monkeypatch,
        """
import time
import pytest

@pytest.fixture
def broken():
    raise OSError("no such broker\\nmore lines")

def test_passes(): pass
def test_compares(): assert 1 == 2
def test_needs_something(broken): pass

@pytest.mark.timeout(1)
def test_hangs(): time.sleep(600)
""",
        "--continue-on-collection-errors",
    )
    assert run.failure_lines([some]) == [
        "FAILED some: test_import.py: ImportError: no such package",
        "FAILED some: test_some.py::test_compares: assert 1 == 2",
        "FAILED some: test_some.py::test_needs_something: in setup: OSError: no such broker",
        "FAILED some: test_some.py::test_hangs: Failed: Timeout (>1.0s) from pytest-timeout.",
        f"FAILED some: {some.failures[0]}",
    ]


HANGS_IN_C = """
import signal, time
import pytest

@pytest.mark.timeout(1)
def test_hangs():
    # As in a library written in C: the exception of pytest-timeout does not arrive.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    time.sleep(600)

def test_follows(): pass
"""

SHORT_GRACE = """
import os
from tests import hangs

def pytest_configure(config):
    config.pluginmanager.register(hangs.Watchdog(os.dup(2), grace_seconds=1.0))
"""


@pytest.mark.parametrize("workers", [(), ("-p", "xdist", "-n1")], ids=["alone", "worker"])
def test_a_test_that_no_exception_ends_is_named_and_its_stack_printed(
    workers: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "conftest.py").write_text(SHORT_GRACE)
    some = run_of(tmp_path, monkeypatch, HANGS_IN_C, *workers)
    assert run.failure_lines([some])[0].startswith("FAILED some: test_some.py::test_hangs: ")
    log = some.log.read_text()
    assert "in test_hangs" in log
    assert some.counts().done == (2 if workers else 0)  # a new worker takes the next test


FAILS_ONCE = """
from pathlib import Path

from tests.violation import Violation

def fails_once(name, error):
    if not Path(name).exists():
        Path(name).touch()
        raise error

def test_first():
    fails_once("first", AssertionError("too early"))

def test_second():
    pass
"""

VIOLATES_ONCE = """
def test_third():
    fails_once("third", Violation("a line is missing"))
"""

FAILS_AGAIN = """
def test_fourth():
    assert False, "always"
"""

FOUR_FAIL_ONCE = "".join(
    f"""
def test_more_{number}():
    fails_once("more-{number}", AssertionError("all of them"))
"""
    for number in range(run.REPEATED_TESTS_MAX)
)


def test_a_test_that_passes_when_repeated_is_named_as_unstable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = run_of(tmp_path, monkeypatch, FAILS_ONCE, is_repeatable=True)
    assert some.failures == []
    assert run.failure_lines([some]) == []
    (line,) = run.unstable_lines([some])
    assert line == "UNSTABLE some: test_some.py::test_first: AssertionError: too early"
    assert run.total_line([some], 5.0) == (
        "1 passed, 0 failed, 0 skipped, 1 unstable (passed when repeated) in 0:05"
    )


@pytest.mark.parametrize(
    ("more", "is_repeatable", "failed"),
    [
        ("", False, 1),
        (VIOLATES_ONCE, True, 2),
        (FAILS_AGAIN, True, 2),
        (FOUR_FAIL_ONCE, True, run.REPEATED_TESTS_MAX + 1),
    ],
    ids=["tier", "broken promise", "fails again", "too many"],
)
def test_nothing_else_is_forgiven(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    more: str,
    is_repeatable: bool,
    failed: int,
) -> None:
    some = run_of(tmp_path, monkeypatch, FAILS_ONCE + more, is_repeatable=is_repeatable)
    assert some.unstable == {}
    assert len(run.failure_lines([some])) == failed + 1  # and the command
    assert f"{failed} failed" in run.total_line([some], 5.0)


def test_only_tiers_of_real_processes_are_repeatable() -> None:
    """A test of a model, of decisions or of an attack fails for a reason in the project."""
    repeatable = {tier.name for tier in TIERS if tier.is_repeatable}
    assert repeatable == {"integration", "integration-full", "cluster", "nodes", "e2e"}


def test_the_failures_that_are_named_are_bounded(tmp_path: Path) -> None:
    failures = {f"test_{number}": "why" for number in range(FAILURES_MAX)}
    some = run.Run(
        Tier("some", "", (), budget_seconds=1),
        failures=["pytest ended with 1"],
        root=tmp_path.parent,
        logs=tmp_path,
    )
    some.progress.write_text(report(total=99, done=99, failed=99, failures=failures))
    lines = run.failure_lines([some])
    assert len(lines) == run.FAILURE_LINES_SHOWN
    assert lines[0] == "FAILED some: test_0: why"
    assert lines[-2:] == [
        f"and 61 more failed tests: see {tmp_path.name}/",
        "FAILED some: pytest ended with 1",
    ]


def test_tiers_start_in_order_as_cores_are_free() -> None:
    names = {
        name: run.Run(Tier(name, "", (), budget_seconds=1, cores=cores, on_lab=on_lab))
        for name, cores, on_lab in (
            ("one", 1, True),
            ("lab", 1, True),
            ("both", 2, False),
            ("small", 1, False),
        )
    }
    scheduler = run.Scheduler(list(names.values()))
    assert scheduler.start_next() is names["one"]
    assert scheduler.start_next() is names["small"]  # the lab is taken, and both needs two cores
    assert scheduler.start_next() is None
    scheduler.finish(names["one"])
    assert scheduler.start_next() is names["lab"]
    scheduler.finish(names["lab"])
    scheduler.finish(names["small"])
    assert scheduler.start_next() is names["both"]


def test_the_total_counts_tests_and_commands() -> None:
    passed = run.Run(Tier("a", "", (("true",), ("true",)), budget_seconds=1), steps_done=2)
    failed = run.Run(
        Tier("b", "", (("false",),), budget_seconds=1),
        steps_done=1,
        failures=["false ended with 1"],
    )
    assert run.total_line([passed, failed], 125.0) == "2 passed, 1 failed, 0 skipped in 2:05"
