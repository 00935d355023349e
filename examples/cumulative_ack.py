"""A consumer that acknowledges cumulatively, fails in the middle, and loses nothing.

It sums up messages in batches. At the end of a batch it commits the sum and acknowledges the last
message, which acknowledges all before it. If it fails within a batch, it discards the sum and
requests all unacknowledged messages again. Without care this loses messages: a message that was
already in flight may arrive *after* the request and be taken for a redelivered one. Its cumulative
acknowledgement then covers messages that were never redelivered. ``redeliver_unacknowledged`` (PIP-84)
prevents this: messages that were sent before the request are never returned after it.

The program fails if a message is missing or out of order.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import secrets

from onewriter import (
    EARLIEST,
    Batching,
    Client,
    Consumer,
    ConsumerOptions,
    ProducerOptions,
    SubscriptionType,
)

URL = os.environ.get("ONEWRITER_SERVICE_URL", "pulsar://127.0.0.1:6650")
MESSAGES = 5_000
BATCH = 50
FAILS_ONE_IN = 200


class Failed(Exception):
    """Something did not work; at the next attempt it may."""


async def batch(consumer: Consumer, first: int, chance: random.Random) -> int:
    """Sum a batch up and acknowledge it. Raises Failed: then nothing of it counts."""
    total = 0
    for expected in range(first, first + BATCH):
        message = await consumer.receive()
        assert int(message.content) == expected, f"{message.content!r} in place of {expected}"
        if chance.randrange(FAILS_ONE_IN) == 0:
            raise Failed
        total += expected
    await consumer.acknowledge_cumulative(message)
    return total


async def play(url: str, topic: str) -> None:
    chance = random.Random(84)
    async with Client(url) as client:
        options = ConsumerOptions(kind=SubscriptionType.FAILOVER, start=EARLIEST)
        consumer = await client.subscribe(topic, "sum", options)
        producer = await client.create_producer(topic, ProducerOptions(batching=Batching()))
        receipts = [await producer.submit(b"%d" % number) for number in range(MESSAGES)]
        await asyncio.gather(*receipts)
        total = failures = done = 0
        while done < MESSAGES:
            try:
                total += await batch(consumer, done, chance)
                done += BATCH
            except Failed:
                failures += 1
                await consumer.redeliver_unacknowledged()
    assert failures > 0
    assert total == sum(range(MESSAGES))
    print(f"{MESSAGES} messages, {failures} failures, and the sum is right: {total}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default=URL)
    parser.add_argument("--topic", default=f"sum-{secrets.token_hex(4)}")
    options = parser.parse_args()
    asyncio.run(play(options.url, options.topic))
