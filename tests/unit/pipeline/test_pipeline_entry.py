"""The onewriter-pipeline command in an installation without Spark and its libraries."""

from __future__ import annotations

import sys

import pytest

from onewriter_pipeline import __main__ as entry
from onewriter_pipeline import cli


def test_a_missing_library_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "onewriter_pipeline.cli", None)
    with pytest.raises(SystemExit) as ended:
        entry.main()
    assert "run pip install '.[spark]' in a checkout of onewriter" in str(ended.value.code)


def test_a_verb_without_its_libraries_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "onewriter_pipeline.jobs.offload", None)
    assert cli.run(["offload", "--topic", "orders"]) == 1
    assert "offload needs more than is installed" in capsys.readouterr().err


def test_the_command_runs_with_its_libraries(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["onewriter-pipeline", "--version"])
    with pytest.raises(SystemExit) as ended:
        entry.main()
    assert ended.value.code == 0
    assert "onewriter-pipeline, version" in capsys.readouterr().out
