"""Publishing by the SDK beside the stock Python client: same broker, same messages, in turn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from bench import scenarios
from bench.report import Goal, Ratio, Report, Samples, number, table
from bench.scenarios import MESSAGE_BYTES, Latencies, Rate, new_topic

from onewriter import Batching, Client, MessageId, ProducerOptions

BATCHES = Batching(messages_max=1_000, bytes_max=128 * 1024, delay_seconds=0.01)
"""The stock client's defaults."""


def sdk_pipelined(
    service_url: str,
    *,
    batched: bool,
    messages: int = 60_000,
    in_flight: int = 2000,
    warm_up_messages: int = 5000,
) -> Rate:
    """Publish with the SDK as fast as it goes; as scenarios.python_pipelined does."""
    options = ProducerOptions(batching=BATCHES if batched else None, pending_messages_max=in_flight)

    async def whole() -> Rate:
        async with Client(service_url) as client:
            producer = await client.create_producer(
                new_topic("batched" if batched else "unbatched"), options
            )
            payload = bytes(MESSAGE_BYTES)

            async def send(count: int) -> None:
                receipts: list[asyncio.Future[MessageId]] = [
                    await producer.submit(payload) for _ in range(count)
                ]
                await producer.flush()
                for receipt in receipts:
                    receipt.result()  # raises what it ended with

            await send(warm_up_messages)
            started = time.perf_counter()
            await send(messages)
            seconds = time.perf_counter() - started
            await producer.close()
        return Rate(messages, seconds)

    return asyncio.run(whole())


def sdk_one_at_a_time(
    service_url: str, *, messages: int = 2000, warm_up_messages: int = 300
) -> Latencies:
    """Publish with the SDK, each message after the receipt of the one before."""

    async def whole() -> Latencies:
        payload = bytes(MESSAGE_BYTES)
        async with Client(service_url) as client:
            producer = await client.create_producer(new_topic("one"))
            for _ in range(warm_up_messages):
                await producer.send(payload)
            samples = []
            for _ in range(messages):
                started = time.perf_counter()
                await producer.send(payload)
                samples.append((time.perf_counter() - started) * 1000)
            await producer.close()
        return Latencies.of(samples)

    return asyncio.run(whole())


# ---- side by side ----------------------------------------------------------------------------------

SDK, STOCK = "onewriter SDK", "stock client"
UNBATCHED, BATCHED, ONE = "unbatched", "batched", "one at a time, p50"
UNBATCHED_CPU, BATCHED_CPU = "unbatched, client's CPU", "batched, client's CPU"

WARM_UP_MESSAGES = 5_000


_PIPELINES: Mapping[str, Callable[..., Rate]] = {
    SDK: sdk_pipelined,
    STOCK: scenarios.python_pipelined,
}
_ONE_AT_A_TIME: Mapping[str, Callable[..., Latencies]] = {
    SDK: sdk_one_at_a_time,
    STOCK: scenarios.python_one_at_a_time,
}


def measure(service_url: str, repetitions: int, messages: int) -> Samples:
    """Both clients in turn, each repetition anew; the one that begins changes."""
    samples = Samples()
    for repetition in range(repetitions):
        sides = (SDK, STOCK) if repetition % 2 == 0 else (STOCK, SDK)
        for side in sides:
            for batched, rate, cpu in (
                (False, UNBATCHED, UNBATCHED_CPU),
                (True, BATCHED, BATCHED_CPU),
            ):
                began = time.process_time()
                found = _PIPELINES[side](
                    service_url,
                    batched=batched,
                    messages=messages,
                    warm_up_messages=WARM_UP_MESSAGES,
                )
                spent = time.process_time() - began
                samples.add(rate, side, found.per_second)
                samples.add(cpu, side, spent / (messages + WARM_UP_MESSAGES) * 1e6)
            samples.add(ONE, side, _ONE_AT_A_TIME[side](service_url, messages=1_000).p50)
    return samples


def report(samples: Samples, repetitions: int, messages: int) -> Report:
    """What was done, the goals, and the figures."""
    text = (
        f"1 KiB messages to our broker by `import onewriter` and by the stock Python client, in "
        f"alternation; medians of {repetitions}. Pipelined: {messages:,} messages, 2,000 in flight, "
        "every receipt looked at; batches of up to 1,000 messages, 128 KiB or 10 ms (the stock "
        "client's defaults). CPU: of the client's process, all of its threads, per message."
    )
    rows = []
    for figure, unit, digits in (
        (UNBATCHED, "/s", 0),
        (BATCHED, "/s", 0),
        (ONE, "ms", 2),
        (UNBATCHED_CPU, "us", 1),
        (BATCHED_CPU, "us", 1),
    ):
        ours, other = samples.median(figure, SDK), samples.median(figure, STOCK)
        ratio = "-" if ours is None or not other else f"{ours / other:.2f} times"
        rows.append([figure, number(ours, unit, digits), number(other, unit, digits), ratio])
    goals: list[Goal] = [
        (
            f"SDK's rate, {figure}, at least the stock client's",
            Ratio(samples.median(figure, SDK), samples.median(figure, STOCK), at_least=1.0),
        )
        for figure in (UNBATCHED, BATCHED)
    ]
    return text, goals, table(("", SDK, STOCK, "ratio"), rows)
