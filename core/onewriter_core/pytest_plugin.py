"""The fixture ``onewriter_broker``: pytest finds it if this package is installed.

pytest loads this module in every run, so the module imports the client only for tests that use the fixture.
``onewriter.testing`` documents the fixture.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def onewriter_manifests() -> str:
    """YAML of the topics and claims that ``onewriter_broker`` starts with. Override it; empty by default."""
    return ""


@pytest.fixture
def onewriter_broker(onewriter_manifests: str) -> Iterator[Any]:
    """A real broker in this process, a new one for each test: an onewriter.testing.InProcessBroker."""
    testing = importlib.import_module("onewriter.testing")
    with testing.in_process_broker(manifests=onewriter_manifests) as broker:
        yield broker
