"""``make pipeline-demo`` with fewer messages and the shared Spark: all its claims hold."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from examples import pipeline_demo
from pyspark.sql import SparkSession

# The tour repeats what test_spark_offload.py, test_spark_audit.py and test_spark_sink.py test one by one.
pytestmark = [pytest.mark.full, pytest.mark.spark, pytest.mark.timeout(900)]


def test_tour_succeeds_and_creates_its_files(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    small = ["--rounds", "1", "--messages", "100"]
    monkeypatch.setattr(sys, "argv", ["pipeline_demo", "--to", str(tmp_path), *small])
    pipeline_demo.main()
    output = capsys.readouterr().out
    assert "claims held" in output
    assert "FAILED" not in output
    (folder,) = tmp_path.iterdir()
    assert json.loads((folder / "audit.json").read_text())["holds"]
    assert list((folder / "table" / "messages").glob("**/*.parquet"))
    assert list((folder / "rates").glob("*.parquet"))
    assert (folder / "report" / "report.html").stat().st_size > 0


def test_tour_fails_if_a_claim_does_not_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lied(*_: object) -> pipeline_demo.Findings:
        findings = pipeline_demo.Findings()
        findings.check("two is three", holds=False)
        return findings

    monkeypatch.setattr(sys, "argv", ["pipeline_demo", "--to", str(tmp_path)])
    monkeypatch.setattr(pipeline_demo, "tour", lied)
    with pytest.raises(SystemExit, match="two is three"):
        pipeline_demo.main()
    assert "FAILED  two is three" in capsys.readouterr().out
