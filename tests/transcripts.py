"""The transcripts of commands in the docs: lines ``$ COMMAND`` with the output below them.

Tests run the commands with the objects of ``tests/unit/kube/documented_objects.py`` and compare the output. With
``ONEWRITER_WRITE_TRANSCRIPTS=1`` they write it into the page instead.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"

_BLOCK = re.compile(r"(?<=^```\n)\$ .*?(?=^```$)", re.DOTALL | re.MULTILINE)
_COMMAND = re.compile(r"^\$ (.*)\n", re.MULTILINE)


def checked(
    page: str,
    prefix: str | tuple[str, ...],
    output_of: Callable[[str], str],
) -> int:
    """Compare each command of a page that begins with ``prefix``; return their number."""
    path = DOCS / page
    text = path.read_text(encoding="utf-8")
    found = 0

    def block(match: re.Match[str]) -> str:
        nonlocal found
        parts = _COMMAND.split(match[0])[1:]
        blocks = []
        for command, documented in zip(parts[::2], parts[1::2], strict=True):
            output = documented
            if command.startswith(prefix):
                found += 1
                output = _trimmed(output_of(command))
            blocks.append(f"$ {command}\n{output.strip(chr(10))}".rstrip() + "\n")
        separator = "\n" if "\n\n$ " in match[0] else ""
        return separator.join(blocks)

    expected = _BLOCK.sub(block, text)
    if os.environ.get("ONEWRITER_WRITE_TRANSCRIPTS"):
        path.write_text(expected, encoding="utf-8")
    else:
        lines = difflib.unified_diff(
            text.splitlines(), expected.splitlines(), page, "the commands", lineterm="", n=1
        )
        difference = "\n".join(lines)
        assert not difference, (
            f"{page} does not show what the commands print. If their output is right, write it into the"
            f" page with ONEWRITER_WRITE_TRANSCRIPTS=1:\n{difference}"
        )
    return found


def _trimmed(output: str) -> str:
    """The output without white space at the ends of lines."""
    return "\n".join(line.rstrip() for line in output.splitlines()).strip("\n")
