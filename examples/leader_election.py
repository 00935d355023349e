"""Elect a leader over one topic, with only the stock Pulsar client.

Start it in two terminals. One leads and publishes a line each second; the other waits. Kill the
leader with ``kill -9`` (the other leads within milliseconds) or freeze it with ``kill -STOP`` (the
other leads within three seconds). Continue the frozen one with ``kill -CONT``: every send fails,
because a newer epoch was granted, and it queues again.
"""

from __future__ import annotations

import argparse
import os
import time

import pulsar

WAIT_FOR_EVER_SECONDS = 2**31 - 1
"""The C++ client underneath gives up a waiting producer after its operation time-out."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="pulsar://127.0.0.1:6650")
    parser.add_argument("--topic", default="orders")
    parser.add_argument("--name", default=f"candidate-{os.getpid()}")
    parser.add_argument("--priority", type=int, default=0, help="who comes first among the waiting")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between two messages")
    options = parser.parse_args()

    client = pulsar.Client(
        options.url,
        operation_timeout_seconds=WAIT_FOR_EVER_SECONDS,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    while True:
        print(f"{options.name}: waiting to lead {options.topic}", flush=True)
        producer = client.create_producer(
            options.topic,
            producer_name=options.name,
            access_mode=pulsar.ProducerAccessMode.WaitForExclusive,
            properties={"onewriter.queue-priority": str(options.priority)},
            batching_enabled=False,
        )
        print(f"{options.name}: leading (pid {os.getpid()})", flush=True)
        try:
            lead(producer, options.name, options.interval)
        except pulsar.ProducerFenced:
            print(f"{options.name}: fenced, another producer leads", flush=True)


def lead(producer: pulsar.Producer, name: str, interval: float) -> None:
    """Publish until fenced."""
    count = 0
    while True:
        count += 1
        message_id = producer.send(f"{name} {count}".encode())
        print(f"{name}: wrote {count} at {message_id}", flush=True)
        time.sleep(interval)


if __name__ == "__main__":
    main()
