"""How soon a killed broker process serves again: its supervisor starts it anew on the same store.

By hand: ``python -m bench.restart [--rounds 5]`` (starts its own onewriter).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import time

from bench import raw_client
from bench.onewriter_lab import Onewriter
from bench.scenarios import new_topic

SERVE_TIMEOUT_SECONDS = 30.0
POLL_SECONDS = 0.005


def measure_restart(lab: Onewriter, *, rounds: int) -> list[float]:
    """Milliseconds from a broker's SIGKILL to the first receipt of its successor, per round."""
    topic = new_topic("restart")
    raw_client.publish(lab.service_url, topic, messages=1, in_flight=1)
    found = []
    for _ in range(rounds):
        killed = lab.pid_of("broker")
        started = time.monotonic()
        os.kill(killed, signal.SIGKILL)
        _publish_when_served(lab, topic, started + SERVE_TIMEOUT_SECONDS)
        found.append((time.monotonic() - started) * 1000)
    return found


def _publish_when_served(lab: Onewriter, topic: str, deadline: float) -> None:
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            raw_client.publish(lab.service_url, topic, messages=1, in_flight=1)
            return
        time.sleep(POLL_SECONDS)
    raise TimeoutError(f"the broker did not serve again within {SERVE_TIMEOUT_SECONDS:.0f} s")


def main() -> None:
    """Kill the broker again and again and print how long each restart took."""
    parser = argparse.ArgumentParser(prog="python -m bench.restart", description=main.__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with Onewriter() as lab:
        found = measure_restart(lab, rounds=arguments.rounds)
    listed = ", ".join(f"{milliseconds:.0f}" for milliseconds in found)
    print(f"serves again after {statistics.median(found):.0f} ms ({listed})")


if __name__ == "__main__":
    main()
