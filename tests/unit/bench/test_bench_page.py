"""The page of the benchmarks: two commands that leave each other's halves alone, and the figures."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench import operator_page as page
from bench import report
from bench.operator_scale import Burst, Idle
from bench.pod_takeover import Verified
from bench.report import halves, put_first_half
from bench.takeover import Fault, Round

CONDITIONS = report.Conditions("2 cores", "python -m bench.operator_run", 0.02, 3.14)
FIRST = "# Benchmarks\n\n## Goals\n\nall of them\n"


def burst(topics: int, ready: float, memory: int = 100_000_000) -> Burst:
    return Burst(topics, ready / 4, ready / 2, ready, 1.5, memory, topics)


def rounds(*leaderless: float) -> list[Round]:
    return [Round(each, each - 1, each - 2) for each in leaderless]


def row(text: str, label: str) -> list[str]:
    found = [line for line in text.splitlines() if line.startswith(f"| {label} |")]
    assert len(found) == 1, f"{label} in\n{text}"
    return [cell.strip() for cell in found[0].strip("|").split("|")][1:]


# ------------------------------------------------------------ two commands, one page


def test_both_commands_in_either_order_leave_the_same_page(tmp_path: Path) -> None:
    one, other = tmp_path / "one.md", tmp_path / "other.md"
    put_first_half(one, FIRST)
    one.write_text(page.merged(one.read_text(), {page.IDLE: "quiet"}))
    other.write_text(page.merged("", {page.IDLE: "quiet"}))
    put_first_half(other, FIRST)
    assert one.read_text() == other.read_text()
    assert "all of them" in one.read_text()
    assert "quiet" in one.read_text()


def test_measuring_servers_again_keeps_the_operators_half(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(page.merged(FIRST, {page.IDLE: "quiet"}))
    second = halves(path.read_text())[1]
    put_first_half(path, "# Benchmarks\n\nnewer\n")
    assert halves(path.read_text()) == ("# Benchmarks\n\nnewer\n", second)


def test_a_page_of_servers_alone_is_written_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    put_first_half(path, FIRST)
    assert path.read_text() == FIRST


def test_a_part_is_replaced_and_the_others_stay_in_their_order() -> None:
    whole = page.merged(FIRST, {page.TAKEOVER: "pods"})
    whole = page.merged(whole, {page.TOPICS: "old | table", page.IDLE: "quiet"})
    whole = page.merged(whole, {page.TOPICS: "new"})
    assert "old" not in whole
    places = [whole.index(text) for text in ("all of them", "new", "quiet", "pods")]
    assert places == sorted(places)
    assert page.merged(whole, {page.TOPICS: "new"}) == whole


# ------------------------------------------------------------ the parts


def test_bursts_are_reported_by_medians_and_judged_at_a_thousand_topics() -> None:
    bursts = [
        [burst(10, 1.0), burst(10, 3.0), burst(10, 2.0)],
        [burst(1000, 8.0), burst(1000, 30.0), burst(1000, 9.0, memory=201_000_000)],
    ]
    text = page.topics_part(bursts, 2, CONDITIONS)
    assert row(text, "10")[2] == "2.00 s"
    assert row(text, "1,000") == ["2.25 s", "4.50 s", "9.00 s", "1,000", "1.50 s", "100 MB"]
    assert row(text, "1,000 topics Ready in less than 10 s") == ["9.0 s", "holds"]
    assert row(text, "operator below 200 MB at 1,000 topics") == ["201 MB", "**missed**"]


def test_without_a_thousand_topics_their_goals_are_not_measured() -> None:
    text = page.topics_part([[burst(10, 1.0)]], 2, CONDITIONS)
    assert row(text, "1,000 topics Ready in less than 10 s") == ["not measured", "not measured"]


@pytest.mark.parametrize(("writes", "verdict"), [(0, "holds"), (3, "**missed**")])
def test_a_single_write_while_idle_misses_the_goal(writes: int, verdict: str) -> None:
    quiet = Idle(1000, 600, writes, 360, cpu_seconds=6, resident_bytes=150_000_000)
    text = page.idle_part(quiet, 2, CONDITIONS)
    assert row(text, "no write except of Leases") == [f"{writes} writes", verdict]
    assert row(text, "operator's CPU") == ["1.0% of a core"]
    assert "for 10 minutes" in text


def test_the_page_compares_takeovers_with_leases() -> None:
    measured = {
        (page.OURS, Fault.CRASH): rounds(*range(10, 211)),
        (page.OURS, Fault.SILENT): rounds(2500, 3100),
        (page.SIDECAR, Fault.PLANNED): rounds(*range(100, 140)),
        (page.LEASE, Fault.CRASH): rounds(16_000, 18_000),
    }
    text = page.takeover_part(measured, Verified(5000, 0), "Python 3", CONDITIONS)
    assert row(text, "crash, p50") == ["110.0 ms", "-", "17.00 s"]
    assert row(text, "crash, p99") == ["208.0 ms", "-", "17.98 s"]
    assert row(text, "silent, longest") == ["3.10 s", "-", "-"]
    assert row(text, "crash: p99 below 250 ms") == ["208 ms", "holds"]
    assert row(text, "silent: never longer than 3 s") == ["3,100 ms", "**missed**"]
    assert row(text, "planned: p99 below 200 ms") == ["not measured", "not measured"]
    assert row(text, "planned, sidecar: p50 at most 300 ms") == ["120 ms", "holds"]
    assert row(text, "planned, p50") == ["-", "119.5 ms", "-"]
    assert "crash 201, 0, 2; silent 2, 0, 0; planned 0, 40, 0" in text
    assert "5,000 entries, 0 violations" in text


def test_a_violation_in_the_log_is_a_missed_goal() -> None:
    measured = {(page.OURS, Fault.CRASH): rounds(10, 11)}
    text = page.takeover_part(measured, Verified(9, 1), "Python 3", CONDITIONS)
    assert row(text, "stale appends in the log: none")[1] == "**missed**"


def test_conditions_are_sent_with_every_part() -> None:
    text = page.topics_part([[burst(10, 1.0)]], 2, CONDITIONS)
    assert "Machine: 2 cores" in text
    assert "`python -m bench.operator_run`" in text
    assert "up to 3.1" in text
    assert "Others" not in text
    disturbed = report.Conditions("2 cores", "python", 0.471, 12.8)
    assert "Other processes used 47.1% of the processors" in page.topics_part(
        [[burst(10, 1.0)]], 2, disturbed
    )


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_rounds_have_no_percentiles(count: int) -> None:
    assert page.percentiles(rounds(*range(count))) is None
