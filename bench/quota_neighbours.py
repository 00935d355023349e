"""What a tenant at its limit costs its neighbours: p99 of a bystander's publish beside it, and alone.

By hand: ``python -m bench.quota_neighbours [--messages 500]`` (starts a broker of its own, on loopback).
The goal is a ratio of 2 or less.
"""

from __future__ import annotations

import argparse
import threading
import time

from tests.integration.raw import RawClient

from onewriter_testing.in_process import in_process_broker

LIMIT_BYTES = 2_000_000
GREEDY_CONNECTIONS = 4
PAUSE_SECONDS = 0.005


def p99_ms(address: tuple[str, int], messages: int) -> float:
    """Number of publishes in sequence."""
    producer = RawClient(address).producer("persistent://public/calm/t")
    taken = []
    for _ in range(messages):
        began = time.perf_counter()
        producer.publish(bytes(100))
        taken.append(time.perf_counter() - began)
        time.sleep(PAUSE_SECONDS)
    return 1000 * sorted(taken)[int(0.99 * (messages - 1))]


def flood(address: tuple[str, int], number: int) -> None:
    """Send until the broker reads no more, or is gone."""
    try:
        producer = RawClient(address).producer(f"many-{number}")
        while True:
            producer.send(bytes(50_000))
    except Exception:  # noqa: BLE001 - the connection ends with the broker
        return


def measured(messages: int, *, is_flooded: bool) -> float:
    """One run with a broker of its own."""
    settings = {
        "quota_stored_bytes_per_namespace": LIMIT_BYTES,
        "allow_undeclared": "public/default,public/calm",
    }
    with in_process_broker(settings=settings) as broker:
        host, _, port = broker.service_url.removeprefix("pulsar://").partition(":")
        address = host, int(port)
        if is_flooded:
            for number in range(GREEDY_CONNECTIONS):
                threading.Thread(target=flood, args=(address, number), daemon=True).start()
            time.sleep(3.0)  # until the tenant is at its limit
        return p99_ms(address, messages)


def main() -> None:
    """Print both figures and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=500)
    messages = parser.parse_args().messages
    control = measured(messages, is_flooded=False)
    beside = measured(messages, is_flooded=True)
    print(f"alone {control:.1f} ms, beside {beside:.1f} ms, ratio {beside / control:.2f}")


if __name__ == "__main__":
    main()
