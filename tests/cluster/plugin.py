"""Fixtures of the clusters. A conftest.py names this module in ``pytest_plugins``."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cluster.binaries import LAB_SECONDS, exclusively
from tests.cluster.control_plane import ControlPlane
from tests.cluster.lab import Lab, remove

ROOT = Path(__file__).resolve().parents[2]
CRDS = sorted((ROOT / "crds").glob("*.yaml"))


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """An API server that knows onewriter's kinds. It is shared, so use your own ``namespace``."""
    with ControlPlane(tmp_path_factory.mktemp("cluster")) as cluster:
        cluster.establish(*CRDS)
        yield cluster


@pytest.fixture
def namespace(api_server: ControlPlane) -> str:
    """A namespace for one test. (This API server has no controller that could finish its deletion.)"""
    return api_server.make_namespace(f"test-{uuid.uuid4().hex[:10]}")


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Two nodes that run pods. A machine runs one lab at a time: a second one waits for the first."""
    with (
        exclusively("lab", LAB_SECONDS),
        Lab(Path(tempfile.mkdtemp(prefix="onewriter-lab-"))) as cluster,
    ):
        cluster.establish(*CRDS)
        yield cluster
    remove(cluster.directory)


@pytest.fixture
def another_api_server(tmp_path: Path) -> Iterator[Callable[[], ControlPlane]]:
    """Makes API servers that a test may stop."""
    started: list[ControlPlane] = []

    def make() -> ControlPlane:
        cluster = ControlPlane(tmp_path / f"cluster-{len(started)}")
        cluster.directory.mkdir()
        started.append(cluster)
        cluster.start()
        cluster.establish(*CRDS)
        return cluster

    yield make
    for cluster in started:
        cluster.stop()
