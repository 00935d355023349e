"""The pipeline's part of the benchmark page does not depend on the order of the commands."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from bench import operator_page, pipeline_run, report, sdk_run

FIRST = "# Benchmarks\n\n## Goals\n\nall of them\n"
SDK = {next(iter(sdk_run.DIVISION.parts.values())).title: "fast"}
PIPELINE = {part.title: f"figures of {name}" for name, part in pipeline_run.DIVISION.parts.items()}
OPERATOR = {operator_page.IDLE: "quiet"}

WRITES: list[Callable[[str], str]] = [
    lambda page: sdk_run.DIVISION.merged(page, SDK),
    lambda page: pipeline_run.DIVISION.merged(page, PIPELINE),
    lambda page: operator_page.merged(page, OPERATOR),
]


def written(page: str, order: tuple[Callable[[str], str], ...]) -> str:
    for write in order:
        page = write(page)
    return page


def test_the_commands_leave_the_same_page_in_any_order() -> None:
    (page,) = {written(FIRST, order) for order in itertools.permutations(WRITES)}
    first, sdk, pipeline, operator, *_ = report.divisions(page)
    assert "all of them" in first
    assert "fast" in sdk
    assert all(text in pipeline for text in PIPELINE.values())
    assert "quiet" in operator
    assert written(page, tuple(WRITES)) == page


def test_a_part_that_was_not_measured_stays() -> None:
    page = pipeline_run.DIVISION.merged(FIRST, PIPELINE)
    title = pipeline_run.DIVISION.parts["sink"].title
    anew = pipeline_run.DIVISION.merged(page, {title: "faster"})
    assert anew == page.replace("figures of sink", "faster")
