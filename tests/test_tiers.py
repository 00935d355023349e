"""The table of tiers: budgets, one tier for each test file, and the page that describes them."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest
from tests import run, tiers
from tests.progress import Counts, last_counts
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


def test_counts_are_read_up_to_the_last_complete_line(tmp_path: Path) -> None:
    first = json.dumps({"total": 9, "done": 3, "failed": 1, "deselected": 2, "skipped": {"why": 1}})
    text = f'{first}\n{{"total": 9, "do'
    assert last_counts(text) == Counts(9, 3, 1, 2, {"why": 1})
    assert last_counts(text).passed == 1
    assert last_counts("") == Counts()


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


def test_the_closing_line_counts_tests_and_commands() -> None:
    passed = run.Run(Tier("a", "", (("true",), ("true",)), budget_seconds=1), steps_done=2)
    failed = run.Run(
        Tier("b", "", (("false",),), budget_seconds=1),
        steps_done=1,
        failures=["false ended with 1"],
    )
    assert run.total_line([passed, failed]) == "2 passed, 1 failed, 0 skipped"
