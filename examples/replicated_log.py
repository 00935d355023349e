"""A replicated commit log: one leader appends, followers apply, and a new leader has caught up first.

Three replicas, each a process, keep the same state by applying the same commands in the same order.
The leader of the topic appends the next command, together with a digest of all commands before it.
Only a replica that has applied all of them knows the digest. A leader that wrote before it had caught
up, or after it was fenced, would break the chain, and every replica would detect it.

The leader is killed twice (``kill -9``). The program fails if the chain is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import multiprocessing
import os
import secrets

from onewriter import Client, Fenced, Leadership, MessageId, Reader

URL = os.environ.get("ONEWRITER_SERVICE_URL", "pulsar://127.0.0.1:6650")
REPLICAS = ("red", "green", "blue")
COMMANDS = 45
KILLED_AT = (15, 30)


class Replica:
    """What the log's commands come to, as far as they were applied here."""

    def __init__(self, name: str, reader: Reader) -> None:
        self.name = name
        self.applied = 0
        self.written_by = ""
        self._chain = ""
        self._epoch = 0
        self._reader = reader
        self._news = asyncio.Condition()

    async def follow(self, number: int) -> None:
        """Apply commands from the log until ``number`` of them are applied."""
        while self.applied < number:
            message = await self._reader.next()
            command = json.loads(message.content)
            where = f"{self.name}, at {message.id}: {command}"
            assert command["number"] == self.applied + 1, where
            assert command["before"] == self._chain, where
            assert command["epoch"] >= self._epoch, where
            self._chain = hashlib.sha256(message.content).hexdigest()
            self._epoch, self.written_by = command["epoch"], command["by"]
            async with self._news:
                self.applied = command["number"]
                self._news.notify_all()

    async def caught_up(self, end: MessageId | None) -> None:
        """Wait until everything up to ``end`` is applied here."""
        async with self._news:
            await self._news.wait_for(lambda: end is None or self._position() >= end.position)

    def _position(self) -> tuple[int, int]:
        return self._reader.position.position if self._reader.position else (-1, -1)

    async def lead(self, leadership: Leadership) -> None:
        """Append one command after the other; it counts once the log gives it back."""
        # No other replica appends any more, so this is the end of the log, as the store reports it.
        await self.caught_up((await leadership.check()).last_message_id)
        print(f"{self.name} leads epoch {leadership.epoch} from {self.applied} on", flush=True)
        while self.applied < COMMANDS:
            command = {
                "number": self.applied + 1,
                "before": self._chain,
                "by": self.name,
                "epoch": leadership.epoch,
            }
            await self.caught_up(await leadership.send(json.dumps(command).encode()))
            await asyncio.sleep(0.01)


async def replicate(url: str, topic: str, name: str) -> None:
    async with Client(url) as client, asyncio.TaskGroup() as tasks:
        replica = Replica(name, await client.create_reader(topic))
        candidate = tasks.create_task(take_turns(client, topic, replica))
        await replica.follow(COMMANDS)
        candidate.cancel()


async def take_turns(client: Client, topic: str, replica: Replica) -> None:
    while replica.applied < COMMANDS:
        with contextlib.suppress(Fenced):  # a newer leader: follow it, and queue again
            async with client.lead(topic, identity=replica.name, announce=False) as leadership:
                await replica.lead(leadership)


def process(url: str, topic: str, name: str) -> None:
    asyncio.run(replicate(url, topic, name))


async def play(url: str, topic: str) -> None:
    spawn = multiprocessing.get_context("spawn")
    processes = {
        name: spawn.Process(target=process, args=(url, topic, name), daemon=True)
        for name in REPLICAS
    }
    for each in processes.values():
        each.start()
    async with Client(url) as client:
        watcher = Replica("watcher", await client.create_reader(topic))
        for number in KILLED_AT:
            await watcher.follow(number)
            print(f"{watcher.applied} commands; {watcher.written_by} is killed", flush=True)
            processes.pop(watcher.written_by).kill()
        await watcher.follow(COMMANDS)
    for name, each in processes.items():
        await asyncio.to_thread(each.join)
        assert each.exitcode == 0, f"{name} ended with {each.exitcode}"
    print(f"{COMMANDS} commands, three leaders, one unbroken chain in every replica", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default=URL)
    parser.add_argument("--topic", default=f"replicated-log-{secrets.token_hex(4)}")
    options = parser.parse_args()
    asyncio.run(play(options.url, options.topic))
