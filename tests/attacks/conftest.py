"""Fixtures for attacks.

An attack shows that a stranger, a client with too few rights, or a broken client achieves nothing. Brokers
run in the test's process where possible, so that each test is fast.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.attacks.guarded import GuardedBrokers, guarded_brokers
from tests.integration.conftest import raw, stock

__all__ = ["raw", "stock"]


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[GuardedBrokers]:
    """Makes brokers that ask for a token: ``guarded(manifests=..., **settings)``."""
    with guarded_brokers(tmp_path) as make:
        yield make
