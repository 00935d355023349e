"""The long attack of ``make soak``: hostile frames and requests against a broker, a sidecar and the webhook.

    python -m tests.attacks.fuzzing.campaign [--frames 250000] [--requests 50000] [--seed 1]

Two brokers run, each with a Valkey of its own. A bystander publishes to the first one, a message each 20 ms. In the
control run the attackers attack the second broker, in the attack the first one: the machine is as busy in both, so
the ratio of the bystander's latencies is what the attack itself costs. The run fails if a process was killed or
restarted, wrote a traceback, or held more than ``MEMORY_RATIO_MAX`` of its idle memory, and if the bystander lost a
message or its p99 rose above ``LATENCY_RATIO_MAX`` of the control run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.integration.raw import EXCLUSIVE, RawClient

from onewriter_broker.local.ports import free_ports
from onewriter_broker.testing import LocalBrokers, running_brokers

MEMORY_RATIO_MAX = 1.5
LATENCY_RATIO_MAX = 2.0

WIRE_SHARE = 3
"""Attackers of the wire protocol; one more attacks HTTP."""

PAUSE_SECONDS = 0.02
SAMPLE_SECONDS = 0.5
DEFECTS = ("Traceback", "http.defect", "connection.failed")


@dataclass(slots=True)
class Bystander:
    """Publishes to a broker until it is stopped, and measures each receipt."""

    broker: LocalBrokers
    latencies_seconds: list[float] = field(default_factory=list)
    failure: str = ""
    _over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        try:
            with RawClient(self.broker.address()) as client:
                producer = client.producer("bystander", EXCLUSIVE)
                while not self._over.wait(PAUSE_SECONDS):
                    before = time.perf_counter()
                    producer.publish(b"still the writer")
                    self.latencies_seconds.append(time.perf_counter() - before)
        except Exception as error:  # noqa: BLE001 - reported at the end of the run
            self.failure = f"{type(error).__name__}: {error}"

    def stop(self) -> None:
        self._over.set()

    def p99_ms(self) -> float:
        ordered = sorted(self.latencies_seconds)
        return 1000 * ordered[int(0.99 * (len(ordered) - 1))] if ordered else float("inf")


@dataclass(slots=True)
class Victim:
    """A process that is attacked: whether it lives, what it wrote, and what memory it held."""

    name: str
    pid: int
    log: Path
    idle_bytes: int = 0
    peak_bytes: int = 0

    def __post_init__(self) -> None:
        self.idle_bytes = self.peak_bytes = self.resident_bytes()

    def resident_bytes(self) -> int:
        with contextlib.suppress(OSError):
            pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
            return pages * os.sysconf("SC_PAGE_SIZE")
        return 0

    def sample(self) -> None:
        self.peak_bytes = max(self.peak_bytes, self.resident_bytes())

    def complaints(self) -> Iterator[str]:
        if not self.resident_bytes():
            yield f"{self.name}: process {self.pid} has ended"
        text = self.log.read_text(errors="replace")
        for defect in DEFECTS:
            if defect in text:
                at = text.index(defect)
                yield f"{self.name}: {defect} in its log:\n{text[max(at - 300, 0) : at + 1500]}"
        if self.peak_bytes > MEMORY_RATIO_MAX * self.idle_bytes:
            ratio = self.peak_bytes / self.idle_bytes
            yield f"{self.name}: {ratio:.2f} times its idle memory, at most {MEMORY_RATIO_MAX} is allowed"


def attack(commands: Sequence[Sequence[str]], victims: Sequence[Victim]) -> int:
    """Run the attackers side by side to their end; how many pieces they sent."""
    program = (sys.executable, "-m", "tests.attacks.fuzzing.attackers")
    running = [
        subprocess.Popen((*program, *command), stdout=subprocess.PIPE, text=True)
        for command in commands
    ]
    while any(process.poll() is None for process in running):
        for victim in victims:
            victim.sample()
        time.sleep(SAMPLE_SECONDS)
    return sum(json.loads(process.communicate()[0])["pieces"] for process in running)


def attackers_of(
    broker: LocalBrokers, frames: int, requests: int, seed: int
) -> list[tuple[str, ...]]:
    host, port = broker.address()
    http_port = broker.http_url.rpartition(":")[2]
    return [
        *(
            ("wire", host, str(port), str(seed + number), str(frames // WIRE_SHARE))
            for number in range(WIRE_SHARE)
        ),
        ("http", host, http_port, str(seed), str(requests), "broker"),
    ]


@contextlib.contextmanager
def process(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as output:
        started = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield started
    finally:
        started.terminate()
        started.wait(30)


def measured(
    broker: LocalBrokers, commands: Sequence[Sequence[str]], victims: Sequence[Victim]
) -> tuple[Bystander, int]:
    """Attack while a bystander publishes to ``broker``."""
    bystander = Bystander(broker)
    thread = threading.Thread(target=bystander.run)
    thread.start()
    try:
        sent = attack(commands, victims)
    finally:
        bystander.stop()
        thread.join()
    return bystander, sent


def campaign(frames: int, requests: int, seed: int) -> list[str]:
    """The whole campaign; its complaints."""
    with contextlib.ExitStack() as stack:
        first, second = (stack.enter_context(running_brokers()) for _ in range(2))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onewriter-fuzz-")))
        sidecar_port, webhook_port = free_ports(1), free_ports(1)
        sidecar = stack.enter_context(
            process(
                (
                    *(sys.executable, "-m", "onewriter_core.command", "sidecar"),
                    *("--topic", "sidecar", "--service-url", first.service_url),
                    *("--port", str(sidecar_port)),
                ),
                folder / "sidecar.log",
            )
        )
        webhook = stack.enter_context(
            process(
                (
                    *(sys.executable, "-m", "tests.attacks.fuzzing.webhook"),
                    *(str(folder), str(webhook_port)),
                ),
                folder / "webhook.log",
            )
        )
        for port in (sidecar_port, webhook_port):
            _wait_listening(port)
        victims = [
            Victim("broker", first.pid(), first.directory / "brokers.log"),
            Victim("sidecar", sidecar.pid, folder / "sidecar.log"),
            Victim("webhook", webhook.pid, folder / "webhook.log"),
        ]
        pid = first.pid()
        control, sent = measured(first, attackers_of(second, frames, requests, seed), ())
        report("control", control, sent)
        attacked, sent = measured(first, attackers_of(first, frames, requests, seed), victims)
        report("attack", attacked, sent)
        beside = attack(
            [
                ("http", "127.0.0.1", str(sidecar_port), str(seed), str(requests // 5), "sidecar"),
                ("http", "127.0.0.1", str(webhook_port), str(seed), str(requests // 5), "webhook"),
            ],
            victims,
        )
        print(f"sidecar and webhook: {beside} requests")
        complaints = [each for victim in victims for each in victim.complaints()]
        if first.pid() != pid:
            complaints.append(f"broker: process {pid} was replaced by {first.pid()}")
        for name, bystander in (("control", control), ("attack", attacked)):
            if bystander.failure:
                complaints.append(f"bystander, {name}: {bystander.failure}")
        ratio = attacked.p99_ms() / control.p99_ms()
        print(f"bystander's p99: {ratio:.2f} times the control run")
        if ratio > LATENCY_RATIO_MAX:
            complaints.append(
                f"bystander: p99 {ratio:.2f} times the control run, at most {LATENCY_RATIO_MAX}"
            )
        for victim in victims:
            print(
                f"{victim.name}: memory at most {victim.peak_bytes / victim.idle_bytes:.2f} times its idle one"
            )
        return complaints


def _wait_listening(port: int, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing listens on port {port}")
        time.sleep(0.1)


def report(name: str, bystander: Bystander, sent: int) -> None:
    number = len(bystander.latencies_seconds)
    print(
        f"{name}: {sent} frames and requests; bystander: {number} receipts, p99 {bystander.p99_ms():.1f} ms"
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--frames", type=int, default=250_000)
    parser.add_argument("--requests", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    complaints = campaign(options.frames, options.requests, options.seed)
    for complaint in complaints:
        print(f"FAILED {complaint}")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
