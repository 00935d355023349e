"""The SDK's division of the page: parts that replace themselves and nothing else, and their goals."""

from __future__ import annotations

from bench import operator_page, report, sdk_handover, sdk_publish, sdk_run
from bench.report import Samples

CONDITIONS = report.Conditions("2 cores", "python -m bench.sdk_run", 0.02, 3.14)
FIRST = "# Benchmarks\n\n## Goals\n\nall of them\n"
TITLES = [part.title for part in sdk_run.DIVISION.parts.values()]


def test_three_commands_in_any_order_leave_the_same_page() -> None:
    sdk = {TITLES[0]: "fast"}
    operator = {operator_page.IDLE: "quiet"}
    one = sdk_run.DIVISION.merged(operator_page.merged(FIRST, operator), sdk)
    other = operator_page.merged(sdk_run.DIVISION.merged(FIRST, sdk), operator)
    assert one == other
    first, second, pipeline, last, *_ = report.divisions(one)
    assert "all of them" in first
    assert "fast" in second
    assert pipeline == ""
    assert "quiet" in last


def test_measuring_the_servers_again_keeps_the_other_divisions() -> None:
    page = sdk_run.DIVISION.merged(
        operator_page.merged(FIRST, {operator_page.IDLE: "q"}), {TITLES[0]: "f"}
    )
    _, *others = report.divisions(page)
    anew = report.joined("# Benchmarks\n\nnewer\n", *others)
    assert report.divisions(anew) == ("# Benchmarks\n\nnewer\n", *others)


def test_a_part_is_replaced_and_the_others_stay_in_their_order() -> None:
    page = sdk_run.DIVISION.merged(FIRST, {TITLES[1]: "second"})
    page = sdk_run.DIVISION.merged(page, {TITLES[0]: "old"})
    page = sdk_run.DIVISION.merged(page, {TITLES[0]: "new"})
    assert "old" not in page
    assert page.index("new") < page.index("second")
    assert sdk_run.DIVISION.merged(page, {TITLES[0]: "new"}) == page


def test_the_sdk_is_judged_against_the_stock_client() -> None:
    samples = Samples()
    for figure, ours, other in (
        (sdk_publish.UNBATCHED, 30_000.0, 20_000.0),
        (sdk_publish.BATCHED, 50_000.0, 100_000.0),
    ):
        samples.add(figure, sdk_publish.SDK, ours)
        samples.add(figure, sdk_publish.STOCK, other)
    text = report.part(*_with_conditions(sdk_publish.report(samples, 1, 1_000)))
    assert "| unbatched | 30,000/s | 20,000/s | 1.50 times |" in text
    assert "unbatched, at least the stock client's | 1.50 times | holds |" in text
    assert "batched, at least the stock client's | 0.50 times | **missed** |" in text
    assert "| one at a time, p50 | - | - | - |" in text


def test_handovers_are_judged_by_their_median() -> None:
    found = sdk_handover.Handovers([1.0, 2.0, 30.0], [2.0, 3.0, 40.0])
    text = report.part(*_with_conditions(sdk_handover.report(found)))
    assert "p50 below 5 ms | 2.00 ms | holds |" in text
    assert "3 times" in text


def _with_conditions(
    said: report.Report,
) -> tuple[str, report.Conditions, list[report.Goal], list[str]]:
    text, goals, lines = said
    return text, CONDITIONS, goals, lines
