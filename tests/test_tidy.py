"""What the linters cannot say: the tree's own rules."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def tracked(pattern: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", pattern],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return [ROOT / name for name in listed.stdout.split() if (ROOT / name).exists()]


def modules() -> list[Path]:
    """All of ours: tests are read, too."""
    return [path for path in tracked("*.py") if not path.name.endswith("_pb2.py")]


def test_operator_directory_is_no_package() -> None:
    # One stray operator/__init__.py shadows the standard library for every Python started here.
    assert not (ROOT / "operator" / "__init__.py").exists()


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_module_opens_with_a_docstring(path: Path) -> None:
    name = str(path.relative_to(ROOT))
    assert path.read_text().startswith('"""'), f"{name} does not say what it contains"


def test_nothing_is_left_open() -> None:
    marks = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in tracked("*.py")
        if path != Path(__file__)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if marks.search(line)
    ]
    assert found == []


def test_every_test_file_has_a_name_of_its_own() -> None:
    names = [path.name for path in tracked("tests/*.py") if path.name.startswith("test_")]
    assert len(names) == len(set(names))


LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"`[^`\n]*`")


def anchors(page: Path) -> set[str]:
    """What may stand behind the # of a link to the page, by GitHub's rule."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} (.+)$", FENCED.sub("", page.read_text()), re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.strip()).lower()
        plain = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        number = sum(each == plain or each.startswith(f"{plain}-") for each in found)
        found.add(f"{plain}-{number}" if plain in found else plain)
    return found


@pytest.mark.parametrize("page", tracked("*.md"), ids=lambda p: str(p.relative_to(ROOT)))
def test_every_link_within_the_tree_leads_somewhere(page: Path) -> None:
    astray = []
    for target in LINK.findall(CODE.sub("", FENCED.sub("", page.read_text()))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, heading = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        is_there = other.exists()
        if is_there and heading and other.suffix == ".md":
            is_there = heading in anchors(other)
        if not is_there:
            astray.append(target)
    assert astray == []
