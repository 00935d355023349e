"""Draws the history of holders as PNG pictures, from data that others collected."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from onewriter_pipeline.report.balance import Balance

SHOWN_TOPICS_MAX: Final = 40
"""Topics of the timeline: those with the most tenures."""

NAMES_MAX: Final = 12
"""Holders, hosts or causes with a colour of their own; the others share one."""

EPOCH_SHARE_MIN: Final = 0.03
"""Minimal share of the picture's width for a tenure that shows its epoch."""

SHORTEST_MS: Final = 0.5
"""Where shorter periods are drawn: times are whole milliseconds, and a logarithmic axis has no 0."""

LAST_SHARE: Final = 0.15
"""How long pictures continue after the last change, as a share of the time before it."""

PIXEL_SHARE: Final = 0.001
"""Minimal share of the picture's width that a tenure takes: about a pixel."""

OUTLINED_TENURES_MAX: Final = 200
"""Tenures of a topic that are separated by lines; the lines of more would hide them."""

LABEL_CHARACTERS_MAX: Final = 40

BARS_MAX: Final = 20
"""Holders in the picture of their load."""

Row = Mapping[str, Any]

_COLOURS: Final = (
    *("#3b6fb6", "#e08a2e", "#4a9d5b", "#8a63b8", "#c9587a", "#3fa7ad"),
    *("#9a7b4f", "#6d7f99", "#b3a32c", "#7fb069", "#a05195", "#5c8fd6"),
)
_OTHERS: Final = ("#b9bec6", "#cdd2d9", "#a3aab5")
"""Colours of the other names in turn, so that neighbours differ."""
_NOBODY: Final = "#c8102e"
_INK: Final = "#2b2f36"
_WIDTH_INCHES: Final = 10.5
_DOTS_PER_INCH: Final = 110
_POINTS: Final = 72
_LABEL_POINTS: Final = 5.5
_HANDLE_POINTS: Final = 40
"""The width of a legend in points: of an inch, a character, and a symbol with its space."""
_STYLE: Final[Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.edgecolor": "#9aa1ab",
    "axes.labelcolor": _INK,
    "axes.titlecolor": _INK,
    "axes.titleweight": "bold",
    "axes.titlesize": 11.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e8ec",
    "xtick.color": _INK,
    "ytick.color": _INK,
    "legend.frameon": False,
}


def _figure(height_inches: float) -> tuple[Figure, Axes]:
    figure = Figure(
        figsize=(_WIDTH_INCHES, height_inches), dpi=_DOTS_PER_INCH, layout="constrained"
    )
    return figure, figure.add_subplot()


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _day(time_ms: float) -> float:
    """A time in matplotlib's unit: days since 1970."""
    return time_ms / 86_400_000


def _dated(axes: Axes) -> None:
    # Its date functions have no types.
    locator = AutoDateLocator(tz=UTC)  # type: ignore[no-untyped-call]
    form = ConciseDateFormatter(locator, tz=UTC)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(form)
    axes.set_xlabel("UTC")


def _coloured(names: Sequence[str]) -> dict[str, str]:
    """A colour for each name; those after the first ones share one."""
    return {
        name: _COLOURS[number] if number < NAMES_MAX else _OTHERS[number % len(_OTHERS)]
        for number, name in enumerate(names)
    }


def _short(topic: str) -> str:
    return topic.removeprefix("persistent://").removeprefix("public/default/")


def _ranked(rows: Sequence[Row], key: str) -> list[str]:
    """The values of a column, the most frequent first."""
    counts: dict[str, int] = {}
    for row in rows:
        counts[str(row[key])] = counts.get(str(row[key]), 0) + 1
    return sorted(counts, key=lambda name: (-counts[name], name))


def _natural(name: str) -> list[tuple[int, str]]:
    """A sort key that orders numbers in names numerically."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)
    ]


def timeline(tenures: Sequence[Row], now_ms: int) -> bytes:
    """The holder of each topic over time, one row per topic, and the periods without a writer."""
    with mpl.rc_context(_STYLE):
        topics = _ranked(tenures, "topic")[:SHOWN_TOPICS_MAX]
        places = {topic: number for number, topic in enumerate(sorted(topics, key=_natural))}
        shown = [row for row in tenures if row["topic"] in places]
        led = [row for row in shown if row["producer"]]
        holders = _ranked(led, "producer")
        colours = _coloured(holders)
        figure, axes = _figure(1.9 + 0.34 * max(2, len(topics)))
        begin = min((row["since_ms"] for row in shown), default=now_ms)
        span_ms = max(1, now_ms - begin)
        for topic, place in places.items():
            rows = [row for row in shown if row["topic"] == topic]
            _bars(axes, rows, place, colours, now_ms, span_ms)
        axes.set_xlim(_day(begin - span_ms * 0.01), _day(now_ms))
        axes.set_yticks(range(len(places)), [_cut(_short(topic)) for topic in places])
        axes.set_ylim(len(places) - 0.4, -0.6)
        axes.grid(visible=False, axis="y")
        axes.set_title(
            _counted(
                "Who led when, by epoch", len(topics), len(_ranked(tenures, "topic")), "topics"
            )
        )
        _dated(axes)
        handles: list[Artist] = [
            Patch(color=colours[name], label=_cut(name)) for name in holders[:NAMES_MAX]
        ]
        if len(holders) > NAMES_MAX:
            handles.append(Patch(color=_OTHERS[0], label=f"{len(holders) - NAMES_MAX} others"))
        handles.append(Patch(facecolor="white", edgecolor=_NOBODY, hatch="////", label="no writer"))
        _legend(figure, handles)
        return _png(figure)


def _bars(
    axes: Axes,
    rows: Sequence[Row],
    place: int,
    colours: Mapping[str, str],
    now_ms: int,
    span_ms: int,
) -> None:
    """The tenures of a topic, and its periods without a writer. The shortest ones are as wide as a pixel.

    Where many tenures share the row, such periods have their true width, because they would hide the tenures.
    """
    least = span_ms * PIXEL_SHARE
    is_dense = len(rows) > OUTLINED_TENURES_MAX
    led: list[tuple[float, float]] = []
    vacant: list[tuple[float, float]] = []
    painted = []
    for row in rows:
        since, end = row["since_ms"], row["until_ms"] or now_ms
        left = row.get("left_ms")
        until = end if left is None else min(left, end)
        if row["producer"]:
            led.append((_day(since), _day(max(until - since, least)) - _day(0)))
            painted.append(colours[row["producer"]])
            digits = len(str(row["epoch"]))
            if until - since > span_ms * EPOCH_SHARE_MIN * max(1, digits / 3):
                _epoch(axes, row, place)
        else:
            until = since
        if until < end:
            wide = end - until if is_dense else max(end - until, least)
            vacant.append((_day(until), _day(wide) - _day(0)))
    line = 0 if is_dense else 0.6
    axes.broken_barh(
        led, (place - 0.36, 0.72), facecolors=painted, edgecolor="white", linewidth=line
    )
    axes.broken_barh(
        vacant,
        (place - 0.18, 0.36),
        facecolor=_NOBODY if is_dense else "white",
        edgecolor=_NOBODY,
        hatch=None if is_dense else "////",
        linewidth=0 if is_dense else 0.8,
        zorder=3,
    )


def _epoch(axes: Axes, row: Row, place: int) -> None:
    axes.text(
        _day(row["since_ms"]),
        place,
        f" {row['epoch']}",
        va="center",
        fontsize=7.5,
        color="white",
        clip_on=True,
        zorder=4,
    )


def _cut(name: str) -> str:
    """A name that is short enough for a label. Names often differ at their ends, so the middle is left out."""
    if len(name) <= LABEL_CHARACTERS_MAX:
        return name
    tail = LABEL_CHARACTERS_MAX // 2
    return f"{name[: LABEL_CHARACTERS_MAX - tail - 1]}…{name[-tail:]}"


def _legend(figure: Figure, handles: Sequence[Artist]) -> None:
    """A legend below the picture, in as many columns as its longest label permits."""
    longest = max((len(str(each.get_label())) for each in handles), default=1)
    columns = int(_WIDTH_INCHES * _POINTS / (longest * _LABEL_POINTS + _HANDLE_POINTS))
    figure.legend(
        handles=list(handles), loc="outside lower left", ncols=max(1, columns), fontsize=8.5
    )


def _counted(title: str, shown: int, total: int, what: str) -> str:
    return title if shown == total else f"{title} ({shown} of {total} {what})"


def leaderless(tenures: Sequence[Row]) -> bytes:
    """How long topics were without a writer, by the cause that ended the previous tenure."""
    with mpl.rc_context(_STYLE):
        measured = [row for row in tenures if row["leaderless_ms"] is not None]
        figure, axes = _figure(4.2)
        axes.set_title("How long no producer could write")
        axes.set_ylabel("windows")
        if not measured:
            _nothing(axes, "no window was measured")
            return _png(figure)
        causes = _ranked(measured, "cause")
        colours = _coloured(causes)
        by_cause = {
            cause: np.array(
                [row["leaderless_ms"] for row in measured if row["cause"] == cause], float
            )
            for cause in causes
        }
        exact = np.concatenate(list(by_cause.values()))
        every = exact.clip(min=SHORTEST_MS)
        edges = np.geomspace(every.min() * 0.9, max(every.max() * 1.1, every.min() * 2), 42)
        axes.hist(
            [values.clip(min=SHORTEST_MS) for values in by_cause.values()],
            bins=list(edges),
            stacked=True,
            color=[colours[cause] for cause in causes],
            label=[_cause_label(cause, by_cause[cause]) for cause in causes],
            edgecolor="white",
            linewidth=0.4,
        )
        axes.set_xscale("log")
        decades = 10.0 ** np.arange(1, int(np.ceil(np.log10(every.max()))) + 1)
        axes.set_xticks([SHORTEST_MS, *decades[decades <= every.max() * 1.1]])
        axes.xaxis.set_major_formatter(
            FuncFormatter(lambda value, _: "< 1 ms" if value < 1 else _milliseconds(value))
        )
        axes.xaxis.set_minor_formatter(FuncFormatter(lambda *_: ""))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("from the end of one writer until the next may write")
        for share, style in ((50, "-"), (99, "--")):
            value = float(np.percentile(exact, share))
            label = f"p{share} of all: {_milliseconds(value)}"
            axes.axvline(
                max(value, SHORTEST_MS), color=_INK, linestyle=style, linewidth=1, label=label
            )
        handles, _ = axes.get_legend_handles_labels()
        _legend(figure, [each[0] if isinstance(each, tuple) else each for each in handles])
        return _png(figure)


def _cause_label(cause: str, values: Any) -> str:
    p50, p99 = (_milliseconds(float(np.percentile(values, share))) for share in (50, 99))
    return f"{cause}: {len(values)} times, p50 {p50}, p99 {p99}"


def _milliseconds(value: float) -> str:
    return f"{value / 1000:.3g} s" if value >= 1000 else f"{value:.3g} ms"


def _nothing(axes: Axes, why: str) -> None:
    axes.text(0.5, 0.5, why, transform=axes.transAxes, ha="center", color="#7b828d")
    axes.set_xticks([])
    axes.set_yticks([])


def load(holders: Sequence[Row]) -> bytes:
    """What each holder wrote."""
    with mpl.rc_context(_STYLE):
        shown = sorted(holders, key=lambda row: (-row["bytes"], row["producer"]))[:BARS_MAX]
        figure, axes = _figure(1.5 + 0.32 * max(2, len(shown)))
        axes.set_title(_counted("What each holder wrote", len(shown), len(holders), "holders"))
        if not shown:
            _nothing(axes, "nothing was written")
            return _png(figure)
        sizes = [row["bytes"] / 2**20 for row in shown]
        axes.barh(range(len(shown)), sizes, height=0.7, color=_COLOURS[0])
        for place, row in enumerate(shown):
            text = f"  {row['messages']:,} messages, {row['epochs'] or 'no'} epochs"
            axes.text(sizes[place], place, text, va="center", fontsize=8.5, color=_INK)
        axes.set_yticks(range(len(shown)), [_cut(str(row["producer"])) for row in shown])
        axes.set_ylim(len(shown) - 0.4, -0.6)
        axes.set_xlim(0, max(sizes) * 1.32 or 1)
        axes.set_xlabel("MiB, as stored")
        axes.grid(visible=False, axis="y")
        return _png(figure)


def balance(led: Balance, now_ms: int) -> bytes:
    """The number of topics of each host, stacked, and the difference between hosts."""
    with mpl.rc_context(_STYLE):
        figure, axes = _figure(4.2)
        axes.set_title("Topics led by each host")
        if not led.times_ms:
            _nothing(axes, "no host led a topic")
            return _png(figure)
        days = [_day(time) for time in (*led.times_ms, max(now_ms, led.times_ms[-1]))]
        hosts = sorted(led.led, key=lambda host: (-max(led.led[host]), host))
        colours = _coloured(hosts)
        below = np.zeros(len(days), int)
        for host in hosts:
            above = below + np.array([*led.led[host], led.led[host][-1]])
            axes.fill_between(days, below, above, step="post", color=colours[host], linewidth=0)
            below = above
        spread = [*led.spread, led.spread[-1]]
        axes.step(days, spread, where="post", color=_INK, linewidth=1.6)
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylim(bottom=0)
        axes.set_ylabel("topics")
        _dated(axes)
        handles: list[Artist] = [
            Patch(color=colours[name], label=_cut(name)) for name in hosts[:NAMES_MAX]
        ]
        if len(hosts) > NAMES_MAX:
            handles.append(Patch(color=_OTHERS[0], label=f"{len(hosts) - NAMES_MAX} others"))
        handles.append(Line2D([], [], color=_INK, label="most less fewest"))
        _legend(figure, handles)
        return _png(figure)


def shown_until(tenures: Sequence[Row], now_ms: int) -> int:
    """Where pictures over time end: now, or a little after the last change."""
    changes = [int(row["since_ms"]) for row in tenures]
    changes += [int(row["left_ms"]) for row in tenures if row.get("left_ms") is not None]
    if not changes or min(changes) == max(changes):
        return now_ms
    behind = round((max(changes) - min(changes)) * LAST_SHARE)
    return min(now_ms, max(changes) + behind)


def pictures(
    tenures: Sequence[Row], holders: Sequence[Row], led: Balance, now_ms: int
) -> Iterator[tuple[str, bytes]]:
    """All pictures, by name."""
    until_ms = shown_until(tenures, now_ms)
    yield "timeline", timeline(tenures, until_ms)
    yield "leaderless", leaderless(tenures)
    yield "load", load(holders)
    yield "balance", balance(led, until_ms)
