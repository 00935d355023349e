"""A replicated configuration map: every client sees every change in order, and may make changes.

A ``SharedMap`` is a dictionary on a topic. A service, in its own process, watches the map and follows
the configuration that other clients write, without a restart. It reports in the same map what it
follows. Both also count in the map: an update uses the newest value, so none is lost.

The program fails if the service misses a change or sees one twice, or if an increment is lost.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import secrets

from onewriter import Client, SharedMap

URL = os.environ.get("ONEWRITER_SERVICE_URL", "pulsar://127.0.0.1:6650")
CHANGES = 30
INCREMENTS = 50


def process(url: str, topic: str) -> None:
    asyncio.run(serve(url, topic))


async def serve(url: str, topic: str) -> None:
    """The service: follow the limit that is configured."""
    async with Client(url) as client, SharedMap(client, topic, str, int) as settings:
        followed = []
        async with settings.watch(initial=True) as changes:
            await settings.put("service is ready", 1)
            async for change in changes:
                if change.key == "requests per second" and change.value is not None:
                    followed.append(change.value)
                    if change.value == CHANGES:
                        break
        assert followed == list(range(1, CHANGES + 1)), followed
        await count(settings)
        await settings.put("service follows", followed[-1])


async def count(settings: SharedMap[str, int]) -> None:
    for _ in range(INCREMENTS):
        await settings.update("restarts", lambda old: (old or 0) + 1)


async def until(settings: SharedMap[str, int], key: str) -> int:
    """Wait until the key has a value."""
    async with settings.watch(initial=True) as changes:
        async for change in changes:
            if change.key == key and change.value is not None:
                return change.value
    raise AssertionError(f"{key} is still to come")


async def play(url: str, topic: str) -> None:
    service = multiprocessing.get_context("spawn").Process(
        target=process, args=(url, topic), daemon=True
    )
    async with Client(url) as client, SharedMap(client, topic, str, int) as settings:
        service.start()
        await until(settings, "service is ready")
        for number in range(1, CHANGES + 1):
            await settings.put("requests per second", number)
        print(f"{CHANGES} changes were made", flush=True)
        await count(settings)
        print(f"the service follows {await until(settings, 'service follows')}", flush=True)
        await asyncio.to_thread(service.join)
        assert service.exitcode == 0
        restarts = await settings.get("restarts", latest=True)
        assert restarts == 2 * INCREMENTS, restarts
        assert not await settings.replace("requests per second", 1, 2), "it is not 1 any more"
        print(f"two processes counted to {restarts} together", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default=URL)
    parser.add_argument("--topic", default=f"configuration-{secrets.token_hex(4)}")
    options = parser.parse_args()
    asyncio.run(play(options.url, options.topic))
