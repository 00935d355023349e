"""CPU of broker and store per message, with three shards beside one, and with a single store process.

Three installations of one broker each run at the same time: a single Valkey, a Valkey Cluster of one primary, and one of
three primaries, all with AOF always, without rewrites of the file and without replicas. They are loaded in turns, so that other work on the machine
concerns them equally. The client sends the same number of messages to a topic of each of some buckets, and then waits for
all receipts; so this number is about the number of entries in a call of the store. The calls are counted by the store.

By hand: ``python -m bench.shard_costs --pairs 3``.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from bench.machine import describe_machine, process_usage
from bench.raw_client import ProducersConnection
from bench.report import Goal, Ratio, Report, table
from tests.servers import StoreServer, running_server
from tests.store_cluster import running_cluster

from onewriter_core.ids import TopicName, bucket_of
from onewriter_testing.processes import LocalBrokers, running_brokers

ENTRIES = (1, 4, 8, 32, 64)
"""Messages that are sent to each topic at the same time."""

BUCKETS_USED = 24
"""Topics that are written to, each in its own bucket: eight buckets of each of three shards."""

MESSAGES_MIN, MESSAGES_MAX = 10_000, 60_000
MESSAGE_BYTES = 1024
BYTES_MAX = 1 << 28
"""Of one run: the client builds its frames before."""

PAIRS = 5
GOAL = 1.1
"""Three shards against one, at GOAL_ENTRIES and more."""
GOAL_ENTRIES = 32

SINGLE, ONE, THREE = "single process", "one shard", "three shards"


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one message: CPU of the broker and of all store processes, in microseconds; entries in a call."""

    broker_us: float
    store_us: float
    entries: float

    @property
    def both_us(self) -> float:
        return self.broker_us + self.store_us


@dataclass(frozen=True, slots=True)
class Installation:
    """A broker with its store."""

    brokers: LocalBrokers
    servers: Sequence[StoreServer]

    def topics(self) -> list[str]:
        """A topic in each of BUCKETS_USED buckets, as many of each third of the hash slots."""
        found: dict[int, str] = {}
        number = 0
        while len(found) < BUCKETS_USED:
            name = f"persistent://public/default/cost-{number}"
            found.setdefault(bucket_of(TopicName.parse(name), self.brokers.buckets), name)
            number += 1
        return list(found.values())

    def _calls(self) -> int:
        """The scripts' calls that the stores have executed."""
        return sum(
            int(figures["calls"])
            for server in self.servers
            for name, figures in server.information("commandstats").items()
            if name.removeprefix("cmdstat_").lower() in {"fcall", "evalsha"}
        )

    def cost(self, entries: int, message_bytes: int = MESSAGE_BYTES) -> Cost:
        """Publish with this number of messages for each topic at the same time."""
        topics = self.topics()
        broker, stores = [self.brokers.pid(0)], [server.process_id for server in self.servers]
        messages = min(MESSAGES_MAX, MESSAGES_MIN * entries, BYTES_MAX // message_bytes)
        rounds = messages // (entries * len(topics))
        with closing(ProducersConnection.open(self.brokers.service_urls[0])) as connection:
            connection.produce_to(topics)
            connection.publish(entries, rounds // 10, message_bytes)
            calls = self._calls()
            before, before_store = process_usage(broker), process_usage(stores)
            connection.publish(entries, rounds, message_bytes)
            after, after_store = process_usage(broker), process_usage(stores)
            made = self._calls() - calls
        sent = rounds * entries * len(topics)
        return Cost(
            1e6 * after.since(before).cpu_seconds / sent,
            1e6 * after_store.since(before_store).cpu_seconds / sent,
            sent / max(1, made),
        )


@contextlib.contextmanager
def _installation(url: str, servers: Sequence[StoreServer]) -> Iterator[Installation]:
    settings = {"undeclared_retention_bytes": 1 << 22}
    for (
        server
    ) in servers:  # a rewrite of the file in one of the runs would be the largest difference
        server.command("CONFIG", "SET", "auto-aof-rewrite-percentage", "0")
    with running_brokers(redis_url=url, supervised=False, settings=settings) as brokers:
        yield Installation(brokers, servers)


@contextlib.contextmanager
def installations(io_threads: int = 1) -> Iterator[dict[str, Installation]]:
    """All three, for as long as the context lasts; ``io_threads`` of the single store process."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(running_server(io_threads=str(io_threads)))
        found = {SINGLE: stack.enter_context(_installation(server.url, [server]))}
        for name, shards in ((ONE, 1), (THREE, 3)):
            cluster = stack.enter_context(running_cluster(replicas=0, shards=shards))
            found[name] = stack.enter_context(_installation(cluster.url, cluster.servers))
        yield found


def measure(
    pairs: int,
    entries: Sequence[int] = ENTRIES,
    *,
    message_bytes: int = MESSAGE_BYTES,
    io_threads: int = 1,
) -> dict[int, dict[str, list[Cost]]]:
    """The costs of each installation by the messages at the same time, one for each pair."""
    found: dict[int, dict[str, list[Cost]]] = {}
    with installations(io_threads) as labs:
        for count in entries:
            costs = found[count] = {name: [] for name in labs}
            for number in range(pairs):
                for name in list(labs) if number % 2 == 0 else reversed(labs):
                    costs[name].append(labs[name].cost(count, message_bytes))
            print(f"{count} at a time: {_row(costs)}", flush=True)
    return found


def ratio_of(costs: dict[str, list[Cost]], one: str, other: str) -> float:
    """The median of the pairs' ratios."""
    pairs = zip(costs[one], costs[other], strict=True)
    return statistics.median(left.both_us / right.both_us for left, right in pairs)


def _median(costs: Sequence[Cost], figure: Callable[[Cost], float]) -> float:
    return statistics.median(figure(cost) for cost in costs)


def _cell(costs: Sequence[Cost]) -> str:
    both, broker, store = (
        _median(costs, figure)
        for figure in (
            lambda cost: cost.both_us,
            lambda cost: cost.broker_us,
            lambda cost: cost.store_us,
        )
    )
    return f"{both:.1f} ({broker:.1f} + {store:.1f})"


def _row(costs: dict[str, list[Cost]]) -> list[str]:
    entries = _median(costs[THREE], lambda cost: cost.entries)
    cells = [f"{entries:.1f}", *(_cell(found) for found in costs.values())]
    return [*cells, f"{ratio_of(costs, THREE, ONE):.2f}", f"{ratio_of(costs, ONE, SINGLE):.2f}"]


def as_report(measured: dict[int, dict[str, list[Cost]]]) -> Report:
    """The section of the page."""
    pairs = len(next(iter(measured.values()))[ONE])
    text = (
        f"Unbatched messages of 1 KiB to {BUCKETS_USED} topics, each in its own bucket; AOF always without rewrites of the file, no replicas, one broker."
        " *at a time*: messages that the client sends to each topic before it waits for receipts; *entries*: entries in a"
        " call of the store, with three shards. CPU: user and system time of broker and store processes, in microseconds per"
        f" message (broker + store). Medians of {pairs} runs each, which alternate between the three installations."
    )
    names = ("at a time", "entries", *measured[next(iter(measured))])
    columns = [*names, "three shards / one", "one shard / single process"]
    rows = [[str(count), *_row(costs)] for count, costs in measured.items()]
    goals: list[Goal] = [
        (
            f"three shards beside one, {count} at a time: CPU per message at most {GOAL} times",
            Ratio(ratio_of(costs, THREE, ONE), 1.0, at_most=GOAL),
        )
        for count, costs in measured.items()
        if count >= GOAL_ENTRIES
    ]
    return text, goals, table(columns, rows)


def main() -> None:
    """Measure CPU per message with one and with three shards."""
    parser = argparse.ArgumentParser(prog="python -m bench.shard_costs", description=main.__doc__)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--entries", type=int, nargs="+", default=ENTRIES)
    parser.add_argument("--message-bytes", type=int, default=MESSAGE_BYTES)
    parser.add_argument("--io-threads", type=int, default=1, help="of the single store process")
    given = parser.parse_args()
    print(describe_machine())
    measured = measure(
        given.pairs,
        given.entries,
        message_bytes=given.message_bytes,
        io_threads=given.io_threads,
    )
    _, goals, lines = as_report(measured)
    for about, claim in goals:
        print(about, *claim.verdict())
    print("\n".join(lines))


if __name__ == "__main__":
    main()
