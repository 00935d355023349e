"""The Go client's own load generator, built once and wrapped: what a fast stock client sees.

Here: building ``perf`` of apache/pulsar-client-go, running its ``produce`` and ``consume`` against
any broker, and reading its figures. It reports every 10 s, over the last 10 s, so a run takes
10 s per window; the first windows hold the start and are dropped.

Two habits of the tool to know: it serves its own metrics on port 8000 of all interfaces whatever
its options say (and goes on silently if the port is taken), and its consumer starts a new
subscription at the end of the topic, so a backlog needs a subscription made beforehand.

By hand: ``python -m bench.go_perf produce SERVICE_URL TOPIC [--unbatched]``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import re
import shutil
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.machine import LabUnavailable, cache_directory, exclusive_use, run_tool, stop_process

GO_CLIENT_VERSION = "v0.19.0"
BUILD_TIMEOUT_SECONDS = 600.0
WINDOW_SECONDS = 10
STOP_GRACE_SECONDS = 2.0
OUTPUT_LINES_MAX = 10_000
"""Lines kept for the reader; the tool prints a few per window."""

_NUMBER = r"([\d.]+|NaN|[+-]Inf)"
_PRODUCED = re.compile(
    rf"Publish rate:\s*{_NUMBER} msg/s.*?50%\s*{_NUMBER} -95%\s*{_NUMBER} - "
    rf"99%\s*{_NUMBER} - 99\.9%\s*{_NUMBER} - max\s*{_NUMBER}"
)
_CONSUMED = re.compile(rf"Consume rate:\s*{_NUMBER} msg/s")


@dataclass(frozen=True, slots=True)
class PublishWindow:
    """What the tool reported for one window: messages per second, and latencies in milliseconds.

    The latency of a message runs from before it was queued in the client to its receipt, so
    at full rate it says how deep the queue is.
    """

    rate: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float


@dataclass(frozen=True, slots=True)
class PublishFigures:
    windows: tuple[PublishWindow, ...]

    @property
    def rate(self) -> float:
        """Messages per second: the median window's."""
        return statistics.median(window.rate for window in self.windows)

    @property
    def messages(self) -> int:
        """Messages acknowledged in the windows kept."""
        return round(sum(window.rate for window in self.windows) * WINDOW_SECONDS)


@dataclass(frozen=True, slots=True)
class ConsumeFigures:
    rates: tuple[float, ...]
    """Messages per second of each window kept."""

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)


def parse_publish_window(line: str) -> PublishWindow | None:
    """Read one line of ``perf produce``; None for a line that reports no figures."""
    found = _PRODUCED.search(line)
    return PublishWindow(*map(float, found.groups())) if found else None


def parse_consume_rate(line: str) -> float | None:
    """Read one line of ``perf consume``; None for a line that reports no figures."""
    found = _CONSUMED.search(line)
    return float(found[1]) if found else None


def build_go_perf() -> Path:
    """The tool's binary, built if it is not there yet (a minute or two).

    Raises LabUnavailable when Go is missing or the build fails.
    """
    cache = cache_directory(f"go-perf-{GO_CLIENT_VERSION}")
    binary = cache / "perf"
    with exclusive_use(cache):
        if binary.exists():
            return binary
        go = shutil.which("go")
        if go is None:
            raise LabUnavailable("go is not on PATH: it builds the Go client's perf tool (Go 1.24)")
        partial = cache / "partial"
        run_tool(
            [go, "install", f"github.com/apache/pulsar-client-go/perf@{GO_CLIENT_VERSION}"],
            timeout_seconds=BUILD_TIMEOUT_SECONDS,
            environment={"GOBIN": str(partial)},
        )
        (partial / "perf").rename(binary)
        partial.rmdir()
    return binary


@contextlib.contextmanager
def _running(arguments: list[str], token_file: Path | None) -> Iterator[queue.Queue[str | None]]:
    """Run the tool; yields its output lines, then None when it ended."""
    command = [str(build_go_perf()), *arguments]
    if token_file is not None:
        command += ["--token-file", str(token_file)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "NO_COLOR": "1"},
    )
    lines: queue.Queue[str | None] = queue.Queue(OUTPUT_LINES_MAX)

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            # Without a reader (the run is over) the rest is dropped rather than waited for.
            with contextlib.suppress(queue.Full):
                lines.put_nowait(line.decode(errors="replace"))
        with contextlib.suppress(queue.Full):
            lines.put_nowait(None)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield lines
    finally:
        stop_process(process, STOP_GRACE_SECONDS)
        reader.join()
        assert process.stdout is not None
        process.stdout.close()


def _next_line(lines: queue.Queue[str | None], seen: list[str]) -> str:
    try:
        line = lines.get(timeout=3 * WINDOW_SECONDS)
    except queue.Empty:
        line = None
    if line is None:
        end = "".join(seen[-15:])
        raise RuntimeError(f"the Go perf tool ended or fell silent before its figures:\n{end}")
    seen.append(line)
    return line


def produce(
    service_url: str,
    topic: str,
    *,
    message_bytes: int = 1024,
    batch_messages: int = 1000,
    batch_kib: int = 128,
    batch_delay_ms: int = 1,
    queue_messages: int = 1000,
    rate: int = 0,
    windows: int = 2,
    warm_up_windows: int = 1,
    token_file: Path | None = None,
) -> PublishFigures:
    """Publish from one producer for ``warm_up_windows + windows`` windows.

    ``batch_messages=1`` sends each message alone; the defaults are the tool's own. ``rate`` is
    messages per second, 0 as fast as it goes; ``queue_messages`` bounds what is in flight.
    Raises RuntimeError when the tool fails or falls silent, with the end of its output.
    """
    arguments = [
        "produce",
        topic,
        *("--service-url", service_url),
        *("--size", str(message_bytes)),
        *("--batching-num-messages", str(batch_messages)),
        *("--batching-max-size", str(batch_kib)),
        *("--batching-time", str(batch_delay_ms)),
        *("--queue-size", str(queue_messages)),
        *("--rate", str(rate)),
    ]
    kept: list[PublishWindow] = []
    seen: list[str] = []
    with _running(arguments, token_file) as lines:
        while len(kept) < warm_up_windows + windows:
            window = parse_publish_window(_next_line(lines, seen))
            if window is not None:
                kept.append(window)
    return PublishFigures(tuple(kept[warm_up_windows:]))


def consume(
    service_url: str,
    topic: str,
    *,
    subscription: str = "sub",
    receiver_queue: int = 1000,
    windows: int = 2,
    warm_up_windows: int = 1,
    token_file: Path | None = None,
) -> ConsumeFigures:
    """Consume with one Exclusive consumer that acknowledges each message.

    A subscription that does not exist yet starts at the end of the topic: let somebody publish
    meanwhile, or make it beforehand. Raises RuntimeError as ``produce`` does.
    """
    arguments = [
        "consume",
        topic,
        *("--service-url", service_url),
        *("--subscription", subscription),
        *("--receiver-queue-size", str(receiver_queue)),
    ]
    rates: list[float] = []
    seen: list[str] = []
    with _running(arguments, token_file) as lines:
        while len(rates) < warm_up_windows + windows:
            rate = parse_consume_rate(_next_line(lines, seen))
            if rate is not None:
                rates.append(rate)
    return ConsumeFigures(tuple(rates[warm_up_windows:]))


def main() -> int:
    """Run the tool against a broker and print its figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.go_perf", description=main.__doc__)
    parser.add_argument("verb", choices=["produce", "consume"])
    parser.add_argument("service_url")
    parser.add_argument("topic")
    parser.add_argument("--unbatched", action="store_true", help="produce: batches of 1")
    parser.add_argument("--windows", type=int, default=2, help="of 10 s, after one to warm up")
    parser.add_argument("--subscription", default="sub", help="consume: which")
    arguments = parser.parse_args()
    target = (arguments.service_url, arguments.topic)
    try:
        if arguments.verb == "consume":
            read = consume(*target, subscription=arguments.subscription, windows=arguments.windows)
            print(f"{read.rate:.0f} msg/s")
            return 0
        written = produce(
            *target,
            batch_messages=1 if arguments.unbatched else 1000,
            windows=arguments.windows,
        )
    except (LabUnavailable, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    for window in written.windows:
        print(f"{window.rate:.0f} msg/s, p50 {window.p50_ms:.1f} ms, p99 {window.p99_ms:.1f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
