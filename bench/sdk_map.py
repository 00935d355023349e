"""A shared map's figures: writing, reading the latest, opening a large one, two writers in turn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from bench.report import Goal, Report, Value, number, table
from bench.scenarios import Latencies, Rate, new_topic

from onewriter import Client
from onewriter.state import Checkpoints, SharedMap

WARM_UP = 200
KEYS = 1_000
KEYS_PER_WRITE = 10_000

CONCURRENT = (1, 10, 100)
"""How many tasks of one process put at the same time."""

GOAL_PUT_P50_MS = 3
GOAL_PUTS_PER_SECOND = 2_000
GOAL_LATEST_P50_MS = 1
GOAL_OPENING_SECONDS = 3

_BY_HAND = Checkpoints(is_written=False)


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured. ``puts`` and ``rates`` by how many put at the same time."""

    puts: dict[int, Latencies]
    rates: dict[int, Rate]
    latest: Latencies
    local: Latencies
    operations: int
    checkpoint_seconds: float
    opening_seconds: float
    taken_turns: Latencies
    """Of a put, while another client puts as fast as it can, too."""


def measure(
    service_url: str, *, operations: int, rounds: int = 2_000, seconds: float = 5.0
) -> Figures:
    """All of it, on one broker."""
    return asyncio.run(_measure(service_url, rounds, operations, seconds))


async def _measure(service_url: str, rounds: int, operations: int, seconds: float) -> Figures:
    async with Client(service_url) as client, Client(service_url) as other:
        puts, rates = {}, {}
        topic = new_topic("map")
        async with SharedMap(client, topic, str, str, checkpoints=_BY_HAND) as shared:
            for concurrent in CONCURRENT:
                puts[concurrent], rates[concurrent] = await _put(shared, concurrent, seconds)
            latest = await _timed(rounds, lambda: shared.get("1", latest=True))
            local = await _timed(rounds, lambda: shared.get("1"))
            async with SharedMap(other, topic, str, str, checkpoints=_BY_HAND) as second:
                turns = await _in_turns(shared, second, seconds)
        checkpoint, opening = await _open_large(client, operations)
    return Figures(puts, rates, latest, local, operations, checkpoint, opening, turns)


async def _timed(rounds: int, work: Callable[[], Awaitable[object]]) -> Latencies:
    samples = []
    for each in range(WARM_UP + rounds):
        started = time.perf_counter()
        await work()
        if each >= WARM_UP:
            samples.append((time.perf_counter() - started) * 1000)
    return Latencies.of(samples)


async def _put(
    shared: SharedMap[str, str], concurrent: int, seconds: float
) -> tuple[Latencies, Rate]:
    """So many tasks, each of which puts one value after the other."""
    samples: list[float] = []
    began = time.perf_counter()

    async def keep_putting(task: int) -> None:
        count = 0
        while (started := time.perf_counter()) < began + seconds:
            await shared.put(str((task * 31 + count) % KEYS), f"{task}-{count}-" + "x" * 80)
            samples.append((time.perf_counter() - started) * 1000)
            count += 1

    async with asyncio.TaskGroup() as tasks:
        for task in range(concurrent):
            tasks.create_task(keep_putting(task))
    return Latencies.of(samples), Rate(len(samples), time.perf_counter() - began)


async def _in_turns(
    one: SharedMap[str, str], other: SharedMap[str, str], seconds: float
) -> Latencies:
    """Two clients that want the same log all the time."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_put(other, 1, seconds))
        measured = tasks.create_task(_put(one, 1, seconds))
    return (await measured)[0]


async def _open_large(client: Client, operations: int) -> tuple[float, float]:
    """Seconds for the checkpoint of so many operations, each on a key of its own, and to open it."""
    topic = new_topic("large")
    async with SharedMap(client, topic, bytes, bytes, checkpoints=_BY_HAND) as shared:
        for first in range(0, operations, KEYS_PER_WRITE):
            numbers = range(first, min(first + KEYS_PER_WRITE, operations))
            values: dict[bytes, bytes | None] = {b"key-%08d" % n: b"%024d" % n for n in numbers}
            await shared.update_multiple(lambda _map, values=values: values)  # type: ignore[misc]
        started = time.perf_counter()
        await shared.state.checkpoint()
        checkpoint_seconds = time.perf_counter() - started
        await shared.put(b"behind", b"the checkpoint")
    started = time.perf_counter()
    async with SharedMap(client, topic, bytes, bytes, checkpoints=_BY_HAND) as shared:
        opening_seconds = time.perf_counter() - started
        if await shared.size(latest=True) != operations + 1:
            raise RuntimeError("the map is not what was written")
    return checkpoint_seconds, opening_seconds


def report(found: Figures) -> Report:
    """What was done, the goals, and the figures."""
    text = (
        "`SharedMap` of one process on our broker, values of about 90 bytes, `appendfsync always`. "
        "Tasks put one value after the other; writes of one process share entries. A latest read "
        "contains all that was acknowledged before it. Opening: a checkpoint of "
        f"{found.operations:,} operations on as many keys, and one entry after it."
    )
    rows = [
        [
            f"put, {concurrent} at a time",
            number(found.puts[concurrent].p50, "ms", 2),
            number(found.puts[concurrent].p99, "ms", 2),
            number(found.rates[concurrent].per_second, "/s", 0),
        ]
        for concurrent in found.puts
    ]
    for about, latencies in (
        ("put, while another client puts, too", found.taken_turns),
        ("get, latest", found.latest),
        ("get, local value", found.local),
    ):
        rows.append([about, number(latencies.p50, "ms", 2), number(latencies.p99, "ms", 2), ""])
    lines = table(("", "p50", "p99", "rate"), rows)
    lines += [
        "",
        (
            f"Checkpoint of {found.operations:,} keys: {found.checkpoint_seconds:.2f} s, during "
            f"other work. Opening from it: {found.opening_seconds:.2f} s."
        ),
    ]
    most = max(rate.per_second for rate in found.rates.values())
    goals: list[Goal] = [
        (
            f"put p50 below {GOAL_PUT_P50_MS} ms",
            Value(found.puts[1].p50, "ms", at_most=GOAL_PUT_P50_MS, digits=2),
        ),
        (
            f"more than {GOAL_PUTS_PER_SECOND:,} puts/s with group commit",
            Value(most, "/s", at_least=GOAL_PUTS_PER_SECOND, digits=0),
        ),
        (
            f"latest read p50 below {GOAL_LATEST_P50_MS} ms",
            Value(found.latest.p50, "ms", at_most=GOAL_LATEST_P50_MS, digits=2),
        ),
        (
            f"opening 1,000,000 operations from a checkpoint below {GOAL_OPENING_SECONDS} s",
            Value(
                found.opening_seconds if found.operations >= 1_000_000 else None,
                "s",
                at_most=GOAL_OPENING_SECONDS,
                digits=2,
            ),
        ),
    ]
    return text, goals, lines
