"""docs/fence.md quotes the scripts of the fence as they are."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SCRIPTS = ROOT / "broker" / "onewriter_broker" / "log" / "store" / "scripts"
PAGE = ROOT / "docs" / "fence.md"


def quoted() -> list[str]:
    return re.findall(r"^```lua\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def test_the_page_quotes_both_scripts_completely() -> None:
    for name in ("fence", "append"):
        assert (SCRIPTS / f"{name}.lua").read_text() in quoted(), (
            f"update docs/fence.md: {name}.lua"
        )


def test_every_excerpt_is_part_of_a_script() -> None:
    sources = [path.read_text() for path in SCRIPTS.glob("*.lua")]
    for excerpt in quoted():
        assert any(excerpt in source for source in sources), f"update docs/fence.md:\n{excerpt}"


def test_the_readme_links_to_the_page() -> None:
    assert "(docs/fence.md)" in (ROOT / "README.md").read_text()
