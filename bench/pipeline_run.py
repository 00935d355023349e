"""``make bench-pipeline``: the pipeline's figures, into the third division of docs/benchmarks.md.

Each part starts a broker of its own and writes its own section as soon as it is done; what other
commands wrote stays, and so do the parts that this run leaves out.

By hand: ``python -m bench.pipeline_run [--parts source,audit] [--repetitions 5] [--output FILE]``.
A short look: ``--messages 100000 --positions 100000 --rows 20000 --repetitions 1``.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import pipeline_jobs, pipeline_source
from bench.machine import describe_machine
from bench.onewriter_lab import Onewriter
from bench.report import (
    PIPELINE_HEADING,
    Conditions,
    Goal,
    division_of,
    divisions,
    joined,
    part,
    parts_of,
)

OUTPUT = Path(__file__).parent.parent / "docs" / "benchmarks.md"

_INTRODUCTION = (
    "Written by `make bench-pipeline`; do not edit. What is measured how is in\n"
    "[bench/README.md](../bench/README.md)."
)

Report = tuple[str, list[Goal], list[str]]
"""What was done, the goals, and the figures."""


@dataclass(frozen=True, slots=True)
class Options:
    """How long a run takes."""

    repetitions: int
    messages: int
    positions: int
    """That are audited."""
    rows: int
    """Of each batch of the sink."""


@dataclass(frozen=True, slots=True)
class Part:
    """One section of the page; ``measure`` is given a running broker."""

    title: str
    measure: Callable[[Onewriter, Options], Report]


def _source(lab: Onewriter, options: Options) -> Report:
    samples = pipeline_source.measure(lab, options.messages, options.repetitions)
    return pipeline_source.report(samples, options.messages, options.repetitions)


def _offload(lab: Onewriter, options: Options) -> Report:
    with pipeline_source.running_session() as spark:
        return pipeline_jobs.offload(lab, spark, options.messages, options.repetitions)


def _audit(lab: Onewriter, options: Options) -> Report:
    with pipeline_source.running_session() as spark:
        return pipeline_jobs.audit(lab, spark, options.positions, options.repetitions)


def _sink(lab: Onewriter, options: Options) -> Report:
    with pipeline_source.running_session() as spark:
        return pipeline_jobs.sink(lab, spark, options.rows, options.repetitions)


def _memory(lab: Onewriter, options: Options) -> Report:
    with pipeline_source.running_session() as spark:
        return pipeline_jobs.memory(lab, spark, options.messages // 8)


PARTS: Mapping[str, Part] = {
    "source": Part("Reading topics with Spark, beside a plain Pulsar reader", _source),
    "offload": Part("Offload to a table", _offload),
    "audit": Part("The audit of many positions", _audit),
    "sink": Part("Writing exactly once", _sink),
    "memory": Part("Memory of executors", _memory),
}
"""In the order of the page; a new part is one more line here."""


def merged(page: str, measured: Mapping[str, str]) -> str:
    """The page with these parts in it, by title; everything else stays."""
    first, sdk, pipeline, operator = divisions(page)
    parts = {**parts_of(pipeline), **measured}
    titles = [each.title for each in PARTS.values()]
    division = division_of(PIPELINE_HEADING, _INTRODUCTION, parts, titles)
    return joined(first.strip() or "# Benchmarks", sdk, division, operator)


def run(names: Sequence[str], options: Options, output: Path, command: str) -> None:
    """Measure these parts and write each into the page."""
    machine = describe_machine()
    print(machine, flush=True)
    load_before = machine.load_average_1_minute
    for name in names:
        chosen = PARTS[name]
        began = time.monotonic()
        with Onewriter() as lab:
            text, goals, lines = chosen.measure(lab, options)
        load = os.getloadavg()[0]
        conditions = Conditions(str(machine), command, load_before, load)
        section = part(text, conditions, goals, lines)
        before = output.read_text() if output.exists() else ""
        output.write_text(merged(before, {chosen.title: section}))
        print(f"\n{section}\n\n{name} took {time.monotonic() - began:.0f} s", flush=True)


def main() -> int:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.pipeline_run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--parts", default=",".join(PARTS), help="of " + ", ".join(PARTS))
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--messages", type=int, default=2_000_000, help="read and offloaded")
    parser.add_argument("--positions", type=int, default=5_000_000, help="audited")
    parser.add_argument("--rows", type=int, default=500_000, help="of each batch of the sink")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    given = parser.parse_args()
    names = [name.strip() for name in given.parts.split(",") if name.strip()]
    if unknown := set(names) - set(PARTS):
        parser.error(f"unknown parts: {', '.join(sorted(unknown))}")
    words = sys.argv[1:]
    if "--output" in words:  # where it was written says nothing about what was measured
        at = words.index("--output")
        del words[at : at + 2]
    command = " ".join(["python -m bench.pipeline_run", *words])
    options = Options(given.repetitions, given.messages, given.positions, given.rows)
    run(names, options, given.output, command)
    return 0


if __name__ == "__main__":
    sys.exit(main())
