"""Handover between two SDK leaders of one topic: how long nobody may write."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from bench.report import Goal, Report, Value, number, table
from bench.scenarios import MESSAGE_BYTES, Latencies, new_topic

from onewriter import Client, Leadership

GOAL_P50_MS = 5.0
SETTLE_SECONDS = 0.02
"""The successor is in line, and nothing is under way."""


@dataclass(frozen=True, slots=True)
class Handovers:
    """Milliseconds, one of each per round."""

    handed_over_to_leading: list[float]
    """From calling ``handover`` to the moment when the next leader knows its epoch."""
    leaderless: list[float]
    """From the former leader's last receipt to its successor's first."""


class _Leader:
    """One of two that take turns; its client has connections of its own."""

    def __init__(self, client: Client, topic: str) -> None:
        self._lead = client.lead
        self._topic = topic

    async def win(self) -> tuple[Leadership, float]:
        """Wait for the turn; the leadership, and when it began."""
        leadership = await self._lead(self._topic, announce=False).__aenter__()
        return leadership, time.perf_counter()

    async def send(self, leadership: Leadership) -> float:
        """When its receipt came."""
        await leadership.send(bytes(MESSAGE_BYTES))
        return time.perf_counter()


def measure_handovers(service_url: str, rounds: int) -> Handovers:
    """Two leaders in one process hand a topic to and fro; none publishes who it is."""

    async def whole() -> Handovers:
        topic = new_topic("handover")
        found = Handovers([], [])
        async with Client(service_url) as one, Client(service_url) as other:
            former, following = _Leader(one, topic), _Leader(other, topic)
            leadership, _ = await former.win()
            await former.send(leadership)
            async with asyncio.TaskGroup() as tasks:
                for _ in range(rounds):
                    waiting = tasks.create_task(following.win())
                    await asyncio.sleep(SETTLE_SECONDS)
                    last = await former.send(leadership)
                    count = time.perf_counter()
                    leaving = tasks.create_task(leadership.handover())
                    leadership, leads = await waiting
                    first = await following.send(leadership)
                    found.handed_over_to_leading.append((leads - count) * 1000)
                    found.leaderless.append((first - last) * 1000)
                    await leaving
                    former, following = following, former
        return found

    return asyncio.run(whole())


def report(found: Handovers) -> Report:
    """What was done, the goals, and the figures."""
    text = (
        "Two leaders (`client.lead`), each with a client and connections of its own, hand one topic "
        f"back and forth, {len(found.leaderless)} times. Leaderless: from the last receipt of the one to "
        "the first of the other; `appendfsync always`."
    )
    led, empty = Latencies.of(found.handed_over_to_leading), Latencies.of(found.leaderless)
    rows = [
        [about, *(number(value, "ms", 2) for value in (each.p50, each.p99, each.maximum))]
        for about, each in (("handover to the next leader's epoch", led), ("leaderless", empty))
    ]
    goals: list[Goal] = [
        (
            f"handover between two SDK leaders, p50 below {GOAL_P50_MS:g} ms",
            Value(led.p50, "ms", at_most=GOAL_P50_MS, digits=2),
        )
    ]
    return text, goals, table(("", "p50", "p99", "longest"), rows)
