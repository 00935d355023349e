"""Every program in the documentation runs unchanged against a real broker.

A program is a block of Python that begins with an import and names the broker of ``make run``. All other
blocks are fragments, which must compile. The programs of one page run one after the other against one broker,
so that a later one may read what an earlier one wrote.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.forked_brokers import forked_brokers

from onewriter_testing.processes import LocalBrokers

ROOT = Path(__file__).resolve().parents[2]
URL = "pulsar://127.0.0.1:6650"
PROGRAM_SECONDS = 180.0
"""Time limit of a program of the documentation, which ends by itself long before."""

USERS_ENVIRONMENT = {
    name: value for name, value in os.environ.items() if not name.startswith("ONEWRITER_")
}
"""A program's own brokers have their defaults, as for users: the program may wait until one is silent."""

MANIFESTS = "\n---\n".join(path.read_text() for path in sorted((ROOT / "examples").glob("*.yaml")))
"""``make run`` applies them: a documented program must not need a right that it lacks there."""

_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_BEGINS = re.compile(r"(import|from) ")


def programs(page: Path) -> list[str]:
    """Return the page's programs, each after empty lines, so that a traceback names the page's own lines."""
    text = page.read_text()
    return [
        "\n" * (text.count("\n", 0, found.start()) + 1) + found[1]
        for found in _BLOCK.finditer(text)
        if _BEGINS.match(found[1]) and URL in found[1]
    ]


EVERY_PAGE = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
PAGES = sorted(page for page in EVERY_PAGE if programs(page))


@pytest.fixture
def brokers() -> Iterator[LocalBrokers]:
    with forked_brokers(manifests=MANIFESTS) as running:
        yield running


def test_the_page_of_the_sdk_has_programs() -> None:
    assert ROOT / "docs" / "client.md" in PAGES


@pytest.mark.parametrize("page", EVERY_PAGE, ids=lambda page: str(page.relative_to(ROOT)))
def test_documented_programs_are_valid_python(page: Path) -> None:
    for found in _BLOCK.finditer(page.read_text()):
        compile(found[1], str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_documented_programs_run_unchanged(
    page: Path, brokers: LocalBrokers, tmp_path: Path
) -> None:
    for number, text in enumerate(programs(page)):
        program = tmp_path / f"{page.stem}-{number}.py"
        program.write_text(text.replace(URL, brokers.service_url))
        done = subprocess.run(
            [sys.executable, "-W", "error", str(program)],
            env=USERS_ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=PROGRAM_SECONDS,
            cwd=tmp_path,
            check=False,
        )
        assert done.returncode == 0, f"{page.name}, program {number}:\n{done.stdout}{done.stderr}"
