"""A pytest plugin that ends a process whose test hangs although its time is over.

pytest-timeout raises an exception in the test. A test that waits inside a library written in C never gets it, and a
fixture may hang afterwards. faulthandler then prints the stack of every thread and ends the process: pytest-xdist
reports the test as failed and starts another worker, and ``tests/run.py`` names the test that was running.
"""

from __future__ import annotations

import faulthandler
import os
from typing import Any

import pytest

GRACE_SECONDS = 60.0
"""How long after its timeout, or after its failure, a test may run until its process is ended.

``--hang-grace`` gives fixtures that have much to take down another one.
"""

OPTION = "--hang-grace"


class Watchdog:
    """Watches one test at a time. ``descriptor`` receives the stacks."""

    def __init__(self, descriptor: int, grace_seconds: float = GRACE_SECONDS) -> None:
        self._descriptor = descriptor
        self._grace_seconds = grace_seconds

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> None:
        del item
        self._allow(settings.timeout + self._grace_seconds)

    @pytest.hookimpl(trylast=True)
    def pytest_exception_interact(self) -> None:
        """Watch what follows a failure too: pytest's own plugin for faulthandler has ended the watch."""
        self._allow(self._grace_seconds)

    def pytest_runtest_logfinish(self) -> None:
        faulthandler.cancel_dump_traceback_later()

    def _allow(self, seconds: float) -> None:
        faulthandler.dump_traceback_later(seconds, exit=True, file=self._descriptor)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(OPTION, type=float, default=GRACE_SECONDS, metavar="SECONDS")


def pytest_configure(config: pytest.Config) -> None:
    watchdog = Watchdog(os.dup(2), config.getoption(OPTION))
    config.pluginmanager.register(watchdog, "onewriter-hangs")
