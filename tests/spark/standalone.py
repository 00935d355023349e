"""A Spark of several processes: a standalone master and two workers, each with its own loopback address.

Executors are child processes of the workers, and have their own Python processes. The tests can find, stop and kill
all of them, and none is left when the cluster ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyspark

from onewriter_testing.ports import free_ports

MASTER_HOST = "127.0.0.1"
WORKER_HOSTS = ("127.0.0.2", "127.0.0.3")
START_SECONDS_MAX = 300.0
POLL_SECONDS = 0.05

EXECUTOR = "CoarseGrainedExecutorBackend"
PYTHON_DAEMON = "pyspark.daemon"

_SMALL_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
_GONE = (FileNotFoundError, ProcessLookupError)

DRIVER_SETTINGS = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": _SMALL_JAVA,
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.network.timeout": "15s",
    "spark.network.timeoutInterval": "1s",
    "spark.storage.blockManagerHeartbeatTimeoutMs": "15000",
    "spark.executor.heartbeatInterval": "1s",
}
"""Settings in addition to those of all tests: one task at a time in each executor, and an executor that is silent
for 15 s is lost.

A slow executor is not lost, because there are only two, and a repeated task needs the other one.
"""


def descendants(process_id: int) -> dict[int, str]:
    """The command lines of all descendants of a process, by process id."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(*_GONE):
            if entry.name.isdigit():
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found: dict[int, str] = {}
    waiting = list(parents.get(process_id, ()))
    while waiting:
        child = waiting.pop()
        waiting += parents.get(child, [])
        with contextlib.suppress(*_GONE):
            found[child] = Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ")
    return found


def is_gone(process_id: int) -> bool:
    """Whether a process has ended, even as a zombie. A stopped process has not ended."""
    with contextlib.suppress(*_GONE):
        return not Path(f"/proc/{process_id}/cmdline").read_bytes()
    return True


def kill_all(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all its descendants, including stopped ones."""
    found = descendants(process.pid)
    process.kill()
    process.wait()
    for each in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)


class Standalone:
    """The cluster; ``url`` is the address of the master."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_ports(2)
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        return f"spark://{MASTER_HOST}:{self._port}"

    def start(self) -> None:
        """Start it, and wait until both workers are registered with the master."""
        here = ("--host", MASTER_HOST, "--port", str(self._port))
        self._spawn("master", "Master", *here, "--webui-port", str(self._port + 1))
        wait_until(self._listens)  # a worker that starts too early tries again only after 10 s
        for host in WORKER_HOSTS:
            size = ("--cores", "1", "--memory", "600m", "--webui-port", "0")
            work = ("--work-dir", str(self._folder / "work"))
            self._spawn(host, "Worker", "--host", host, *size, *work, self.url)
        wait_until(self._knows_both_workers)

    def stop(self) -> None:
        """Kill all its processes."""
        for process in self._processes:
            kill_all(process)

    def executors(self) -> list[int]:
        """The process ids of the executors' Java processes."""
        return self._found(EXECUTOR)

    def python_processes(self) -> list[int]:
        """The Python processes of the executors' tasks, and those that start them."""
        return self._found(PYTHON_DAEMON)

    def _found(self, what: str) -> list[int]:
        return [
            each
            for process in self._processes
            for each, words in descendants(process.pid).items()
            if what in words
        ]

    def _spawn(self, name: str, what: str, *words: str) -> None:
        program = Path(pyspark.__file__).parent / "bin" / "spark-class"
        environment = os.environ | {
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": _SMALL_JAVA,
            "SPARK_LOCAL_IP": MASTER_HOST,
            "PYSPARK_PYTHON": sys.executable,
        }
        kind = what.lower()
        command = [str(program), f"org.apache.spark.deploy.{kind}.{what}", *words]
        with (self._folder / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(command, stdout=log, stderr=log, env=environment)
            )

    def _listens(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((MASTER_HOST, self._port)):
            return True
        return False

    def _knows_both_workers(self) -> bool:
        """Whether both have asked to be registered. A worker that gets no answer for a while asks again."""
        log = self._log("master")
        return all(f"Registering worker {host}:" in log for host in WORKER_HOSTS)

    def _log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text(errors="replace")


@contextlib.contextmanager
def standalone(folder: Path) -> Iterator[Standalone]:
    """A running cluster with its logs in a folder."""
    cluster = Standalone(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def wait_until(holds: Callable[[], bool], seconds: float = START_SECONDS_MAX) -> None:
    """Wait for a condition. Raises TimeoutError."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:g} s")
        time.sleep(POLL_SECONDS)
