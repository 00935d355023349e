"""Database-to-topic capture with a standby: each row becomes one message, even if the worker dies.

A worker copies the rows of a table to a topic. In one transaction it appends some rows and its
progress, all or none. A standby waits to lead the topic. When the worker is killed (``kill -9``), the
standby leads, reads the progress of its predecessor, and continues with the next row.

The program fails if a row is missing, appears twice, or is out of order.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import secrets
import sqlite3
import tempfile
from pathlib import Path

from onewriter import Client, Leadership

URL = os.environ.get("ONEWRITER_SERVICE_URL", "pulsar://127.0.0.1:6650")
ROWS = 400
KILLED_AT_ROW = 150
ROWS_AT_ONCE = 10


def process(url: str, topic: str, database: Path, name: str, priority: int) -> None:
    asyncio.run(wait_and_capture(url, topic, database, name, priority))


async def wait_and_capture(url: str, topic: str, database: Path, name: str, priority: int) -> None:
    async with (
        Client(url) as client,
        client.lead(topic, priority=priority, identity=name, read_predecessor=True) as leadership,
    ):
        answer = leadership.predecessor
        row = answer.metadata["row"] if answer is not None and answer.metadata else 0
        print(f"{name} leads epoch {leadership.epoch}, behind row {row}", flush=True)
        await capture(leadership, database, row)


async def capture(leadership: Leadership, database: Path, row: int) -> None:
    """Copy the rows after ``row``. Raises Fenced as soon as another worker leads."""
    while row < ROWS:
        rows = await asyncio.to_thread(rows_behind, database, row)
        if not rows:
            await asyncio.sleep(0.01)
            continue
        row = rows[-1][0]
        async with leadership.transaction({"row": row}) as transaction:
            for number, text in rows:
                transaction.send(text.encode(), key=str(number), properties={"row": str(number)})


def rows_behind(database: Path, row: int) -> list[tuple[int, str]]:
    with contextlib.closing(sqlite3.connect(database)) as connection:
        select = "SELECT id, text FROM changes WHERE id > ? ORDER BY id LIMIT ?"
        return connection.execute(select, (row, ROWS_AT_ONCE)).fetchall()


def fill(database: Path, first: int, last: int) -> None:
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        rows = [(number, f"change {number}") for number in range(first, last + 1)]
        connection.executemany("INSERT INTO changes VALUES (?, ?)", rows)


async def play(url: str, topic: str, database: Path) -> None:
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE changes (id INTEGER PRIMARY KEY, text TEXT)")
    spawn = multiprocessing.get_context("spawn")
    primary, standby = (
        spawn.Process(target=process, args=(url, topic, database, name, priority), daemon=True)
        for name, priority in (("primary", 10), ("standby", 0))
    )
    primary.start()
    fill(database, 1, 1)
    captured: list[int] = []
    async with Client(url) as client, await client.create_reader(topic) as reader:
        while len(captured) < ROWS:
            message = await reader.next()
            if message.properties.get("onewriter.kind") == "leader":
                continue  # the leader's own message: how far it is
            captured.append(int(message.properties["row"]))
            assert message.content == f"change {captured[-1]}".encode()
            if len(captured) == 1:
                standby.start()
                fill(database, 2, ROWS)
            if len(captured) == KILLED_AT_ROW:
                primary.kill()
                print(f"primary was killed, row {captured[-1]} was read", flush=True)
        announced = await client.leader(topic)
    await asyncio.to_thread(standby.join)
    assert captured == list(range(1, ROWS + 1)), captured
    assert announced is not None
    assert (announced.identity, announced.metadata) == ("standby", {"row": ROWS})
    print(
        f"{ROWS} rows, each one message, in order; {announced.identity} wrote the last", flush=True
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default=URL)
    parser.add_argument("--topic", default=f"capture-{secrets.token_hex(4)}")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(options.url, options.topic, Path(folder) / "source.db"))
