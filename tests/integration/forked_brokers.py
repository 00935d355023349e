"""Brokers that start at once, for tests that do not test the start by ``onewriter up``."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.integration.forked import fork
from tests.servers import running_server

from onewriter_broker import process
from onewriter_testing.processes import LocalBrokers

BUCKETS = 8
"""The number of buckets of such brokers. Acquiring the default 64 would be two thirds of the work of a start."""


class ForkedBrokers(LocalBrokers):
    """LocalBrokers without a supervisor whose processes are forked."""

    def replace(self, number: int = 0) -> None:
        """SIGKILL a broker and start another one in its place, like a supervisor."""
        self.kill(number)
        self.restart(number, wait=False)

    def _popen(self, command: list[str]) -> subprocess.Popen[bytes]:
        return fork(process.main, [command[-1]], log=self._log_path)


@contextlib.contextmanager
def forked_brokers(
    *,
    brokers: int = 1,
    manifests: str = "",
    redis_url: str = "",
    settings: Mapping[str, object] | None = None,
) -> Iterator[ForkedBrokers]:
    """Run forked brokers in a folder of their own, on a store of their own unless ``redis_url`` names one.

    They share ``BUCKETS`` buckets unless ``settings`` contain another number.
    """
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="onewriter-"))
        forked = ForkedBrokers(
            Path(folder),
            brokers=brokers,
            manifests=manifests,
            redis_url=redis_url or stack.enter_context(running_server()).url,
            supervised=False,
            settings={"buckets": BUCKETS} | dict(settings or {}),
        )
        try:
            forked.start()
            yield forked
        except BaseException as error:
            error.add_note(f"the brokers' log ends with:\n{forked.log_end()}")
            raise
        finally:
            forked.stop()
