"""Write the transition table of the topic machine into ARCHITECTURE.md: ``make transition-table``."""

from __future__ import annotations

from pathlib import Path
from typing import Final, get_args

from onewriter_core.topic.events import Event
from onewriter_core.topic.machine import TRANSITIONS
from onewriter_core.topic.model import Phase

PAGE: Final = Path(__file__).resolve().parents[2] / "ARCHITECTURE.md"

BEGIN: Final = "<!-- The transition table, written by `make transition-table`. -->\n"
END: Final = "<!-- End of the transition table. -->\n"


def table() -> str:
    """The table as Markdown: a row for each event, a column for each phase."""
    phases = get_args(Phase)
    rows = [["event", *(phase.__name__ for phase in phases)], ["---"] * (len(phases) + 1)]
    for event in get_args(Event):
        functions = [TRANSITIONS[phase, event].__name__ for phase in phases]
        rows.append([f"`{event.__name__}`", *(_cell(name) for name in functions)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _cell(function: str) -> str:
    return "" if function == "unchanged" else function.replace("_", " ")


def with_table(page: str) -> str:
    """The page with the present table between its two markers."""
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"{PAGE.name} has no place for the table: it needs {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
