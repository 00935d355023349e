"""A leader that keeps its state in the topic it leads, with only the stock Pulsar client.

This is PIP-68's second example. The topic is the write-ahead log of a small key-value state: who
works on which task. A new leader first replays the compacted topic: the newest message of each task,
and the messages after it; an empty message removes a task. Then it writes each change first and
applies it once it is stored. A leader that was fenced meanwhile cannot write another change.

Start it in two terminals and kill the leader (``kill -9``): the other one continues.
"""

from __future__ import annotations

import argparse
import http.client
import os
import time

import pulsar

WAIT_FOR_EVER_SECONDS = 2**31 - 1
"""The C++ client underneath gives up a waiting producer after its operation time-out."""

TASKS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="pulsar://127.0.0.1:6650")
    parser.add_argument("--admin", default="http://127.0.0.1:8080", help="to have it compacted")
    parser.add_argument("--topic", default="persistent://public/default/assignments")
    parser.add_argument("--name", default=f"leader-{os.getpid()}")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between two changes")
    parser.add_argument(
        "--changes", type=int, default=0, help="stop after this number of changes; 0: never"
    )
    options = parser.parse_args()

    client = pulsar.Client(
        options.url,
        operation_timeout_seconds=WAIT_FOR_EVER_SECONDS,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    print(f"{options.name}: waiting to lead {options.topic}", flush=True)
    producer = client.create_producer(
        options.topic,
        producer_name=options.name,
        access_mode=pulsar.ProducerAccessMode.WaitForExclusive,
        batching_enabled=False,
    )
    # No other producer writes from now on, so the replay is complete.
    state, messages = replay(client, options.topic)
    print(f"{options.name}: leading; {messages} messages gave {len(state)} tasks", flush=True)
    compact(options.admin, options.topic)
    change = sum(int(value) for value in state.values())
    while options.changes == 0 or change < options.changes:
        change += 1
        task = f"task-{change % TASKS}"
        count = int(state.get(task, b"0")) + 1
        try:
            producer.send(b"%d" % count, partition_key=task)  # ahead,
        except pulsar.ProducerFenced:
            print(f"{options.name}: fenced, another producer leads", flush=True)
            break
        state[task] = b"%d" % count  # and then the state
        print(f"{options.name}: change {change}: {task} {count}", flush=True)
        time.sleep(options.interval)
    client.close()


def replay(client: pulsar.Client, topic: str) -> tuple[dict[str, bytes], int]:
    """The state that the topic holds, and out of how many messages."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
    state: dict[str, bytes] = {}
    messages = 0
    while reader.has_message_available():
        message = reader.read_next()
        messages += 1
        if message.data():
            state[message.partition_key()] = message.data()
        else:
            state.pop(message.partition_key(), None)
    reader.close()
    return state, messages


def compact(admin: str, topic: str) -> None:
    """Have the topic compacted now, so that the next leader reads little.

    A broker compacts automatically if an ExclusiveTopic enables compaction.
    """
    connection = http.client.HTTPConnection(admin.removeprefix("http://"), timeout=10)
    connection.request("PUT", f"/admin/v2/{topic.replace('://', '/')}/compaction")
    connection.getresponse().read()
    connection.close()


if __name__ == "__main__":
    main()
