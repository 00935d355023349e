"""One cluster and one installation for the whole suite; a namespace for each module."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from e2e.api import Api
from e2e.clusters import TestedCluster, tested_cluster, uses_existing
from e2e.faults import Faults
from e2e.installation import Installation
from e2e.log import Tally
from e2e.machines import NotPossible
from e2e.world import World
from e2e.writers import until

TALLY = pytest.StashKey[Tally]()

PATIENT_BROKERS = {"resumeWindowSeconds": 30}
"""Time for a holder to return after its topic has moved, on a machine with few processors."""

INCOMPLETE = "ONEWRITER_E2E_INCOMPLETE"
"""``true`` in this variable allows tests to be skipped if the cluster does not support them. Otherwise the run fails."""


def pytest_configure(config: pytest.Config) -> None:
    config.stash[TALLY] = Tally()


@pytest.fixture(scope="session")
def tested() -> Iterator[TestedCluster]:
    """The cluster: the lab, or the one of KUBECONFIG."""
    with tested_cluster(notices_lost_nodes_early=True, nodes=2) as found:
        yield found


@pytest.fixture(scope="session")
def api(tested: TestedCluster) -> Iterator[Api]:
    """The API server over HTTP."""
    with Api(tested.cluster, tested.directory / "api.sock") as found:
        yield found


@pytest.fixture(scope="session")
def installation(tested: TestedCluster, api: Api) -> Iterator[Installation]:
    """onewriter, installed by its chart."""
    found = Installation(tested, api)
    found.values["brokers"]["settings"] = PATIENT_BROKERS
    found.install()
    yield found
    if uses_existing():
        found.uninstall()


@pytest.fixture(scope="module")
def world(
    request: pytest.FixtureRequest, tested: TestedCluster, installation: Installation
) -> Iterator[World]:
    """The module's own namespace; at its end the logs of its topics are checked."""
    tally = request.config.stash[TALLY]
    # The module's other fixtures follow before ``everything_is_ready``, which belongs to each test.
    until(
        lambda: (
            installation.is_ready() and installation.has_its_nodes() and installation.is_placed()
        ),
        installation.diagnostics,
    )
    with World(tested, installation, request.module.__name__, tally) as found:
        yield found


@pytest.fixture
def faults(tested: TestedCluster) -> Iterator[Faults]:
    """Faults of pods and nodes, undone at the end of the test."""
    with Faults(tested.machines) as found:
        yield found


@pytest.fixture(autouse=True)
def everything_is_ready(installation: Installation) -> None:
    """Wait before each test until the installation is healthy again."""
    until(
        lambda: installation.is_ready() and installation.has_its_nodes(), installation.diagnostics
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Skip a test that needs a fault which an existing cluster does not support, and report it."""
    del item
    try:
        return (yield)
    except NotPossible as error:
        if not uses_existing():
            raise  # the lab supports every fault
        pytest.skip(str(error))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the cluster's state after a failure. Each request has a time limit, because the test's own time is over."""
    report = yield
    world = getattr(item, "funcargs", {}).get("world")
    if report.failed and isinstance(world, World):
        item.config.pluginmanager.hook.pytest_timeout_cancel_timer(item=item)
        report.sections.append(("the cluster", world.diagnostics()))
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run if tests were skipped, unless the environment allows it."""
    if (
        session.exitstatus == pytest.ExitCode.OK
        and _not_run(session.config)
        and os.environ.get(INCOMPLETE, "").lower() != "true"
    ):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _not_run(config: pytest.Config) -> list[pytest.TestReport]:
    """Tests that were skipped."""
    reporter: pytest.TerminalReporter | None = config.pluginmanager.get_plugin("terminalreporter")
    assert reporter is not None, "what was not run cannot be told"
    return reporter.stats.get("skipped", [])


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print the measurements, and the skipped tests."""
    tally = config.stash[TALLY]
    terminalreporter.write_line(
        f"{tally.topics} topics, {tally.epochs} epochs: {tally.stale} stale lines among"
        f" {tally.lines} in the logs; {tally.acknowledged} acknowledgements heard and none of them"
        f" lost; deposed writers were refused {tally.refused} times"
    )
    for figure in tally.figures:
        terminalreporter.write_line(figure)
    for report in _not_run(config):
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        terminalreporter.write_line(f"NOT RUN: {report.nodeid}: {why}")
    if _not_run(config):
        terminalreporter.write_line(f"{INCOMPLETE}=true: a run that leaves these out may succeed")
