"""What bench.secured writes keeps what other commands wrote, and is kept by them."""

from __future__ import annotations

from pathlib import Path

from bench.report import OPERATOR_HEADING, SECURED_HEADING, divisions, put_first_half, put_secured
from bench.secured import compared, table


def test_its_division_is_replaced_and_kept(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Benchmarks\n\nfirst\n\n{OPERATOR_HEADING}\n\nrounds\n")
    put_secured(page, "old\n")
    put_secured(page, "new\n")
    put_first_half(page, "# Benchmarks\n\nnewer\n")
    first, _, _, operator, secured, _ = divisions(page.read_text())
    assert "newer" in first
    assert "rounds" in operator
    assert secured == f"{SECURED_HEADING}\n\nnew\n"


def test_the_median_of_the_pairs_counts() -> None:
    pairs = [({"x": 10.0}, {"x": 11.0}), ({"x": 20.0}, {"x": 60.0}), ({"x": 5.0}, {"x": 5.0})]
    ratios = compared(3, lambda number: pairs[number])
    assert ratios == {"x": [1.1, 3.0, 1.0]}
    assert "| x | 1.10 | 1.00 to 3.00 |" in table(("before", "now"), ratios)
