"""What a topic costs that nobody writes to: memory of the broker and CPU while all of them idle.

Each topic gets a holder and one waiter behind it, over two raw connections that answer pings. The
figure is the growth of the broker's resident memory per topic, so it holds everything: the topic,
its log, two producers, what the allocator wastes.

By hand: ``python -m bench.idle_topics [--topics 10000]`` (starts its own onewriter).
"""

from __future__ import annotations

import argparse
import contextlib
import time
import uuid
from dataclasses import dataclass

from bench import raw_client
from bench.machine import process_usage
from bench.onewriter_lab import Onewriter

TOPICS_DEFAULT = 10_000
TOPICS_PER_REQUEST = 50
"""Asked for at once; between requests the connections answer pings."""
WAIT_FOR_EXCLUSIVE = 2
SETTLE_SECONDS = 3.0
IDLE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class IdleFigures:
    topics: int
    broker_bytes_per_topic: float
    store_bytes_per_topic: float
    opened_per_second: float
    """Topics made, fenced and granted each second, waiter included."""
    broker_cpu_share: float
    """Of one core, while nothing happens but pings."""

    def __str__(self) -> str:
        return (
            f"{self.topics:,} topics: {self.broker_bytes_per_topic / 1024:.1f} KiB each in the "
            f"broker, {self.store_bytes_per_topic / 1024:.1f} KiB in the store, opened at "
            f"{self.opened_per_second:,.0f}/s, then {self.broker_cpu_share:.1%} of a core"
        )


def measure_idle_topics(lab: Onewriter, topics: int = TOPICS_DEFAULT) -> IdleFigures:
    """Open so many topics with a holder and a waiter each, then let them idle."""
    broker, store = lab.pid_of("broker"), lab.pid_of("store")
    prefix = f"persistent://public/default/idle-{uuid.uuid4().hex[:8]}"
    with contextlib.ExitStack() as stack:
        connections: list[raw_client.RawConnection] = []

        def connect() -> raw_client.RawConnection:
            connection = raw_client.RawConnection.open(lab.service_url)
            stack.callback(connection.close)
            connections.append(connection)
            return connection

        # What a first topic, a first connection and the allocator's first growth cost is not idle
        # topics' cost.
        connect().open_producers([f"{prefix}-first"], access_mode=WAIT_FOR_EXCLUSIVE)
        _idle(connections, SETTLE_SECONDS)
        before, before_store = process_usage([broker]), process_usage([store])
        started = time.monotonic()
        holder, waiter = connect(), connect()
        for start in range(0, topics, TOPICS_PER_REQUEST):
            numbers = range(start, min(topics, start + TOPICS_PER_REQUEST))
            names = [f"{prefix}-{number}" for number in numbers]
            for connection in (holder, waiter):
                connection.open_producers(names, first_id=start + 1, access_mode=WAIT_FOR_EXCLUSIVE)
                _answer_pings(connections)
        seconds = time.monotonic() - started
        _idle(connections, SETTLE_SECONDS)
        after, after_store = process_usage([broker]), process_usage([store])
        _idle(connections, IDLE_SECONDS)
        idle = process_usage([broker]).since(after)
        return IdleFigures(
            topics=topics,
            broker_bytes_per_topic=(after.resident_bytes - before.resident_bytes) / topics,
            store_bytes_per_topic=(after_store.resident_bytes - before_store.resident_bytes)
            / topics,
            opened_per_second=topics / seconds,
            broker_cpu_share=idle.cpu_seconds / IDLE_SECONDS,
        )


def _idle(connections: list[raw_client.RawConnection], seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.1)
        _answer_pings(connections)


def _answer_pings(connections: list[raw_client.RawConnection]) -> None:
    for connection in connections:
        connection.answer_pings()


def main() -> None:
    """Start onewriter, open the topics and print what they cost."""
    parser = argparse.ArgumentParser(prog="python -m bench.idle_topics", description=main.__doc__)
    parser.add_argument("--topics", type=int, default=TOPICS_DEFAULT)
    arguments = parser.parse_args()
    with Onewriter() as lab:
        print(measure_idle_topics(lab, arguments.topics))


if __name__ == "__main__":
    main()
