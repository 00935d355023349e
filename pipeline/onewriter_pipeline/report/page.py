"""The report as one self-contained HTML page that includes its pictures."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from string import Template
from typing import Any, Final

ROWS_MAX: Final = 500
"""Rows of a table; the page counts the others."""

_PAGE: Final = Template("""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>$title</title>
<style>
body{font:15px/1.5 system-ui,sans-serif;color:#2b2f36;max-width:1100px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;margin:2rem 0 .5rem}
p.lead{color:#5b626d;margin:.2rem 0 1.2rem}
.verdict{display:inline-block;padding:.35rem .8rem;border-radius:.4rem;font-weight:600}
.holds{background:#e3f4e7;color:#1d6b34}.violated{background:#fbe3e6;color:#a30f26}
img{max-width:100%;height:auto;margin:.5rem 0 1rem;border:1px solid #e6e8ec;border-radius:.4rem}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:13px;width:100%}
th,td{text-align:left;padding:.3rem .6rem;border-bottom:1px solid #e6e8ec;vertical-align:top}
th{color:#5b626d;font-weight:600}.n{text-align:right;font-variant-numeric:tabular-nums}
</style>
<h1>$title</h1><p class="lead">$lead</p>
<p class="verdict $mood">$verdict</p>
$body
</html>
""")


def table(columns: Sequence[tuple[str, str]], rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows as a table. ``columns``: key and title of each."""
    kept = list(rows)
    head = "".join(_head(title, [row.get(key) for row in kept]) for key, title in columns)
    lines = [
        "<tr>" + "".join(_cell(row.get(key)) for key, _ in columns) + "</tr>"
        for row in kept[:ROWS_MAX]
    ]
    more = f"<p>and {len(kept) - ROWS_MAX:,} more</p>" if len(kept) > ROWS_MAX else ""
    return f'<div class="scroll"><table><tr>{head}</tr>{"".join(lines)}</table></div>{more}'


def _head(title: str, values: Sequence[Any]) -> str:
    """The title of a column, above its numbers or its texts."""
    are_numbers = any(isinstance(value, int | float) for value in values)
    return f'<th class="n">{escape(title)}</th>' if are_numbers else f"<th>{escape(title)}</th>"


def _cell(value: Any) -> str:
    if value is None:
        return "<td></td>"
    if isinstance(value, int | float):
        text = f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
        return f'<td class="n">{text}</td>'
    return f"<td>{escape(str(value))}</td>"


def section(title: str, *parts: str) -> str:
    """A section of the page; empty without contents."""
    content = "".join(parts)
    return f"<h2>{escape(title)}</h2>{content}" if content else ""


def listed(sentences: Sequence[str]) -> str:
    """Sentences as a list."""
    items = "".join(f"<li>{escape(each)}</li>" for each in sentences)
    return f"<ul>{items}</ul>" if items else ""


def paragraph(text: str) -> str:
    """A sentence; empty without text."""
    return f"<p>{escape(text)}</p>" if text else ""


def picture(png: bytes, what: str) -> str:
    """A picture, embedded in the page."""
    data = base64.b64encode(png).decode("ascii")
    return f'<img alt="{escape(what, quote=True)}" src="data:image/png;base64,{data}">'


def page(title: str, lead: str, findings: int, sections: Iterable[str]) -> str:
    """The page."""
    return _PAGE.substitute(
        title=escape(title),
        lead=escape(lead),
        mood="violated" if findings else "holds",
        verdict=f"{findings} violations" if findings else "One writer at a time: everything holds",
        body="\n".join(sections),
    )
