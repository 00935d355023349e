"""Verification finds falsified tables, before and after a trim, and the documentation says which."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.falsified_tables.cases import Case, all_cases, generated, of_the_trial
from tests.falsified_tables.lab import Lab, Stage, offloaded
from tests.falsified_tables.table import NOTHING, PAGE, results, row_of

CASES = all_cases()
TRIED = {case.name for case in of_the_trial()}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """Tables without a falsification."""
    return offloaded(tmp_path_factory.mktemp("falsified") / "lab")


@pytest.mark.parametrize("stage", Stage)
def test_tables_of_offloads_hold(lab: Lab, stage: Stage) -> None:
    assert lab.findings(stage) == []


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_the_documentation_names_what_detects_each_falsification(
    lab: Lab, case: Case, tmp_path: Path
) -> None:
    found = results(lab, case, tmp_path / "lab")
    assert row_of(case, found) in PAGE.read_text(encoding="utf-8").splitlines()
    if case.is_harmless:
        assert set(found.values()) == {NOTHING}
    elif case.name in TRIED:
        assert NOTHING not in {found[Stage.WHOLE], found[Stage.TRIMMED]}


def test_names_of_falsifications_are_unique_and_there_are_enough() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    assert sum(not case.is_harmless for case in generated()) >= 40
