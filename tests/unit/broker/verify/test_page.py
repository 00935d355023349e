"""docs/invariants.md: every predicate has its section, and every file that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

from onewriter_core.audit.findings import PREDICATES

ROOT = Path(__file__).resolve().parents[4]
PAGE = (ROOT / "docs" / "invariants.md").read_text()


def test_every_predicate_has_a_section() -> None:
    sections = re.findall(r"^### (\w+) ", PAGE, re.MULTILINE)
    assert sections == [*(f"S{n}" for n in range(1, 16)), "L1", "L2", "L3"]


def test_the_table_lists_what_verify_checks() -> None:
    rows = re.findall(r"^\| (S\d+) \|", PAGE, re.MULTILINE)
    assert rows == list(PREDICATES)


def test_every_file_named_exists() -> None:
    named = re.findall(r"`((?:core|broker|client|operator|tests|e2e|docs)/[^`]+)`", PAGE)
    assert len(named) > 50
    assert [name for name in named if not (ROOT / name).exists()] == []
