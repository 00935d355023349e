"""A restarted task whose zombie is alive: writes and acknowledgements of the old process are refused.

A task reads jobs and writes results. The first process freezes at the worst moment (``SIGSTOP``, like
a long pause): it has read a job and is about to write the result. A second process of the task starts
with the next generation, and does that job and all others. Then the zombie continues, and writes.

The program fails unless each result is there once, and the zombie was refused both times.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import secrets
import signal

from onewriter import (
    EARLIEST,
    Client,
    Consumer,
    ConsumerOptions,
    Fenced,
    Message,
    OnewriterError,
    Ownership,
)

URL = os.environ.get("ONEWRITER_SERVICE_URL", "pulsar://127.0.0.1:6650")
TASK = "task-7"
JOBS = 20
FROZEN_AT = 8


def process(url: str, topic: str, life: int) -> None:
    asyncio.run(live(url, topic, life))


async def live(url: str, topic: str, life: int) -> None:
    """Do the jobs, from where the task is; ``life`` counts how often it was started."""
    async with (
        Client(url) as client,
        client.own(TASK, [(topic, life)], identity=TASK) as (task,),
        await task.subscribe(ConsumerOptions(start=EARLIEST)) as consumer,
    ):
        while True:
            message = await consumer.receive()
            number = int(message.content)
            if number == FROZEN_AT and life == 1:
                os.kill(os.getpid(), signal.SIGSTOP)
                await is_refused(task, consumer, message)
                return
            await task.guarded(results_of(topic)).send(b"%d by life %d" % (number, life))
            await consumer.acknowledge(message)
            if number == JOBS - 1:
                return


async def is_refused(task: Ownership, consumer: Consumer, message: Message) -> None:
    """The zombie runs again, and continues as if nothing had happened."""
    try:
        await task.guarded(results_of(task.resource)).send(b"a zombie's result")
        raise AssertionError("the zombie wrote")
    except Fenced as error:
        print(f"the zombie's write: {error}", flush=True)
    try:
        await consumer.acknowledge(message)
        raise AssertionError("the zombie acknowledged")
    except OnewriterError as error:
        print(f"the zombie's acknowledgement: {error}", flush=True)


def results_of(topic: str) -> str:
    """A hash tag puts the results beside the jobs, where one call compares and appends."""
    prefix, name = topic.rsplit("/", 1)
    return f"{prefix}/{{{name}}}-results"


async def play(url: str, topic: str) -> None:
    spawn = multiprocessing.get_context("spawn")
    zombie, successor = (
        spawn.Process(target=process, args=(url, topic, life), daemon=True) for life in (1, 2)
    )
    async with Client(url) as client, await client.create_reader(results_of(topic)) as results:
        producer = await client.create_producer(topic)
        for number in range(JOBS):
            await producer.send(b"%d" % number)
        zombie.start()
        try:
            found = [(await results.next()).content for _ in range(FROZEN_AT)]
            await frozen(zombie.pid or 0)
            print(f"life 1 wrote {FROZEN_AT} results, read a job, and froze", flush=True)
            successor.start()
            await asyncio.to_thread(successor.join)
            print("life 2 did the rest; the zombie is woken", flush=True)
            os.kill(zombie.pid or 0, signal.SIGCONT)
            await asyncio.to_thread(zombie.join)
        finally:
            zombie.kill()
        ended = (zombie.exitcode, successor.exitcode)
        assert ended == (0, 0), f"zombie and successor ended with {ended}"
        while await results.has_message_available():
            found.append((await results.next()).content)
    lives = [1 if number < FROZEN_AT else 2 for number in range(JOBS)]
    assert found == [b"%d by life %d" % each for each in enumerate(lives)], found
    print(f"{JOBS} jobs, {len(found)} results, none of them the zombie's", flush=True)


async def frozen(process_id: int) -> None:
    """Wait until a child of ours is stopped, or has ended too early."""
    await asyncio.to_thread(os.waitid, os.P_PID, process_id, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default=URL)
    parser.add_argument(
        "--topic", default=f"persistent://public/default/jobs-{secrets.token_hex(4)}"
    )
    options = parser.parse_args()
    asyncio.run(play(options.url, options.topic))
