"""A candidate for a topic, with the stock Pulsar client and a projected token."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pulsar
from bench.pods.notes import Notes, arguments

PAYLOAD = bytes(128)

_NO_CREATION_TIMEOUT_SECONDS = 2**31 - 1
"""Else the C++ client gives up waiting after its operation timeout, 30 s by default."""


def compete(
    topic: str, url: str, authority: Path, token: Path, pace_seconds: float, notes: Notes
) -> None:
    """Wait for the topic, then publish at a pace until asked to leave."""
    client = pulsar.Client(
        url,
        tls_trust_certs_file_path=str(authority),
        authentication=pulsar.AuthenticationToken(token.read_text),
        operation_timeout_seconds=_NO_CREATION_TIMEOUT_SECONDS,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    notes.add("asking")
    producer = client.create_producer(
        topic, access_mode=pulsar.ProducerAccessMode.WaitForExclusive, batching_enabled=False
    )
    notes.add("granted")
    is_leaving = False

    def leave(number: int, frame: object) -> None:
        del number, frame
        nonlocal is_leaving
        is_leaving = True

    signal.signal(signal.SIGTERM, leave)  # who still waits just ends
    while not is_leaving:
        producer.send(PAYLOAD)
        notes.add("appended")
        time.sleep(pace_seconds)
    producer.close()
    client.close()


def main() -> None:
    """Compete for a topic."""
    parser = arguments(main.__doc__)
    parser.add_argument("--url", required=True, help="of the brokers")
    parser.add_argument("--authority", type=Path, required=True, help="of the brokers, a PEM file")
    parser.add_argument("--token", type=Path, required=True, help="a file that is renewed")
    given = parser.parse_args()
    topic = f"persistent://{given.namespace}/default/{given.contest}"
    with Notes(given.notes) as notes:
        compete(topic, given.url, given.authority, given.token, given.pace_seconds, notes)


if __name__ == "__main__":
    main()
