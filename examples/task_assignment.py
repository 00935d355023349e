"""Task assignment: workers own tasks, one of them dies, the others take over its tasks.

There are twelve tasks and three workers, each a process. A worker requests tasks that it does not
have. The more it has, the less often it requests one, so the tasks spread. A task writes under the
guard of its ownership: once another worker owns the task, its former worker writes nothing more.

Two workers are killed (``kill -9``). The program fails if a task stays without a worker, or if two
workers ever do one task at the same time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import random
import secrets
from collections import Counter

from onewriter import Client, Closed, Fenced, Guarded, Ownership, Reader

URL = os.environ.get("ONEWRITER_SERVICE_URL", "pulsar://127.0.0.1:6650")
TASKS = [f"task-{number}" for number in range(12)]
WORKERS = ("ada", "ben", "cem")
SECONDS_MAX = 60.0


def process(url: str, topic: str, name: str) -> None:
    asyncio.run(work(url, topic, name))


async def work(url: str, topic: str, name: str) -> None:
    """Take tasks, until killed."""
    own: dict[str, Ownership] = {}
    async with Client(url) as client, asyncio.TaskGroup() as running:
        while True:
            own = {task: owned for task, owned in own.items() if owned.is_owned}
            others = [task for task in TASKS if task not in own]
            for task in random.sample(others, len(others)):
                # Without a generation it takes only tasks without an owner.
                (owned,) = await client.own(topic, [task], identity=name)
                if owned.is_owned:
                    own[task] = owned
                    running.create_task(do(owned, owned.guarded(topic), name))
                    break
            await asyncio.sleep(0.05 * (1 + len(own)))


async def do(task: Ownership, progress: Guarded, name: str) -> None:
    """The task itself: it reports progress until another worker owns it."""
    answer = {"worker": name, "generation": str(task.generation)}
    with contextlib.suppress(Fenced, Closed):
        while True:
            await progress.send(b"", key=task.resource, properties=answer)
            await asyncio.sleep(0.1)


class Assignment:
    """Who does what, as the tasks themselves say it."""

    def __init__(self, reader: Reader) -> None:
        self.workers: dict[str, str] = {}
        self._generations: dict[str, int] = {}
        self._reader = reader

    async def settled(self, alive: list[str]) -> None:
        """Read on until living workers do all tasks; each change must be a newer generation's."""
        async with asyncio.timeout(SECONDS_MAX):
            while set(self.workers) != set(TASKS) or not set(self.workers.values()) <= set(alive):
                message = await self._reader.next()
                task, worker = message.key or "", message.properties["worker"]
                generation = int(message.properties["generation"])
                latest = self._generations.get(task, 0)
                assert generation >= latest, f"{worker} did {task} after another worker owned it"
                same = generation > latest or worker == self.workers[task]
                assert same, f"{worker} and {self.workers.get(task)} did {task} at once"
                self.workers[task], self._generations[task] = worker, generation
        load = Counter(self.workers.values())
        print("  ".join(f"{name} has {load[name]} tasks" for name in alive), flush=True)


async def play(url: str, topic: str) -> None:
    spawn = multiprocessing.get_context("spawn")
    processes = {
        name: spawn.Process(target=process, args=(url, topic, name), daemon=True)
        for name in WORKERS
    }
    for each in processes.values():
        each.start()
    async with Client(url) as client, await client.create_reader(topic) as reader:
        assignment = Assignment(reader)
        await assignment.settled(list(processes))
        for name in WORKERS[:-1]:
            processes.pop(name).kill()
            print(f"{name} is killed", flush=True)
            await assignment.settled(list(processes))
    for each in processes.values():
        each.kill()
    print(f"{len(TASKS)} tasks had one worker each at any time", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default=URL)
    parser.add_argument("--topic", default=f"assignment-{secrets.token_hex(4)}")
    options = parser.parse_args()
    asyncio.run(play(options.url, options.topic))
