"""Pages name files and folders of the repository that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md")),
    *sorted(each for each in (ROOT / "docs").glob("*.md")),
]
FOLDERS = (
    "core",
    "broker",
    "client",
    "operator",
    "pipeline",
    "tests",
    "docs",
    "charts",
    "bench",
    "e2e",
    "examples",
    "requirements",
    "crds",
    "image",
)
NAMED = re.compile(
    rf"`((?:{'|'.join(FOLDERS)})/[\w./-]+?(?:/|\.(?:py|lua|toml|ya?ml|md|proto|txt|sh|json)))`"
)


def named(page: Path) -> Iterator[str]:
    """The paths that a page names as code; ``...`` stands for a package."""
    outside = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for each in NAMED.findall(outside):
        yield each.replace("...", "*")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_files_and_folders_exist(page: Path) -> None:
    missing = [each for each in named(page) if not list(ROOT.glob(each.rstrip("/")))]
    assert not missing, missing
