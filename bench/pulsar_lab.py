"""A real Apache Pulsar standalone to compare with, from Maven's jars, on loopback ports.

Here: fetching the jars once, starting, asking whether it is ready, stopping, and what it used.
What is measured on it is in scenarios.py, takeover.py and go_perf.py, which know no broker.

By hand: ``python -m bench.pulsar_lab --help``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from types import FrameType
from typing import NoReturn, Self

from bench.machine import (
    LabUnavailable,
    ProcessUsage,
    cache_directory,
    exclusive_use,
    process_usage,
    run_tool,
    stop_process,
)

from onewriter_testing.ports import free_ports

PULSAR_VERSION = "4.0.7"
"""Must be the version in pom.xml."""

FETCH_TIMEOUT_SECONDS = 1200.0
START_TIMEOUT_SECONDS = 400.0
STOP_GRACE_SECONDS = 10.0
PROBE_TIMEOUT_SECONDS = 10.0
LOG_LINES_MAX = 12
"""Of its log in an error message: the first complaints, which name the cause."""
PROBE_INTERVAL_SECONDS = 0.5

_COPY_JARS = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"

# A proxy from the environment is no way to a server on this machine.
_LOOPBACK = urllib.request.build_opener(urllib.request.ProxyHandler({}))

_OPENED_PACKAGES = (
    "java.base/java.io",
    "java.base/java.nio",
    "java.base/java.util.zip",
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.platform",
    "java.base/sun.net",
    "java.management/sun.management",
    "jdk.management/com.sun.management.internal",
)


def _require(program: str, hint: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise LabUnavailable(f"{program} is not on PATH: {hint}")
    return path


def fetch_jars() -> Path:
    """The directory with Pulsar's jars, fetched if they are not there yet (235 MB, minutes).

    Raises LabUnavailable when Maven is missing or cannot fetch them.
    """
    cache = cache_directory(f"pulsar-{PULSAR_VERSION}")
    jars = cache / "lib"
    with exclusive_use(cache):
        if jars.is_dir():
            return jars
        maven = _require("mvn", "Maven fetches Pulsar's jars (Debian: apt-get install maven)")
        partial = cache / "lib.partial"
        shutil.rmtree(partial, ignore_errors=True)
        pom = Path(__file__).with_name("pom.xml")
        run_tool(
            [maven, "-q", "-B", "-f", str(pom), _COPY_JARS, f"-DoutputDirectory={partial}"],
            timeout_seconds=FETCH_TIMEOUT_SECONDS,
        )
        # A cache is complete or not there: an interrupted download never looks like one.
        partial.rename(jars)
    return jars


class PulsarStandalone:
    """One Pulsar standalone process with a fresh store, listening on 127.0.0.1 only.

    A context manager: entering starts it and returns once it serves; leaving stops it and, unless
    ``data_directory`` was given, removes its data. Ports default to free ones, never to 6650.
    The journal is synced before each acknowledgement, as Pulsar does by default.
    """

    def __init__(
        self,
        *,
        broker_port: int | None = None,
        http_port: int | None = None,
        data_directory: Path | None = None,
        settings: dict[str, str] | None = None,
    ) -> None:
        free = free_ports(3)
        self.broker_port = broker_port or free
        self.http_port = http_port or free + 1
        self._bookie_port = free + 2
        self._given_data_directory = data_directory
        self._settings = settings or {}
        self._process: subprocess.Popen[bytes] | None = None
        self._cleanup = contextlib.ExitStack()

    @property
    def service_url(self) -> str:
        return f"pulsar://127.0.0.1:{self.broker_port}"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("Pulsar is not running")
        return self._process.pid

    def usage(self) -> ProcessUsage:
        """CPU time since the start and resident memory now, of the server and its children."""
        return process_usage([self.pid])

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it and return once a message passes through it.

        Raises LabUnavailable when Java or Maven is missing, or when it does not come up in
        START_TIMEOUT_SECONDS; the message then quotes its log.
        """
        if self._process is not None:
            raise RuntimeError("Pulsar is running already")
        java = _require("java", "Pulsar needs Java 17 (Debian: apt-get install openjdk-17-jre)")
        jars = fetch_jars()
        with contextlib.ExitStack() as stack:
            directory = self._given_data_directory
            if directory is None:
                directory = Path(
                    stack.enter_context(tempfile.TemporaryDirectory(prefix="onewriter-pulsar-"))
                )
            directory.mkdir(parents=True, exist_ok=True)
            configuration = directory / "standalone.conf"
            configuration.write_text(self._configuration())
            log = stack.enter_context((directory / "pulsar.log").open("wb"))
            self._process = subprocess.Popen(
                self._command(java, jars, directory, configuration),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=directory,
                start_new_session=True,  # Ctrl-C is ours to handle, in order
            )
            stack.callback(self._stop_process)
            self._await_ready(directory / "pulsar.log")
            self._cleanup = stack.pop_all()

    def stop(self) -> None:
        """Stop it by its pid and remove its data; does nothing if it is not running."""
        self._cleanup.close()

    def _stop_process(self) -> None:
        if self._process is not None:
            stop_process(self._process, STOP_GRACE_SECONDS)
            self._process = None

    def _configuration(self) -> str:
        values = {
            "brokerServicePort": str(self.broker_port),
            "webServicePort": str(self.http_port),
            "bindAddress": "127.0.0.1",
            "advertisedAddress": "127.0.0.1",
            "clusterName": "standalone",
            "metadataStoreUrl": "",
            "configurationMetadataStoreUrl": "",
            "zookeeperServers": "",
            "configurationStoreServers": "",
            "managedLedgerDefaultEnsembleSize": "1",
            "managedLedgerDefaultWriteQuorum": "1",
            "managedLedgerDefaultAckQuorum": "1",
            "loadBalancerEnabled": "false",
            # Handed on to the bookie that lives in the same process.
            "listeningInterface": "lo",
            "allowLoopback": "true",
            **self._settings,
        }
        return "".join(f"{key}={value}\n" for key, value in values.items())

    def _command(self, java: str, jars: Path, directory: Path, configuration: Path) -> list[str]:
        return [
            java,
            "-Xmx1536m",
            "-XX:MaxDirectMemorySize=2g",
            "-Dio.netty.tryReflectionSetAccessible=true",
            f"-Djava.io.tmpdir={directory}",
            *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED_PACKAGES),
            "-cp",
            f"{jars}/*",
            "org.apache.pulsar.PulsarStandaloneStarter",
            "--config",
            str(configuration),
            "--no-functions-worker",
            "--no-stream-storage",
            "--bookkeeper-dir",
            str(directory / "bookkeeper"),
            "--metadata-dir",
            str(directory / "metadata"),
            "--bookkeeper-port",
            str(self._bookie_port),
        ]

    def _await_ready(self, log: Path) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                reason = f"ended with exit code {self._process.returncode}"
                break
            if self._serves():
                return
            time.sleep(PROBE_INTERVAL_SECONDS)
        else:
            reason = f"was not ready after {START_TIMEOUT_SECONDS:.0f} s"
        lines = log.read_text(errors="replace").splitlines()
        complaints = [line for line in lines if "Exception" in line or " ERROR " in line]
        text = "\n".join(complaints[:LOG_LINES_MAX] or lines[-LOG_LINES_MAX:])
        raise LabUnavailable(f"Pulsar standalone {reason}; its log says:\n{text}")

    def _serves(self) -> bool:
        """Whether the namespace of the scenarios exists and a message passes through the broker.

        Pulsar's health check publishes a message to a topic of its own and reads it back.
        """
        try:
            namespaces = json.loads(self._get("/admin/v2/namespaces/public"))
            return "public/default" in namespaces and self._get(
                "/admin/v2/brokers/health"
            ).strip() in {b"ok", b'"ok"'}
        except (OSError, ValueError):
            return False  # not listening yet, or an answer from half-way through its start

    def _get(self, path: str) -> bytes:
        with _LOOPBACK.open(self.admin_url + path, timeout=PROBE_TIMEOUT_SECONDS) as response:
            body: bytes = response.read()
            return body


def _end(signal_number: int, frame: FrameType | None) -> NoReturn:
    del signal_number, frame
    raise KeyboardInterrupt


def main() -> int:
    """Run a standalone until Ctrl-C, saying where it listens and, at the end, what it used."""
    parser = argparse.ArgumentParser(prog="python -m bench.pulsar_lab", description=main.__doc__)
    parser.add_argument("--port", type=int, help="of the binary protocol; default: a free one")
    parser.add_argument("--http-port", type=int, help="of the admin API; default: a free one")
    parser.add_argument("--data-dir", type=Path, help="kept afterwards; default: temporary")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _end)
    lab = PulsarStandalone(
        broker_port=arguments.port,
        http_port=arguments.http_port,
        data_directory=arguments.data_dir,
    )
    try:
        with lab:
            print(f"Pulsar {PULSAR_VERSION} serves {lab.service_url} and {lab.admin_url}")
            print(f"pid {lab.pid}; Ctrl-C stops it", flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                signal.pause()
            usage = lab.usage()
            print(
                f"used {usage.cpu_seconds:.1f} s of CPU, {usage.resident_bytes / 1e6:.0f} MB resident"
            )
    except LabUnavailable as error:
        print(f"no Pulsar to compare with: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
