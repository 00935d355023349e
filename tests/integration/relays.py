"""The loopback relay as a process, as in a pod: a sidecar without a topic."""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Iterator
from pathlib import Path

from tests.integration.forked import fork
from tests.integration.http_calls import Http
from tests.integration.raw import eventually

from onewriter.sidecar.cli import sidecar
from onewriter_testing.ports import free_ports

STOP_SECONDS_MAX = 120.0
_METRIC = re.compile(r"^onewriter_sidecar_(relay_\w+(?:\{.*\})?) (\S+)$", re.MULTILINE)


def _main() -> None:
    sidecar(args=[], prog_name="onewriter sidecar")


class RelayProcess:
    """The URL for stock clients, and the metrics."""

    def __init__(self, port: int, health_port: int) -> None:
        self.port = port
        self.url = f"pulsar://127.0.0.1:{port}"
        self._probes = Http(f"http://127.0.0.1:{health_port}")

    def is_ready(self) -> bool:
        with contextlib.suppress(OSError):
            return self._probes("GET", "/readyz")[0] == 200
        return False

    def metrics(self) -> dict[str, float]:
        _, text = self._probes("GET", "/metrics")
        return {name: float(value) for name, value in _METRIC.findall(text)}


@contextlib.contextmanager
def running_relay(folder: Path, service_url: str, **settings: object) -> Iterator[RelayProcess]:
    """Run a relay to the brokers of the URL."""
    port, health_port = free_ports(1), free_ports(1)
    chosen = {
        "relay_port": port,
        "service_url": service_url,
        "health_host": "127.0.0.1",
        "health_port": health_port,
    } | settings
    environment = {f"ONEWRITER_SIDECAR_{key.upper()}": str(value) for key, value in chosen.items()}
    log = folder / "relay.log"
    process = fork(_main, log=log, environment=environment)
    relay = RelayProcess(port, health_port)
    try:
        eventually(relay.is_ready)
        yield relay
    except BaseException as error:
        error.add_note(log.read_text(errors="replace"))
        raise
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_SECONDS_MAX) == 0
