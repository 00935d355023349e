"""The fixture ``onewriter_broker``: pytest finds it wherever this package is installed.

Nothing is imported for tests that do not ask for it by name, which is why it stands here and not in
the client: pytest loads this module in every run. What the fixture gives, ``onewriter.testing`` says.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata
from typing import Any

import pytest

ENTRY_POINT_GROUP = "onewriter.testing"
ENTRY_POINT_NAME = "in_process"


@pytest.fixture
def onewriter_manifests() -> str:
    """YAML of the topics and claims that ``onewriter_broker`` begins with: override it; none."""
    return ""


@pytest.fixture
def onewriter_broker(onewriter_manifests: str) -> Iterator[Any]:
    """A real broker in this process, anew for each test: an onewriter.testing.InProcessBroker."""
    found = tuple(metadata.entry_points(group=ENTRY_POINT_GROUP, name=ENTRY_POINT_NAME))
    if not found:
        pytest.fail("onewriter_broker needs the broker: pip install 'onewriter[broker]'")
    with found[0].load()(manifests=onewriter_manifests) as broker:
        yield broker
