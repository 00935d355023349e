"""The page's division about scale: its figures, its goals, and that it leaves the other divisions alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench import scale_run
from bench.report import SCALE_HEADING, divisions, put_first_half, put_secured
from bench.shard_costs import GOAL_ENTRIES, ONE, SINGLE, THREE, Cost, as_report, ratio_of


def costs(one: list[float], three: list[float]) -> dict[str, list[Cost]]:
    """Costs of the broker that are as given, of the store 5 us."""
    return {
        SINGLE: [Cost(10.0, 5.0, 99.0) for _ in one],
        ONE: [Cost(us, 5.0, 31.0) for us in one],
        THREE: [Cost(us, 5.0, 30.0) for us in three],
    }


def test_the_ratio_is_the_median_of_the_pairs() -> None:
    assert ratio_of(costs([15.0, 15.0, 95.0], [5.0, 25.0, 195.0]), THREE, ONE) == 1.5


def test_the_goal_is_judged_from_its_number_of_entries_on() -> None:
    fine, bad = costs([15.0], [16.0]), costs([15.0], [25.0])
    _, goals, lines = as_report({GOAL_ENTRIES - 1: bad, GOAL_ENTRIES: fine, 2 * GOAL_ENTRIES: bad})
    assert [claim.verdict()[0] for _, claim in goals] == [True, False]
    assert lines[-1] == (
        "| 64 | 30.0 | 15.0 (10.0 + 5.0) | 20.0 (15.0 + 5.0) | 30.0 (25.0 + 5.0) | 1.50 | 1.33 |"
    )


FIGURES = scale_run.TakeoverFigures(
    topics=1_000,
    opened_per_second=2_500.0,
    first_back=2.5,
    half_back=4.0,
    all_back=8.0,
    all_queued=9.0,
    lost_epochs=0,
    broker_bytes_per_topic=8_192.0,
    store_bytes_per_topic=4_096.0,
    open_broker_cpu=1.0,
    open_store_cpu=0.5,
    back_broker_cpu=2.5,
    back_store_cpu=0.5,
)


def test_takeovers_are_judged_by_their_goals() -> None:
    _, goals, lines = FIGURES.report()
    assert [claim.verdict()[0] for _, claim in goals] == [True, False, True]
    assert "| CPU of the broker, per topic taken over | 2,500 us |" in lines
    assert "| memory of the store, per topic | 4.0 KiB |" in lines


def test_each_part_replaces_its_own_section_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    put_first_half(page, "# Benchmarks\n\nfirst\n")
    page.write_text(scale_run.merged(page.read_text(), {scale_run.TITLES["topics"]: "old"}))
    page.write_text(scale_run.merged(page.read_text(), {scale_run.TITLES["shards"]: "costs"}))
    page.write_text(scale_run.merged(page.read_text(), {scale_run.TITLES["topics"]: "new"}))
    put_secured(page, "secured\n")
    put_first_half(page, "# Benchmarks\n\nnewer\n")
    first, _, _, _, secured, scale = divisions(page.read_text())
    assert "newer" in first
    assert "secured" in secured
    assert scale.startswith(f"{SCALE_HEADING}\n")
    assert scale.index("costs") < scale.index("new")
    assert "old" not in scale


def test_all_parts_are_measured_by_default() -> None:
    given = scale_run.parser().parse_args([])
    assert given.parts == "shards,topics,idle"
    assert (given.topics, given.idle) == (10_000, 100_000)


def test_an_unknown_part_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["scale_run", "--parts", "shards,nonsense"])
    with pytest.raises(SystemExit):
        scale_run.main()
    assert "unknown parts: nonsense" in capsys.readouterr().err
