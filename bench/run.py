"""``make bench``: every benchmark, side by side with Apache Pulsar where it can run, into a page.

Both servers run on this machine, in turn under the same code and the same client; the page gets
medians over several repetitions, and each goal with whether this run met it. Parts that need Java,
Maven or Go are skipped with a line that says so. What is measured how is in the other files.

By hand: ``python -m bench.run [--parts publish,takeover] [--repetitions 3] [--output FILE]``.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pulsar
from bench import go_perf, scenarios, takeover
from bench.idle_topics import TOPICS_DEFAULT, measure_idle_topics
from bench.machine import LabUnavailable, OtherWork, describe_machine, process_usage
from bench.onewriter_lab import Onewriter
from bench.pulsar_lab import PULSAR_VERSION, PulsarStandalone
from bench.report import OUTPUT, Page, Ratio, Samples, Value, command_line, put_first_half
from bench.restart import measure_restart

PARTS = ("publish", "read", "takeover", "memory", "topics")

OURS, OURS_EVERYSEC, THEIRS = "onewriter", "onewriter, everysec", f"Pulsar {PULSAR_VERSION}"

CPU_MESSAGES = 60_000
CPU_WARM_UP_MESSAGES = 5_000
"""What raw_pipelined publishes before it measures; the CPU time holds them too."""
CATCH_UP_MESSAGES = 200_000
WARM_UP_MESSAGES = 350_000
RESTART_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Side:
    """One running broker: how it is called, reached, and which processes serve."""

    name: str
    service_url: str
    admin_url: str
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Options:
    """How long a run takes: repetitions of each rate, rounds of each takeover, topics that idle."""

    parts: tuple[str, ...]
    repetitions: int
    crash_rounds: int
    silent_rounds: int
    planned_rounds: int
    pulsar_rounds: int
    pulsar_silent_rounds: int
    topics: int


def say(text: str) -> None:
    print(text, flush=True)


def has_go() -> bool:
    """Whether the Go tool is there or can be built."""
    try:
        go_perf.build_go_perf()
    except LabUnavailable as missing:
        say(f"skipped: the Go client's figures ({missing})")
        return False
    return True


# ---- the parts ----------------------------------------------------------------------------------


@contextlib.contextmanager
def step(what: str, side: Side, page: Page) -> Iterator[None]:
    """One step on one server. Where Pulsar fails it is named on the page; a failure of ours ends all."""
    say(f"{what}: {side.name}")
    try:
        yield
    except (pulsar.PulsarException, OSError, LabUnavailable) as error:
        if side.name != THEIRS:
            raise
        say(f"{what}: {side.name} failed: {error!r}")
        page.skipped(f"{what} on {side.name}, which failed: {error!r}")


def publish(
    samples: Samples, sides: list[Side], options: Options, page: Page, *, with_go: bool
) -> None:
    """Latency one at a time, rates unbatched and batched, CPU per message: sides in alternation."""
    for repetition in range(options.repetitions):
        for side in sides:
            with step(f"publish {repetition + 1}/{options.repetitions}", side, page):
                publish_once(samples, side, with_go=with_go)


def publish_once(samples: Samples, side: Side, *, with_go: bool) -> None:
    """One repetition on one server."""
    url = side.service_url
    one = scenarios.python_one_at_a_time(url)
    samples.add("one p50", side.name, one.p50)
    samples.add("one p99", side.name, one.p99)
    (rate, _), usage = scenarios.with_server_usage(
        side.pids, partial(scenarios.raw_pipelined, url, messages=CPU_MESSAGES)
    )
    samples.add("raw rate", side.name, rate.per_second)
    messages = CPU_MESSAGES + CPU_WARM_UP_MESSAGES
    samples.add("cpu", side.name, usage.cpu_seconds / messages * 1e6)
    unbatched = scenarios.python_pipelined(url, batched=False)
    samples.add("python unbatched", side.name, unbatched.per_second)
    if with_go:
        topic = scenarios.new_topic("go")
        figures = go_perf.produce(url, topic, batch_messages=1, windows=1)
        samples.add("go unbatched", side.name, figures.rate)
        figures = go_perf.produce(url, scenarios.new_topic("go-batched"), windows=1)
        samples.add("go batched", side.name, figures.rate)
    scenarios.delete_topics(side.admin_url)


def read(samples: Samples, sides: list[Side], options: Options, page: Page) -> None:
    """Catch-up reads by a raw socket."""
    for repetition in range(options.repetitions):
        for side in sides:
            with step(f"read {repetition + 1}/{options.repetitions}", side, page):
                rate = scenarios.raw_catch_up(side.service_url, messages=CATCH_UP_MESSAGES)
                samples.add("catch-up", side.name, rate.per_second)
                scenarios.delete_topics(side.admin_url)


def takeovers(samples: Samples, sides: list[Side], options: Options, page: Page) -> None:
    """Crash, silence and planned handover of the writer; every round is a sample."""
    ours = {
        takeover.Fault.CRASH: options.crash_rounds,
        takeover.Fault.PLANNED: options.planned_rounds,
        takeover.Fault.SILENT: options.silent_rounds,
    }
    other = {
        takeover.Fault.CRASH: min(options.crash_rounds, options.pulsar_rounds),
        takeover.Fault.PLANNED: min(options.planned_rounds, options.pulsar_rounds),
        takeover.Fault.SILENT: min(options.silent_rounds, options.pulsar_silent_rounds),
    }
    for fault in takeover.Fault:
        for side in sides:
            rounds = (other if side.name == THEIRS else ours)[fault]
            if rounds < 2:
                continue
            with step(f"takeover, {fault.value}, {rounds} rounds", side, page):
                figures = takeover.measure_takeovers(side.service_url, fault=fault, rounds=rounds)
                for done in figures.rounds:
                    samples.add(f"{fault.value} window", side.name, done.leaderless)
                    samples.add(f"{fault.value} append", side.name, done.fault_to_append)


def percentile(samples: Samples, figure: str, side: str, percent: int) -> float | None:
    found = samples.values.get((figure, side))
    if not found or len(found) < 2:
        return None
    return statistics.quantiles(found, n=100, method="inclusive")[percent - 1]


# ---- the page -----------------------------------------------------------------------------------


def fill_publish(page: Page, samples: Samples, options: Options) -> None:
    median = samples.median
    page.section(
        "Publishing, 1 KiB messages",
        f"Medians of {options.repetitions} repetitions that alternate between the servers. One at a time: "
        "the stock Python client waits for each receipt. Unbatched and batched: the Go client's "
        "`perf produce`, one window of 10 s after one that is dropped, its default of 1,000 "
        "messages in flight. Raw socket: a client that needs almost no CPU, 1,000 in flight. "
        "CPU: all processes that serve, per message of the raw socket.",
    )
    page.row("one at a time, p50", "ms", _values(samples, "one p50", 2))
    page.row("one at a time, p99", "ms", _values(samples, "one p99", 2))
    page.row("unbatched, Go client", "/s", _values(samples, "go unbatched"))
    page.row("unbatched, Python client", "/s", _values(samples, "python unbatched"))
    page.row("unbatched, raw socket", "/s", _values(samples, "raw rate"))
    page.row("batched, Go client", "/s", _values(samples, "go batched"))
    page.row("server CPU per unbatched message", "us", _values(samples, "cpu", 1))
    for figure, text, most in (
        ("one p50", "one at a time, p50 at most a third of Pulsar's", 1 / 3),
        ("one p99", "one at a time, p99 at most half of Pulsar's", 0.5),
        ("cpu", "server CPU per unbatched message at most half of this Pulsar's", 0.5),
    ):
        page.goal(text, Ratio(median(figure, OURS), median(figure, THEIRS), at_most=most))
    page.goal(
        "server CPU per unbatched message at most 26 us",
        Value(median("cpu", OURS), "us", at_most=26),
    )
    for figure, side, text, least in (
        ("go unbatched", OURS, "unbatched, Go client, at least 1.2 times Pulsar's", 1.2),
        ("python unbatched", OURS, "unbatched, Python client, level with Pulsar's", 0.95),
        ("go batched", OURS, "batched at least 0.7 times Pulsar's, AOF always", 0.7),
        (
            "go batched",
            OURS_EVERYSEC,
            "batched level with Pulsar's, everysec (no durability)",
            0.95,
        ),
    ):
        page.goal(text, Ratio(median(figure, side), median(figure, THEIRS), at_least=least))


def fill_read(page: Page, samples: Samples, options: Options) -> None:
    page.section(
        "Catch-up reads",
        f"A raw socket reads {CATCH_UP_MESSAGES:,} unbatched messages of 1 KiB from the start of "
        f"their topic; medians of {options.repetitions}.",
    )
    page.row("catch-up read", "/s", _values(samples, "catch-up"))
    page.goal(
        "catch-up read at least 150,000/s",
        Value(samples.median("catch-up", OURS), "/s", at_least=150_000),
    )


def fill_takeovers(page: Page, samples: Samples) -> None:
    page.section(
        "Takeover",
        "Two processes with the stock Python client, WaitForExclusive. Window: last append of the "
        "old writer to the first of the new; append: the fault to the new writer's first receipt. "
        "Silent is SIGSTOP, planned is a closed producer.",
    )
    for fault in takeover.Fault:
        for figure in ("append", "window"):
            name = f"{fault.value} {figure}"
            rounds = {side: len(samples.values.get((name, side), ())) for side in (OURS, THEIRS)}
            for percent in (50, 99):
                page.row(
                    f"{fault.value}, {figure}, p{percent} "
                    f"({rounds[OURS]} and {rounds[THEIRS]} rounds)",
                    "ms",
                    {
                        side: (percentile(samples, name, side, percent), 1)
                        for side in (OURS, THEIRS)
                    },
                )
    crash = percentile(samples, "crash append", OURS, 50)
    page.goal("kill -9: p50 at most 8 ms", Value(crash, "ms", at_most=8))
    crash = percentile(samples, "crash append", OURS, 99)
    page.goal("kill -9: p99 below 50 ms", Value(crash, "ms", at_most=50))
    silent = samples.values.get(("silent append", OURS))
    page.goal(
        "silent: never longer than 3 s", Value(max(silent) if silent else None, "ms", at_most=3000)
    )
    planned = percentile(samples, "planned window", OURS, 99)
    page.goal("planned: p99 below 200 ms", Value(planned, "ms", at_most=200))


def fill_memory(page: Page, samples: Samples) -> None:
    page.section(
        "At rest",
        "Resident memory right after the start and the time until a killed broker process serves "
        "again. Broker and store without the supervisor, which is `onewriter up` itself.",
    )
    page.row("broker and store, idle", "MB", _values(samples, "idle"))
    page.row("supervisor", "MB", _values(samples, "supervisor"))
    page.row("killed broker serves again after", "ms", _values(samples, "restart"))
    page.goal(
        "broker and Valkey idle below 150 MB together",
        Value(samples.median("idle", OURS), "MB", at_most=150),
    )


def _values(samples: Samples, figure: str, digits: int = 0) -> dict[str, tuple[float | None, int]]:
    return {side: (samples.median(figure, side), digits) for side in (OURS, OURS_EVERYSEC, THEIRS)}


# ---- the run ------------------------------------------------------------------------------------


def start_sides(
    stack: contextlib.ExitStack, samples: Samples, options: Options, page: Page
) -> tuple[list[Side], list[Side]]:
    """Start the servers: those for everything, and those for publishing. Notes what they weigh."""
    ours = stack.enter_context(Onewriter())
    pids = (ours.pid_of("broker"), ours.pid_of("store"))
    sides = [Side(OURS, ours.service_url, ours.admin_url, pids)]
    resident = process_usage(pids).resident_bytes / 1e6
    samples.add("idle", OURS, resident)
    samples.add("supervisor", OURS, process_usage([ours.pid]).resident_bytes / 1e6 - resident)
    publishing = list(sides)
    if "publish" in options.parts:
        everysec = stack.enter_context(Onewriter(fsync="everysec"))
        pids = (everysec.pid_of("broker"), everysec.pid_of("store"))
        publishing.append(Side(OURS_EVERYSEC, everysec.service_url, everysec.admin_url, pids))
    try:
        pulsar = stack.enter_context(PulsarStandalone())
    except LabUnavailable as missing:
        say(f"skipped: Pulsar ({missing})")
        page.skipped(f"Pulsar's column: {missing}")
    else:
        samples.add("idle", THEIRS, pulsar.usage().resident_bytes / 1e6)
        other = Side(THEIRS, pulsar.service_url, pulsar.admin_url, (pulsar.pid,))
        sides.append(other)
        publishing.append(other)
    return sides, publishing


def compare(samples: Samples, options: Options, page: Page) -> None:
    """The parts that are measured side by side, on servers that run all the time."""
    with contextlib.ExitStack() as stack:
        sides, publishing = start_sides(stack, samples, options, page)
        if {"publish", "read"} & set(options.parts):
            for side in publishing:
                say(f"warming up: {side.name}")
                scenarios.warm_up(side.service_url, messages=WARM_UP_MESSAGES)
                scenarios.delete_topics(side.admin_url)
        if "publish" in options.parts:
            with_go = has_go()
            if not with_go:
                page.skipped("the Go client's rows: go is missing or could not build its tool")
            publish(samples, publishing, options, page, with_go=with_go)
            fill_publish(page, samples, options)
        if "read" in options.parts:
            read(samples, sides, options, page)
            fill_read(page, samples, options)
        if "takeover" in options.parts:
            takeovers(samples, sides, options, page)
            fill_takeovers(page, samples)


def run(options: Options, output: Path, command: str) -> None:
    """Measure everything asked for and write the page; what cannot run is named on it."""
    page = Page([OURS, OURS_EVERYSEC, THEIRS])
    machine, others = describe_machine(), OtherWork()
    say(str(machine))
    page.introduce(str(machine), command, WARM_UP_MESSAGES)
    samples = Samples()
    if set(options.parts) - {"topics"}:
        compare(samples, options, page)
    if "memory" in options.parts:
        say("restart")
        with Onewriter() as lab:
            for milliseconds in measure_restart(lab, rounds=RESTART_ROUNDS):
                samples.add("restart", OURS, milliseconds)
        fill_memory(page, samples)
    if "topics" in options.parts:
        say(f"idle topics: {options.topics:,}")
        with Onewriter() as lab:
            idle = measure_idle_topics(lab, options.topics)
        page.section("Idle topics", "Each topic has a holder and one waiter, on two sockets.")
        page.remark(f"{idle}.")
        page.goal(
            "idle topics: below 8 KB of broker memory each",
            Value(idle.broker_bytes_per_topic / 1000, "KB", at_most=8),
        )
    page.disturbed(others.share())
    put_first_half(output, page.text())
    say(page.text())


def main() -> int:
    """Run the benchmarks and write docs/benchmarks.md."""
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=main.__doc__)
    parser.add_argument("--parts", default=",".join(PARTS), help="of " + ", ".join(PARTS))
    parser.add_argument("--repetitions", type=int, default=3, help="of rates, in alternation")
    parser.add_argument("--crash-rounds", type=int, default=200)
    parser.add_argument("--silent-rounds", type=int, default=50)
    parser.add_argument("--planned-rounds", type=int, default=200)
    parser.add_argument("--pulsar-rounds", type=int, default=200, help="at most, of Pulsar's")
    parser.add_argument(
        "--pulsar-silent-rounds", type=int, default=5, help="at most, of Pulsar's: a minute each"
    )
    parser.add_argument("--topics", type=int, default=TOPICS_DEFAULT)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    parts = tuple(part.strip() for part in arguments.parts.split(",") if part.strip())
    if unknown := set(parts) - set(PARTS):
        parser.error(f"unknown parts: {', '.join(sorted(unknown))}")
    options = Options(
        parts=parts,
        repetitions=arguments.repetitions,
        crash_rounds=arguments.crash_rounds,
        silent_rounds=arguments.silent_rounds,
        planned_rounds=arguments.planned_rounds,
        pulsar_rounds=arguments.pulsar_rounds,
        pulsar_silent_rounds=arguments.pulsar_silent_rounds,
        topics=arguments.topics,
    )
    run(options, arguments.output, command_line("bench.run"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
