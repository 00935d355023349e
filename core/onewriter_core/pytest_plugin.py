"""The fixture ``onewriter_broker``: pytest finds it if this package is installed.

pytest loads this module in every run, so the module imports the client only for tests that use the fixture.
``onewriter.testing`` documents the fixture.
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
    """YAML of the topics and claims that ``onewriter_broker`` starts with. Override it; empty by default."""
    return ""


@pytest.fixture
def onewriter_broker(onewriter_manifests: str) -> Iterator[Any]:
    """A real broker in this process, a new one for each test: an onewriter.testing.InProcessBroker."""
    found = tuple(metadata.entry_points(group=ENTRY_POINT_GROUP, name=ENTRY_POINT_NAME))
    if not found:
        pytest.fail("onewriter_broker needs the broker: pip install 'onewriter[broker]'")
    with found[0].load()(manifests=onewriter_manifests) as broker:
        yield broker
