"""A demonstration of PIP-440's uptime checkers: hosts are killed, and the checkers are counted.

It starts a broker (``pip install '.[broker,embedded]' pulsar-client``), M hosts and a few
standbys (checker.py, each a process), and kills the hosts one after the other with ``kill -9``::

    python demo.py --priorities chosen
    python demo.py --priorities balanced --endpoints 24 --hosts 6

After each kill every endpoint must have a checker again, and no standby may have one while a host is
alive. No host may have more than ceil(N / hosts left) + 1 endpoints: with chosen priorities after the
first loss, for which they were computed; with balanced, after each. Otherwise the program fails.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar

from onewriter.testing import running_brokers

SECONDS_MAX = 60.0
OPERATION_SECONDS = 120
"""The client's time limit for the subscription: the brokers of a busy machine need a while at first."""

POLL_SECONDS = 0.05
CHECKER = Path(__file__).with_name("checker.py")
POLICIES = {"chosen": "Priority", "balanced": "Balanced"}

MANIFEST = """
apiVersion: onewriter.dev/v1alpha1
kind: ExclusiveTopic
metadata: {{name: check-{endpoint}}}
spec:
  topic: persistent://public/default/check-{endpoint}
  access: {{modes: [Exclusive, WaitForExclusive], requireClaim: false}}
  promotion: {{policy: {policy}}}
"""


class Stage:
    """The hosts as processes, and who checks what by the topics' own messages."""

    def __init__(self, service_url: str, http_url: str, options: argparse.Namespace) -> None:
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._service_url = service_url
        self._http_url = http_url
        self._options = options
        self._latest: dict[int, str] = {}
        self._client = pulsar.Client(
            service_url,
            operation_timeout_seconds=OPERATION_SECONDS,
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        )
        self._results = self._client.subscribe(
            [f"persistent://public/default/check-{n}" for n in range(options.endpoints)],
            "dashboard",
        )

    def start(self, name: str, number: int, *, standby: bool = False) -> None:
        """Start a host, and wait until it leads each endpoint or waits for it."""
        words = ["--url", self._service_url, "--name", name, "--number", str(number)]
        words += ["--hosts", str(self._options.hosts)]
        words += ["--endpoints", str(self._options.endpoints)]
        words += ["--priorities", self._options.priorities]
        words += ["--standby"] if standby else []
        command = [sys.executable, str(CHECKER), *words]
        self.processes[name] = subprocess.Popen(command)  # noqa: S603 - our own program
        wait_until(self._all_asked, f"{name} stands in every line")

    def kill(self, name: str) -> None:
        """``kill -9``: the broker sees the connection end, and promotes."""
        process = self.processes.pop(name)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()

    def load(self) -> Counter[str]:
        """Endpoints by the host that checks them, once living hosts check them all."""
        self._latest.clear()
        wait_until(self._all_checked, "every endpoint is checked")
        return Counter(self._latest.values())

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
        self._client.close()

    def _all_asked(self) -> bool:
        count = len(self.processes)
        return all(
            int(topic.get("waiting", 0)) + (topic.get("holder") is not None) == count
            for topic in map(self._status, range(self._options.endpoints))
        )

    def _status(self, endpoint: int) -> Any:
        path = f"/onewriter/v1/topics/public/default/check-{endpoint}"
        found = self._ask(self._http_url + path)
        if found["served"]:
            return found
        owner = found["owner"]  # it knows who waits; None while the topic moves to another broker
        return {} if owner is None else self._ask(owner["httpUrl"] + path)

    @staticmethod
    def _ask(address: str) -> Any:
        with urllib.request.urlopen(address, timeout=SECONDS_MAX) as answer:  # noqa: S310 - http
            return json.load(answer)

    def _all_checked(self) -> bool:
        with contextlib.suppress(pulsar.Timeout):
            while True:
                message = self._results.receive(timeout_millis=100)
                result = json.loads(message.data())
                self._results.acknowledge(message)
                if result["host"] in self.processes:
                    self._latest[result["endpoint"]] = result["host"]
                if len(self._latest) == self._options.endpoints:
                    break
        return len(self._latest) == int(self._options.endpoints)


def wait_until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not holds():
        if time.monotonic() > deadline:
            raise SystemExit(f"it did not come about that {what}")
        time.sleep(POLL_SECONDS)


@contextlib.contextmanager
def staged(options: argparse.Namespace) -> Iterator[Stage]:
    policy = POLICIES[options.priorities]
    manifests = "---".join(
        MANIFEST.format(endpoint=endpoint, policy=policy) for endpoint in range(options.endpoints)
    )
    with running_brokers(manifests=manifests, brokers=options.brokers) as brokers:
        stage = Stage(brokers.service_url, brokers.http_url, options)
        try:
            yield stage
        finally:
            stage.close()


def show(stage: Stage, most_allowed: int, what: str) -> None:
    """Count, print, and end with an error where a host has too much or a standby anything."""
    load = stage.load()
    words = "  ".join(f"{name} {load[name]}" for name in sorted(stage.processes))
    print(f"{what:32} {words}", flush=True)
    if max(load.values()) > most_allowed:
        raise SystemExit(f"one host checks {max(load.values())}; at most {most_allowed} are fair")
    idle = [name for name in load if name.startswith("standby")]
    if idle and any(name.startswith("host") for name in stage.processes):
        raise SystemExit(f"{idle} was to be left alone while a host lives")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--priorities", choices=list(POLICIES), default="balanced")
    parser.add_argument("--endpoints", type=int, default=12)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--standbys", type=int, default=2)
    parser.add_argument("--brokers", type=int, default=1)
    options = parser.parse_args()

    with staged(options) as stage:
        for number in range(options.hosts):
            stage.start(f"host-{number}", number)
        for number in range(options.standbys):
            stage.start(f"standby-{number}", number, standby=True)
        first = stage.load()
        if first != Counter({"host-0": options.endpoints}):
            raise SystemExit(
                "a holder keeps its topic: the first host should have all endpoints, but"
                f" {dict(first)} have them"
            )
        print(f"{'the first one took them all':32} host-0 {first['host-0']}", flush=True)
        for number in range(options.hosts - 1):
            stage.kill(f"host-{number}")
            fair = math.ceil(options.endpoints / (options.hosts - number - 1)) + 1
            # Priorities were chosen for the loss of one host; the brokers balance for any.
            is_promised = options.priorities == "balanced" or number == 0
            allowed = fair if is_promised else options.endpoints
            show(stage, allowed, f"host-{number} was killed")
        stage.kill(f"host-{options.hosts - 1}")
        standbys = sorted(stage.load())
        print(f"{'no host is left':32} {'  '.join(standbys)}", flush=True)
    print("held", flush=True)


if __name__ == "__main__":
    main()
