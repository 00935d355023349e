"""Every mutant still finds its target, and a mutant without one is noticed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.mutants.campaign import MUTANTS, Copy, chosen
from tests.mutants.mutant import Mutant
from tests.mutants.planting import LostTarget, file_of, planted

ROOT = Path(__file__).resolve().parents[2]

PROMISES = [*(f"S{number}" for number in range(1, 16)), "L1", "L2", "L3"]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_finds_its_target_and_names_tests_that_exist(mutant: Mutant) -> None:
    source = file_of(mutant, ROOT).read_text()
    assert planted(mutant, source) != source
    assert mutant.bug
    assert mutant.caught_by
    missing = [path for path in mutant.caught_by if not (ROOT / path.partition("::")[0]).exists()]
    assert missing == []


def test_names_are_unique() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("promise", PROMISES)
def test_every_promise_has_mutants(promise: str) -> None:
    assert [mutant for mutant in MUTANTS if promise in mutant.promises]


def test_every_component_has_mutants() -> None:
    components = {mutant.component for mutant in MUTANTS}
    assert components == {"scripts", "core", "broker", "client", "operator", "pipeline"}


@pytest.mark.parametrize(
    ("target", "old"),
    [
        ("onewriter_core.topic.machine:no_such_function", "if"),
        ("onewriter_core.no_such_module:step", "if"),
        ("onewriter_core.topic.machine:step", "no such text"),
        ("lua:fence/no_such_function", "if"),
        ("lua:no_such_script", "if"),
        ("lua:fence", "redis"),
    ],
)
def test_a_mutant_that_lost_its_target_fails(target: str, old: str) -> None:
    mutant = replace(MUTANTS[0], target=target, old=old)
    with pytest.raises(LostTarget):
        planted(mutant, file_of(mutant, ROOT).read_text())


def test_a_mutant_that_does_not_compile_fails() -> None:
    for mutant in (MUTANTS[0], MUTANTS[-1]):
        broken = replace(mutant, new="(((")
        with pytest.raises(LostTarget, match="compile"):
            planted(broken, file_of(broken, ROOT).read_text())


def test_mutants_are_chosen_by_name_promise_and_component() -> None:
    assert len(chosen([])) == len(MUTANTS)
    assert all("S14" in mutant.promises for mutant in chosen(["S14"]))
    assert all(mutant.component == "scripts" for mutant in chosen(["scripts"]))
    assert chosen([MUTANTS[0].name])[0] is MUTANTS[0]


def test_a_bug_is_planted_into_the_copy_alone_and_taken_out_again(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    name = "broker/onewriter_broker/log/store/scripts/guard.lua"
    target = tree / name
    target.parent.mkdir(parents=True)
    before = (ROOT / name).read_text()
    target.write_text(before)
    copy = Copy(ROOT, tmp_path / "copy")
    planted_at = copy.folder / name
    first_time = planted_at.stat().st_mtime
    with copy.with_bug(MUTANTS[0]):
        assert planted_at.read_text() != before
        bug_time = planted_at.stat().st_mtime
    assert planted_at.read_text() == before
    assert (ROOT / name).read_text() == before
    assert len({first_time, bug_time, planted_at.stat().st_mtime}) == 3
