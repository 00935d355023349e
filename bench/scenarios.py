"""Figures of any broker that speaks Pulsar's protocol: a service URL in, numbers out.

Here: latency and rate of publishing and reading, by the Python client and by a raw socket, with
the server's CPU time beside them. The Go client's figures come from go_perf.py, takeovers from
takeover.py. Nothing here knows which broker answers, so both sides of a table run the same code.

By hand: ``python -m bench.scenarios SERVICE_URL [--server-pid PID ...]``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import threading
import time
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import pulsar
from bench import raw_client
from bench.machine import ProcessUsage, describe_machine, process_usage

Figures = TypeVar("Figures")

NAMESPACE = "public/default"
MESSAGE_BYTES = 1024
CLIENT_TIMEOUT_SECONDS = 60
FRAMES_IN_MEMORY_MAX = 50_000
"""Messages that a raw publisher builds before it sends the first; 55 MB."""


_LOOPBACK = urllib.request.build_opener(urllib.request.ProxyHandler({}))
# A proxy from the environment is no way to a server on this machine.


@dataclass(frozen=True, slots=True)
class Latencies:
    """Percentiles in milliseconds over ``count`` samples."""

    count: int
    p50: float
    p95: float
    p99: float
    maximum: float

    @classmethod
    def of(cls, samples_ms: Sequence[float]) -> Latencies:
        """Summarise at least two samples; percentiles are interpolated within the samples."""
        cuts = statistics.quantiles(samples_ms, n=100, method="inclusive")
        return cls(len(samples_ms), cuts[49], cuts[94], cuts[98], max(samples_ms))

    def __str__(self) -> str:
        return (
            f"p50 {self.p50:.2f}, p95 {self.p95:.2f}, p99 {self.p99:.2f}, "
            f"max {self.maximum:.2f} ms ({self.count})"
        )


@dataclass(frozen=True, slots=True)
class Rate:
    """So many messages in so many seconds."""

    messages: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.messages / self.seconds

    def __str__(self) -> str:
        return f"{self.per_second:,.0f}/s ({self.messages:,} messages)"


def new_topic(label: str) -> str:
    """A topic name that was never used before, in the namespace both brokers have."""
    return f"persistent://{NAMESPACE}/bench-{label}-{uuid.uuid4().hex[:8]}"


def delete_topics(admin_url: str) -> None:
    """Delete all that was measured so far: several servers share this machine's memory and disk."""
    base = f"{admin_url}/admin/v2/persistent"
    with _LOOPBACK.open(f"{base}/{NAMESPACE}", timeout=CLIENT_TIMEOUT_SECONDS) as response:
        topics = json.load(response)
    for topic in topics:
        name = urllib.parse.quote(topic.rpartition("/")[2])
        request = urllib.request.Request(  # noqa: S310 - the URL of a server that we started
            f"{base}/{NAMESPACE}/{name}?force=true", method="DELETE"
        )
        _LOOPBACK.open(request, timeout=CLIENT_TIMEOUT_SECONDS).close()


@contextlib.contextmanager
def python_client(service_url: str) -> Iterator[pulsar.Client]:
    """The stock Python client, quiet but for errors."""
    client = pulsar.Client(
        service_url,
        operation_timeout_seconds=CLIENT_TIMEOUT_SECONDS,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    try:
        yield client
    finally:
        client.close()


def warm_up(service_url: str, *, messages: int = 400_000) -> None:
    """Publish unmeasured messages, so that a server which compiles itself as it runs is compiled.

    A fresh Pulsar spends five times the CPU per message that it spends after these.
    """
    for start in range(0, messages, FRAMES_IN_MEMORY_MAX):
        count = min(FRAMES_IN_MEMORY_MAX, messages - start)
        raw_client.publish(service_url, new_topic("warm-up"), messages=count, in_flight=1000)


def python_one_at_a_time(
    service_url: str, *, messages: int = 2000, warm_up_messages: int = 300
) -> Latencies:
    """Publish with the Python client, each message after the receipt of the one before."""
    payload = bytes(MESSAGE_BYTES)
    with python_client(service_url) as client:
        producer = client.create_producer(new_topic("one"), batching_enabled=False)
        for _ in range(warm_up_messages):
            producer.send(payload)
        samples = []
        for _ in range(messages):
            started = time.perf_counter()
            producer.send(payload)
            samples.append((time.perf_counter() - started) * 1000)
        producer.close()
    return Latencies.of(samples)


def python_pipelined(
    service_url: str,
    *,
    batched: bool,
    messages: int = 60_000,
    in_flight: int = 2000,
    warm_up_messages: int = 5000,
) -> Rate:
    """Publish with the Python client as fast as it goes, batching as it does by itself or not."""
    payload = bytes(MESSAGE_BYTES)
    with python_client(service_url) as client:
        producer = client.create_producer(
            new_topic("batched" if batched else "unbatched"),
            batching_enabled=batched,
            max_pending_messages=in_flight,
            block_if_queue_full=True,
        )
        failures: list[pulsar.Result] = []

        def answered(result: pulsar.Result, message_id: pulsar.MessageId) -> None:
            del message_id
            if result != pulsar.Result.Ok:
                failures.append(result)

        def send(count: int) -> None:
            for _ in range(count):
                producer.send_async(payload, answered)
            producer.flush()
            if failures:
                raise RuntimeError(f"{len(failures)} sends failed, the first with {failures[0]}")

        send(warm_up_messages)
        started = time.perf_counter()
        send(messages)
        seconds = time.perf_counter() - started
        producer.close()
    return Rate(messages, seconds)


def raw_one_at_a_time(service_url: str) -> Latencies:
    """Publish over a raw socket, each message after the receipt of the one before."""
    topic = new_topic("raw-one")
    raw_client.publish(service_url, topic, messages=300, in_flight=1)
    run = raw_client.publish(
        service_url, topic, messages=2000, in_flight=1, message_bytes=MESSAGE_BYTES
    )
    return Latencies.of(run.latencies_ms)


def raw_pipelined(
    service_url: str, *, messages: int = 60_000, in_flight: int = 1000, connections: int = 1
) -> tuple[Rate, Latencies]:
    """Publish unbatched over raw sockets, each to a topic of its own."""
    runs: list[raw_client.RawPublish] = []
    topics = [new_topic("raw") for _ in range(connections)]
    for topic in topics:
        raw_client.publish(service_url, topic, messages=5000, in_flight=in_flight)

    def run(topic: str) -> None:
        runs.append(
            raw_client.publish(
                service_url,
                topic,
                messages=messages // connections,
                in_flight=in_flight,
                message_bytes=MESSAGE_BYTES,
            )
        )

    threads = [threading.Thread(target=run, args=(topic,)) for topic in topics]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(runs) != connections:
        raise RuntimeError("a connection failed; its error stands above")
    rate = Rate(sum(done.messages for done in runs), max(done.seconds for done in runs))
    return rate, Latencies.of([sample for done in runs for sample in done.latencies_ms])


def raw_catch_up(service_url: str, *, messages: int = 200_000) -> Rate:
    """Fill a topic with unbatched messages, then read it from its start over a raw socket."""
    topic = new_topic("catch-up")
    for start in range(0, messages, FRAMES_IN_MEMORY_MAX):
        raw_client.publish(
            service_url,
            topic,
            messages=min(FRAMES_IN_MEMORY_MAX, messages - start),
            in_flight=1000,
            message_bytes=MESSAGE_BYTES,
        )
    return Rate(messages, raw_client.read_from_start(service_url, topic, messages=messages))


def with_server_usage(
    server_pids: Sequence[int], run: Callable[[], Figures]
) -> tuple[Figures, ProcessUsage]:
    """Run a scenario; return its figures and the CPU time that the servers spent meanwhile.

    ``server_pids`` names all processes that serve: broker and store. Their children count too.
    The CPU time covers warm-up messages as well: divide by all messages sent.
    """
    before = process_usage(server_pids)
    figures = run()
    return figures, process_usage(server_pids).since(before)


def main() -> None:
    """Run the publish and read scenarios against one broker and print a line for each."""
    parser = argparse.ArgumentParser(prog="python -m bench.scenarios", description=main.__doc__)
    parser.add_argument("service_url")
    parser.add_argument("--server-pid", type=int, action="append", default=[], dest="pids")
    parser.add_argument("--messages", type=int, default=60_000, help="of each pipelined scenario")
    parser.add_argument("--cold", action="store_true", help="measure without warming up")
    arguments = parser.parse_args()
    url, pids, messages = arguments.service_url, arguments.pids, arguments.messages

    def show(label: str, sent: int, run: Callable[[], object]) -> None:
        figures, usage = with_server_usage(pids, run)
        print(f"{label}: {figures}")
        if pids:
            print(f"    server CPU {usage.cpu_seconds / sent * 1e6:.1f} us per message")

    print(describe_machine())
    if not arguments.cold:
        warm_up(url)
    show("Python, one at a time", 2300, lambda: python_one_at_a_time(url))
    for label, batched in (("unbatched", False), ("batched", True)):
        pipelined = partial(python_pipelined, url, batched=batched, messages=messages)
        show(f"Python, {label}", messages + 5000, pipelined)
    show("raw, one at a time", 2300, lambda: raw_one_at_a_time(url))
    show("raw, 1000 in flight", messages + 5000, lambda: raw_pipelined(url, messages=messages)[0])
    show(
        "raw catch-up read (CPU: writing included)",
        messages,
        lambda: raw_catch_up(url, messages=messages),
    )
    if pids:
        print(f"resident: {process_usage(pids).resident_bytes / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
