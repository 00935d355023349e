"""Scale: CPU per message with several shards, and many topics on few brokers.

``shards`` is shard_costs.py. ``topics``: how fast topics are opened, how soon all holders are back after a kill of their
broker, and CPU and memory per topic. ``idle``: memory of topics without clients. Each part writes its own section of
docs/benchmarks.md.

Two brokers, a file anchor, and one Valkey with AOF always. All topics belong to buckets of the first broker, each
with a holder and a waiter. Then this broker is killed, and the second one takes over.

By hand: ``python -m bench.scale_run --parts topics --topics 3000 --output FILE``; ``--profile PREFIX`` records the brokers with py-spy.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import report as reports
from bench.machine import describe_machine, others_share_now, process_usage
from bench.report import (
    OUTPUT,
    SCALE_HEADING,
    Conditions,
    Goal,
    Report,
    Value,
    command_line,
    part,
    table,
)
from bench.shard_costs import PAIRS, as_report
from bench.shard_costs import measure as measure_shards
from tests.servers import StoreServer, running_server

from onewriter_core.errors import Unavailable
from onewriter_core.ids import TopicName, bucket_of
from onewriter_testing.processes import LocalBrokers, running_brokers

TOPICS_DEFAULT = 10_000
IDLE_TOPICS_DEFAULT = 100_000
UNUSED_SECONDS = 20.0
"""``unused_topic_seconds`` of the broker that ``measure_idle`` starts."""

UNLOAD_SECONDS_MAX = 600.0
VICTIM = 0
ROOT = Path(__file__).parent.parent


def say(text: str) -> None:
    """Print progress at once."""
    print(text, flush=True)


@dataclass(frozen=True, slots=True)
class TakeoverFigures:
    """What one run measured; times in seconds since the broker's SIGKILL."""

    topics: int
    opened_per_second: float
    first_back: float
    half_back: float
    all_back: float
    all_queued: float
    lost_epochs: int
    broker_bytes_per_topic: float
    store_bytes_per_topic: float
    open_broker_cpu: float
    open_store_cpu: float
    back_broker_cpu: float
    back_store_cpu: float

    def report(self) -> Report:
        """The section of the page."""
        text = (
            f"{self.topics:,} topics with a holder and a waiter each, all on one of two brokers with a file anchor, one Valkey"
            " with AOF always. This broker is killed, and the other one takes over. Times since the kill, its detection"
            " included (2 s). Clients, brokers and store share the machine."
        )
        goals: list[Goal] = [
            (
                "topics opened, at least 2,000/s",
                Value(self.opened_per_second, "/s", at_least=2_000),
            ),
            ("all holders back within 7 s", Value(self.all_back, "s", at_most=7.0)),
            (
                "holders with another epoch: none",
                Value(self.lost_epochs, "holders", at_most=0, digits=0),
            ),
        ]
        per = 1e6 / self.topics
        rows = [
            ["opened", f"{self.opened_per_second:,.0f}/s"],
            ["first holder back", f"{self.first_back:.2f} s"],
            ["half of the holders back", f"{self.half_back:.2f} s"],
            ["all holders back", f"{self.all_back:.2f} s"],
            ["all waiters queued again", f"{self.all_queued:.2f} s"],
            ["CPU of the broker, per topic opened", f"{self.open_broker_cpu * per:,.0f} us"],
            ["CPU of the store, per topic opened", f"{self.open_store_cpu * per:,.0f} us"],
            ["CPU of the broker, per topic taken over", f"{self.back_broker_cpu * per:,.0f} us"],
            ["CPU of the store, per topic taken over", f"{self.back_store_cpu * per:,.0f} us"],
            ["memory of the broker, per topic", f"{self.broker_bytes_per_topic / 1024:.1f} KiB"],
            ["memory of the store, per topic", f"{self.store_bytes_per_topic / 1024:.1f} KiB"],
        ]
        return text, goals, table(("", ""), rows)


class Client:
    """The process with the holders and waiters."""

    def __init__(self, topics: Path, urls: list[str], *, waiters: bool = True) -> None:
        arguments = [] if waiters else ["--no-waiters"]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.scale_client", str(topics), *urls, *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, line: str) -> None:
        """Send the process a command."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def wait_for(self, name: str) -> dict[str, Any]:
        """The process's next event of this name; others are printed."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event: dict[str, Any] = json.loads(line)
            if event["event"] == name:
                return event
            refused = event.get("refused")
            say(
                f"  {event['what']}: {event['answered']}/{event['of']}"
                + (f" ({refused})" if refused else "")
            )
        raise RuntimeError(f"the client ended with {self._process.wait()}")

    def end(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()


def names_for(brokers: LocalBrokers, number: int, topics: int) -> list[str]:
    """Names of topics that placement assigns to one broker."""
    prefix, found, at = "persistent://public/default/scale", list[str](), 0
    while len(found) < topics:
        name = f"{prefix}-{at}"
        if brokers.target_of(name) == number:
            found.append(name)
        at += 1
    return found


def wait_placed(brokers: LocalBrokers) -> None:
    """Wait until each broker has the buckets that placement assigns to it."""
    topics: dict[int, str] = {}
    for at in itertools.count():
        if len(topics) == brokers.buckets:
            break
        name = f"persistent://public/default/placed-{at}"
        topics.setdefault(bucket_of(TopicName.parse(name), brokers.buckets), name)
    for topic in topics.values():
        while True:
            with contextlib.suppress(Unavailable):
                if brokers.owner_of(topic) == brokers.target_of(topic):
                    break
            time.sleep(0.1)


@contextlib.contextmanager
def lab(brokers: int, **more: float) -> Iterator[tuple[LocalBrokers, StoreServer]]:
    """Brokers without a supervisor on a store that syncs each write; ``more``: further settings."""
    settings = more | {
        "quota_topics_per_subject": 0,
        "quota_topics_per_namespace": 0,
        "quota_producers_per_subject": 0,
        "quota_producers_per_namespace": 0,
    }
    with (
        running_server() as store,
        running_brokers(
            brokers=brokers, redis_url=store.url, supervised=False, settings=settings
        ) as local,
    ):
        wait_placed(local)
        yield local, store


def measure_takeover(
    topics: int, *, waiters: bool = True, profile: Path | None = None
) -> TakeoverFigures:
    """Open topics on one of two brokers, kill it, and wait until all holders are back at the other one."""
    with lab(2) as (brokers, store), tempfile.TemporaryDirectory(prefix="onewriter-") as folder:
        names = Path(folder) / "topics"
        names.write_text("\n".join(names_for(brokers, VICTIM, topics)))
        victim, other = brokers.pid(VICTIM), brokers.pid(1 - VICTIM)
        before = process_usage([victim])
        before_store = process_usage([store.process_id])
        if profile is not None:
            _profile(victim, profile.with_suffix(".open.txt"), topics)
        client = Client(names, brokers.service_urls, waiters=waiters)
        try:
            opened = client.wait_for("open")
            say(f"opened at {topics / opened['seconds']:,.0f}/s")
            time.sleep(1.0)
            after, after_store = process_usage([victim]), process_usage([store.process_id])
            other_before = process_usage([other])
            if profile is not None:
                _profile(other, profile.with_suffix(".back.txt"), topics)
                time.sleep(1.0)
            client.tell("kill")
            time.sleep(0.5)
            killed_at = time.monotonic()
            os.kill(victim, signal.SIGKILL)
            back = client.wait_for("back")
            end, end_store = process_usage([other]), process_usage([store.process_id])
        finally:
            client.end()
        return TakeoverFigures(
            topics=topics,
            opened_per_second=topics / opened["seconds"],
            first_back=back["first"] - killed_at,
            half_back=back["half"] - killed_at,
            all_back=back["last"] - killed_at,
            all_queued=back["queued"] - killed_at,
            lost_epochs=back["lost_epochs"],
            broker_bytes_per_topic=(after.resident_bytes - before.resident_bytes) / topics,
            store_bytes_per_topic=(after_store.resident_bytes - before_store.resident_bytes)
            / topics,
            open_broker_cpu=after.since(before).cpu_seconds,
            open_store_cpu=after_store.since(before_store).cpu_seconds,
            back_broker_cpu=end.since(other_before).cpu_seconds,
            back_store_cpu=end_store.since(after_store).cpu_seconds,
        )


def _profile(pid: int, output: Path, topics: int) -> None:
    seconds = max(5, topics // 400)
    command = [
        str(Path(sys.executable).with_name("py-spy")),
        "record",
        "-p",
        str(pid),
        "-d",
        str(seconds),
        "-r",
        "200",
        "-f",
        "raw",
        "-o",
        str(output),
        "--nonblocking",
    ]
    subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _wait_unloaded(brokers: LocalBrokers, topics: int) -> None:
    """Wait until the broker has unloaded that many topics since its start. Raises TimeoutError."""
    deadline = time.monotonic() + UNLOAD_SECONDS_MAX
    while (
        done := sum(int(str(each["topics"])) for each in brokers.events("topics.unloaded"))
    ) < topics:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{done:,} of {topics:,} topics were unloaded")
        time.sleep(1.0)


def measure_idle(topics: int, at_once: int) -> Report:
    """Open topics with a holder each, let all clients leave, and compare the broker's memory.

    At most ``at_once`` topics have a holder at a time: the next ones are opened when the former ones were unloaded.
    """
    with (
        lab(1, unused_topic_seconds=UNUSED_SECONDS) as (brokers, store),
        tempfile.TemporaryDirectory(prefix="onewriter-") as folder,
    ):
        all_names = names_for(brokers, 0, topics)
        names = Path(folder) / "topics"
        before, before_store = process_usage([brokers.pid(0)]), process_usage([store.process_id])
        held_bytes, seconds, first_bytes = 0, 0.0, 0
        for first in range(0, topics, at_once):
            part_of = all_names[first : first + at_once]
            names.write_text("\n".join(part_of))
            client = Client(names, brokers.service_urls, waiters=False)
            try:
                seconds += client.wait_for("open")["seconds"]
                held_bytes = max(held_bytes, process_usage([brokers.pid(0)]).resident_bytes)
            finally:
                client.end()
            left = time.monotonic()
            time.sleep(15.0)
            loaded = process_usage([brokers.pid(0)])
            _wait_unloaded(brokers, first + len(part_of))
            unloaded_after = time.monotonic() - left
            first_bytes = first_bytes or process_usage([brokers.pid(0)]).resident_bytes
        idle, idle_store = process_usage([brokers.pid(0)]), process_usage([store.process_id])
        time.sleep(10.0)
        cpu = process_usage([brokers.pid(0)]).since(idle).cpu_seconds / 10.0
        growth = (idle.resident_bytes - before.resident_bytes) / topics / 1024
        stored = (idle_store.resident_bytes - before_store.resident_bytes) / topics / 1024
        later = (idle.resident_bytes - first_bytes) / max(1, topics - at_once) / 1024
        text = (
            f"{topics:,} topics on one broker, of which {min(at_once, topics):,} have a holder at a time. Then their clients leave,"
            f" and a topic leaves memory after {UNUSED_SECONDS:g} s (`unused_topic_seconds`)."
        )
        megabytes = idle.resident_bytes / 1e6
        goals: list[Goal] = [
            (f"{topics:,} topics without clients below 500 MB", Value(megabytes, "MB", at_most=500))
        ]
        rows = [
            ["opened", f"{topics / seconds:,.0f}/s"],
            ["broker with all holders", f"{held_bytes / 1e6:,.0f} MB"],
            ["broker 15 s after the last clients left", f"{loaded.resident_bytes / 1e6:,.0f} MB"],
            ["broker without clients, all topics unloaded", f"{megabytes:,.0f} MB"],
            ["all topics unloaded after", f"{unloaded_after:.0f} s"],
            ["broker, per topic unloaded", f"{growth:.2f} KiB"],
            [
                "the same, of the topics after the first that were held at a time",
                f"{later:.2f} KiB",
            ],
            ["store, per topic", f"{stored:.2f} KiB"],
            ["CPU of the broker without clients", f"{cpu:.1%} of a core"],
        ]
        return text, goals, table(("", ""), rows)


TITLES = {
    "shards": "CPU per message with several shards",
    "topics": "Opening and taking over many topics",
    "idle": "Topics without clients",
}
"""The sections by part, in the page's order."""


def merged(page: str, measured: Mapping[str, str]) -> str:
    """The page with these sections in it, by title; everything else stays."""
    return reports.merged(page, SCALE_HEADING, "bench-scale", list(TITLES.values()), measured)


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    found = argparse.ArgumentParser(prog="python -m bench.scale_run", description=main.__doc__)
    found.add_argument("--parts", default=",".join(TITLES), help="of " + ", ".join(TITLES))
    found.add_argument("--topics", type=int, default=TOPICS_DEFAULT)
    found.add_argument("--idle", type=int, default=IDLE_TOPICS_DEFAULT)
    found.add_argument(
        "--at-once", type=int, default=0, help="idle topics with a holder at a time; 0: all"
    )
    found.add_argument("--pairs", type=int, default=PAIRS, help="of each row of the part shards")
    found.add_argument("--no-waiters", action="store_true")
    found.add_argument("--profile", type=Path, help="prefix of py-spy's files")
    found.add_argument("--output", type=Path, default=OUTPUT)
    return found


def main() -> None:
    """Measure CPU per message with several shards, and opening, takeover and memory of many topics."""
    given = parser().parse_args()
    chosen = [name for name in given.parts.split(",") if name]
    if unknown := set(chosen) - TITLES.keys():
        parser().error(f"unknown parts: {', '.join(sorted(unknown))}")
    measures: dict[str, Callable[[], Report]] = {
        "shards": lambda: as_report(measure_shards(given.pairs)),
        "topics": lambda: measure_takeover(
            given.topics, waiters=not given.no_waiters, profile=given.profile
        ).report(),
        "idle": lambda: measure_idle(given.idle, given.at_once or given.idle),
    }
    for name in chosen:
        others_share, machine = others_share_now(), str(describe_machine())
        text, goals, lines = measures[name]()
        conditions = Conditions(
            machine, command_line("bench.scale_run"), others_share, os.getloadavg()[0]
        )
        section = part(text, conditions, goals, lines)
        before = given.output.read_text() if given.output.exists() else ""
        given.output.write_text(merged(before, {TITLES[name]: section}))
        print(f"\n{section}", flush=True)


if __name__ == "__main__":
    main()
