"""A store without memory for a rewrite, or without space for its file: brokers show it, and nothing acknowledged is lost.

The process is limited by ``prlimit``. A file that cannot be written under ``appendfsync always`` ends the process
(test_full_volume.py); test_store_cluster.py has the same with brokers on a cluster.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
import redis.exceptions
from tests.integration.bare_brokers import bare_broker, declared, settle
from tests.integration.continuous_writer import ContinuousWriter
from tests.integration.http_calls import Http
from tests.integration.raw import eventually
from tests.servers import StoreServer, running_server

from onewriter_testing.processes import LocalBrokers

pytestmark = pytest.mark.timeout(360)

USER = 65_534 if os.geteuid() == 0 else None
"""The user of a store whose number of processes is limited (None: that of the test): the limit does not apply to root."""


class UnprivilegedServer(StoreServer):
    """A server that does not run as root."""

    def _popen(self, words: list[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        program = shutil.copy(words[0], self.folder)  # its own folder may be closed to the user
        return subprocess.Popen([program, *words[1:]], stdout=log, stderr=log, user=USER)

    def limit(self, which: int, value: int = resource.RLIM_INFINITY) -> None:
        """Set the limit of processes, or lift it, as the same user: even root may need a capability for it."""
        assert which == resource.RLIMIT_NPROC
        soft = resource.getrlimit(which)[0] if value < 0 else value
        word = "unlimited" if soft < 0 else str(soft)
        command = ["prlimit", f"--pid={self.process_id}", f"--nproc={word}:"]
        subprocess.run(command, check=True, user=USER)


@contextlib.contextmanager
def unprivileged_server() -> Iterator[StoreServer]:
    with tempfile.TemporaryDirectory(prefix="ow-") as folder:
        Path(folder).chmod(0o777)
        server = UnprivilegedServer(folder=Path(folder))
        try:
            server.start()
            yield server
        finally:
            server.kill()


def faults(brokers: LocalBrokers) -> str:
    """Return the metric of the store's faults."""
    lines: list[str] = Http(brokers.http_url)("GET", "/metrics")[1].splitlines()
    return next(line for line in lines if line.startswith("onewriter_store_shard_faults{"))


def test_a_rewrite_without_memory_is_shown_and_writers_continue(topic: str) -> None:
    """The process cannot fork. Its file grows on, and is rewritten when it can."""
    with (
        unprivileged_server() as server,
        bare_broker(server.url) as brokers,
        ContinuousWriter(topic, brokers) as writer,
    ):
        writer.has_acked(50)
        server.limit(resource.RLIMIT_NPROC, 1)
        with pytest.raises(redis.exceptions.ResponseError):
            server.command("BGREWRITEAOF")
        assert "fork:" in server.log_text()
        brokers.wait_for_event(
            "store.fault", lambda event: "could not be rewritten" in str(event["fault"])
        )
        assert faults(brokers).endswith(" 1.0")
        writer.has_stored(100)
        server.limit(resource.RLIMIT_NPROC)
        server.command("BGREWRITEAOF")
        brokers.wait_for_event("store.fault_ended")
        eventually(
            lambda: faults(brokers).endswith(" 0.0"), what="the fault is shown after its end"
        )
        writer.has_stored(50)
        assert settle(writer, [brokers], server.url) == 0
        assert len(writer.epochs) == 1


def test_a_file_that_cannot_be_written_holds_writers_up_and_is_shown(topic: str) -> None:
    """With ``appendfsync everysec`` the process stays, and refuses writes until there is space again."""
    with (
        running_server(appendfsync="everysec") as server,
        bare_broker(
            server.url,
            manifests=declared((topic, "None")),
            settings={"minimum_durability": "None"},
        ) as brokers,
        ContinuousWriter(topic, brokers) as writer,
    ):
        writer.has_acked(50)
        server.limit(resource.RLIMIT_FSIZE, server.append_only_bytes())
        brokers.wait_for_event(
            "store.fault", lambda event: "could not be written" in str(event["fault"])
        )
        assert faults(brokers).endswith(" 1.0")
        stopped_at = writer.at_rest()
        assert len(writer.acked) == stopped_at
        server.limit(resource.RLIMIT_FSIZE)
        brokers.wait_for_event("store.fault_ended")
        writer.has_stored(50)
        assert settle(writer, [brokers], server.url) == 0
        assert len(writer.epochs) == 1
