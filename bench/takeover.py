"""How long a topic stays without a writer when its writer dies, freezes or leaves.

Two processes with the stock Python client, both asking WaitForExclusive for one topic. The leader
publishes one message after the other; the injector (this process) makes it fail and stamps that
instant itself; the other one leads. Every process stamps with the machine's monotonic clock, which
they share. Leaderless window = last successful append of the old leader to the first of the new.

The client answers pings from an I/O thread, so an application that merely hangs looks alive to
any broker; SIGSTOP, as used here, stops that thread too.

By hand: ``python -m bench.takeover SERVICE_URL --rounds 10 --fault crash``.
"""

from __future__ import annotations

import argparse
import contextlib
import enum
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pulsar
from bench.scenarios import MESSAGE_BYTES, Latencies, new_topic

QUEUE_SETTLE_SECONDS = 0.5
"""From a waiter's request to the fault: the client does not tell when it is queued."""

START_TIMEOUT_SECONDS = 30.0
TAKEOVER_TIMEOUT_SECONDS = 120.0
POLL_SECONDS = 0.002

_NO_CREATION_TIMEOUT_SECONDS = 2**31 - 1
"""Else the C++ client gives up waiting after its operation timeout, 30 s by default."""


class Fault(enum.Enum):
    """What happens to the leader."""

    CRASH = "crash"
    """SIGKILL: the kernel closes its sockets."""
    SILENT = "silent"
    """SIGSTOP: its sockets stay open, and it does not answer."""
    PLANNED = "planned"
    """It closes its producer."""


_SIGNALS = {
    Fault.CRASH: signal.SIGKILL,
    Fault.SILENT: signal.SIGSTOP,
    Fault.PLANNED: signal.SIGTERM,
}


@dataclass(frozen=True, slots=True)
class Round:
    """One takeover, in milliseconds."""

    leaderless: float
    """Last successful append of the old leader to the first of the new."""
    fault_to_granted: float
    """The fault to the moment when the waiter's ``create_producer`` returned."""
    fault_to_append: float
    """The fault to the new leader's first receipt."""


@dataclass(frozen=True, slots=True)
class TakeoverFigures:
    fault: Fault
    rounds: tuple[Round, ...]

    def __str__(self) -> str:
        columns = {
            "leaderless": [done.leaderless for done in self.rounds],
            "fault to granted": [done.fault_to_granted for done in self.rounds],
            "fault to first append": [done.fault_to_append for done in self.rounds],
        }
        return "\n".join(
            f"{self.fault.value}, {label}: {Latencies.of(samples)}"
            for label, samples in columns.items()
        )


class _Candidate:
    """A process that wants to lead, and the file in which it notes what happened to it."""

    def __init__(self, service_url: str, topic: str, notes: Path) -> None:
        self._notes = notes
        notes.touch()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.takeover", service_url, topic, "--notes", str(notes)],
            cwd=Path(__file__).parent.parent,
            stdin=subprocess.DEVNULL,
        )

    def stamps(self, event: str) -> list[int]:
        """When this happened, in nanoseconds. A line cut off by a kill is not counted."""
        lines = self._notes.read_text().split("\n")[:-1]
        return [int(stamp) for name, stamp in map(str.split, lines) if name == event]

    def wait_for(self, event: str, timeout_seconds: float) -> int:
        """When this first happened; raises TimeoutError or RuntimeError if it never does."""
        deadline = time.monotonic() + timeout_seconds
        while time.monotonic() < deadline:
            if found := self.stamps(event):
                return found[0]
            if self._process.poll() is not None:
                raise RuntimeError(f"a candidate ended with {self._process.returncode}")
            time.sleep(POLL_SECONDS)
        raise TimeoutError(f"a candidate had no {event} after {timeout_seconds:.0f} s")

    def inject(self, fault: Fault) -> int:
        """Make it fail; returns the stamp taken just before."""
        stamp = time.monotonic_ns()
        self._process.send_signal(_SIGNALS[fault])
        return stamp

    def end(self) -> None:
        """Kill it, frozen or not, and wait until it is gone."""
        self._process.kill()
        self._process.wait()


def measure_takeovers(service_url: str, *, fault: Fault, rounds: int) -> TakeoverFigures:
    """Let the leader fail ``rounds`` times, at least twice, with one waiter each time.

    Raises TimeoutError if the waiter does not lead within TAKEOVER_TIMEOUT_SECONDS after a fault, RuntimeError if it
    led before the fault.
    """
    topic = new_topic(f"takeover-{fault.value}")
    results = []
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onewriter-")))

        def join(number: int) -> _Candidate:
            candidate = _Candidate(service_url, topic, directory / str(number))
            stack.callback(candidate.end)
            return candidate

        leader = join(0)
        leader.wait_for("appended", START_TIMEOUT_SECONDS)
        for number in range(1, rounds + 1):
            waiter = join(number)
            waiter.wait_for("asking", START_TIMEOUT_SECONDS)
            time.sleep(QUEUE_SETTLE_SECONDS)
            fault_at = leader.inject(fault)
            appended_at = waiter.wait_for("appended", TAKEOVER_TIMEOUT_SECONDS)
            if appended_at < fault_at:
                raise RuntimeError("the waiter wrote while the leader was still there")
            (granted_at,) = waiter.stamps("granted")
            last_append_at = leader.stamps("appended")[-1]
            leader.end()
            results.append(
                Round(
                    leaderless=(appended_at - last_append_at) / 1e6,
                    fault_to_granted=(granted_at - fault_at) / 1e6,
                    fault_to_append=(appended_at - fault_at) / 1e6,
                )
            )
            leader = waiter
    return TakeoverFigures(fault, tuple(results))


def _run_candidate(service_url: str, topic: str, notes: Path) -> None:
    """Wait for the topic, then publish one message after the other until ended."""
    payload = bytes(MESSAGE_BYTES)
    leaving = False

    def leave(number: int, frame: object) -> None:
        del number, frame
        nonlocal leaving
        leaving = True

    signal.signal(signal.SIGTERM, leave)
    client = pulsar.Client(
        service_url,
        operation_timeout_seconds=_NO_CREATION_TIMEOUT_SECONDS,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    # One write call per line, unbuffered: what happened before a kill is in the file.
    with notes.open("ab", buffering=0) as file:

        def note(event: str) -> None:
            file.write(f"{event} {time.monotonic_ns()}\n".encode())

        note("asking")
        producer = client.create_producer(
            topic, access_mode=pulsar.ProducerAccessMode.WaitForExclusive, batching_enabled=False
        )
        note("granted")
        while not leaving:
            producer.send(payload)
            note("appended")
        producer.close()
    client.close()


def main() -> None:
    """Measure takeovers on a broker, or be one of the candidates (with --notes)."""
    parser = argparse.ArgumentParser(prog="python -m bench.takeover", description=main.__doc__)
    parser.add_argument("service_url")
    parser.add_argument("topic", nargs="?", help="of a candidate; measuring uses a new one")
    parser.add_argument("--notes", type=Path, help="the file of a candidate")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--fault", type=Fault, choices=list(Fault), default=Fault.CRASH)
    arguments = parser.parse_args()
    if arguments.notes is not None:
        _run_candidate(arguments.service_url, arguments.topic, arguments.notes)
    else:
        print(
            measure_takeovers(arguments.service_url, fault=arguments.fault, rounds=arguments.rounds)
        )


if __name__ == "__main__":
    main()
