"""The generated reference pages are those that the code gives."""

from __future__ import annotations

import pytest
from docs.generator.__main__ import REFERENCE, files

BY_HAND = {"python.md"}


@pytest.mark.timeout(300)  # it imports all packages and starts a broker
def test_generated_pages_are_in_step_with_the_code() -> None:
    expected = files()
    outdated = [path.name for path, text in expected.items() if path.read_text() != text]
    assert outdated == [], (
        "run python -m docs.generator. Where names.md lost a name, users lose it: see the page"
    )
    kept = {path.name for path in REFERENCE.iterdir()}
    assert kept == BY_HAND | {path.name for path in expected}
