"""How fast whole logs are read as blocks, what that costs, and what it costs the others.

Unbatched entries of 100 bytes and of 1 KiB, read by ``onewriter_pipeline.brokers.broker`` into arrays; then
the publish latency of another topic, one message at a time, while nobody reads, while one reader in
a process of its own reads for ever, and while as many readers as are let in take nothing at all.

By hand: ``python -m bench.pipeline_blocks [--megabytes 200]`` (starts its own onewriter).
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from bench.machine import process_usage
from bench.onewriter_lab import Onewriter
from bench.raw_client import publish

from onewriter_broker.http.onewriter.blocks import STREAMS_MAX
from onewriter_pipeline.brokers.broker import Broker
from onewriter_pipeline.brokers.connection import Access

MEGABYTES_DEFAULT = 200
SIZES = {"100 B": 100, "1 KiB": 1024}
FRAMES_AT_ONCE = 100_000
"""Messages that the load generator keeps in memory."""
IN_FLIGHT = 5_000
LATENCY_MESSAGES = 3_000
SETTLE_SECONDS = 1.0

_READER = """
import sys
from onewriter_pipeline.brokers.broker import Broker
from onewriter_pipeline.brokers.connection import Access
with Broker(Access(sys.argv[1])) as client:
    while True:
        for _ in client.read(sys.argv[2]):
            pass
        print("once", flush=True)
"""


@dataclass(frozen=True, slots=True)
class ReadFigures:
    """One read of a whole topic; CPU seconds by process."""

    entries: int
    payload_bytes: int
    seconds: float
    client_cpu_seconds: float
    broker_cpu_seconds: float
    store_cpu_seconds: float

    def __str__(self) -> str:
        return (
            f"{self.entries / self.seconds / 1e6:.2f} M entries/s, "
            f"{self.payload_bytes / self.seconds / 1e6:.0f} MB/s; CPU s: client "
            f"{self.client_cpu_seconds:.2f}, broker {self.broker_cpu_seconds:.2f}, "
            f"store {self.store_cpu_seconds:.2f}"
        )


def fill(lab: Onewriter, topic: str, size: int, total_bytes: int) -> None:
    """Publish unbatched entries of that size."""
    left = total_bytes // size
    while left > 0:
        count = min(left, FRAMES_AT_ONCE)
        publish(lab.service_url, topic, messages=count, in_flight=IN_FLIGHT, message_bytes=size)
        left -= count


def read_whole(lab: Onewriter, topic: str) -> ReadFigures:
    """Read a topic once, with a client of its own."""
    servers = [lab.pid_of("broker"), lab.pid_of("store")]
    before = [process_usage([each]) for each in servers]
    entries = payload_bytes = 0
    with Broker(Access(lab.admin_url)) as client:
        started, cpu = time.perf_counter(), time.process_time()
        for chunk in client.read(topic):
            entries += len(chunk)
            payload_bytes += int(chunk.offsets[-1])
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    broker, store = (
        process_usage([each]).since(start).cpu_seconds
        for each, start in zip(servers, before, strict=True)
    )
    return ReadFigures(entries, payload_bytes, seconds, cpu, broker, store)


def latency(lab: Onewriter) -> str:
    """Of another topic: publishes one message after the other."""
    sorted_ms = sorted(
        publish(
            lab.service_url, "beside", messages=LATENCY_MESSAGES, in_flight=1, message_bytes=100
        ).latencies_ms
    )
    share = statistics.quantiles(sorted_ms, n=100)
    return f"p50 {share[49]:.2f} ms, p99 {share[98]:.2f} ms, max {sorted_ms[-1]:.1f} ms"


@contextlib.contextmanager
def busy_reader(lab: Onewriter, topic: str) -> Iterator[None]:
    """Somebody who reads a topic again and again."""
    command = [sys.executable, "-c", _READER, lab.admin_url, topic]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.kill()


@contextlib.contextmanager
def stalled_readers(lab: Onewriter, topic: str) -> Iterator[None]:
    """As many as are let in, who ask for a topic and take nothing of it."""
    path = f"/onewriter/v1/topics/public/default/{topic}/blocks"
    with contextlib.ExitStack() as stack:
        for _ in range(STREAMS_MAX):
            reader = stack.enter_context(socket.create_connection(("127.0.0.1", lab.http_port)))
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        time.sleep(SETTLE_SECONDS)
        yield


def main() -> None:
    """Start onewriter, fill two topics, read them and print what it took."""
    parser = argparse.ArgumentParser(prog="python -m bench.pipeline_blocks", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=MEGABYTES_DEFAULT)
    parser.add_argument("--repetitions", type=int, default=3)
    arguments = parser.parse_args()
    with Onewriter() as lab:
        for label, size in SIZES.items():
            fill(lab, f"blocks-{size}", size, arguments.megabytes * 1_000_000)
            for _ in range(arguments.repetitions):
                print(f"{label}: {read_whole(lab, f'blocks-{size}')}")
        print(f"nobody reads: {latency(lab)}")
        for label, size in SIZES.items():
            with busy_reader(lab, f"blocks-{size}"):
                print(f"one reader of {label}: {latency(lab)}")
        with stalled_readers(lab, f"blocks-{SIZES['1 KiB']}"):
            resident = process_usage([lab.pid_of("broker")]).resident_bytes
            print(f"{STREAMS_MAX} readers that take nothing: {latency(lab)}")
            print(f"the broker then has {resident / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
