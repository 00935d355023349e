"""The single reader of a topic: a group's owner reads, and acknowledgements of former owners are refused.

Two programs of one group want to read a topic (here two clients). The first one owns it; the second
one learns who the owner is. After the first one releases the topic, the second one continues after
the last acknowledgement. Then the first one takes the topic from the second with a higher generation,
while the second still has a message. The new owner gets that message, and the former owner cannot
acknowledge it.

The program fails if a message is handled twice or not at all.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets

from onewriter import EARLIEST, Client, Consumer, ConsumerOptions, Fenced, OnewriterError, Refused

URL = os.environ.get("ONEWRITER_SERVICE_URL", "pulsar://127.0.0.1:6650")
GROUP = "billing"
FROM_BEGINNING = ConsumerOptions(start=EARLIEST)


async def handle(consumer: Consumer, count: int) -> list[int]:
    """Receive and acknowledge ``count`` messages."""
    handled = []
    for _ in range(count):
        message = await consumer.receive()
        handled.append(int(message.content))
        await consumer.acknowledge(message)
    return handled


async def play(url: str, topic: str) -> None:
    async with Client(url) as first, Client(url) as second:
        producer = await first.create_producer(topic)
        for number in range(30):
            await producer.send(b"%d" % number)

        async with first.own(GROUP, [topic], identity="first") as (owned,):
            handled = await handle(await owned.subscribe(FROM_BEGINNING), 10)
            (denied,) = await second.own(GROUP, [topic], identity="second")
            assert isinstance(denied.end, Refused)
            print(f"first owns it, generation {owned.generation}; second: {denied.end}", flush=True)

        (other,) = await second.own(GROUP, [topic], identity="second")
        reader = await other.subscribe()
        handled += await handle(reader, 10)
        held = await reader.receive()
        print(f"second went on, generation {other.generation}, and holds {held.content!r}")

        (own,) = await first.own(GROUP, [(topic, other.generation + 1)], identity="first")
        assert isinstance(await other.lost, Fenced)
        try:
            await reader.acknowledge(held)
        except OnewriterError as error:
            print(f"first took it, generation {own.generation}; second's acknowledgement: {error}")
        else:
            raise AssertionError("a former owner acknowledged a message")
        handled += await handle(await own.subscribe(), 10)
        await own.release()
    assert handled == list(range(30)), handled
    print("30 messages by two readers in turn, each handled once", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default=URL)
    parser.add_argument(
        "--topic", default=f"persistent://public/default/single-reader-{secrets.token_hex(4)}"
    )
    options = parser.parse_args()
    asyncio.run(play(options.url, options.topic))
