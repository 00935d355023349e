"""``make examples``: run every example that ends by itself, one after the other, with its own broker.

Each example checks its claim and exits with 0 if the claim holds::

    python examples/run.py                      # all
    python examples/run.py zombie_task capture  # some
    python examples/run.py --url pulsar://127.0.0.1:6650 --admin http://127.0.0.1:8080

The last line names the failures. Run examples that do not end by themselves (leader_election.py,
sidecar/, java/) by hand.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from onewriter.testing import running_brokers

FOLDER = Path(__file__).resolve().parent
SECONDS_MAX = 100.0
"""An example ends long before."""

EXAMPLES: dict[str, tuple[str, ...]] = {
    "replicated_log": ("--url", "{url}"),
    "capture": ("--url", "{url}"),
    "single_reader": ("--url", "{url}"),
    "zombie_task": ("--url", "{url}"),
    "task_assignment": ("--url", "{url}"),
    "configuration_map": ("--url", "{url}"),
    "cumulative_ack": ("--url", "{url}"),
    "compacted_leader": (
        "--url",
        "{url}",
        "--admin",
        "{admin}",
        "--changes",
        "25",
        "--interval",
        "0",
    ),
    "uptime_checkers/demo": (),  # with brokers and topics of its own
}
"""The examples, and the arguments of each."""


def run(name: str, service_url: str, http_url: str) -> int:
    """Run one example to its end; its exit code. Nothing that it started is left behind."""
    words = [word.format(url=service_url, admin=http_url) for word in EXAMPLES[name]]
    command = [sys.executable, str(FOLDER / f"{name}.py"), *words]
    with subprocess.Popen(command, start_new_session=True) as process:  # noqa: S603 - our own
        try:
            return process.wait(SECONDS_MAX)
        except subprocess.TimeoutExpired:
            print(f"{name} did not end within {SECONDS_MAX:g} s", flush=True)
            return 1
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def run_all(names: Sequence[str], service_url: str, http_url: str) -> list[str]:
    """Run them; those that failed."""
    failed = []
    for name in names:
        print(f"== {name}", flush=True)
        begun = time.monotonic()
        if run(name, service_url, http_url) == 0:
            print(f"== {name} held, {time.monotonic() - begun:.1f} s", flush=True)
        else:
            print(f"== {name} FAILED", flush=True)
            failed.append(name)
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(EXAMPLES))
    parser.add_argument("--url", help="of brokers that run already")
    parser.add_argument("--admin", default="http://127.0.0.1:8080")
    options = parser.parse_args()
    names = options.names or list(EXAMPLES)
    if unknown := set(names) - set(EXAMPLES):
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    if options.url:
        failed = run_all(names, options.url, options.admin)
    else:
        with running_brokers() as brokers:
            failed = run_all(names, brokers.service_url, brokers.http_url)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")
    print(f"all {len(names)} held", flush=True)


if __name__ == "__main__":
    main()
