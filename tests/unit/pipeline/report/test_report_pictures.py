"""Pictures of a report: thousands of tenures, long names, and periods that are all shorter than a millisecond."""

from __future__ import annotations

from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from tests.unit.pipeline.report.histories import MINUTE_MS, tenures

from onewriter_pipeline.report import pictures

PNG = b"\x89PNG"


def overlapping(figure: Figure) -> list[tuple[str, str]]:
    """The pairs of labels that overlap."""
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    (axes,) = figure.axes
    shown = [axes.title, *axes.get_xticklabels(), *axes.get_yticklabels()]
    shown += [text for legend in figure.legends for text in legend.get_texts()]
    boxes = [
        (each.get_text(), each.get_window_extent(renderer)) for each in shown if each.get_text()
    ]
    return [
        (one, other)
        for place, (one, box) in enumerate(boxes)
        for other, second in boxes[place + 1 :]
        if box.overlaps(second)
    ]


@pytest.mark.parametrize("count", [1, 60, 3000])
@pytest.mark.parametrize("leaderless_ms", [None, 0, 70_000])
def test_labels_do_not_overlap(
    monkeypatch: pytest.MonkeyPatch, count: int, leaderless_ms: int | None
) -> None:
    drawn: list[Figure] = []

    def kept(figure: Figure) -> bytes:
        drawn.append(figure)
        return PNG

    monkeypatch.setattr(pictures, "_png", kept)
    rows = tenures(count, leaderless_ms)
    assert pictures.timeline(rows, count * MINUTE_MS) == PNG
    assert pictures.leaderless(rows) == PNG
    for figure in drawn:
        assert overlapping(figure) == []


def test_pictures_show_that_the_last_holder_left() -> None:
    rows: list[dict[str, Any]] = [
        {"since_ms": 0, "left_ms": None},
        {"since_ms": 1_000, "left_ms": 10_000},
    ]
    assert pictures.shown_until(rows, 99_000) == 11_500
    assert pictures.shown_until(rows, 10_500) == 10_500
    assert pictures.shown_until([{"since_ms": 5}], 9) == 9


def test_a_long_name_keeps_both_ends() -> None:
    assert pictures._cut("short") == "short"
    name = pictures._cut("orders-" * 20 + "17")
    assert name.startswith("orders-")
    assert name.endswith("-17")
    assert len(name) == pictures.LABEL_CHARACTERS_MAX
