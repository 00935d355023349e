"""Diagrams: the text of a ``mermaid`` fence as a picture.

GitHub draws these fences by itself. The site gets pictures instead of Mermaid's script: pages need no script and
no other host, and a diagram with a mistake fails the build.
"""

from __future__ import annotations

import base64
import hashlib
import html
import os
from pathlib import Path
from typing import Any, Final

import mermaidx

THEME: Final = "neutral"

CACHE: Final = Path(__file__).resolve().parents[2] / "build" / "diagrams"
"""Pictures by the hash of their text: drawing one takes about a second."""


def picture(source: str, *_: Any, **__: Any) -> str:
    """The HTML of one diagram; Python-Markdown calls this for each fence."""
    return (
        f'<p class="diagram"><img alt="{html.escape(described(source))}"'
        f' src="data:image/svg+xml;base64,{drawn(source)}"></p>'
    )


def described(source: str) -> str:
    """The text of ``accTitle``, which says what the diagram shows."""
    for line in source.splitlines():
        name, _, text = line.strip().partition(":")
        if name == "accTitle":
            return text.strip()
    raise ValueError(f"a diagram needs a line accTitle: ... that says what it shows:\n{source}")


def drawn(source: str) -> str:
    """The picture as SVG in Base64."""
    key = hashlib.sha256(f"{mermaidx.__version__} {THEME} {source}".encode()).hexdigest()
    kept = CACHE / f"{key}.svg"
    if not kept.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        written = kept.with_suffix(f".{os.getpid()}")
        written.write_text(mermaidx.render(source, theme=THEME).svg(), encoding="utf-8")
        written.replace(kept)
    return base64.b64encode(kept.read_bytes()).decode()
